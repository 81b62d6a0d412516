"""Problems of MBPP and HumanEval, from the rows of their files."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trl_spiral.evaluation.problems.files import check_limit
from trl_spiral.sandbox import Trial
from trl_spiral.text.printable import reported
from trl_spiral.text.python_source import appended_imports


CODE_SETS = ("mbpp", "humaneval")

MBPP_HUB = "google-research-datasets/mbpp"
"""MBPP on the Hub. Its configuration `"sanitized"` has the 427 problems that its authors checked by hand."""

MBPP_SPLITS: Mapping[str, range] = {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
    "all": range(1, 975),
}
"""
Task ids by split ([Austin et al. 2021](https://huggingface.co/papers/2108.07732)). Sanitized MBPP has 7, 257, 43 and
120 problems in the first four.
"""


_FUTURE = re.compile(r"(?:(?:[ \t\r]*(?:#[^\n]*)?\n)*from[ \t]+__future__[ \t][^\n]*\n)+")


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """
    A programming problem.

    Attributes:
        task (`int` or `str`):
            Id in its set.
        question (`str`):
            Question to the model. Contains the tests if that is the set's convention.
        tests (`str`):
            Python source that runs to its end with a correct program.
        entry_points (`tuple[str, ...]`):
            Functions of the program that the tests call.
        reference (`str`):
            A correct program, in the form in which a model would write it.
        before, after (`str`):
            Code that the set's convention puts before and after a program.
        in_place (`bool`):
            Whether the tests check an argument after the call; see [`~sandbox.Trial`].
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
        """Return the trial of a program from a reply."""
        future = _FUTURE.match(program)  # must come first
        first = future.end() if future else 0
        code = program[:first] + self.before + program[first:] + self.after
        return Trial(code, self.tests, self.entry_points, self.in_place)


def mbpp_problems(
    rows: Iterable[Mapping[str, Any]], split: str = "test", limit: int | None = None
) -> list[CodeProblem]:
    """
    Return the first problems of MBPP, in the order of their ids.

    Args:
        rows (`Iterable[Mapping]`):
            Rows of `sanitized-mbpp.json`, `mbpp.jsonl` or the Hub's dataset, in any order. For your own rows whose
            tests check an argument after the call, add `in_place: true`.
        split (`str`, defaults to `"test"`):
            One of [`MBPP_SPLITS`].
        limit (`int`, *optional*):
            Number of problems. Default: all.

    Raises:
        ValueError: If there are no problems, a row cannot be read, or the split is unknown.
    """
    check_split(split)
    check_limit(limit)
    problems = []
    for number, row in enumerate(rows):
        asked = "text" if isinstance(row, Mapping) and "text" in row else "prompt"  # its name in the whole set
        _check_columns(row, number, "MBPP", ("task_id", asked, "code", "test_list"))
        if row["task_id"] in MBPP_SPLITS[split]:
            problems.append(_mbpp_problem(row, row[asked]))
    if not problems:
        raise ValueError(
            f"These rows contain no problem of MBPP's split {split!r}. Give the set's own file, or another split."
        )
    return sorted(problems, key=lambda problem: int(problem.task))[:limit]


def check_split(split: str) -> None:
    """
    Check the name of a split of MBPP.

    Raises:
        ValueError: If there is no such split.
    """
    if split not in MBPP_SPLITS:
        raise ValueError(f"MBPP has no split {split!r}. Choose one of {', '.join(MBPP_SPLITS)}.")


def humaneval_problems(rows: Iterable[Mapping[str, Any]], limit: int | None = None) -> list[CodeProblem]:
    """
    Return the first problems of HumanEval ([Chen et al. 2021](https://huggingface.co/papers/2107.03374)), in order.

    Args:
        rows (`Iterable[Mapping]`):
            Rows of `HumanEval.jsonl.gz`.
        limit (`int`, *optional*):
            Number of problems. Default: all.

    Raises:
        ValueError: If there are no problems, or a row cannot be read.
    """
    check_limit(limit)
    problems = []
    for number, row in enumerate(rows):
        _check_columns(row, number, "HumanEval", ("task_id", "prompt", "entry_point", "canonical_solution", "test"))
        problems.append(_humaneval_problem(row))
    if not problems:
        raise ValueError("The file of HumanEval has no problems. Give the set's own file.")
    return problems[:limit]


def _mbpp_problem(row: Mapping[str, Any], asked: str) -> CodeProblem:
    # Sanitized MBPP has a list of imports, the whole set has their source.
    setup = "\n".join(row.get("test_imports") or [row.get("test_setup_code") or ""])
    asserts: Sequence[str] = row["test_list"]
    reference = _parsed(row["code"], row["task_id"])
    # Task 596's asserts use `sys`, which only its reference imports. A correct program need not import it.
    imports = [ast.unparse(node) for node in reference.body if isinstance(node, ast.Import | ast.ImportFrom)]
    tests = "\n".join([*imports, setup, *asserts])
    defined = {node.name for node in reference.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    used = {node.id: None for node in ast.walk(_parsed(tests, row["task_id"])) if isinstance(node, ast.Name)}
    shown = "\n".join(asserts)
    return CodeProblem(
        task=row["task_id"],
        # The convention of MBPP's authors: show the model every assert.
        question=(
            f"You are an expert Python programmer, and here is your task: {asked.strip()} Your code should pass these "
            f"tests:\n\n{shown}"
        ),
        tests=tests,
        # The names that the reference defines, including Python's: task 126 is to write its own `sum`.
        entry_points=tuple(name for name in used if name in defined),
        reference=row["code"],
        after=appended_imports(setup),
        in_place=bool(row.get("in_place")),
    )


def _humaneval_problem(row: Mapping[str, Any]) -> CodeProblem:
    # Tests may use other functions of the prompt (`poly`, `encode_cyclic`). They take them from the prompt, because
    # the program could have changed its own.
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
        # A reply may continue the prompt or start again. In the latter case its definitions replace the stub.
        before=row["prompt"],
    )


def _parsed(source: str, task: int | str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some of MBPP's patterns have a `\w` outside a raw string
            return ast.parse(source)
    except SyntaxError as error:
        raise ValueError(
            f"Task {task} has source that is not Python ({reported(error)}). Give the set's own file."
        ) from error


def _check_columns(row: Mapping[str, Any], number: int, name: str, columns: Sequence[str]) -> None:
    if not isinstance(row, Mapping) or not set(columns) <= row.keys():
        found = ", ".join(map(repr, row)) if isinstance(row, Mapping) else type(row).__name__
        raise ValueError(
            f"Row {number} of {name} needs the columns {', '.join(map(repr, columns))}, and has {found}. Give the "
            "set's own file."
        )
