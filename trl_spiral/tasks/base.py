"""Tasks: problems for a single model, and a score for each reply."""

from __future__ import annotations

import difflib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trl_spiral.text.replies import extract_move
from trl_spiral.types import Message


Split = Literal["train", "validation"]

SPLITS: tuple[Split, ...] = ("train", "validation")

MAX_ANSWER = 16_384
"""Characters of the longest answer that is read. Ten disks may need 1,023 moves, in 10,000 characters."""


@dataclass(frozen=True, slots=True)
class Problem:
    """
    One question of a task.

    Attributes:
        id (`str`):
            Identifies the problem within its task.
        messages (`tuple[Message, ...]`):
            Chat messages that ask the question.
        data (`Mapping[str, Any]`):
            Input of the score: plain values that survive JSON.
    """

    id: str
    messages: tuple[Message, ...]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Score:
    """
    Score of a reply.

    Attributes:
        value (`float`):
            In [0, 1]; 1 for the best possible answer.
        solved (`bool`):
            Whether the problem is solved, even if not in the best way.
        detail (`Mapping[str, Any]`):
            Details of the score, as plain values.

    Raises:
        ValueError: If the value is outside [0, 1].
    """

    value: float
    solved: bool
    detail: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0.0 <= self.value <= 1.0:
            raise ValueError(f"A score's value ({self.value}) must be in [0, 1].")


class Task(ABC):
    """Problems and the scores of replies. A reply is only read: nothing in it is run or evaluated."""

    name: str

    @abstractmethod
    def problems(self, split: Split, number: int, seed: int = 0) -> list[Problem]:
        """Return `number` problems of a split, the same for the same seed. The splits share no problem."""

    @abstractmethod
    def score(self, problem: Problem, response: str) -> Score:
        """Return the score of a reply. Any text has a score: 0 if it cannot be read."""

    def steps(self, problem: Problem, response: str) -> list[str]:
        """Return the reply as a series of text pictures: the problem, then the state after each part of the answer."""
        return [problem.messages[-1]["content"], response]

    def solution(self, problem: Problem) -> str:
        """Return a correct answer as a text picture; empty if the task has none."""
        return ""


def read_answer(response: str) -> str | None:
    r"""
    Return the answer in a reply, as a game's move: its last `\boxed{}`, or the whole of a reply of one line.

    Args:
        response (`str`):
            The whole reply, of any length. Unfinished thinking contains no answer.

    Returns:
        `str` or `None`: The answer, stripped; `None` if there is none or it is longer than `MAX_ANSWER`.
    """
    return extract_move(response, longest=MAX_ANSWER)


_REGISTRY: dict[str, Callable[[], Task]] = {}
_TASKS: dict[str, Task] = {}


def register_task(name: str, factory: Callable[[], Task]) -> None:
    """
    Register a task under `name`.

    Args:
        name (`str`):
            Name for recipes and commands.
        factory (`Callable[[], Task]`):
            Makes the task. Called once, at the first use of the name.

    Raises:
        ValueError: If the name is taken.
    """
    if name in _REGISTRY:
        raise ValueError(f"A task called {name!r} is registered already. Choose another name.")
    _REGISTRY[name] = factory


def get_task(name: str) -> Task:
    """
    Return the task that is registered under `name`.

    Raises:
        ValueError: If there is none, with the closest names, or if the task's own `name` differs.
    """
    if name not in _REGISTRY:
        close = difflib.get_close_matches(name.casefold(), _REGISTRY, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else f"There are {', '.join(task_names())}."
        raise ValueError(f"There is no task called {name!r}. {hint}")
    if name not in _TASKS:
        task = _REGISTRY[name]()
        if (own := getattr(task, "name", None)) != name:
            raise ValueError(
                f"The task that is registered as {name!r} has {own!r} for its `name`, which files of scores use. Give "
                "it the name that it is registered under."
            )
        _TASKS[name] = task
    return _TASKS[name]


def task_names() -> list[str]:
    """Return the names of all registered tasks, sorted."""
    return sorted(_REGISTRY)


def task_dataset(task: Task | str, split: Split, number: int, seed: int = 0) -> list[dict[str, Any]]:
    """
    Return the rows of a dataset for TRL: `Dataset.from_list(task_dataset("hanoi", "train", 1000))`.

    Args:
        task ([`Task`] or `str`):
            A task, or its name.
        split (`str`):
            `"train"` or `"validation"`.
        number (`int`):
            Number of problems.
        seed (`int`, defaults to `0`):
            Seed of the problems.

    Returns:
        `list[dict]`: Rows with `prompt`, the chat messages, and `problem`, from which [`~rewards.TaskReward`] scores
        replies. `problem` is JSON text, because a column of objects would give every problem the keys of all others.
    """
    found = get_task(task) if isinstance(task, str) else task
    return [
        {
            "prompt": [dict(message) for message in problem.messages],
            "problem": json.dumps({"id": problem.id, "data": dict(problem.data)}),
        }
        for problem in found.problems(split, number, seed)
    ]
