"""Text that counts operations on it, to measure the work of parsing without a clock."""

import re
import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest


class Metered(str):
    """A text. Each operation adds the number of characters that it may read or copy to `work`."""

    work = 0


def wrapped(value: Any) -> Any:
    if type(value) is str:
        return Metered(value)
    return type(value)(map(wrapped, value)) if type(value) in (list, tuple) else value


def charged(name: str) -> Callable[..., Any]:
    plain = getattr(str, name)

    def call(self: Metered, *arguments: Any, **keywords: Any) -> Any:
        result = plain(self, *arguments, **keywords)
        from_there = name in ("find", "index", "startswith") and arguments[1:]
        Metered.work += len(result) if name == "__getitem__" else len(self) - (arguments[1] if from_there else 0)
        return wrapped(result)

    return call


KEPT = {
    "__class__",
    "__new__",
    "__init__",
    "__getattribute__",
    "__setattr__",
    "__hash__",
    "__len__",
    "__repr__",
    "__str__",
}
for name in set(vars(str)) - KEPT - {"__doc__", "__getnewargs__", "__sizeof__", "maketrans"}:
    setattr(Metered, name, charged(name))


class MeteredMatch:
    def __init__(self, match: re.Match[str]) -> None:
        self.match = match

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.match, name)
        return (lambda *arguments: wrapped(found(*arguments))) if callable(found) else found

    def __getitem__(self, group: int) -> Any:
        return wrapped(self.match[group])


class MeteredPattern:
    """A pattern that adds one pass over a text to `work`. `test_linear_time.py` tests that one pass is enough."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.pattern, name)

        def call(*arguments: Any) -> Any:
            text = next(each for each in reversed(arguments) if isinstance(each, str))
            Metered.work += len(text) - sum(each for each in arguments if type(each) is int)
            found = method(*(str.__str__(each) if isinstance(each, Metered) else each for each in arguments))
            if name == "finditer":
                return (MeteredMatch(each) for each in found)
            return MeteredMatch(found) if isinstance(found, re.Match) else wrapped(found)

        return call


def meter_patterns(patch: pytest.MonkeyPatch) -> None:
    """Replace the patterns and the `re` of all loaded modules of the package."""

    def shim(function: str) -> Callable[..., Any]:
        return lambda pattern, *arguments, flags=0: getattr(MeteredPattern(re.compile(pattern, flags)), function)(
            *arguments
        )

    functions = {name: shim(name) for name in ("match", "fullmatch", "search", "findall", "finditer", "split", "sub")}
    for module in [module for name, module in sys.modules.items() if name.startswith("trl_spiral.")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, re.Pattern):
                patch.setattr(module, name, MeteredPattern(value))
            elif value is re:
                patch.setattr(module, name, SimpleNamespace(**vars(re) | functions))


def work_of(read: Callable[[str], Any], text: str) -> int:
    """Return the work of reading a text: executed lines of the package plus characters used."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        # Exclude `re`, which compiles patterns again after they leave its cache.
        if not frame.f_globals["__name__"].startswith("trl_spiral."):
            return None
        lines += event == "line"
        return trace

    Metered.work, before = 0, sys.gettrace()
    sys.settrace(trace)
    try:
        read(Metered(text))
    finally:
        sys.settrace(before)
    return lines + Metered.work
