"""
What runs inside the two contained processes of a trial: a program in one, its tests in the other.

The tests find a stand-in for each function of the program. Calling one sends name and arguments over a socket that the two
processes share; the plain value that the program sends back is what the tests see. So the program is never told what
is expected of it, and can hand over no object that claims to equal everything.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from trl_spiral.sandbox.program import Report, flush, load
from trl_spiral.sandbox.values import Malformed, NotPlain, TooLarge, decode, encode, receive, send


MOST_ARGUMENTS = 1 << 28  # bytes; tests are trusted, and limited by their memory


class ProgramGone(BaseException):
    """In the tests: the program's process has ended. Not an `Exception`, so that tests do not catch it by accident."""


class Object:
    """
    In the tests: a value of the program that does not travel, such as the match of a regular expression.

    It counts as true where the program's counts as true. Nothing else can be asked of it, least of all whether it equals
    something.
    """

    def __init__(self, kind: str, truth: bool) -> None:
        self._kind = kind
        self._truth = truth

    def __bool__(self) -> bool:
        return self._truth

    def _refuse(self, *others: object) -> NoReturn:
        raise NotPlain(f"the program returned a `{self._kind}`, of which tests see only whether it is true")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse


def run_program(report: Report, code: str, entry_points: tuple[str, ...], peer: int, limit: int) -> None:
    """A program, then the calls that its tests send, until they hang up."""
    streams = (sys.stdout, sys.stderr)
    names, ending, error = load(code)
    if ending == "finished":
        try:
            _answer_all(peer, limit, {name: names[name] for name in entry_points if name in names})
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass
        except TooLarge:
            ending = "output_limit"
    flush(streams)
    report.end(ending, error)


def _answer_all(peer: int, limit: int, functions: dict[str, Callable[..., Any]]) -> None:
    while True:
        name, arguments, keywords = decode(receive(peer, MOST_ARGUMENTS))
        report = Report(peer, limit)  # with room anew: tests may call often, and keep nothing
        if name not in functions:
            report.error(NameError(name))
            continue
        try:
            value = functions[name](*arguments, **keywords)
        except BaseException as raised:
            report.error(raised)
            continue
        try:
            report.value(value)
        except NotPlain:
            _answer_truth(report, value)


def _answer_truth(report: Report, value: object) -> None:
    try:
        report.truth(value)
    except BaseException as raised:
        report.error(raised)


def run_tests(report: Report, tests: str, entry_points: tuple[str, ...], peer: int, limit: int) -> None:
    """The tests of a trial, with stand-ins for the program's functions."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    for name in entry_points:
        module.__dict__[name] = _stand_in(name, peer, limit)
    try:
        exec(compile(tests, "<tests>", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        report.end("raised", error)
    else:
        report.end("finished")


def _stand_in(name: str, peer: int, limit: int) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        data = encode((name, arguments, keywords), MOST_ARGUMENTS)
        try:
            send(peer, data)
            reply = decode(receive(peer, limit))
        except (EOFError, BrokenPipeError, ConnectionResetError, Malformed):
            raise ProgramGone(f"the program ended in `{name}`") from None
        match reply:
            case (True, value):
                return value
            case (False, str(error)):
                raise _exception(error, name)
            case ("object", str(kind), bool(truth)):
                return Object(kind, truth)
        raise ProgramGone(f"the program answered `{name}` with something else than a value")

    call.__name__ = call.__qualname__ = name
    return call


def _exception(error: str, name: str) -> Exception:
    """
    The exception of this name: Python's own if it has one, else a kind of `RuntimeError`.

    Those that end a loop in silence are not handed on: `all(map(f, cases))` would pass where the first call raises one.
    """
    kind = getattr(builtins, error, None)
    told = f"`{name}` raised {error} in the program"
    if (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, StopIteration | StopAsyncIteration)
    ):
        try:
            raised: Exception = kind(told)
            return raised
        except TypeError:  # wants more than words, as `UnicodeDecodeError` does
            pass
    own: Exception = type(error, (RuntimeError,), {})(told)
    return own
