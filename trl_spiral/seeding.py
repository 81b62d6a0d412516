"""Seeds, derived from the run's seed and a purpose. Those of episodes are in `selfplay.schedule`."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """
    Derive a 63-bit seed from its purpose, e.g. `derive_seed(run_seed, "match", counter)`.

    Args:
        parts (`int` or `str`):
            The run's seed, the purpose and the counters. Equal parts give equal seeds on every machine.

    Returns:
        `int`: Seed in [0, 2**63).
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
