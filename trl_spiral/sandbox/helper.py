"""The parent's side of a helper process and its children."""

from __future__ import annotations

import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

from trl_spiral.sandbox.base import CallResult, JobResult, Limits, ProgramEnding
from trl_spiral.sandbox.child import MOST_SOURCE
from trl_spiral.sandbox.program import MOST_WORDS
from trl_spiral.sandbox.values import Malformed, decode, encode, send, split
from trl_spiral.sandbox.zygote import COMMAND, REPORT


# The helper process receives our modules over its socket, compiled under neutral file names. It imports none from
# disk, so neither its memory nor its command line contains the path of an installation or of a virtual environment.
MODULES = ("values", "base", "libc", "landlock", "seccomp", "kernel", "library", "program", "trial", "child", "zygote")
LOAD = """
import marshal, socket, sys, types
control = socket.socket(fileno=int(sys.argv[1]))
size = int.from_bytes(control.recv(4, socket.MSG_WAITALL), "big")
for name, code in marshal.loads(control.recv(size, socket.MSG_WAITALL)):
    module = sys.modules[name] = types.ModuleType(name)
    package, _, tail = name.rpartition(".")
    if package:
        setattr(sys.modules[package], tail, module)
    exec(code, vars(module))
control.detach()
"""
START = "from trl_spiral.sandbox import zygote; zygote.main()"
PYTHON: str = sys._base_executable  # type: ignore[attr-defined]
"""The interpreter outside its virtual environment, whose path is hidden from programs."""
CHUNK = 1 << 16
SLACK = 1024  # bytes of messages in addition to values
PER_CALL = 16  # more for each result of a call
# The kernel counts processor time in two ways. On an overloaded virtual machine, the count used for the limit has been
# a quarter ahead of the reported one.
LATE = 0.5  # of the limit: a SIGKILL after that means that the limit was reached; only the kernel and we can send it
_LAST = (
    ProgramEnding.FINISHED,
    ProgramEnding.SYNTAX_ERROR,
    ProgramEnding.RAISED,
    ProgramEnding.OUTPUT_LIMIT,
)  # endings that a child may report


class HelperLost(RuntimeError):
    """A helper process has ended, or cannot fork or contain its children."""


class Child:
    """
    The parent's view of one contained process.

    Args:
        job (`tuple`):
            Its job, in plain values.
        limits ([`Limits`]):
            Its limits.
        calls (`int`, defaults to `0`):
            Number of calls to evaluate.
        prints (`bool`, defaults to `True`):
            Whether to collect its output.
    """

    def __init__(self, job: tuple[Any, ...], limits: Limits, calls: int = 0, prints: bool = True) -> None:
        self.limits = limits
        self.calls = calls
        self.socket, self.far_socket = socket.socketpair()
        self.socket.setblocking(False)
        data = encode(job, MOST_SOURCE)
        self.unsent = memoryview(len(data).to_bytes(4, "big") + data)
        self.received = bytearray()
        self.room = limits.output_bytes + SLACK + PER_CALL * calls
        self.contained = False
        self.answers: list[CallResult] = []
        self.last: tuple[ProgramEnding, str | None, str] | None = None
        self.output = bytearray()
        if prints:
            self.pipe, self.far_pipe = os.pipe()
            os.set_blocking(self.pipe, False)
        else:
            self.pipe, self.far_pipe = -1, os.open(os.devnull, os.O_WRONLY)
        self.too_much = self.malformed = False
        # Set when it has been waited for:
        self.status: int | None = None
        self.cpu_seconds = 0.0
        self.out_of_time = False

    def hand_over(self) -> list[int]:
        """Return the descriptors for the child. Close them here when the child has them."""
        return [self.far_socket.fileno(), self.far_pipe]

    def close_far_ends(self) -> None:
        """Close the descriptors that only the child needs."""
        self.far_socket.close()
        if self.far_pipe >= 0:
            os.close(self.far_pipe)
            self.far_pipe = -1

    def close(self) -> None:
        """Close all descriptors."""
        self.close_far_ends()
        self.socket.close()
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def write(self) -> None:
        """Send as much of the job as fits."""
        try:
            sent = self.socket.send(self.unsent)
        except BlockingIOError:
            return
        except OSError:  # it has ended: see its wait status
            sent = len(self.unsent)
        self.unsent = self.unsent[sent:]

    def read_socket(self) -> bool:
        """Read available messages. Return `False` if there are none, or no more to come."""
        try:
            data = self.socket.recv(CHUNK)
        except OSError:  # nothing there; or reset by a child that ended without reading its job
            return False
        self.received += data
        self.room -= len(data)
        self.too_much |= self.room < 0
        try:
            for message in split(self.received):
                self._take(decode(message))
        except Malformed:
            self.malformed = True
        return bool(data) and not self.broken

    def read_pipe(self) -> bool:
        """Read available output. Return `False` if there is none, or no more to come."""
        try:
            data = os.read(self.pipe, CHUNK)
        except BlockingIOError:
            return False
        room = self.limits.output_bytes - len(self.output)
        self.output += data[:room]
        self.too_much |= len(data) > room
        return bool(data) and not self.broken

    def drain(self) -> None:
        """Read everything that is left of a child that has ended."""
        while not self.broken and self.read_socket():
            pass
        while not self.broken and self.pipe >= 0 and self.read_pipe():
            pass

    def _take(self, message: Any) -> None:
        match message:
            case "contained" if not self.contained:
                self.contained = True
                return
            case (True, value) if self.contained and self.last is None and len(self.answers) < self.calls:
                self.answers.append(CallResult(value))
                return
            case (False, str(error)) if self.contained and self.last is None and len(self.answers) < self.calls:
                self.answers.append(CallResult(error=_printable(error)))
                return
            case (str(ending), str(error), str(message)) if self.contained and self.last is None:
                if ending in _LAST and (ending != ProgramEnding.FINISHED or len(self.answers) == self.calls):
                    self.last = (ProgramEnding(ending), _printable(error) or None, _printable(message))
                    return
        raise Malformed("a child sent an unexpected message")

    @property
    def broken(self) -> bool:
        """`True` if it has sent too much or malformed messages. It must then be killed."""
        return self.too_much or self.malformed

    def result(self) -> JobResult:
        """
        Return its result, after it has ended.

        Raises:
            HelperLost: If it ended before it was contained.
        """
        ending, error, message = self._ending()
        output = self.output.decode("utf-8", "replace")
        return JobResult(ending, output, tuple(self.answers), error, message, self.cpu_seconds)

    def _ending(self) -> tuple[ProgramEnding, str | None, str]:
        assert self.status is not None, "the child has not ended yet"
        if self.too_much:
            return ProgramEnding.OUTPUT_LIMIT, None, ""
        if self.out_of_time:
            return ProgramEnding.TIMEOUT, None, ""
        if not self.contained:
            reason = self.output[:MOST_WORDS].decode("utf-8", "replace") or "no reason given"
            raise HelperLost(f"A child of the sandbox ended before it was contained ({reason}).")
        if self.malformed:
            return ProgramEnding.KILLED, "protocol", ""
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            if number == signal.SIGKILL and self.cpu_seconds > LATE * self.limits.cpu_seconds:
                return ProgramEnding.TIMEOUT, None, ""
            name = signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"
            return ProgramEnding.KILLED, name, ""
        if self.last is None or self.status != 0:
            return ProgramEnding.KILLED, "exit", ""
        return self.last


