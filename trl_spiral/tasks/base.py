"""What a task is: problems with one right kind of answer, and a score that a reply earns by itself, without another player."""

from __future__ import annotations

import difflib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trl_spiral.text.completions import Completion, RepliesReward
from trl_spiral.text.prompts import PromptRenderer, extract_move
from trl_spiral.types import Message


Split = Literal["train", "validation"]

SPLITS: tuple[Split, ...] = ("train", "validation")

MAX_ANSWER = 16_384
"""Characters of the longest answer that is read: the 1,023 moves that ten disks may need are 10,000."""


@dataclass(frozen=True, slots=True)
class Problem:
    """
    One question of a task.

    Attributes:
        id (`str`):
            Names the problem within its task: the same id is the same problem.
        messages (`tuple[Message, ...]`):
            What the model is asked, as chat messages.
        data (`Mapping[str, Any]`):
            What its score is computed from: plain values that survive JSON.
    """

    id: str
    messages: tuple[Message, ...]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Score:
    """
    What a reply is worth.

    Attributes:
        value (`float`):
            In [0, 1]; 1 is the best answer there is.
        solved (`bool`):
            Whether the problem is solved, if not in the best way.
        detail (`Mapping[str, Any]`):
            How the value came about, as plain values.

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
    """Problems, and what replies to them are worth. A reply is only ever read: nothing in it is run or evaluated."""

    name: str

    @abstractmethod
    def problems(self, split: Split, number: int, seed: int = 0) -> list[Problem]:
        """`number` problems of a split: the same for the same seed, and none that the other split could hold."""

    @abstractmethod
    def score(self, problem: Problem, response: str) -> Score:
        """What a reply is worth. Any text has a score: what cannot be read is worth 0."""

    def steps(self, problem: Problem, response: str) -> list[str]:
        """The reply as a series of pictures, for people: what there was, and what each part of the answer made of it."""
        return [problem.messages[-1]["content"], response]

    def solution(self, problem: Problem) -> str:
        """A right answer as a picture, shown apart from the reply's steps; empty where the task has none to show."""
        return ""


def read_answer(response: str) -> str | None:
    r"""
    The answer in a reply: what stands in its last `\boxed{}`, or all of a reply of one line, as for a game's move.

    Args:
        response (`str`):
            The whole reply, of any length. What stands in an unfinished `<think>` is no answer.

    Returns:
        `str` or `None`: The answer, stripped; `None` if there is none or it is longer than `MAX_ANSWER`.
    """
    return extract_move(response, longest=MAX_ANSWER)


_REGISTRY: dict[str, Callable[[], Task]] = {}
_TASKS: dict[str, Task] = {}


def register_task(name: str, factory: Callable[[], Task]) -> None:
    """
    Adds a task under `name`.

    Args:
        name (`str`):
            Name by which recipes and commands call it.
        factory (`Callable[[], Task]`):
            Called once, when the task is first asked for.

    Raises:
        ValueError: If the name is taken.
    """
    if name in _REGISTRY:
        raise ValueError(f"A task called {name!r} is registered already. Choose another name.")
    _REGISTRY[name] = factory


def get_task(name: str) -> Task:
    """
    The registered task called `name`.

    Raises:
        ValueError: If there is none; the message names the closest. If the task has another `name`.
    """
    if name not in _REGISTRY:
        close = difflib.get_close_matches(name.casefold(), _REGISTRY, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else f"There are {', '.join(task_names())}."
        raise ValueError(f"There is no task called {name!r}. {hint}")
    if name not in _TASKS:
        task = _REGISTRY[name]()
        if (own := getattr(task, "name", None)) != name:
            raise ValueError(
                f"The task that is registered as {name!r} has {own!r} for its `name`, which files of scores call it by. Give it the "
                "name that it is registered under."
            )
        _TASKS[name] = task
    return _TASKS[name]


def task_names() -> list[str]:
    """Names of all registered tasks, sorted."""
    return sorted(_REGISTRY)


def task_dataset(task: Task | str, split: Split, number: int, seed: int = 0) -> list[dict[str, Any]]:
    """
    Rows for TRL: `Dataset.from_list(task_dataset("hanoi", "train", 1000))`.

    Args:
        task ([`Task`] or `str`):
            A task, or the name of one.
        split (`str`):
            `"train"` or `"validation"`.
        number (`int`):
            How many.
        seed (`int`, defaults to `0`):
            Which.

    Returns:
        `list[dict]`: `prompt`, the chat messages, and `problem`, a JSON text from which [`TaskReward`] scores replies. As
        text, because a column of objects would give every problem the keys of all others.
    """
    found = get_task(task) if isinstance(task, str) else task
    return [
        {
            "prompt": [dict(message) for message in problem.messages],
            "problem": json.dumps({"id": problem.id, "data": dict(problem.data)}),
        }
        for problem in found.problems(split, number, seed)
    ]


class TaskReward(RepliesReward):
    """
    A reward function of TRL's: what replies to the rows of [`task_dataset`] are worth.

    Logs the share of solved problems as `{name}/solved`.

    Args:
        task ([`Task`] or `str`):
            The task that the rows are of, or its name.
        renderer ([`~text.prompts.PromptRenderer`], *optional*):
            To be given with TRL's own trainer where the chat template opens the thinking: `PromptRenderer(tokenizer)`, with the
            trainer's `chat_template_kwargs`. [`AlgorithmTrainer`] sets it by itself; see [`~text.completions.RepliesReward`].
    """

    def __init__(self, task: Task | str, renderer: PromptRenderer | None = None) -> None:
        super().__init__(renderer)
        self.task = get_task(task) if isinstance(task, str) else task
        self.__name__ = self.task.name  # by which TRL logs it

    def __call__(
        self,
        completions: Sequence[Completion],
        problem: Sequence[str],
        prompts: Sequence[Any] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        scores = []
        for response, text in zip(self.replies(completions, prompts, completion_ids), problem, strict=True):
            asked = json.loads(text)
            scores.append(self.task.score(Problem(asked["id"], (), asked["data"]), response))
        if log_metric is not None and scores:
            log_metric(f"{self.task.name}/solved", sum(score.solved for score in scores) / len(scores))
        return [score.value for score in scores]
