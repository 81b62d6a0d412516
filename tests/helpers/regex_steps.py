"""
A regular-expression matcher that counts its steps.

It backtracks as `re` does, on the tree that `re` itself parses, without the shortcuts of `re`. Its count is the same
on every machine. A pattern whose count grows linearly is linear in `re`, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from re import _constants as c
from re import _parser


End = int | None
Matcher = Callable[[int, Callable[[int], End]], End]

CATEGORIES = {
    c.CATEGORY_DIGIT: str.isdecimal,
    c.CATEGORY_SPACE: str.isspace,
    c.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
}
OPPOSITES = {
    c.CATEGORY_NOT_DIGIT: c.CATEGORY_DIGIT,
    c.CATEGORY_NOT_SPACE: c.CATEGORY_SPACE,
    c.CATEGORY_NOT_WORD: c.CATEGORY_WORD,
}
ONE_CHARACTER = (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN)
REPEATS = (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT)


class TooManySteps(Exception):
    """A match has exceeded its number of steps."""


def holds(item: tuple, char: str, flags: int) -> bool:
    """Return whether a node that stands for one character matches it."""
    kind, value = item
    alike = {char, char.lower(), char.upper()} if flags & re.IGNORECASE else {char}
    if kind is c.ANY:
        return bool(flags & re.DOTALL) or char != "\n"
    if kind is c.LITERAL:
        return chr(value) in alike
    if kind is c.NOT_LITERAL:
        return chr(value) not in alike
    if kind is c.RANGE:
        return any(value[0] <= ord(each) <= value[1] for each in alike if len(each) == 1)
    if kind is c.CATEGORY:
        if value in OPPOSITES:
            return not holds((kind, OPPOSITES[value]), char, flags)
        return CATEGORIES[value](char) and (char.isascii() or not flags & re.ASCII)
    assert kind is c.IN, kind
    negated = value[0][0] is c.NEGATE
    return any(holds(each, char, flags) for each in value[negated:]) != negated


class Counter:
    """
    Matches one text and counts.

    Args:
        pattern (`str`):
            The pattern, as `re` takes it.
        flags (`int`):
            Flags of `re`.
        text (`str`):
            The text.
        most (`int`):
            Maximum number of steps.
    """

    def __init__(self, pattern: str, flags: int, text: str, most: int = 10**9) -> None:
        tree = _parser.parse(pattern, flags)
        self.most = most
        self.read(text)
        self.matcher = self.sequence(list(tree), tree.state.flags)

    def read(self, text: str) -> None:
        """Set another text, and reset the count."""
        self.text, self.steps = text, 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > self.most:
            raise TooManySteps

    def run(self, method: str) -> list[tuple[int, int]]:
        """Return the spans that `method` of `re` finds: at most one for `match` and `fullmatch`, all for others."""
        deep, size = sys.getrecursionlimit(), len(self.text)
        sys.setrecursionlimit(100_000)
        try:
            if method in ("match", "fullmatch"):
                end = self.matcher(0, lambda i: i if method == "match" or i == size else None)
                return [] if end is None else [(0, end)]
            return list(self.scan())
        finally:
            sys.setrecursionlimit(deep)

    def scan(self) -> Iterator[tuple[int, int]]:
        start = 0
        while start <= len(self.text):
            end = self.matcher(start, lambda i: i)
            if end is not None:
                yield start, end
            start = start + 1 if end is None or end == start else end

    def sequence(self, nodes: list, flags: int) -> Matcher:
        if not nodes:
            return lambda i, then: then(i)
        head, tail = self.node(nodes[0], flags), self.sequence(nodes[1:], flags)
        return lambda i, then: head(i, lambda j: tail(j, then))

    def node(self, item: tuple, flags: int) -> Matcher:
        kind, value = item
        if kind in ONE_CHARACTER:
            is_there = self.one_of(item, flags)
            return lambda i, then: then(i + 1) if is_there(i) else None
        if kind in REPEATS:
            least, most, body = value
            if len(body) == 1 and body[0][0] in ONE_CHARACTER:
                return self.run_of(kind, least, most, body[0], flags)
            return self.repeat(kind, least, most, self.sequence(list(body), flags))
        if kind is c.SUBPATTERN:
            _, added, removed, body = value
            return self.sequence(list(body), (flags | added) & ~removed)
        if kind is c.BRANCH:
            ways = [self.sequence(list(way), flags) for way in value[1]]
            return lambda i, then: next((end for way in ways if (end := way(i, then)) is not None), None)
        if kind is c.ATOMIC_GROUP:
            inner = self.sequence(list(value), flags)
            return lambda i, then: None if (end := inner(i, lambda j: j)) is None else then(end)
        if kind in (c.ASSERT, c.ASSERT_NOT):
            direction, body = value
            inner, back = self.sequence(list(body), flags), body.getwidth()[0] if direction < 0 else 0
            wanted = kind is c.ASSERT

            def look(i: int, then: Callable[[int], End]) -> End:
                found = i >= back and inner(i - back, lambda j: j) is not None
                return then(i) if found == wanted else None

            return look
        assert kind is c.AT, f"{kind} is not supported"
        return lambda i, then: then(i) if self.is_at(value, flags, i) else None

    def one_of(self, item: tuple, flags: int) -> Callable[[int], bool]:
        """Return whether a node that stands for one character matches at a place. It counts as a step."""
        held: dict[str, bool] = {}

        def is_there(i: int) -> bool:
            self.step()
            if i >= len(self.text):
                return False
            char = self.text[i]
            if char not in held:
                held[char] = holds(item, char, flags)
            return held[char]

        return is_there

    def is_at(self, place: object, flags: int, i: int) -> bool:
        self.step()
        text, size, lines = self.text, len(self.text), bool(flags & re.MULTILINE)
        if place in (c.AT_BOUNDARY, c.AT_NON_BOUNDARY):
            before, after = (
                0 <= j < size and holds((c.CATEGORY, c.CATEGORY_WORD), text[j], flags) for j in (i - 1, i)
            )
            return (before != after) == (place is c.AT_BOUNDARY)
        if place in (c.AT_BEGINNING, c.AT_BEGINNING_STRING):
            return i == 0 or (place is c.AT_BEGINNING and lines and text[i - 1] == "\n")
        if i == size or place is c.AT_END_STRING:
            return i == size
        return text[i] == "\n" and (lines or i == size - 1)

    def run_of(self, kind: object, least: int, most: int, item: tuple, flags: int) -> Matcher:
        """Repeat one character, without recursion."""
        is_there = self.one_of(item, flags)

        def lazily(i: int, then: Callable[[int], End]) -> End:
            count = 0
            while True:
                if count >= least and (end := then(i + count)) is not None:
                    return end
                if count >= most or not is_there(i + count):
                    return None
                count += 1

        def greedily(i: int, then: Callable[[int], End]) -> End:
            count = 0
            while count < most and is_there(i + count):
                count += 1
            fewest = count if kind is c.POSSESSIVE_REPEAT else least
            while count >= max(least, fewest):
                self.step()
                if (end := then(i + count)) is not None:
                    return end
                count -= 1
            return None

        return lazily if kind is c.MIN_REPEAT else greedily

    def repeat(self, kind: object, least: int, most: int, body: Matcher) -> Matcher:
        def possessively(i: int, then: Callable[[int], End]) -> End:
            count = 0
            while count < most and (end := body(i, lambda j: j)) is not None and (end > i or count < least):
                i, count = end, count + 1
            return then(i) if count >= least else None

        def again(i: int, then: Callable[[int], End], count: int) -> End:
            self.step()
            if count >= most:
                return None
            return body(i, lambda j: None if j == i and count >= least else one(j, then, count + 1))

        def one(i: int, then: Callable[[int], End], count: int) -> End:
            first, second = (again, stop) if kind is c.MAX_REPEAT else (stop, again)
            return end if (end := first(i, then, count)) is not None else second(i, then, count)

        def stop(i: int, then: Callable[[int], End], count: int) -> End:
            return then(i) if count >= least else None

        return possessively if kind is c.POSSESSIVE_REPEAT else lambda i, then: one(i, then, 0)
