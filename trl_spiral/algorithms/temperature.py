"""A sampling temperature that follows the rewards."""

from __future__ import annotations

import torch


def adapted(base: float, reference_std: float, rewards: torch.Tensor, bounds: tuple[float, float]) -> float:
    """
    The temperature for the next batch: `base * reference_std / std`, kept within bounds.

    Rewards that hardly differ call for more exploration, and so for a higher temperature; where they do not differ at all, it
    is the highest allowed.

    Args:
        base (`float`):
            Temperature at which rewards should deviate by `reference_std`.
        reference_std (`float`):
            The standard deviation at which nothing changes. Rewards of 0 and 1 deviate by 0.5 at most, so that a reference
            of 1.0 would never leave the upper bound.
        rewards (`torch.Tensor`):
            All ranks' rewards of the previous batch; only finite ones count.
        bounds (`tuple[float, float]`):
            Lowest and highest temperature.

    Returns:
        `float`: Within the bounds.
    """
    lowest, highest = bounds
    scored = rewards[rewards.isfinite()].double()
    if not len(scored):
        return base
    deviation: float = scored.std(unbiased=False).item()
    if scored.max() == scored.min() or deviation == 0.0:
        return highest
    return min(max(base * reference_std / deviation, lowest), highest)
