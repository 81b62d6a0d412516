"""Random small programs with their output: moves of random players, and examples for tiny players."""

from __future__ import annotations

import random
from collections.abc import Callable


def random_program(rng: random.Random) -> tuple[str, str]:
    """
    Return a program, formatted as by `ast.unparse`, and its output.

    The kinds range from sums of two digits, which can be memorized, to remainders of products, which must be computed.
    """
    return rng.choice(KINDS)(rng)


def _sum(rng: random.Random) -> tuple[str, str]:
    a, b = _digit(rng), _digit(rng)
    return f"print({a} + {b})", str(a + b)


def _product(rng: random.Random) -> tuple[str, str]:
    a, b = _digit(rng), _digit(rng)
    return f"print({a} * {b})", str(a * b)


def _largest(rng: random.Random) -> tuple[str, str]:
    a, b = _digit(rng), _digit(rng)
    return f"print(max({a}, {b}))", str(max(a, b))


def _difference(rng: random.Random) -> tuple[str, str]:
    a, b = _number(rng), _number(rng)
    return f"print({a} - {b})", str(a - b)


def _remainder(rng: random.Random) -> tuple[str, str]:
    a, b, c = _number(rng), _number(rng), rng.randint(2, 9)
    return f"print({a} * {b} % {c})", str(a * b % c)


def _loop(rng: random.Random) -> tuple[str, str]:
    x, a, b, times = _digit(rng), rng.randint(2, 9), _digit(rng), rng.randint(2, 9)
    program = f"x = {x}\nfor _ in range({times}):\n    x = (x * {a} + {b}) % 10\nprint(x)"
    for _ in range(times):
        x = (x * a + b) % 10
    return program, str(x)


def _digit(rng: random.Random) -> int:
    return rng.randint(0, 9)


def _number(rng: random.Random) -> int:
    return rng.randint(10, 99)


KINDS: tuple[Callable[[random.Random], tuple[str, str]], ...] = (
    _sum,
    _product,
    _largest,
    _difference,
    _remainder,
    _loop,
)
