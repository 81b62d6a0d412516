"""The order in which TRL goes through its prompts, such that a run can be resumed in any epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch


class EpochSampler(torch.utils.data.Sampler):  # type: ignore[misc]  # torch's types are not read
    """
    TRL's order of prompts, with that of each epoch a function of its number.

    TRL draws one order after the other from one generator, which no checkpoint holds: a run that is resumed in its second epoch
    goes through the first one's order again.

    Args:
        sampler (`Sampler`):
            TRL's, which shuffles by a generator.
        seed (`int`):
            That of the first epoch; the next one's is one more.
        epoch (`Callable`):
            Tells how many epochs are over, part of one included.
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
