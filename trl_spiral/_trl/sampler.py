"""The order of TRL's prompts, such that a run can be resumed in any epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch


class EpochSampler(torch.utils.data.Sampler):  # type: ignore[misc]  # torch's types are not read
    """
    TRL's order of prompts, seeded for each epoch by its number.

    TRL draws the orders of all epochs from one generator, which no checkpoint stores. A run that resumes in its second
    epoch would repeat the order of the first.

    Args:
        sampler (`Sampler`):
            TRL's sampler, which shuffles with a generator.
        seed (`int`):
            Seed of the first epoch. It grows by 1 for each epoch.
        epoch (`Callable`):
            Returns the number of epochs done, including fractions.
    """

    def __init__(self, sampler: Any, seed: int, epoch: Callable[[], float]) -> None:
        self.sampler = sampler
        self.seed = seed
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.sampler.generator.manual_seed(self.seed + int(self.epoch()))
        yield from self.sampler

    def __len__(self) -> int:
        return len(self.sampler)
