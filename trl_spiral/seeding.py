"""Seeds: every random choice comes from a generator seeded by what it is for, and nothing reads the clock."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """
    A 63-bit seed from what it is for, e.g. `derive_seed(run_seed, "match", counter)`.

    Args:
        parts (`int` or `str`):
            The run's seed, the purpose and the counters. Equal parts give equal seeds on every machine.

    Returns:
        `int`: Seed in [0, 2**63).
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
