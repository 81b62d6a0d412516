"""
Run a program and its calls inside a contained process.

A program may change this module, builtins and its own memory. That can only falsify its results: the other side
accepts nothing but plain values.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from types import ModuleType
from typing import Any

from trl_spiral.sandbox.values import NotPlain, TooLarge, encode, send


MOST_WORDS = 200  # characters of an exception's name or message


class Report:
    """
    Sends results over a socket.

    Args:
        fd (`int`):
            The socket.
        limit (`int`):
            Maximum size in bytes of all values.
    """

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self.room = limit

    def value(self, value: object) -> None:
        """
        Send the value of a call.

        Raises:
            NotPlain: If it is not a plain value.
            TooLarge: If it exceeds the limit.
        """
        try:
            self._send((True, value))
        except RecursionError as error:  # called from deep down, or the program has lowered the limit
            raise NotPlain("a value is nested too deeply") from error

    def error(self, error: BaseException) -> None:
        """Send the class name of the exception of a call."""
        self._send((False, class_name(error)))

    def truth(self, value: object) -> None:
        """Send the type name and the truth value of a value that is not plain."""
        self._send(("object", class_name(value), bool(value)))

    def end(self, ending: str, error: BaseException | None = None) -> None:
        """Send the ending of the program, the last message."""
        reason = ("", "") if error is None else (class_name(error), _first_line(error))
        send(self.fd, encode((ending, *reason), 8 * MOST_WORDS + 100))

    def _send(self, message: tuple[object, ...]) -> None:
        data = encode(message, self.room)
        self.room -= len(data)
        send(self.fd, data)


def class_name(value: object) -> str:
    """Return the name of a value's class, bypassing its metaclass."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return str.__str__(name)[:MOST_WORDS]


def _first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, truncated; empty if the message raises."""
    try:
        return str.__str__(str(error))[:MOST_WORDS].split("\n")[0]
    except BaseException:
        return ""


def load(code: str) -> tuple[dict[str, Any], str, BaseException | None]:
    """Run source as `__main__`. Return its namespace, its ending and the exception that ended it."""
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
    """Run a program, then evaluate the calls in its namespace."""
    streams = (sys.stdout, sys.stderr)
    names, ending, error = load(code)
    if _is_success(error) and not calls:  # with calls, it has exited too early
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


def _is_success(error: BaseException | None) -> bool:
    """Return whether an exception is `sys.exit()` or `sys.exit(0)`."""
    try:
        return isinstance(error, SystemExit) and (
            error.code is None or (isinstance(error.code, int) and not error.code)
        )
    except BaseException:  # a subclass may define `code` itself
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
    """Wait for the non-daemon threads of a program, as Python does at its end."""
    try:
        threading = sys.modules["threading"]
        while others := [each for each in threading.enumerate() if not each.daemon and each.ident != get_ident()]:
            others[0].join()
    except BaseException:  # never imported, or replaced
        pass


def flush(streams: tuple[Any, ...]) -> None:
    """Flush the original streams and the current ones."""
    for stream in (*streams, sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # closed, or replaced by another object
            pass
