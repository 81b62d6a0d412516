"""
Which of its earlier selves the policy meets.

A scheme gives every candidate a weight; the draw is made elsewhere, from the episode's seed. The candidates are the
snapshots of the pool, oldest first, and, last, the policy itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    Somebody whom the policy may meet.

    Attributes:
        name (`str`):
            Policy name.
        step (`int`):
            Optimizer step at which it was taken.
        win_rate (`float`, defaults to `0.5`):
            Of the policy against it, of late; draws count half.
        games (`int`, defaults to `0`):
            How often they have met.
        rating_gap (`float`, defaults to `0.0`):
            The policy's rating less its own, in rating points.
    """

    name: str
    step: int
    win_rate: float = 0.5
    games: int = 0
    rating_gap: float = 0.0


Scheme = Callable[[Sequence[Candidate]], Sequence[float]]
"""
One weight for each candidate, in proportion to which they are drawn. The last candidate is the policy itself, and the only
one while the pool is empty. All weights zero means the policy itself.
"""


def mirror(candidates: Sequence[Candidate]) -> Sequence[float]:
    """Itself, always: self-play."""
    return [*_nobody(candidates), 1.0]


def latest(candidates: Sequence[Candidate]) -> Sequence[float]:
    """The newest snapshot."""
    return lagged(candidates, 1)


def lagged(candidates: Sequence[Candidate], lag: int = 5) -> Sequence[float]:
    """The snapshot that is `lag` snapshots old, or the oldest while there are fewer: delayed self-play."""
    weights = [*_nobody(candidates), 0.0]
    if len(candidates) > 1:
        weights[max(0, len(candidates) - 1 - lag)] = 1.0
    return weights


def uniform(candidates: Sequence[Candidate]) -> Sequence[float]:
    """Every snapshot alike: fictitious self-play ([Heinrich et al., 2015](https://proceedings.mlr.press/v37/heinrich15.html))."""
    return [*(1.0 for _ in candidates[:-1]), 0.0]


def fifo(candidates: Sequence[Candidate], window: int = 25) -> Sequence[float]:
    """
    The newest `window` candidates alike, the policy itself among them.

    Fictitious self-play as [SPIRAL](https://huggingface.co/papers/2506.24119) has it, with a window of 25.
    """
    return [float(place >= len(candidates) - window) for place in range(len(candidates))]


def pfsp_hard(candidates: Sequence[Candidate], power: float = 2.0) -> Sequence[float]:
    """
    Whoever beats the policy: weight `(1 - win rate) ** power`.

    Prioritised fictitious self-play with `f_hard` of [AlphaStar](https://doi.org/10.1038/s41586-019-1724-z).
    """
    return [*((1.0 - candidate.win_rate) ** power for candidate in candidates[:-1]), 0.0]


def pfsp_var(candidates: Sequence[Candidate]) -> Sequence[float]:
    """
    Whoever is about as strong: weight `win rate * (1 - win rate)`.

    Prioritised fictitious self-play with `f_var` of [AlphaStar](https://doi.org/10.1038/s41586-019-1724-z).
    """
    return [*(candidate.win_rate * (1.0 - candidate.win_rate) for candidate in candidates[:-1]), 0.0]


def rating(candidates: Sequence[Candidate], width: float = 200.0) -> Sequence[float]:
    """Whoever is rated alike: a bell curve over the difference in rating, `width` points wide."""
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
"""Schemes by name. `lagged-10` and `fifo-50` set the number that these two have."""

_COUNTED = ("lagged", "fifo")


def get_scheme(name: str) -> Scheme:
    """
    A scheme by name.

    Raises:
        ValueError: If there is none, or its number is out of range.
    """
    if name in SCHEMES:
        return SCHEMES[name]
    known, _, number = name.rpartition("-")
    if known in _COUNTED and number.isdigit() and int(number) > 0:
        count = int(number)
        return lambda candidates: SCHEMES[known](candidates, count)
    raise ValueError(
        f"`matchmaking` ({name!r}) must be one of {', '.join(SCHEMES)}, where lagged-N and fifo-N set a number of at least 1. "
        "Or pass a function from candidates to weights."
    )


def probabilities(scheme: Scheme, candidates: Sequence[Candidate]) -> list[float]:
    """
    How likely each candidate is to be drawn.

    Raises:
        ValueError: If the scheme's weights are not one finite, non-negative number for each candidate.
    """
    weights = list(scheme(candidates))
    if len(weights) != len(candidates) or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError(
            f"A matchmaking scheme gave {weights} for {len(candidates)} candidates. It must give one finite weight of at "
            "least zero for each, the policy itself last."
        )
    total = math.fsum(weights)
    if total == 0.0:
        return [*_nobody(candidates), 1.0]
    return [weight / total for weight in weights]


def _nobody(candidates: Sequence[Candidate]) -> list[float]:
    return [0.0] * (len(candidates) - 1)
