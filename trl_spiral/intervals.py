"""95 % intervals: Wilson's for shares, percentile bootstrap for means."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist


LEVEL = 0.95
"""Share of experiments whose interval holds the true value, of every interval here."""

RESAMPLES = 1000
"""Of a bootstrap. Its own noise then moves an end of the interval by some 2 % of the interval's width."""

METHODS = (
    f"{100 * LEVEL:.0f} % intervals: shares by Wilson's score, over all seats at the effective number of games; means by "
    f"percentile bootstrap ({RESAMPLES} resamples), over all seats of whole deals."
)
"""How [`~evaluation.matches.MatchReport`] gets its intervals, in a sentence for whoever reads its table."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """
    A number and its 95 % interval.

    Attributes:
        value (`float`):
            As observed; `nan` where nothing was.
        low, high (`float`):
            Ends of the interval.
    """

    value: float
    low: float
    high: float


def wilson(share: float, games: float) -> Estimate:
    """
    A share of games with Wilson's score interval (Wilson 1927), which stays in [0, 1] and does not collapse at its ends.

    Args:
        share (`float`):
            Observed share.
        games (`float`):
            Games that it rests on; a fraction where they count as fewer than they are.
    """
    if not games:
        return Estimate(math.nan, 0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    middle = (share + z * z / (2 * games)) / (1 + z * z / games)
    half = z / (1 + z * z / games) * math.sqrt(share * (1 - share) / games + (z / (2 * games)) ** 2)
    # At shares of 0 and 1 an end is the share itself, but for rounding.
    return Estimate(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def clustered_wilson(clusters: Sequence[Sequence[float]]) -> Estimate:
    """
    A share with Wilson's interval, where games that share a deal may go alike.

    Games count as many as would vary as much if they were independent: their number divided by the design effect (Kish
    1965, "Survey Sampling"), and never more than there are. Where nothing was seen of how much they vary from deal to deal (all
    of them ended alike, or there is one deal), each deal counts once: its games may go alike every time.

    Args:
        clusters (`Sequence[Sequence[float]]`):
            For each deal, 1 or 0 for each game played from it; none empty.
    """
    games = sum(map(len, clusters))
    if not games:
        return wilson(math.nan, 0)
    share = math.fsum(map(math.fsum, clusters)) / games
    # Variance of a ratio of sums over deals (Cochran 1977, "Sampling Techniques", 6.3).
    squares = math.fsum((math.fsum(cluster) - share * len(cluster)) ** 2 for cluster in clusters)
    variance = squares / games**2
    if len(clusters) == 1 or share in (0.0, 1.0):
        return wilson(share, len(clusters))
    return wilson(share, min(games, share * (1 - share) / variance) if variance else games)


def bootstrap_mean(clusters: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """
    A mean with its percentile bootstrap interval (Efron 1979), drawing whole clusters.

    Where the seats of a deal are drawn together, the luck that one of them has at the other's cost cancels, and so it
    should.

    Args:
        clusters (`Sequence[Sequence[float]]`):
            For each deal, the values of the games played from it; none empty. One value each for an ordinary mean.
        seed (`int`, defaults to `0`):
            Seed of the resamples.
    """
    sums = [(math.fsum(cluster), len(cluster)) for cluster in clusters]
    if not sums:
        return Estimate(math.nan, math.nan, math.nan)
    rng = random.Random(seed)
    means = sorted(_mean(rng.choices(sums, k=len(sums))) for _ in range(RESAMPLES))
    cut = round((1 - LEVEL) / 2 * RESAMPLES)
    return Estimate(_mean(sums), means[cut], means[-1 - cut])


def _mean(sums: Sequence[tuple[float, int]]) -> float:
    return math.fsum(total for total, _ in sums) / sum(number for _, number in sums)
