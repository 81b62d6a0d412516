"""Requests to a sandbox and its results: code goes in, plain values come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


class CannotContain(RuntimeError):
    """This machine cannot contain programs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Limits of a program.

    Attributes:
        cpu_seconds (`float`, defaults to `2.0`):
            Processor time.
        wall_seconds (`float`, defaults to `3.0`):
            Wall-clock time, which also passes while other processes use the cores. On a machine that also trains, set
            it to several times `cpu_seconds`; otherwise correct programs time out.
        memory_mb (`int`, defaults to `512`):
            Address space, in MiB.
        output_bytes (`int`, defaults to `65536`):
            Size of the printed output, and size of all returned values together. In a trial, size of each value.
        readable (`tuple[str, ...]`, defaults to none):
            Files and folders that the program may read, in addition to Python's standard library. Folders are also
            searched for imports.
        writable (`tuple[str, ...]`, defaults to none):
            Folders that the program may write to.
        threads (`bool`, defaults to `False`):
            Whether the program may start threads.

    Raises:
        ValueError: If seconds are not in [0.001, 10⁶], memory or output is not a positive whole number, or a path is
            not absolute.
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
                    f"`{name}` ({seconds}) must be in [0.001, 1000000]: a program needs time, and must end."
                )
        for name in ("memory_mb", "output_bytes"):
            if type(number := getattr(self, name)) is not int or number < 1:
                raise ValueError(f"`{name}` ({number}) must be a positive whole number: a program needs some.")
        for path in (*self.readable, *self.writable):
            if not path.startswith("/"):
                raise ValueError(f"`{path}` must be an absolute path: a program starts in the root folder.")


class ProgramEnding(StrEnum):
    """The way a program ended."""

    FINISHED = "finished"
    """It ran to its end, and each call has a result. Without calls, also `sys.exit()` and `sys.exit(0)`."""
    SYNTAX_ERROR = "syntax_error"
    """Python could not compile it. Includes wrong indentation."""
    RAISED = "raised"
    """It raised an exception outside the calls."""
    TIMEOUT = "timeout"
    """It reached its processor time or its wall-clock time."""
    OUTPUT_LIMIT = "output_limit"
    """It printed or returned more than its limit."""
    KILLED = "killed"
    """A signal or `os._exit` ended it (a crash, a forbidden system call), or it forged messages."""

    @property
    def failed(self) -> bool:
        """`True` unless the program ran to its end."""
        return self is not ProgramEnding.FINISHED


@dataclass(frozen=True, slots=True)
class Job:
    """
    A program to run.

    Attributes:
        code (`str`):
            Python source, run as `__main__`.
        calls (`tuple[str, ...]`, defaults to none):
            Expressions such as `"f([1, 2])"`, evaluated in order after the code, in its namespace.
        hash_seed (`int`, defaults to `0`):
            Seed of Python's string hashes (`PYTHONHASHSEED`), which determine the order of sets.

    Raises:
        ValueError: If the seed is not in [0, 2³²).
    """

    code: str
    calls: tuple[str, ...] = ()
    hash_seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.hash_seed < 1 << 32:
            raise ValueError(f"`hash_seed` ({self.hash_seed}) must be in [0, 2**32), the range that Python accepts.")


@dataclass(frozen=True, slots=True)
class CallResult:
    """
    The result of one call: a value or an exception.

    Attributes:
        value (`Any`):
            `None`, `bool`, `int`, `float`, `complex`, `str`, `bytes`, `list`, `tuple`, `dict`, `set` or `frozenset`,
            nested as needed and of exactly these types. `None` if the call raised.
        error (`str`, *optional*):
            Name of the exception's class, or `"NotPlain"` for a value of any other type.
    """

    value: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """
    The result of a program.

    The types are guaranteed, the content is not: the program may have forged it.

    Attributes:
        ending ([`ProgramEnding`]):
            The way it ended.
        output (`str`):
            Its stdout and stderr, up to the limit. Bytes that are not UTF-8 are replaced.
        answers (`tuple[CallResult, ...]`):
            One for each call, in order; fewer if the program ended early.
        error (`str`, *optional*):
            Class name of the exception that ended it (`"ZeroDivisionError"`, `"MemoryError"`), name of the signal
            (`"SIGSEGV"`), `"exit"` or `"protocol"`.
        message (`str`):
            First line of the exception's message.
        cpu_seconds (`float`):
            Processor time that the kernel counted.
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
    A program and its tests. They run in different processes.

    Arguments and values are copied between the processes, so the program never returns the object that it received.

    Attributes:
        code (`str`):
            The program.
        tests (`str`):
            Trusted Python source. The trial passes if it runs to its end. It is contained like the program.
        entry_points (`tuple[str, ...]`):
            Functions of the program that the tests call. In the tests each is a stub: it sends the call to the process
            of the program and returns the plain value that comes back.
        in_place (`bool`, defaults to `False`):
            Whether changes of the arguments in the program are applied in the tests too. Only for tests that check an
            argument after the call. Such tests must not compute an expected value from that argument.
    """

    code: str
    tests: str
    entry_points: tuple[str, ...]
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class TrialResult:
    """
    The result of a trial.

    Attributes:
        passed (`bool`):
            Whether the tests ran to their end.
        error (`str`, *optional*):
            Reason of a failure: class name of the exception that ended the tests (`"AssertionError"`) or the program
            (`"SyntaxError"`, `"NameError"`), or `"Timeout"`, `"OutputLimit"`, `"Killed"`.
        ending ([`ProgramEnding`]):
            The way the program ended.
        output (`str`):
            Output of the program.
    """

    passed: bool
    error: str | None = None
    ending: ProgramEnding = ProgramEnding.FINISHED
    output: str = ""


class Sandbox(Protocol):
    """
    Runs untrusted programs. Implement it to run them elsewhere, for example in a service of your own.

    Jobs are isolated from each other, and the result of a job does not depend on other jobs. Failures of the sandbox
    itself raise; a program cannot cause an exception.
    """

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Run programs, several at once if there are enough cores. Results are in the order of the jobs."""

    def judge(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """Run programs against their tests, several at once. Results are in the order of the trials."""

    def close(self) -> None:
        """End the sandbox and its processes. Closing twice is allowed; a closed sandbox runs nothing."""
