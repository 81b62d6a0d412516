"""
Connections: sort sixteen words into four groups of four.

Puzzles are made from the categories in `categories.txt`, which were written for this project. Each category belongs to
one split. Many words are in several categories. Every puzzle is checked to have exactly one solution among all
categories.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Literal

from trl_spiral.seeding import derive_seed
from trl_spiral.tasks.base import SPLITS, Problem, Score, Split, Task, read_answer


Categories = Mapping[str, tuple[str, ...]]
"""Words by the name of their category."""

Level = Literal["easy", "medium", "hard"]

HERRINGS: Mapping[Level, tuple[int, int]] = {"easy": (0, 0), "medium": (1, 2), "hard": (3, 16)}
"""Lowest and highest number of a puzzle's words that also fit another of its categories (red herrings)."""

VALIDATION_SHARE = 5
"""One category in this many is held out for validation."""

_TRIES = 10_000

# The small variant has 150 categories of 6 words.
_SMALL_NUMBER, _SMALL_SIZE = 150, 6

_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}

_RULES = (
    "Sort these words into {groups} groups of {size}. The words of a group have something in common, and every word "
    "is in one group.\nWords: {words}\n"
    "Answer with all groups, a comma between words and a semicolon between groups, within \\boxed{{}}."
)


@cache
def load_categories() -> Categories:
    """Return the categories of `categories.txt`."""
    lines = Path(__file__).with_name("categories.txt").read_text(encoding="utf-8").splitlines()
    entries = (line.split(":") for line in lines if not line.startswith("#"))
    return {name: tuple(words.split()) for name, words in entries}


def small_categories() -> Categories:
    """Return categories of six words that are in no other category: few enough for a tiny model to learn them all."""
    known = load_categories()
    times = Counter(word for words in known.values() for word in words)
    single = {name: [word for word in words if times[word] == 1] for name, words in known.items()}
    large = [name for name, words in single.items() if len(words) >= _SMALL_SIZE]
    return {name: tuple(single[name][:_SMALL_SIZE]) for name in large[:_SMALL_NUMBER]}


