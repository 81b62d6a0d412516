"""Rewards of TRL from the scores of tasks."""

import json

import pytest

from tests.tasks.test_base import Sums
from trl_spiral.rewards import TaskReward
from trl_spiral.tasks import task_dataset


class TestTaskReward:
    def test_scores_rows_of_the_dataset(self):
        rows = task_dataset(Sums(), "train", 3)
        totals = [json.loads(row["problem"])["data"]["total"] for row in rows]
        replies = [f"\\boxed{{{total} + 0}}" for total in totals[:2]] + ["\\boxed{1 + 0}"]
        logged = {}
        reward = TaskReward(Sums())
        values = reward(
            prompts=[row["prompt"] for row in rows],
            completions=[[{"role": "assistant", "content": reply}] for reply in replies],
            problem=[row["problem"] for row in rows],
            log_metric=logged.__setitem__,
        )

        assert values == [1.0, 1.0, 0.0]
        assert logged == {"sums/solved": pytest.approx(2 / 3)}
        assert reward.__name__ == "sums"

    def test_scores_plain_text(self):
        (row,) = task_dataset("hanoi-small", "train", 1)

        assert TaskReward("hanoi-small")(completions=["[]"], problem=[row["problem"]]) == [0.0]
