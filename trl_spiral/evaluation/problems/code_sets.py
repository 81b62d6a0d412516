"""Sets of programming problems, MBPP and HumanEval: how their rows are read, and how a program is put to their tests."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trl_spiral.sandbox import Trial
from trl_spiral.text.printable import reported


CODE_SETS = ("mbpp", "humaneval")

MBPP_HUB = "google-research-datasets/mbpp"
"""MBPP on the Hub. Its configuration `"sanitized"` holds the 427 problems that its authors went through by hand."""

MBPP_SPLITS: Mapping[str, range] = {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
    "all": range(1, 975),
}
"""
Task ids by split ([Austin et al. 2021](https://huggingface.co/papers/2108.07732)). Sanitized MBPP has 7, 257, 43 and 120 of
them.
"""


_FUTURE = re.compile(r"(?:(?:[ \t\r]*(?:#[^\n]*)?\n)*from[ \t]+__future__[ \t][^\n]*\n)+")


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """
    A programming problem.

    Attributes:
        task (`int` or `str`):
            Its id in its set.
        question (`str`):
            What the model is asked, which shows the tests where the set's convention does.
        tests (`str`):
            Python source that a right program runs to its end.
        entry_points (`tuple[str, ...]`):
            Functions of the program that the tests call.
        reference (`str`):
            A program, as a model would write it, that is right.
        before, after (`str`):
            What the set's convention puts around a program.
        in_place (`bool`):
            Whether the tests look at an argument after the call; see [`~sandbox.Trial`].
    """

    task: int | str
    question: str
    tests: str
    entry_points: tuple[str, ...]
    reference: str
    before: str = ""
    after: str = ""
    in_place: bool = False

    def trial(self, program: str) -> Trial:
        """A program on trial, as a reply has it."""
        future = _FUTURE.match(program)  # Python wants these first
        first = future.end() if future else 0
        code = program[:first] + self.before + program[first:] + self.after
        return Trial(code, self.tests, self.entry_points, self.in_place)


def mbpp_problems(
    rows: Iterable[Mapping[str, Any]], split: str = "test", limit: int | None = None
) -> list[CodeProblem]:
    """
    The first problems of MBPP, in the order of their ids.

    Args:
        rows (`Iterable[Mapping]`):
            Of `sanitized-mbpp.json` or `mbpp.jsonl`, or of the Hub, in any order. A row of your own whose tests look
            at an argument after the call has `in_place: true`.
        split (`str`, defaults to `"test"`):
            Of [`MBPP_SPLITS`].
        limit (`int`, *optional*):
            How many; all by default.

    Raises:
        ValueError: If there are none, one cannot be read, or there is no such split.
    """
    check_split(split)
    check_limit(limit)
    problems = []
    for number, row in enumerate(rows):
        asked = "text" if isinstance(row, Mapping) and "text" in row else "prompt"  # as the whole set calls it
        _check_columns(row, number, "MBPP", ("task_id", asked, "code", "test_list"))
        if row["task_id"] in MBPP_SPLITS[split]:
            problems.append(_mbpp_problem(row, row[asked]))
    if not problems:
        raise ValueError(
            f"MBPP's split {split!r} has no problem among these. Give the set's own file, or another split."
        )
    return sorted(problems, key=lambda problem: int(problem.task))[:limit]


def check_split(split: str) -> None:
    """
    Raises:
        ValueError: If MBPP has no such split.
    """
    if split not in MBPP_SPLITS:
        raise ValueError(f"MBPP has no split {split!r}. Choose one of {', '.join(MBPP_SPLITS)}.")


def check_limit(limit: int | None) -> None:
    """
    Raises:
        ValueError: If nothing would be asked.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"`limit` ({limit}) must be at least 1. Leave it out to ask all problems.")


def humaneval_problems(rows: Iterable[Mapping[str, Any]], limit: int | None = None) -> list[CodeProblem]:
    """
    The first problems of HumanEval ([Chen et al. 2021](https://huggingface.co/papers/2107.03374)), in the order of their rows.

    Args:
        rows (`Iterable[Mapping]`):
            Of `HumanEval.jsonl.gz`.
        limit (`int`, *optional*):
            How many; all by default.

    Raises:
        ValueError: If there are none, or one cannot be read.
    """
    check_limit(limit)
    problems = []
    for number, row in enumerate(rows):
        _check_columns(row, number, "HumanEval", ("task_id", "prompt", "entry_point", "canonical_solution", "test"))
        problems.append(_humaneval_problem(row))
    if not problems:
        raise ValueError("The file of HumanEval holds no problems. Give one that has some.")
    return problems[:limit]


def _mbpp_problem(row: Mapping[str, Any], asked: str) -> CodeProblem:
    # Sanitized MBPP has a list of imports, the whole of it their source.
    setup = "\n".join(row.get("test_imports") or [row.get("test_setup_code") or ""])
    asserts: Sequence[str] = row["test_list"]
    reference = _parsed(row["code"], row["task_id"])
    # Task 596's asserts use `sys`, which only its reference imports: a program need not, to be right.
    imports = [ast.unparse(node) for node in reference.body if isinstance(node, ast.Import | ast.ImportFrom)]
    tests = "\n".join([*imports, setup, *asserts])
    defined = {node.name for node in reference.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    used = {node.id: None for node in ast.walk(_parsed(tests, row["task_id"])) if isinstance(node, ast.Name)}
    shown = "\n".join(asserts)
    return CodeProblem(
        task=row["task_id"],
        # The convention of MBPP's authors, who show the model every assert.
        question=(
            f"You are an expert Python programmer, and here is your task: {asked.strip()} Your code should pass these "
            f"tests:\n\n{shown}"
        ),
        tests=tests,
        # What the reference defines, and not what nothing else does: task 126 is to write a `sum` of its own.
        entry_points=tuple(name for name in used if name in defined),
        reference=row["code"],
        after=appended_imports(setup),
        in_place=bool(row.get("in_place")),
    )


def _humaneval_problem(row: Mapping[str, Any]) -> CodeProblem:
    # Tests may use what the prompt defines beside the function (`poly`, `encode_cyclic`). They have it from the prompt: a
    # program could have changed its own.
    trusted = _parsed(row["prompt"], row["task_id"])
    trusted.body = [
        node for node in trusted.body if not (isinstance(node, ast.FunctionDef) and node.name == row["entry_point"])
    ]
    return CodeProblem(
        task=row["task_id"],
        question=(
            "Complete the following Python function. Repeat all that is given, and write the rest.\n\n"
            f"```python\n{row['prompt'].strip()}\n```"
        ),
        tests=f"{ast.unparse(trusted)}\n\n{row['test']}\n\ncheck({row['entry_point']})\n",
        entry_points=(row["entry_point"],),
        reference=row["canonical_solution"],
        # A reply may go on where the prompt ends, or begin anew: what it defines again takes the place of the stub.
        before=row["prompt"],
    )


def _parsed(source: str, task: int | str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some of MBPP's patterns hold a `\w` that Python would have raw
            return ast.parse(source)
    except SyntaxError as error:
        raise ValueError(
            f"Task {task} holds source that is not Python ({reported(error)}). Give the set's own file."
        ) from error


def _check_columns(row: Mapping[str, Any], number: int, name: str, columns: Sequence[str]) -> None:
    if not isinstance(row, Mapping) or not set(columns) <= row.keys():
        found = ", ".join(map(repr, row)) if isinstance(row, Mapping) else type(row).__name__
        raise ValueError(
            f"Row {number} of {name} needs the columns {', '.join(map(repr, columns))}, and has {found}. Give the set's own "
            "file."
        )
