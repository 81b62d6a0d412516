"""JSON from files that may be damaged: parsed within limits, and compared with the shape that it should have."""

from __future__ import annotations

import json
from typing import Any


LARGEST = 2**64
"""Bound on whole numbers. Seeds have 64 bits."""

DEEPEST = 20
"""Levels of nesting where any JSON is allowed."""


class Anything:
    """Any JSON of at most `DEEPEST` levels, without whole numbers beyond `LARGEST`."""


def parse(text: str, shape: Any) -> Any:
    """
    Return the value of a JSON text.

    Args:
        text (`str`):
            The text.
        shape:
            `str`, `int` (below `LARGEST`), `float` (any number), `Anything`, a set of allowed texts, or `None`. A
            tuple of alternatives. A list with the shape of each item. A dictionary of shapes by name: a name that ends
            in `?` may be missing, and the key `str` stands for all names.

    Raises:
        ValueError: With the reason as a clause, if the text is no JSON or its value has another shape.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if (problem := _misfit(value, shape)) is not None:
        raise ValueError(problem)
    return value


def _misfit(value: Any, shape: Any, where: str = "it") -> str | None:
    """Return the first difference between a value and its shape as a clause, or `None`."""
    if shape is Anything:
        return _not_plain(value, where, DEEPEST)
    if isinstance(shape, tuple):
        return None if any(_misfit(value, one) is None for one in shape) else _no(where, shape)
    if isinstance(shape, list) and isinstance(value, list):
        return _first(_misfit(one, shape[0], f"{where}[{place}]") for place, one in enumerate(value))
    if isinstance(shape, dict) and isinstance(value, dict):
        return _first(_entry_misfit(value, name, one, where) for name, one in shape.items())
    if isinstance(shape, frozenset):
        fits = isinstance(value, str) and value in shape
    elif shape is float:
        fits = isinstance(value, float) or _is_whole(value)
    elif shape is int:
        fits = _is_whole(value)
    else:
        fits = value is None if shape is None else isinstance(shape, type) and isinstance(value, shape)
    return None if fits else _no(where, shape)


def _entry_misfit(value: dict[str, Any], name: Any, shape: Any, where: str) -> str | None:
    if name is str:
        return _first(_misfit(one, shape, f"{where}.{name}") for name, one in value.items())
    known = name.rstrip("?")
    if known in value:
        return _misfit(value[known], shape, f"{where}.{known}")
    return None if name.endswith("?") else f"{where} lacks {known!r}"


def _first(problems: Any) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _is_whole(value: Any) -> bool:
    return type(value) is int and abs(value) < LARGEST


def _not_plain(value: Any, where: str, levels: int) -> str | None:
    if isinstance(value, dict | list):
        if not levels:
            return f"{where} is nested too deeply"
        inner = value.values() if isinstance(value, dict) else value
        return _first(_not_plain(one, where, levels - 1) for one in inner)
    return (
        None if not isinstance(value, int) or isinstance(value, bool) or _is_whole(value) else f"{where} is too large"
    )


def _no(where: str, shape: Any) -> str:
    return f"{where} is not {_described(shape)}"


def _described(shape: Any) -> str:
    if isinstance(shape, tuple):
        return " or ".join(map(_described, shape))
    if isinstance(shape, frozenset):
        return " or ".join(map(repr, sorted(shape)))
    if isinstance(shape, list | dict):
        return "a list" if isinstance(shape, list) else "an object"
    return {None: "null", str: "text", int: f"a whole number below {LARGEST}", float: "a number"}[shape]
