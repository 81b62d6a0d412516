"""Random generators of Python, NumPy and torch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restore the state of all global random generators at the end of the context."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.random.set_rng_state(torch_state)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
