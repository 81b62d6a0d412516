"""
Advantage estimators that TRL does not have.

Rewards have the shape (rows,): all ranks, in TRL's order, with `size` consecutive replies to each prompt. A reward of
NaN could not be scored: no mean includes it, and its advantage is zero.
"""

from __future__ import annotations

from typing import Any

import torch


_ALIKE = 1e-5
"""
Rewards this close differ only by rounding, as 0.0 + 0.7 and 0.1 + 0.6. GPG's authors compare the deviation to it.
"""


def useful_groups(rewards: torch.Tensor, size: int) -> torch.Tensor:
    """Return which groups have rewards that differ by more than rounding, shape (groups,)."""
    grouped = rewards.view(-1, size)
    unscored = grouped.isnan()
    lowest = grouped.masked_fill(unscored, torch.inf).amin(1)
    highest = grouped.masked_fill(unscored, -torch.inf).amax(1)
    return highest - lowest > _ALIKE


def group_policy_gradient(rewards: torch.Tensor, size: int) -> torch.Tensor:
    """
    Return each reward minus the mean of its group, times B / (B - M): of B groups, M have rewards that do not differ.

    These M groups add nothing to the gradient, and the factor compensates for it. From
    [GPG](https://huggingface.co/papers/2504.02546), without a standard deviation (F_norm = 1).

    Returns:
        `torch.Tensor`: Advantages, shape (rows,); all zero if no group is useful.
    """
    useful = useful_groups(rewards, size)
    share = useful.float().mean().clamp(min=1 / len(useful))
    return _centred(rewards, size) * useful.repeat_interleave(size) / share


def leave_one_out(rewards: torch.Tensor, size: int) -> torch.Tensor:
    """
    Return each reward minus the mean of the other rewards of its group
    ([RLOO](https://huggingface.co/papers/2402.14740)).

    Returns:
        `torch.Tensor`: Advantages, shape (rows,); zero if no other reply of the group could be scored.
    """
    number = (~rewards.view(-1, size).isnan()).sum(1)
    # r - mean of the others = (r - mean of all) * n / (n - 1)
    return _centred(rewards, size) * (number / (number - 1).clamp(min=1)).repeat_interleave(size)


def _centred(rewards: torch.Tensor, size: int) -> torch.Tensor:
    grouped = rewards.view(-1, size)
    return (grouped - grouped.nanmean(1, keepdim=True)).nan_to_num(0.0).flatten()


class Baseline:
    """
    Baseline of REINFORCE ([Williams, 1992](https://doi.org/10.1007/BF00992696)).

    Args:
        kind (`str`):
            `"none"` for 0, `"batch"` for the mean of the batch, `"ema"` for a moving average of batch means. The
            average starts at the first mean, and is used before the batch updates it.
        decay (`float`, *optional*):
            Share of the moving average that each batch keeps, in [0, 1).

    Attributes:
        average (`float`, *optional*):
            The moving average; `None` before the first batch.
    """

    def __init__(self, kind: str, decay: float | None = None) -> None:
        self.kind = kind
        self.decay = decay
        self.average: float | None = None

    def __call__(self, rewards: torch.Tensor) -> torch.Tensor:
        """Return advantages, shape (rows,), and update the average."""
        if rewards.isnan().all():
            return torch.zeros_like(rewards)
        baseline = 0.0
        if self.kind != "none":
            baseline = mean = rewards.nanmean().item()
            if self.kind == "ema":
                assert self.decay is not None
                baseline = mean if self.average is None else self.average
                self.average = self.decay * baseline + (1.0 - self.decay) * mean
        return (rewards - baseline).nan_to_num(0.0)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = state["average"]
