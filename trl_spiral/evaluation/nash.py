"""
Nash averaging: how strong each player is against opponents worth meeting.

A mean over all opponents rewards whoever beats the many that happen to be in the table. Under Nash averaging, opponents
count as the maximum-entropy Nash equilibrium of the game of choosing a player has them, so that copies of a player, or
players whom nobody would choose, change nothing ("Re-evaluating Evaluation", Balduzzi et al. 2018, arXiv 1806.02643).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


_NONE = 1e-7
"""Probability below which a player is in no equilibrium: the linear programs are solved to about 1e-9."""


@dataclass(frozen=True, slots=True)
class NashAverage:
    """
    The maximum-entropy Nash equilibrium, and everybody's strength against it.

    Attributes:
        masses (`tuple[float, ...]`):
            Probability of each player in the equilibrium.
        skills (`tuple[float, ...]`):
            Expected payoff of each player against the equilibrium: zero for all that are in it, never positive.
    """

    masses: tuple[float, ...]
    skills: tuple[float, ...]


def nash_average(payoffs: Sequence[Sequence[float]]) -> NashAverage:
    """
    The Nash average of a table of payoffs.

    The equilibria form a polytope. Its relative interior tells who is in any of them at all; among these, the entropy is
    strictly concave, and its maximum unique.

    Args:
        payoffs (`Sequence[Sequence[float]]`):
            Antisymmetric: row against column, such as win rate less loss rate, or log-odds of winning.

    Raises:
        ImportError: If SciPy is missing.
        ValueError: If the table is empty or not antisymmetric.
    """
    try:
        from scipy.optimize import linprog, minimize
    except ImportError as error:
        raise ImportError(
            "Nash averaging needs SciPy, which is not installed. Install it with `pip install trl-spiral[eval]`."
        ) from error
    size = len(payoffs)
    if not size or any(not abs(payoffs[i][j] + payoffs[j][i]) < 1e-9 for i in range(size) for j in range(size)):
        raise ValueError(
            f"Nash averaging needs payoffs that are antisymmetric (row against column is what column against row loses), and "
            f"these of {size} players are not, or not known for all pairs. Let everybody meet everybody."
        )

    def most_of(player: int) -> list[float]:
        # Nobody gains against an equilibrium: payoffs @ p <= 0.
        found = linprog(
            [-1.0 if other == player else 0.0 for other in range(size)],
            A_ub=payoffs,
            b_ub=[0.0] * size,
            A_eq=[[1.0] * size],
            b_eq=[1.0],
            method="highs",
        )
        assert found.success, "a symmetric zero-sum game has an equilibrium"
        return [float(mass) for mass in found.x]

    extremes = [most_of(player) for player in range(size)]
    support = [player for player in range(size) if extremes[player][player] > _NONE]
    inside = [math.fsum(point[player] for point in extremes) / size for player in support]
    masses = dict(zip(support, _most_even(minimize, payoffs, support, inside), strict=True))
    whole = [masses.get(player, 0.0) for player in range(size)]
    return NashAverage(
        tuple(whole), tuple(math.fsum(p * m for p, m in zip(row, whole, strict=True)) for row in payoffs)
    )


def _most_even(
    minimize: Any, payoffs: Sequence[Sequence[float]], support: Sequence[int], inside: Sequence[float]
) -> list[float]:
    """The equilibrium of highest entropy over the players in `support`, from one that holds them all."""
    if len(support) == 1:
        return [1.0]
    rows = [[row[player] for player in support] for row in payoffs]
    found = minimize(
        lambda masses: math.fsum(mass * math.log(mass) for mass in masses),
        inside,
        jac=lambda masses: [math.log(mass) + 1.0 for mass in masses],
        bounds=[(1e-12, 1.0)] * len(support),
        constraints=[
            {"type": "eq", "fun": lambda masses: math.fsum(masses) - 1.0, "jac": lambda masses: [1.0] * len(support)},
            # What no player gains, as one vector; those in the support gain nothing and lose nothing.
            {
                "type": "ineq",
                "fun": lambda masses: [-_dot(row, masses) for row in rows],
                "jac": lambda masses: [[-value for value in row] for row in rows],
            },
        ],
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    assert found.success, found.message
    total = math.fsum(found.x)
    return [float(mass) / total for mass in found.x]


def _dot(row: Sequence[float], masses: Sequence[float]) -> float:
    return math.fsum(value * mass for value, mass in zip(row, masses, strict=True))
