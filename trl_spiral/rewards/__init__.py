"""Reward functions for `GRPOTrainer(reward_funcs=[...])` of plain TRL: programs that are run, and replies to tasks."""

from __future__ import annotations

from trl_spiral.rewards.base import REWARD_LIMITS, Completion, RepliesReward
from trl_spiral.rewards.execution import ExecutionReward
from trl_spiral.rewards.task import TaskReward
from trl_spiral.rewards.unit_tests import UnitTestReward


__all__ = ["REWARD_LIMITS", "Completion", "ExecutionReward", "RepliesReward", "TaskReward", "UnitTestReward"]
