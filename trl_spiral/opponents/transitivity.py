"""
Is there a best player? A table of win rates, split into what one ladder explains and what goes round in circles.

In rock-paper-scissors everybody beats somebody, and no rating says anything. Self-play can climb such a circle for ever,
so a run should be seen to do it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist


MIN_GAMES = 16.0
"""Games below which a pair is left out. At 16, one standard deviation of an even pair's win rate is 1/8."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """
    How often each player beats each other.

    Attributes:
        names (`tuple[str, ...]`):
            The players.
        rates (`tuple[tuple[float, ...], ...]`):
            Row against column: wins plus half of the draws, per game. `nan` where the two never met, and on the diagonal.
        counts (`tuple[tuple[float, ...], ...]`):
            Games behind each rate; fractions where older games count for less.
    """

    names: tuple[str, ...]
    rates: tuple[tuple[float, ...], ...]
    counts: tuple[tuple[float, ...], ...]

    def pairs(self, min_games: float = MIN_GAMES) -> list[tuple[int, int]]:
        """Positions (i, j), i < j, of those who met at least `min_games` times."""
        size = range(len(self.names))
        return [(i, j) for i in size for j in size if i < j and self.counts[i][j] >= min_games]


def cycles(matrix: Matrix, level: float = 0.05, min_games: float = MIN_GAMES) -> list[tuple[str, str, str]]:
    """
    Triples in which the first beats the second, the second the third, and the third the first.

    "Beats" is a score test of each win rate against 1/2 in a normal approximation, at `level` / (2 x pairs): with
    Bonferroni's correction over all pairs and both directions, the chance that the whole list holds anything false is at
    most `level`.

    Args:
        matrix ([`Matrix`]):
            The win rates.
        level (`float`, defaults to `0.05`):
            Chance that the list holds a false circle.
        min_games (`float`, defaults to `MIN_GAMES`):
            Games that a pair needs.

    Returns:
        `list[tuple[str, str, str]]`: Each circle once, beginning with whoever comes first in the matrix.
    """
    pairs = matrix.pairs(min_games)
    if not pairs:
        return []
    needed = NormalDist().inv_cdf(1.0 - level / (2 * len(pairs)))
    beats: set[tuple[int, int]] = set()
    for i, j in pairs:
        # Under an even chance, the standard deviation of a rate over n games is 1 / (2 sqrt(n)).
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
    Squared strength of the differences between players, in units of its own noise, and how much of it a ladder explains.

    Attributes:
        ladder (`dict[str, float]`):
            The ratings, in log-odds, whose differences come closest to what was observed; their mean is zero among any
            players who are linked by games.
        total (`float`):
            Sum over pairs of weight x squared log-odds.
        cyclic (`float`):
            What of it remains when the ladder is taken away.
        pairs (`int`):
            Pairs with enough games: what chance alone adds to `total`, on average.
        loops (`int`):
            Independent closed loops among them: what chance alone adds to `cyclic`, on average. With 0, as where
            snapshots have met the policy and never each other, nothing can go round in circles.
    """

    ladder: dict[str, float]
    total: float
    cyclic: float
    pairs: int
    loops: int

    @property
    def raw_share(self) -> float:
        """`cyclic` / `total`, as it is. With few games it is mostly noise: `loops` / `pairs` among equals."""
        return self.cyclic / self.total if self.total else math.nan

    @property
    def cyclic_share(self) -> float:
        """
        Share of the squared differences that is cyclic, in [0, 1], less what chance adds to either part.

        `nan` where there is no loop, or where `total` is within two standard deviations of what players of equal strength
        would show: a chi-squared number with `pairs` degrees of freedom.
        """
        if not self.loops or self.total < self.pairs + 2.0 * math.sqrt(2.0 * self.pairs):
            return math.nan
        cyclic = max(0.0, self.cyclic - self.loops)
        transitive = max(0.0, self.total - self.cyclic - (self.pairs - self.loops))
        return cyclic / (cyclic + transitive) if cyclic + transitive else math.nan


def decompose(matrix: Matrix, min_games: float = MIN_GAMES) -> Decomposition:
    """
    Splits the log-odds of winning into a ladder and a rest that is cyclic.

    HodgeRank (Jiang et al. 2011, arXiv 0811.1067), used on players as in "Re-evaluating Evaluation" (Balduzzi et al. 2018,
    arXiv 1806.02643): the ladder is the weighted least-squares fit of rating differences to the log-odds of all observed
    pairs, and the rest is orthogonal to it. A pair of n games and win rate p weighs n p (1 - p), one over the variance of
    its log-odds. Rates are (wins + 1/2) / (games + 1), so that no log-odds are infinite; that pulls strong pairs
    towards even, most where games are few.

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
    """The players in groups whose members are linked by games, directly or through others."""
    group_of = list(range(size))
    for i, j in pairs:
        old, new = group_of[j], group_of[i]
        group_of = [new if group == old else group for group in group_of]
    return [[player for player in range(size) if group_of[player] == group] for group in sorted(set(group_of))]


def _solve(left: list[list[float]], right: list[float]) -> list[float]:
    """Solves symmetric positive definite equations by Gaussian elimination, which needs no pivoting there."""
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
