"""Sets of math problems: where each is, and how its rows are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True, slots=True)
class MathSet:
    """
    A set of math problems.

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
class MathProblem:
    """A question, and its right answer as it would stand in a box."""

    question: str
    answer: str


MATH_SETS: Mapping[str, MathSet] = {
    known.name: known
    for known in (
        MathSet("gsm8k", "openai/gsm8k", "test", "question", "answer", config="main", marker="####"),
        MathSet("math500", "HuggingFaceH4/MATH-500", "test", "problem", "answer"),
        MathSet("aime2024", "HuggingFaceH4/aime_2024", "train", "problem", "answer"),
        MathSet("aime2025", "math-ai/aime25", "test", "problem", "answer"),
        MathSet("amc", "math-ai/amc23", "test", "question", "answer"),
        MathSet("minerva", "math-ai/minervamath", "test", "question", "answer"),
        MathSet(
            "olympiadbench", "Hothan/OlympiadBench", "train", "question", "final_answer", config="OE_TO_maths_en_COMP"
        ),
    )
}
"""By name: 1319, 500, 30, 30, 40, 272 and 674 problems."""


def get_math_set(name: str) -> MathSet:
    """
    Raises:
        ValueError: If there is no set of that name.
    """
    if name not in MATH_SETS:
        raise ValueError(f"There is no math set {name!r}. Choose one of {', '.join(MATH_SETS)}.")
    return MATH_SETS[name]


def math_problems(rows: Iterable[Mapping[str, Any]], math_set: MathSet, limit: int | None = None) -> list[MathProblem]:
    """
    The first problems of a set, in the order of its rows.

    Args:
        rows (`Iterable[Mapping]`):
            The set's rows.
        math_set ([`MathSet`]):
            How they are read.
        limit (`int`, *optional*):
            How many; all by default.

    Raises:
        ValueError: If there are none, or one cannot be read.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"`limit` ({limit}) must be at least 1. Leave it out to ask all problems.")
    problems = [_problem(row, number, math_set) for number, row in enumerate(islice(rows, limit))]
    if not problems:
        raise ValueError(f"The math set {math_set.name!r} holds no problems. Give a file that has some.")
    return problems


def _problem(row: Mapping[str, Any], number: int, math_set: MathSet) -> MathProblem:
    if not isinstance(row, Mapping) or math_set.question not in row or math_set.answer not in row:
        found = ", ".join(map(repr, row)) if isinstance(row, Mapping) else type(row).__name__
        raise ValueError(
            f"Row {number} of {math_set.name!r} has no {math_set.question!r} and {math_set.answer!r} (it has {found}). "
            "Give each row both columns."
        )
    answer = row[math_set.answer]
    # OlympiadBench has "$2$", and math-verify would look for more formulas between two of them.
    text = ", ".join(str(part).strip().strip("$") for part in (answer if isinstance(answer, list) else [answer]))
    if math_set.marker is not None:
        _, found, text = text.rpartition(math_set.marker)
        if not found:
            raise ValueError(
                f"The answer in row {number} of {math_set.name!r} has no {math_set.marker!r} before its result. Give the "
                "set's own file."
            )
    if not text.strip():
        raise ValueError(f"The answer in row {number} of {math_set.name!r} is empty. Leave the row out.")
    return MathProblem(str(row[math_set.question]).strip(), text.strip())
