"""Sets of maths problems: where each is, and how its rows are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True, slots=True)
class MathsSet:
    """
    A set of maths problems.

    Attributes:
        name (`str`):
            In metrics and on the command line.
        hub (`str`):
            Data set on the Hub.
        split (`str`):
            Of that data set.
        question, answer (`str`):
            Columns. An answer may be text, a number, or a list of answers of which all are asked for.
        config (`str`, *optional*):
            Of that data set.
        marker (`str`, *optional*):
            What stands before the answer where that column holds a whole solution.
    """

    name: str
    hub: str
    split: str
    question: str
    answer: str
    config: str | None = None
    marker: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, and its right answer as it would stand in a box."""

    question: str
    answer: str


MATHS_SETS: Mapping[str, MathsSet] = {
    known.name: known
    for known in (
        MathsSet("gsm8k", "openai/gsm8k", "test", "question", "answer", config="main", marker="####"),
        MathsSet("math500", "HuggingFaceH4/MATH-500", "test", "problem", "answer"),
        MathsSet("aime2024", "HuggingFaceH4/aime_2024", "train", "problem", "answer"),
        MathsSet("aime2025", "math-ai/aime25", "test", "problem", "answer"),
        MathsSet("amc", "math-ai/amc23", "test", "question", "answer"),
        MathsSet("minerva", "math-ai/minervamath", "test", "question", "answer"),
        MathsSet(
            "olympiadbench", "Hothan/OlympiadBench", "train", "question", "final_answer", config="OE_TO_maths_en_COMP"
        ),
    )
}
"""By name: 1319, 500, 30, 30, 40, 272 and 674 problems."""


def get_maths_set(name: str) -> MathsSet:
    """
    Raises:
        ValueError: If there is no set of that name.
    """
    if name not in MATHS_SETS:
        raise ValueError(f"There is no maths set {name!r}. Choose one of {', '.join(MATHS_SETS)}.")
    return MATHS_SETS[name]


def problems_in(rows: Iterable[Mapping[str, Any]], maths_set: MathsSet, limit: int | None = None) -> list[Problem]:
    """
    The first problems of a set, in the order of its rows.

    Args:
        rows (`Iterable[Mapping]`):
            The set's rows.
        maths_set ([`MathsSet`]):
            How they are read.
        limit (`int`, *optional*):
            How many; all by default.

    Raises:
        ValueError: If there are none, or one cannot be read.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"`limit` ({limit}) must be at least 1. Leave it out to ask all problems.")
    problems = [_problem(row, number, maths_set) for number, row in enumerate(islice(rows, limit))]
    if not problems:
        raise ValueError(f"The maths set {maths_set.name!r} holds no problems. Give a file that has some.")
    return problems


def _problem(row: Mapping[str, Any], number: int, maths_set: MathsSet) -> Problem:
    if not isinstance(row, Mapping) or maths_set.question not in row or maths_set.answer not in row:
        found = ", ".join(map(repr, row)) if isinstance(row, Mapping) else type(row).__name__
        raise ValueError(
            f"Row {number} of {maths_set.name!r} has no {maths_set.question!r} and {maths_set.answer!r} (it has {found}). "
            "Give each row both columns."
        )
    answer = row[maths_set.answer]
    # OlympiadBench has "$2$", and math-verify would look for more formulas between two of them.
    text = ", ".join(str(part).strip().strip("$") for part in (answer if isinstance(answer, list) else [answer]))
    if maths_set.marker is not None:
        _, found, text = text.rpartition(maths_set.marker)
        if not found:
            raise ValueError(
                f"The answer in row {number} of {maths_set.name!r} has no {maths_set.marker!r} before its result. Give the "
                "set's own file."
            )
    if not text.strip():
        raise ValueError(f"The answer in row {number} of {maths_set.name!r} is empty. Leave the row out.")
    return Problem(str(row[maths_set.question]).strip(), text.strip())
