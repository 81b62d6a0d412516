"""Sampling temperature that adapts to the spread of the rewards."""

from __future__ import annotations

import torch


def adapted(base: float, reference_std: float, rewards: torch.Tensor, bounds: tuple[float, float]) -> float:
    """
    Return the temperature for the next batch: `base * reference_std / std`, clipped to the bounds.

    A low spread of rewards calls for more exploration, so the temperature rises. If all rewards are equal, it is the
    upper bound.

    Args:
        base (`float`):
            Temperature at which rewards should deviate by `reference_std`.
        reference_std (`float`):
            Standard deviation that leaves the temperature at `base`. Rewards of 0 and 1 deviate by at most 0.5, so a
            reference of 1.0 keeps a base of 1.0 at the upper bound of 2.0.
        rewards (`torch.Tensor`):
            Rewards of the previous batch on all ranks. Only finite ones count.
        bounds (`tuple[float, float]`):
            Lowest and highest temperature.

    Returns:
        `float`: Temperature within the bounds; `base` if there are no finite rewards.
    """
    lowest, highest = bounds
    scored = rewards[rewards.isfinite()].double()
    if not len(scored):
        return base
    deviation: float = scored.std(unbiased=False).item()
    if scored.max() == scored.min() or deviation == 0.0:
        return highest
    return min(max(base * reference_std / deviation, lowest), highest)
