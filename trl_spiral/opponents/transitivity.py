"""
Transitive and cyclic parts of a table of win rates.

In rock-paper-scissors every throw beats another one, and ratings are meaningless. Self-play can follow such a cycle
without end, so a run should detect it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist


MIN_GAMES = 16.0
"""Minimum number of games of a pair. At 16, the standard deviation of a win rate of 1/2 is 1/8."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """
    Pairwise win rates.

    Attributes:
        names (`tuple[str, ...]`):
            The players.
        rates (`tuple[tuple[float, ...], ...]`):
            Row against column: wins plus half of the draws, per game. `nan` if the two never met, and on the diagonal.
        counts (`tuple[tuple[float, ...], ...]`):
            Games of each pair; fractions if older games have decayed.
    """

    names: tuple[str, ...]
    rates: tuple[tuple[float, ...], ...]
    counts: tuple[tuple[float, ...], ...]

    def pairs(self, min_games: float = MIN_GAMES) -> list[tuple[int, int]]:
        """Return the indices (i, j), i < j, of pairs with at least `min_games` games."""
        size = range(len(self.names))
        return [(i, j) for i in size for j in size if i < j and self.counts[i][j] >= min_games]


def cycles(matrix: Matrix, level: float = 0.05, min_games: float = MIN_GAMES) -> list[tuple[str, str, str]]:
    """
    Find triples in which the first beats the second, the second the third, and the third the first.

    "Beats" is a score test of the win rate against 1/2 in a normal approximation, at `level` / (2 x pairs). By
    Bonferroni's correction over all pairs and both directions, the probability of any false cycle in the list is at
    most `level`.

    Args:
        matrix ([`Matrix`]):
            The win rates.
        level (`float`, defaults to `0.05`):
            Probability that the list contains a false cycle.
        min_games (`float`, defaults to `MIN_GAMES`):
            Games that a pair needs.

    Returns:
        `list[tuple[str, str, str]]`: Each cycle once, starting with its first player in the matrix.
    """
    pairs = matrix.pairs(min_games)
    if not pairs:
        return []
    needed = NormalDist().inv_cdf(1.0 - level / (2 * len(pairs)))
    beats: set[tuple[int, int]] = set()
    for i, j in pairs:
        # For equal players, the standard deviation of a rate over n games is 1 / (2 sqrt(n)).
        score = (matrix.rates[i][j] - 0.5) * 2.0 * math.sqrt(matrix.counts[i][j])
        if abs(score) > needed:
            beats.add((i, j) if score > 0 else (j, i))
    size = range(len(matrix.names))
    return [
        (matrix.names[i], matrix.names[j], matrix.names[k])
        for i in size
        for j in range(i + 1, len(size))
        if (i, j) in beats
        for k in range(i + 1, len(size))
        if (j, k) in beats and (k, i) in beats
    ]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """
    Squared differences between players, in units of their noise, and the part that ratings explain.

    Attributes:
        ladder (`dict[str, float]`):
            Ratings, in log-odds, whose differences fit the observed log-odds best. Their mean is zero in each group of
            players that are linked by games.
        total (`float`):
            Sum over pairs of weight x squared log-odds.
        cyclic (`float`):
            The same sum for the residuals of the ladder.
        pairs (`int`):
            Pairs with enough games. It is also the mean of `total` for equal players.
        loops (`int`):
            Independent closed loops among them. It is also the mean of `cyclic` without cycles. It is 0 if snapshots
            have played the policy and never each other.
    """

    ladder: dict[str, float]
    total: float
    cyclic: float
    pairs: int
    loops: int

    @property
    def raw_share(self) -> float:
        """`cyclic` / `total`, without correction. With few games it is mostly noise: `loops` / `pairs` on average."""
        return self.cyclic / self.total if self.total else math.nan

    @property
    def cyclic_share(self) -> float:
        """
        Cyclic share of the squared differences, in [0, 1], corrected for the noise of both parts.

        It is `nan` if there is no loop, or if `total` is within two standard deviations of its mean for equal players.
        For them, `total` is a chi-squared number with `pairs` degrees of freedom.
        """
        if not self.loops or self.total < self.pairs + 2.0 * math.sqrt(2.0 * self.pairs):
            return math.nan
        cyclic = max(0.0, self.cyclic - self.loops)
        transitive = max(0.0, self.total - self.cyclic - (self.pairs - self.loops))
        return cyclic / (cyclic + transitive) if cyclic + transitive else math.nan


def decompose(matrix: Matrix, min_games: float = MIN_GAMES) -> Decomposition:
    """
    Split the log-odds of winning into a ladder and a cyclic rest.

    This is HodgeRank (Jiang et al. 2011, arXiv 0811.1067), applied to players as in "Re-evaluating Evaluation"
    (Balduzzi et al. 2018, arXiv 1806.02643). The ladder is the weighted least-squares fit of rating differences to the
    log-odds of all observed pairs, and the rest is orthogonal to it. The weight of a pair with n games and win rate p
    is n p (1 - p), the inverse variance of its log-odds. Rates are (wins + 1/2) / (games + 1), which keeps log-odds
    finite, and shrinks them if games are few.

    Args:
        matrix ([`Matrix`]):
            The win rates.
        min_games (`float`, defaults to `MIN_GAMES`):
            Games that a pair needs.
    """
    pairs = matrix.pairs(min_games)
    size = len(matrix.names)
    flow: dict[tuple[int, int], float] = {}
    weight: dict[tuple[int, int], float] = {}
    for i, j in pairs:
        games = matrix.counts[i][j]
        rate = (matrix.rates[i][j] * games + 0.5) / (games + 1.0)
        flow[i, j] = math.log(rate / (1.0 - rate))
        weight[i, j] = games * rate * (1.0 - rate)

    groups = _linked(size, pairs)
    heights = [0.0] * size
    for group in groups:
        # The normal equations: a Laplacian, singular until one player's height is fixed at zero.
        free = group[1:]
        inside = [pair for pair in pairs if pair[0] in group]
        left = [[0.0] * len(free) for _ in free]
        right = [0.0] * len(free)
        for i, j in inside:
            for here, there, sign in ((i, j, 1.0), (j, i, -1.0)):
                if here in free:
                    row = free.index(here)
                    left[row][row] += weight[i, j]
                    right[row] += sign * weight[i, j] * flow[i, j]
                    if there in free:
                        left[row][free.index(there)] -= weight[i, j]
        for player, height in zip(free, _solve(left, right), strict=True):
            heights[player] = height
        mean = math.fsum(heights[player] for player in group) / len(group)
        for player in group:
            heights[player] -= mean

    return Decomposition(
        ladder=dict(zip(matrix.names, heights, strict=True)),
        total=math.fsum(weight[pair] * flow[pair] ** 2 for pair in pairs),
        cyclic=math.fsum(weight[i, j] * (flow[i, j] - heights[i] + heights[j]) ** 2 for i, j in pairs),
        pairs=len(pairs),
        loops=len(pairs) - size + len(groups),
    )


def _linked(size: int, pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return groups of players that are linked by games, directly or through others."""
    group_of = list(range(size))
    for i, j in pairs:
        old, new = group_of[j], group_of[i]
        group_of = [new if group == old else group for group in group_of]
    return [[player for player in range(size) if group_of[player] == group] for group in sorted(set(group_of))]


def _solve(left: list[list[float]], right: list[float]) -> list[float]:
    """Solve symmetric positive definite equations by Gaussian elimination without pivoting."""
    rows = [[*row, value] for row, value in zip(left, right, strict=True)]
    size = len(rows)
    for column in range(size):
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            if factor:
                rows[row] = [value - factor * above for value, above in zip(rows[row], rows[column], strict=True)]
    solution = [0.0] * size
    for row in reversed(range(size)):
        known = math.fsum(rows[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (rows[row][size] - known) / rows[row][row]
    return solution
