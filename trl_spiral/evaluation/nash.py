"""
Nash averaging: the strength of each player against the strongest mixture of players.

A mean over all opponents depends on the choice of opponents. Nash averaging weights them by the maximum-entropy Nash
equilibrium of the game in which each side chooses a player. Copies of a player, and players outside the equilibrium,
then change nothing ("Re-evaluating Evaluation", Balduzzi et al. 2018, arXiv 1806.02643).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


_NONE = 1e-7
"""Probability below which a player is outside all equilibria. The linear programs are accurate to about 1e-9."""


@dataclass(frozen=True, slots=True)
class NashAverage:
    """
    The maximum-entropy Nash equilibrium, and the strength of each player against it.

    Attributes:
        masses (`tuple[float, ...]`):
            Probability of each player in the equilibrium.
        skills (`tuple[float, ...]`):
            Expected payoff of each player against the equilibrium. It is zero for players in it, and never positive.
    """

    masses: tuple[float, ...]
    skills: tuple[float, ...]


def nash_average(payoffs: Sequence[Sequence[float]]) -> NashAverage:
    """
    Compute the Nash average of a table of payoffs.

    The equilibria form a polytope. A point of its relative interior has all players that are in any equilibrium. On
    these players the entropy is strictly concave, so its maximum is unique.

    Args:
        payoffs (`Sequence[Sequence[float]]`):
            Antisymmetric payoffs of row against column, such as win rate minus loss rate, or log-odds of winning.

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
            f"Nash averaging needs antisymmetric payoffs (row against column is minus column against row), and these "
            f"of {size} players are not, or are unknown for some pairs. Let each player meet each other."
        )

    def most_of(player: int) -> list[float]:
        # No player gains against an equilibrium p: payoffs @ p <= 0.
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
    """Return the equilibrium of maximum entropy over `support`, starting from a point with all of its players."""
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
            # No player gains. Those in the support gain exactly 0.
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
