"""95 % intervals: Wilson intervals for shares, percentile bootstrap intervals for means."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist


LEVEL = 0.95
"""Coverage of all intervals."""

RESAMPLES = 1000
"""Resamples of a bootstrap. Their noise moves the ends by about 2 % of the interval's width."""

METHODS = (
    f"{100 * LEVEL:.0f} % intervals: Wilson score for shares, with the effective number of games over all seats; "
    f"percentile bootstrap ({RESAMPLES} resamples) for means, of whole deals over all seats."
)
"""Description of the intervals in a [`~evaluation.matches.MatchReport`], for its tables."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """
    A number and its 95 % interval.

    Attributes:
        value (`float`):
            Estimate; `nan` without data.
        low, high (`float`):
            Ends of the interval.
    """

    value: float
    low: float
    high: float


def wilson(share: float, games: float) -> Estimate:
    """
    Compute Wilson's score interval of a share (Wilson 1927), which stays in [0, 1] and has a positive width at 0 and
    1.

    Args:
        share (`float`):
            Observed share.
        games (`float`):
            Number of games; may be an effective number.
    """
    if not games:
        return Estimate(math.nan, 0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    middle = (share + z * z / (2 * games)) / (1 + z * z / games)
    half = z / (1 + z * z / games) * math.sqrt(share * (1 - share) / games + (z / (2 * games)) ** 2)
    # Rounding could move an end past a share of 0 or 1.
    return Estimate(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def clustered_wilson(clusters: Sequence[Sequence[float]]) -> Estimate:
    """
    Compute Wilson's interval of a share if games of the same deal are correlated.

    The effective number of games is their number divided by the design effect (Kish 1965, "Survey Sampling"), and at
    most their number. If the variance between deals is unknown (all results are equal, or there is one deal), each
    deal counts once.

    Args:
        clusters (`Sequence[Sequence[float]]`):
            For each deal, 1 or 0 for each of its games, at least one.
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
    Compute the percentile bootstrap interval of a mean (Efron 1979), with whole clusters as resamples.

    If a deal's seats are in one cluster, luck that one seat has at the cost of another cancels.

    Args:
        clusters (`Sequence[Sequence[float]]`):
            For each deal, the values of its games, at least one.
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
