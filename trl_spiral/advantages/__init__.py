"""
Episodes in, one advantage per turn out.

Every estimator sees the *results* of all ranks' episodes in one order, so that its numbers depend neither on which rank
played what nor on which game ended first: one rank and two ranks with the same episodes get the same advantages.

`results.py` says what estimators see of an episode, `estimators.py` holds the baselines over returns, `positions.py` the
values of positions.
"""

from __future__ import annotations

from trl_spiral.advantages.estimators import (
    AdvantageEstimator,
    Advantages,
    BatchMean,
    GroupMean,
    ReturnsOnly,
    Role,
    RoleBaseline,
)
from trl_spiral.advantages.positions import Position, PositionValues
from trl_spiral.advantages.results import AGAINST_ITSELF, Result, learning_seats, summarize


__all__ = [
    "AGAINST_ITSELF",
    "AdvantageEstimator",
    "Advantages",
    "BatchMean",
    "GroupMean",
    "Position",
    "PositionValues",
    "Result",
    "ReturnsOnly",
    "Role",
    "RoleBaseline",
    "learning_seats",
    "summarize",
]