class Connections(Task):
    """
    Sort words into groups.

    The score is the mean of two terms: the share of groups that are correct, and the mean overlap, which is the
    largest share of a group's words that is in one correct group. Case is ignored. Only a partition of the puzzle's
    words into groups of the correct size has a score; any other answer scores 0, so repeating or omitting groups gains
    nothing. Random partitions score 0.25 on average.

    Args:
        level (`str`, *optional*):
            `"easy"`, `"medium"` or `"hard"`, by the number of red herrings. Default: each in turn.
        groups, size (`int`, defaults to `4`):
            Number of groups, and number of words in each.
        categories (`Mapping`, *optional*):
            Words by category, at least `size` of each. Default: `categories.txt`.
        name (`str`, defaults to `"connections"`):
            Name of the task.
    """

    def __init__(
        self,
        level: Level | None = None,
        groups: int = 4,
        size: int = 4,
        categories: Categories | None = None,
        name: str = "connections",
    ) -> None:
        if level is not None and level not in HERRINGS:
            raise ValueError(f"`level` ({level!r}) must be one of {', '.join(map(repr, HERRINGS))}.")
        self.levels: tuple[Level, ...] = tuple(HERRINGS) if level is None else (level,)
        self.groups = groups
        self.size = size
        self.categories = load_categories() if categories is None else categories
        self.name = name

    def split(self, split: Split) -> Categories:
        """
        Return the categories of a split. The split of a category does not depend on the seed.

        A held-out category shares no whole group with a training category, as planets would with Roman gods. If it
        does, it is a training category too.
        """
        if split not in SPLITS:
            raise ValueError(f"`split` ({split!r}) must be 'train' or 'validation'.")
        names = sorted(self.categories)
        random.Random(derive_seed("connections", "split")).shuffle(names)
        held_out = names[: len(names) // VALIDATION_SHARE]
        seen = names[len(held_out) :]
        for name in seen:  # grows during the loop
            alike = [other for other in held_out if self._share_a_group(name, other)]
            held_out = [other for other in held_out if other not in alike]
            seen += alike
        return {name: self.categories[name] for name in (held_out if split == "validation" else seen)}

    def _share_a_group(self, name: str, other: str) -> bool:
        return len({*self.categories[name]} & {*self.categories[other]}) >= self.size

    def problems(self, split: Split, number: int, seed: int = 0) -> list[Problem]:
        """Return `number` puzzles of a split, the levels in turn. A larger number only appends puzzles."""
        categories = self.split(split)
        return [
            self._problem(
                categories, self.levels[index % len(self.levels)], derive_seed(seed, self.name, split, index)
            )
            for index in range(number)
        ]

    def _problem(self, categories: Categories, level: Level, seed: int) -> Problem:
        rng = random.Random(seed)
        fewest, most = HERRINGS[level]
        for _ in range(_TRIES):
            groups = self._draw(categories, rng, herrings=level != "easy")
            if groups is None or not fewest <= count_herrings(groups, categories) <= most:
                continue
            words = [word for group in groups.values() for word in group]
            if count_solutions(words, self.categories, self.size, enough=2) == 1:
                rng.shuffle(words)
                return self._ask(words, groups, level)
        raise ValueError(
            f"{_TRIES:,} tries gave no {level} puzzle of {self.groups} groups of {self.size} words with one solution. "
            "Give more `categories`, or some that share more words or fewer."
        )

    def _draw(self, categories: Categories, rng: random.Random, herrings: bool) -> dict[str, list[str]] | None:
        """
        Draw the categories and words of a puzzle, or return `None` if a category has too few words left.

        A group takes no word that fits an earlier category, so a red herring fits only one other group. If two groups
        could swap a word, there would be two solutions.
        """
        names = [rng.choice(list(categories))]
        while len(names) < self.groups:
            met = {word for name in names for word in categories[name]}
            near = [name for name in categories if name not in names and not met.isdisjoint(categories[name])]
            others = [name for name in categories if name not in names]
            names.append(rng.choice(near if herrings and near else others))
        rng.shuffle(names)
        groups: dict[str, list[str]] = {}
        taken: set[str] = set()
        for place, name in enumerate(names):
            later = {word for other in names[place + 1 :] for word in categories[other]}
            free = [word for word in categories[name] if word not in taken]
            rng.shuffle(free)
            if herrings:
                free.sort(key=lambda word: word not in later or rng.random() < 0.5)
            if len(free) < self.size:
                return None
            groups[name] = free[: self.size]
            taken.update(categories[name])
        return groups

    def _ask(self, words: list[str], groups: Mapping[str, list[str]], level: Level) -> Problem:
        size = f"{_NUMBERS.get(self.size, self.size)}"
        text = _RULES.format(groups=_NUMBERS.get(self.groups, self.groups), size=size, words=", ".join(words))
        return Problem(
            f"{self.name}-{derive_seed(*words):016x}",
            ({"role": "user", "content": text},),
            {"words": words, "groups": {name: sorted(group) for name, group in groups.items()}, "level": level},
        )

    def score(self, problem: Problem, response: str) -> Score:
        right = {name: frozenset(words) for name, words in problem.data["groups"].items()}
        groups = read_groups(response)
        if wrong := _fault(groups, right):
            return Score(0.0, False, {"found": [], "overlaps": [], "level": problem.data["level"], "wrong": wrong})
        overlaps = [max(len(words & group) for words in right.values()) for group in map(frozenset, groups)]
        found = [name for name, words in right.items() if words in set(map(frozenset, groups))]
        size = len(groups[0])
        value = (len(found) / len(right) + sum(overlaps) / len(overlaps) / size) / 2
        detail = {"found": found, "overlaps": overlaps, "level": problem.data["level"], "wrong": ""}
        return Score(value, len(found) == len(right), detail)

    def steps(self, problem: Problem, response: str) -> list[str]:
        """Return the words, then each group of the answer with its number of correct words."""
        right = {name: frozenset(words) for name, words in problem.data["groups"].items()}
        groups = read_groups(response)
        frames = [_board(problem.data["words"], len(right))]
        if wrong := _fault(groups, right):
            frames.append(f"{frames[0]}\n\nNot an answer: {wrong}.")
        else:
            left = list(problem.data["words"])
            for group in groups:
                name, words = max(right.items(), key=lambda item: len(item[1] & set(group)))
                held = len(words & set(group))
                verdict = f"right: {name}" if held == len(words) else f"{held} of {len(words)} belong together"
                left = [word for word in left if word.casefold() not in group]
                frames.append(f"{', '.join(group)}\n{verdict}\n\n{_board(left, len(right))}".rstrip())
        return frames

    def solution(self, problem: Problem) -> str:
        """Return the correct groups with the names of their categories."""
        return "\n".join(f"{name}: {', '.join(sorted(words))}" for name, words in problem.data["groups"].items())


def count_herrings(groups: Mapping[str, Sequence[str]], categories: Categories) -> int:
    """Return the number of a puzzle's words that also fit another of its categories."""
    return sum(
        any(word in categories[other] for other in groups if other != name)
        for name, words in groups.items()
        for word in words
    )


def count_solutions(words: Sequence[str], categories: Categories, size: int, enough: int) -> int:
    """
    Count the partitions of words into groups of `size`, each within one category. Stop at `enough`.

    Groups are bit masks over the words. Each step of the search covers the first free word.
    """
    places = {word: place for place, word in enumerate(words)}
    masks: set[int] = set()
    for members in categories.values():
        inside = [1 << places[word] for word in members if word in places]
        masks.update(map(sum, combinations(inside, size)))
    by_first: dict[int, list[int]] = {}
    for mask in masks:
        by_first.setdefault(mask & -mask, []).append(mask)

    def count(free: int, enough: int) -> int:
        if not free:
            return 1
        found = 0
        for mask in by_first.get(free & -free, ()):
            if mask & free == mask:
                found += count(free ^ mask, enough - found)
                if found >= enough:
                    break
        return found

    return count((1 << len(words)) - 1, enough)


def read_groups(response: str) -> list[list[str]]:
    """Return the groups of an answer, case-folded: semicolons or line ends separate groups, commas separate words."""
    lines = re.split(r"[;\n]", read_answer(response) or "")
    return [[word.strip().casefold() for word in line.split(",")] for line in lines if line.strip()]


def _fault(groups: Sequence[Sequence[str]], right: Mapping[str, frozenset[str]]) -> str:
    """Return why groups are no partition of the words into groups of the correct size; `""` if they are one."""
    size = len(next(iter(right.values())))
    if not groups:
        return "no readable answer"
    if len(groups) != len(right) or any(len(group) != size for group in groups):
        return f"not {len(right)} groups of {size} words"
    written, words = Counter(word for group in groups for word in group), frozenset().union(*right.values())
    if strange := [word for word in written if word not in words]:
        return f"{strange[0][:40]!r} is none of the words"
    if twice := [word for word, times in written.items() if times > 1]:
        return f"{twice[0]!r} is used {written[twice[0]]} times"
    return ""


def _board(words: Sequence[str], columns: int) -> str:
    """Return the words in rows."""
    width = max(map(len, words), default=0) + 2
    rows = (words[start : start + columns] for start in range(0, len(words), columns))
    return "\n".join("".join(f"{word:<{width}}" for word in row).rstrip() for row in rows)
