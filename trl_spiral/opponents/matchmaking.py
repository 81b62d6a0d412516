"""
Schemes that select an opponent from the pool.

A scheme returns a weight for each candidate. The candidates are the snapshots of the pool, oldest first, and then the
policy itself. `Opponents` draws from the weights with the episode's seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    A snapshot of the pool, or the policy itself.

    Attributes:
        name (`str`):
            Policy name.
        step (`int`):
            Optimizer step at which it was taken.
        win_rate (`float`, defaults to `0.5`):
            Recent win rate of the policy against it. Draws count half.
        games (`int`, defaults to `0`):
            Number of games between them.
        rating_gap (`float`, defaults to `0.0`):
            Rating of the policy minus its own, in points.
    """

    name: str
    step: int
    win_rate: float = 0.5
    games: int = 0
    rating_gap: float = 0.0


Scheme = Callable[[Sequence[Candidate]], Sequence[float]]
"""
Returns one sampling weight for each candidate. The last candidate is the policy itself, and the only one while the
pool is empty. If all weights are zero, the policy plays itself.
"""


def mirror(candidates: Sequence[Candidate]) -> Sequence[float]:
    """Select the policy itself: self-play."""
    return [*_no_snapshot(candidates), 1.0]


def latest(candidates: Sequence[Candidate]) -> Sequence[float]:
    """Select the newest snapshot."""
    return lagged(candidates, 1)


def lagged(candidates: Sequence[Candidate], lag: int = 5) -> Sequence[float]:
    """Select the snapshot that is `lag` snapshots old, or the oldest if there are fewer: delayed self-play."""
    weights = [*_no_snapshot(candidates), 0.0]
    if len(candidates) > 1:
        weights[max(0, len(candidates) - 1 - lag)] = 1.0
    return weights


def uniform(candidates: Sequence[Candidate]) -> Sequence[float]:
    """
    Weight all snapshots equally: fictitious self-play.

    See [Heinrich et al., 2015](https://proceedings.mlr.press/v37/heinrich15.html).
    """
    return [*(1.0 for _ in candidates[:-1]), 0.0]


def fifo(candidates: Sequence[Candidate], window: int = 25) -> Sequence[float]:
    """
    Weight the newest `window` candidates equally, the policy included.

    This is fictitious self-play as in [SPIRAL](https://huggingface.co/papers/2506.24119), with a window of 25.
    """
    return [float(place >= len(candidates) - window) for place in range(len(candidates))]


def pfsp_hard(candidates: Sequence[Candidate], power: float = 2.0) -> Sequence[float]:
    """
    Prefer opponents that beat the policy: weight `(1 - win rate) ** power`.

    Prioritized fictitious self-play with `f_hard` of [AlphaStar](https://doi.org/10.1038/s41586-019-1724-z).
    """
    return [*((1.0 - candidate.win_rate) ** power for candidate in candidates[:-1]), 0.0]


def pfsp_var(candidates: Sequence[Candidate]) -> Sequence[float]:
    """
    Prefer opponents of equal strength: weight `win rate * (1 - win rate)`.

    Prioritized fictitious self-play with `f_var` of [AlphaStar](https://doi.org/10.1038/s41586-019-1724-z).
    """
    return [*(candidate.win_rate * (1.0 - candidate.win_rate) for candidate in candidates[:-1]), 0.0]


def rating(candidates: Sequence[Candidate], width: float = 200.0) -> Sequence[float]:
    """Prefer similar ratings: a Gaussian of the difference, with a standard deviation of `width` points."""
    return [*(math.exp(-0.5 * (candidate.rating_gap / width) ** 2) for candidate in candidates[:-1]), 0.0]


SCHEMES: Mapping[str, Callable[..., Sequence[float]]] = {
    "mirror": mirror,
    "latest": latest,
    "lagged": lagged,
    "uniform": uniform,
    "fifo": fifo,
    "pfsp-hard": pfsp_hard,
    "pfsp-var": pfsp_var,
    "rating": rating,
}
"""Schemes by name. `lagged-10` and `fifo-50` set the number of these two."""

_COUNTED = ("lagged", "fifo")


def get_scheme(name: str) -> Scheme:
    """
    Return the scheme of a name.

    Raises:
        ValueError: If the name is unknown, or its number is out of range.
    """
    if name in SCHEMES:
        return SCHEMES[name]
    known, _, number = name.rpartition("-")
    if known in _COUNTED and number.isdigit() and int(number) > 0:
        count = int(number)
        return lambda candidates: SCHEMES[known](candidates, count)
    raise ValueError(
        f"`matchmaking` ({name!r}) must be one of {', '.join(SCHEMES)}, where lagged-N and fifo-N set a number of at "
        "least 1. Or pass a function from candidates to weights."
    )


def probabilities(scheme: Scheme, candidates: Sequence[Candidate]) -> list[float]:
    """
    Compute the probability of each candidate.

    Raises:
        ValueError: If the scheme's weights are not one finite, non-negative number for each candidate.
    """
    weights = list(scheme(candidates))
    if len(weights) != len(candidates) or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError(
            f"A matchmaking scheme returned {weights} for {len(candidates)} candidates. It must return one finite "
            "weight of at least 0 for each, the policy itself last."
        )
    total = math.fsum(weights)
    if total == 0.0:
        return [*_no_snapshot(candidates), 1.0]
    return [weight / total for weight in weights]


def _no_snapshot(candidates: Sequence[Candidate]) -> list[float]:
    return [0.0] * (len(candidates) - 1)
