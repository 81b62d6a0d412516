"""Datasets of math problems, and their format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from trl_spiral.evaluation.problems.files import check_limit


@dataclass(frozen=True, slots=True)
class MathSet:
    """
    A dataset of math problems.

    Attributes:
        name (`str`):
            Name in metrics and on the command line.
        hub (`str`):
            Dataset on the Hub.
        split (`str`):
            Split of the dataset.
        question, answer (`str`):
            Columns. An answer is text, a number, or a list of answers that are all required.
        config (`str`, *optional*):
            Configuration of the dataset.
        marker (`str`, *optional*):
            Text before the answer, if the column contains a whole solution.
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
    """A question, and its correct answer in the format of a box."""

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
"""Datasets by name. They have 1319, 500, 30, 30, 40, 272 and 674 problems."""


def get_math_set(name: str) -> MathSet:
    """
    Return a dataset by name.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in MATH_SETS:
        raise ValueError(f"There is no math set {name!r}. Choose one of {', '.join(MATH_SETS)}.")
    return MATH_SETS[name]


def math_problems(rows: Iterable[Mapping[str, Any]], math_set: MathSet, limit: int | None = None) -> list[MathProblem]:
    """
    Return the first problems of a dataset, in order.

    Args:
        rows (`Iterable[Mapping]`):
            Rows of the dataset.
        math_set ([`MathSet`]):
            Format of the rows.
        limit (`int`, *optional*):
            Number of problems. Default: all.

    Raises:
        ValueError: If there are no problems, or a row cannot be read.
    """
    check_limit(limit)
    problems = [_problem(row, number, math_set) for number, row in enumerate(islice(rows, limit))]
    if not problems:
        raise ValueError(f"The math set {math_set.name!r} has no problems. Give the set's own file.")
    return problems


def _problem(row: Mapping[str, Any], number: int, math_set: MathSet) -> MathProblem:
    if not isinstance(row, Mapping) or math_set.question not in row or math_set.answer not in row:
        found = ", ".join(map(repr, row)) if isinstance(row, Mapping) else type(row).__name__
        raise ValueError(
            f"Row {number} of {math_set.name!r} has no {math_set.question!r} and {math_set.answer!r} (it has "
            f"{found}). Give each row both columns."
        )
    answer = row[math_set.answer]
    # OlympiadBench has "$2$", and math-verify would look for more formulas between two dollar signs.
    text = ", ".join(str(part).strip().strip("$") for part in (answer if isinstance(answer, list) else [answer]))
    if math_set.marker is not None:
        _, found, text = text.rpartition(math_set.marker)
        if not found:
            raise ValueError(
                f"The answer in row {number} of {math_set.name!r} has no {math_set.marker!r} before its result. Give "
                "the set's own file."
            )
    if not text.strip():
        raise ValueError(f"The answer in row {number} of {math_set.name!r} is empty. Leave the row out.")
    return MathProblem(str(row[math_set.question]).strip(), text.strip())
