"""What a sandbox is asked and what it answers: code goes in, plain values come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


class CannotContain(RuntimeError):
    """This machine lacks what it takes to contain a program."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    What a program may use.

    Attributes:
        cpu_seconds (`float`, defaults to `2.0`):
            Processor time.
        wall_seconds (`float`, defaults to `3.0`):
            Time by the clock, asleep or not. It goes by while others have the cores, too: where a machine also trains, keep
            it several times `cpu_seconds`, or right programs run out of it.
        memory_mb (`int`, defaults to `512`):
            Address space, in MiB.
        output_bytes (`int`, defaults to `65536`):
            What it may print, and the size of all values that it returns, each; on trial, the size of each value.
        readable (`tuple[str, ...]`, defaults to none):
            Files and folders that it may read, beside Python's own standard library. Folders are also searched for imports.
        writable (`tuple[str, ...]`, defaults to none):
            Folders that it may write to.
        threads (`bool`, defaults to `False`):
            Whether it may start threads.

    Raises:
        ValueError: If seconds are not in [0.001, 10⁶], memory or output is not a positive whole number, or a path is not
            absolute.
    """

    cpu_seconds: float = 2.0
    wall_seconds: float = 3.0
    memory_mb: int = 512
    output_bytes: int = 65536
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    threads: bool = False

    def __post_init__(self) -> None:
        for name in ("cpu_seconds", "wall_seconds"):
            if not 1e-3 <= (seconds := getattr(self, name)) <= 1e6:
                raise ValueError(
                    f"`{name}` ({seconds}) must be in [0.001, 1000000]: a program needs some time, and shall end."
                )
        for name in ("memory_mb", "output_bytes"):
            if type(number := getattr(self, name)) is not int or number < 1:
                raise ValueError(f"`{name}` ({number}) must be a whole number above 0: a program needs some.")
        for path in (*self.readable, *self.writable):
            if not path.startswith("/"):
                raise ValueError(
                    f"`{path}` must be an absolute path: a program has no folder of its own to start from."
                )


class ProgramEnding(StrEnum):
    """How a program ended."""

    FINISHED = "finished"
    """It ran to its end, or without calls to `sys.exit()` or `sys.exit(0)`; each call has a value or an exception."""
    SYNTAX_ERROR = "syntax_error"
    """Python could not compile it; wrong indentation is one of these."""
    RAISED = "raised"
    """It raised an exception outside of any call."""
    TIMEOUT = "timeout"
    """It used up its processor time or its time by the clock."""
    OUTPUT_LIMIT = "output_limit"
    """It printed, or returned, more than it may."""
    KILLED = "killed"
    """A signal or an exit of its own ended it before it had answered: a crash, `os._exit`, a forbidden system call."""

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than by running to its end."""
        return self is not ProgramEnding.FINISHED


@dataclass(frozen=True, slots=True)
class Job:
    """
    A program to run.

    Attributes:
        code (`str`):
            Python source, run as `__main__`.
        calls (`tuple[str, ...]`, defaults to none):
            Expressions, such as `"f([1, 2])"`, evaluated after the code, in its names, one after the other.
        hash_seed (`int`, defaults to `0`):
            Seed of Python's string hashes (`PYTHONHASHSEED`), on which the order of sets depends.

    Raises:
        ValueError: If the seed is not in [0, 2³²).
    """

    code: str
    calls: tuple[str, ...] = ()
    hash_seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.hash_seed < 1 << 32:
            raise ValueError(f"`hash_seed` ({self.hash_seed}) must be in [0, 2**32): Python takes no other.")


@dataclass(frozen=True, slots=True)
class CallResult:
    """
    What one call came to: a value or an exception.

    Attributes:
        value (`Any`):
            Built of `None`, `bool`, `int`, `float`, `complex`, `str`, `bytes`, `list`, `tuple`, `dict`, `set` and `frozenset`, of
            exactly these types; `None` if the call raised.
        error (`str`, *optional*):
            Name of the exception's class, or `"NotPlain"` for a value of any other type.
    """

    value: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """
    What came of a program.

    Nothing in it can be trusted to be true, only to be of these types: the program may have written it itself.

    Attributes:
        ending ([`ProgramEnding`]):
            How it ended.
        output (`str`):
            What it printed, on stdout and stderr, up to the limit; bytes that are not UTF-8 are replaced.
        answers (`tuple[CallResult, ...]`):
            One for each call, in order. Fewer if it ended before.
        error (`str`, *optional*):
            Name of the exception's class that ended it (`"ZeroDivisionError"`, `"MemoryError"`), or of the signal (`"SIGSEGV"`).
        message (`str`):
            The exception's own words, cut to a line.
        cpu_seconds (`float`):
            Processor time it took, as the kernel counted it.
    """

    ending: ProgramEnding
    output: str = ""
    answers: tuple[CallResult, ...] = ()
    error: str | None = None
    message: str = ""
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """
    A program and the tests that it has to pass. The program never shares a process with the tests.

    Arguments and values travel as copies, so nothing that the program returns is the very object that it was given.

    Attributes:
        code (`str`):
            The program on trial.
        tests (`str`):
            Python source that the trial trusts: it passes if it runs to its end. It runs contained like the program, in
            another process.
        entry_points (`tuple[str, ...]`):
            Functions of the program that the tests call. In the tests, each is a stand-in that has the program evaluate the
            call in its own process and hands over the plain value that came back.
        in_place (`bool`, defaults to `False`):
            Whether changes that the program makes to its arguments are made to the tests' own, too. Only for tests
            that look at an argument after the call. Such tests must not compute an expectation from that argument.
    """

    code: str
    tests: str
    entry_points: tuple[str, ...]
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class TrialResult:
    """
    Whether a program passed its tests.

    Attributes:
        passed (`bool`):
            Whether the tests ran to their end.
        error (`str`, *optional*):
            Why not: the class name of the exception that ended the tests (`"AssertionError"`), the program (`"SyntaxError"`,
            `"NameError"`), or `"Timeout"`, `"OutputLimit"`, `"Killed"`.
        ending ([`ProgramEnding`]):
            How the program ended.
        output (`str`):
            What the program printed.
    """

    passed: bool
    error: str | None = None
    ending: ProgramEnding = ProgramEnding.FINISHED
    output: str = ""


class Sandbox(Protocol):
    """
    Runs programs that nobody has read.

    Jobs do not see one another, and a job's outcome does not depend on what else runs. A job that cannot be run for a
    reason of the sandbox's own (its helper is gone, its server is) raises; what a program does never does.
    """

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Runs programs, several at once where there are cores for it. Outcomes in the order of the jobs."""

    def judge(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """Puts programs to their tests, several at once. Verdicts in the order of the trials."""

    def close(self) -> None:
        """Ends the sandbox and every process of it. It may be closed twice, and runs nothing afterwards."""
