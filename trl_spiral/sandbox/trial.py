"""
Run a program and its tests inside the two contained processes of a trial.

The tests contain a stub for each function of the program. A call of a stub sends its name and arguments over a socket
that the two processes share, and returns the plain value that the program sends back. So the program never receives
the expected values, and cannot return an object that claims to equal everything. Changes of arguments stay in the
program's process. Only a trial with `in_place` sends them back, before the value, and the stub applies them to the
arguments of the tests.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

from trl_spiral.sandbox.program import Report, flush, load
from trl_spiral.sandbox.values import Malformed, NotPlain, TooLarge, decode, encode, receive, send


MOST_ARGUMENTS = 1 << 28  # bytes; tests are trusted and limited by their memory


class ProgramGone(BaseException):
    """In the tests: the program's process has ended. Not an `Exception`, so tests do not catch it by accident."""


class Object:
    """
    In the tests: a value of the program that is not plain, such as the match of a regular expression.

    It has the truth value of the program's object. All other operations raise, comparisons included.
    """

    def __init__(self, kind: str, truth: bool) -> None:
        self._kind = kind
        self._truth = truth

    def __bool__(self) -> bool:
        return self._truth

    def _refuse(self, *others: object) -> NoReturn:
        raise NotPlain(f"the program returned a `{self._kind}`, of which tests see only the truth value")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse


@dataclass(frozen=True, slots=True)
class Link:
    """
    The connection between the two processes of a trial.

    Attributes:
        peer (`int`):
            Socket to the other process.
        limit (`int`):
            Maximum size of a value in bytes.
        in_place (`bool`):
            Whether changes of arguments are sent back.
    """

    peer: int
    limit: int
    in_place: bool


def run_program(report: Report, code: str, entry_points: tuple[str, ...], link: Link) -> None:
    """Run a program, then evaluate the calls that its tests send until they close the connection."""
    streams = (sys.stdout, sys.stderr)
    names, ending, error = load(code)
    if ending == "finished":
        try:
            _answer_all(link, {name: names[name] for name in entry_points if name in names})
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass
        except TooLarge:
            ending = "output_limit"
    flush(streams)
    report.end(ending, error)


def _answer_all(link: Link, functions: dict[str, Callable[..., Any]]) -> None:
    while True:
        data = receive(link.peer, MOST_ARGUMENTS)
        name, arguments, keywords = decode(data)
        most = _most_changes(data, link.limit)
        held = _changeable((arguments, keywords)) if link.in_place else []
        before = [encode(state, most) for state in _states(held)]
        report = Report(link.peer, link.limit)  # a new limit for each call: tests may call often
        value, error = None, None
        try:
            value = functions[name](*arguments, **keywords) if name in functions else _lacks(name)
        except BaseException as raised:
            error = raised
        if link.in_place:
            try:
                after = list(enumerate(_states(held)))
                changes = [(at, state) for at, state in after if encode(state, most) != before[at]]
                send(link.peer, encode(changes, most))
            except (NotPlain, RecursionError):
                send(link.peer, encode([], most))
                if error is None:
                    error = NotPlain("an argument contains a value that is not plain")
        if error is not None:
            report.error(error)
            continue
        try:
            report.value(value)
        except NotPlain:
            _answer_truth(report, value)


def _most_changes(call: bytes, limit: int) -> int:
    """Return the maximum size of changes of a call's arguments: indices and tags take up to seven bytes per byte."""
    return 8 * len(call) + limit


def _lacks(name: str) -> NoReturn:
    raise NameError(name)


def _changeable(value: object) -> list[Any]:
    """Return the lists, dicts and sets in a plain value, in the same order as for its copy in the other process."""
    found: list[Any] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list | dict | set):
            found.append(item)
        if isinstance(item, list | tuple | dict):  # members of a set and keys are immutable
            waiting.extend(item.values() if isinstance(item, dict) else item)
    return found


def _states(held: list[Any]) -> list[Any]:
    """Return the contents of lists, dicts and sets: plain values, and indices in place of containers from `held`."""
    numbers = {id(each): number for number, each in enumerate(held)}

    def state(item: Any) -> tuple[bool, Any]:
        return (True, numbers[id(item)]) if id(item) in numbers else (False, item)

    return [
        [(key, state(item)) for key, item in each.items()]
        if type(each) is dict
        else [state(item) for item in each]
        if type(each) is list
        else each
        for each in held
    ]


def _change(held: list[Any], changes: list[Any]) -> None:
    """Apply changes from the other process to lists, dicts and sets."""

    def item(state: tuple[bool, Any]) -> Any:
        is_number, value = state
        return held[value] if is_number else value

    for number, state in changes:
        each = held[number]
        if isinstance(each, list):
            each[:] = [item(one) for one in state]
        elif isinstance(each, dict):
            new = {key: item(one) for key, one in state}
            each.clear()
            for key, value in new.items():  # not `update`, which adds up in a `Counter`
                each[key] = value
        else:
            each.intersection_update(state)
            each.update(state)


def _answer_truth(report: Report, value: object) -> None:
    try:
        report.truth(value)
    except BaseException as raised:
        report.error(raised)


def run_tests(report: Report, tests: str, entry_points: tuple[str, ...], link: Link) -> None:
    """Run the tests of a trial, with stubs for the program's functions."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    for name in entry_points:
        module.__dict__[name] = _stub(name, link)
    try:
        exec(compile(tests, "<tests>", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        report.end("raised", error)
    else:
        report.end("finished")


def _stub(name: str, link: Link) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        data = encode((name, arguments, keywords), MOST_ARGUMENTS)
        try:
            send(link.peer, data)
            changes = decode(receive(link.peer, _most_changes(data, link.limit))) if link.in_place else []
            reply = decode(receive(link.peer, link.limit))
            _change(_changeable((arguments, keywords)), changes)
        except (EOFError, BrokenPipeError, ConnectionResetError, Malformed, LookupError, TypeError, ValueError):
            raise ProgramGone(f"the program ended in `{name}`") from None
        match reply:
            case (True, value):
                return value
            case (False, str(error)):
                raise _exception(error, name)
            case ("object", str(kind), bool(truth)):
                return Object(kind, truth)
        raise ProgramGone(f"the program answered `{name}` with a malformed message")

    call.__name__ = call.__qualname__ = name
    return call


def _exception(error: str, name: str) -> Exception:
    """
    Return an exception of this name: Python's own if there is one, otherwise a subclass of `RuntimeError`.

    `StopIteration` and `StopAsyncIteration` are replaced, since they end loops silently: `all(map(f, cases))` would
    pass if the first call raised one.
    """
    kind = getattr(builtins, error, None)
    message = f"`{name}` raised {error} in the program"
    if (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, StopIteration | StopAsyncIteration)
    ):
        try:
            raised: Exception = kind(message)
            return raised
        except TypeError:  # needs more arguments, as `UnicodeDecodeError` does
            pass
    own: Exception = type(error, (RuntimeError,), {})(message)
    return own
