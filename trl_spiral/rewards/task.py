"""Reward for replies to the problems of a task."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from trl_spiral.rewards.base import Completion, RepliesReward
from trl_spiral.tasks import Problem, Task, get_task
from trl_spiral.text.prompts import PromptRenderer


class TaskReward(RepliesReward):
    """
    Rewards a reply to a row of [`~tasks.task_dataset`] by its score, in [0, 1].

    Logs the share of solved problems as `{name}/solved`.

    Args:
        task ([`~tasks.Task`] or `str`):
            Task of the rows, or its name.
        renderer ([`~text.prompts.PromptRenderer`], *optional*):
            Needed with TRL's own trainer if the chat template opens the thinking: `PromptRenderer(tokenizer)`, with
            the trainer's `chat_template_kwargs`. See [`~rewards.base.RepliesReward`].
    """

    def __init__(self, task: Task | str, renderer: PromptRenderer | None = None) -> None:
        super().__init__(renderer)
        self.task = get_task(task) if isinstance(task, str) else task
        self.__name__ = self.task.name  # in TRL's logs

    def __call__(
        self,
        completions: Sequence[Completion],
        problem: Sequence[str],
        prompts: Sequence[Any] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Return a reward for each completion. `problem` is the column of that name in the dataset."""
        scores = []
        for response, text in zip(self.replies(completions, prompts, completion_ids), problem, strict=True):
            asked = json.loads(text)
            scores.append(self.task.score(Problem(asked["id"], (), asked["data"]), response))
        if log_metric is not None and scores:
            log_metric(f"{self.task.name}/solved", sum(score.solved for score in scores) / len(scores))
        return [score.value for score in scores]
