"""
What runs inside a contained process: a program, with the calls that it is asked to answer.

The process has nothing to lose. Whatever a program does to this module, to builtins or to its own memory, it can only
change what is said of it, and the other side takes nothing from it but plain values.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from types import ModuleType
from typing import Any

from trl_spiral.sandbox.values import NotPlain, TooLarge, encode, send


MOST_WORDS = 200  # characters kept of an exception's name or words


class Report:
    """
    The way back to whoever asked.

    Args:
        fd (`int`):
            A socket.
        limit (`int`):
            Most bytes that all values may take.
    """

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self.room = limit

    def value(self, value: object) -> None:
        """
        What a call came to.

        Raises:
            NotPlain: If it does not travel.
            TooLarge: If there is no room for it.
        """
        try:
            self._send((True, value))
        except RecursionError as error:  # called from deep down, or the program has lowered the limit
            raise NotPlain("a value is nested too deeply") from error

    def error(self, error: BaseException) -> None:
        """The exception that a call raised, or that its value does not travel."""
        self._send((False, class_name(error)))

    def truth(self, value: object) -> None:
        """Of a value that does not travel, the name of its type and whether it counts as true."""
        self._send(("object", class_name(value), bool(value)))

    def end(self, ending: str, error: BaseException | None = None) -> None:
        """How it all ended; the last message."""
        told = ("", "") if error is None else (class_name(error), words(error))
        send(self.fd, encode((ending, *told), 8 * MOST_WORDS + 100))

    def _send(self, message: tuple[object, ...]) -> None:
        data = encode(message, self.room)
        self.room -= len(data)
        send(self.fd, data)


def class_name(value: object) -> str:
    """The name of a value's class as it was given to the class, whatever its metaclass says."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return str.__str__(name)[:MOST_WORDS]


def words(error: BaseException) -> str:
    """First line of what an exception says, cut short; empty if it cannot say it."""
    try:
        return str.__str__(str(error))[:MOST_WORDS].split("\n")[0]
    except BaseException:
        return ""


def load(code: str) -> tuple[dict[str, Any], str, BaseException | None]:
    """Runs source as `__main__`. Returns its names, how it ended, and the exception that ended it."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    names = module.__dict__
    try:
        compiled = compile(code, "<program>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # a null byte is a ValueError
        return names, "syntax_error", error
    except BaseException as error:  # nested too deeply for the compiler: RecursionError, MemoryError
        return names, "raised", error
    try:
        exec(compiled, names)
    except BaseException as error:
        return names, "raised", error
    return names, "finished", None


def run(report: Report, code: str, calls: tuple[str, ...]) -> None:
    """A program, then calls in its names."""
    streams = (sys.stdout, sys.stderr)
    names, ending, error = load(code)
    if _left_well(error) and not calls:  # with calls to answer, it has left before its end
        ending, error = "finished", None
    if ending == "finished":
        try:
            for call in calls:
                _answer(report, call, names)
        except TooLarge:
            ending = "output_limit"
    join_threads()
    flush(streams)
    report.end(ending, error)


def _left_well(error: BaseException | None) -> bool:
    """Whether it is `sys.exit()` or `sys.exit(0)`; any other code says that something went wrong."""
    try:
        return isinstance(error, SystemExit) and (
            error.code is None or (isinstance(error.code, int) and not error.code)
        )
    except BaseException:  # a kind of `SystemExit` may have a `code` of its own
        return False


def _answer(report: Report, call: str, names: dict[str, Any]) -> None:
    try:
        value = eval(compile(call, "<call>", "eval", dont_inherit=True), names)
    except BaseException as raised:
        report.error(raised)
        return
    try:
        report.value(value)
    except NotPlain as error:
        report.error(error)


def join_threads() -> None:
    """Waits for the threads that a program has started, daemons excepted, as Python does at its end."""
    try:
        threading = sys.modules["threading"]
        while others := [each for each in threading.enumerate() if not each.daemon and each.ident != get_ident()]:
            others[0].join()
    except BaseException:  # never imported, or replaced
        pass


def flush(streams: tuple[Any, ...]) -> None:
    """Writes what was printed and not yet written, to the streams that there were and to those that there are."""
    for stream in (*streams, sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # closed, or replaced by something that is no stream
            pass