def _printable(text: str) -> str:
    """Return a program's text truncated and as valid UTF-8, to be printed and logged."""
    return text[:MOST_WORDS].encode("utf-8", "replace").decode()


@cache
def _modules() -> bytes:
    """Return the helper's modules as pairs of name and code, in the order of their imports."""
    folder = files("trl_spiral.sandbox")
    sources = dict.fromkeys(("trl_spiral", "trl_spiral.sandbox"), "__path__ = []")
    sources |= {f"trl_spiral.sandbox.{name}": (folder / f"{name}.py").read_text("utf-8") for name in MODULES}
    return marshal.dumps([(name, compile(source, f"<{name}>", "exec")) for name, source in sources.items()])


class Helper:
    """
    A helper process and the reports about its children.

    Args:
        limits ([`Limits`]):
            Limits of a program.
        hash_seed (`int`):
            Seed of string hashes.
        prefix (`Sequence[str]`, defaults to none):
            Command that starts it.
    """

    def __init__(self, limits: Limits, hash_seed: int, prefix: Sequence[str] = ()) -> None:
        self.control, far = socket.socketpair()
        with far:
            # No warnings: Python's own messages are not output of the program, and change with its version. `-I` is
            # `-E -P -s` and would ignore the seed; the environment contains only the seed, so `-E` adds nothing.
            options = ["-P", "-s", "-S", "-B", "-W", "ignore"]
            try:
                self.process = subprocess.Popen(
                    [*prefix, PYTHON, *options, "-c", LOAD + START, str(far.fileno())],
                    env={"PYTHONHASHSEED": str(hash_seed)},
                    pass_fds=[far.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # and errors, as soon as it has started
                    start_new_session=True,  # the trainer handles an interrupt from the keyboard
                )
            except BaseException:  # too many processes or descriptors
                self.control.close()
                raise
        with suppress(BrokenPipeError):  # it has ended already; the first command fails
            send(self.control.fileno(), _modules())
            send(self.control.fileno(), encode(asdict(limits), CHUNK))
        self.children: dict[int, Child] = {}
        self.started = 0
        self.received = bytearray()

    def fork(self, child: Child, wall_seconds: float, *more: int) -> None:
        """Fork a child that inherits its own descriptors and those in `more`."""
        self.children[self.started] = child
        self._command(b"F", self.started, wall_seconds, child.hand_over() + list(more))
        child.close_far_ends()
        self.started += 1

    def kill(self, child: Child) -> None:
        """Kill a child."""
        for number, each in self.children.items():
            if each is child:
                self._command(b"K", number, 0.0, [])

    def read_reports(self) -> None:
        """
        Read the reports of children that have ended.

        Raises:
            HelperLost: If the helper process has ended.
        """
        try:
            data = self.control.recv(CHUNK)
        except ConnectionResetError:
            data = b""
        if not data:
            raise HelperLost("The helper process of the sandbox has ended.")
        self.received += data
        while len(self.received) >= REPORT.size:
            number, status, cpu_seconds, out_of_time = REPORT.unpack_from(self.received)
            del self.received[: REPORT.size]
            child = self.children.pop(number)
            child.status, child.cpu_seconds, child.out_of_time = status, cpu_seconds, out_of_time

    def _command(self, order: bytes, number: int, seconds: float, descriptors: list[int]) -> None:
        try:
            socket.send_fds(self.control, [COMMAND.pack(order, number, seconds)], descriptors)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise HelperLost("The helper process of the sandbox has ended.") from error

    def close(self) -> None:
        """End the helper process and its children."""
        self.control.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
