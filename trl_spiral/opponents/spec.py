"""Opponents in one line of text: `"self:0.5,pool:0.4,random:0.1"`."""

from __future__ import annotations

import math


def parse_opponents(text: str) -> dict[str, float]:
    """
    Who is met, and in what share of the games.

    Args:
        text (`str`):
            `name:share` with commas between; a name alone counts 1, and shares are taken in proportion. A name may hold
            colons, as an address does.

    Returns:
        `dict[str, float]`: Shares that add up to one, in the order of the text.

    Raises:
        ValueError: If a name is empty or comes twice, or a share is not a positive number.
    """
    shares: dict[str, float] = {}
    for entry in text.split(","):
        name, colon, number = entry.strip().rpartition(":")
        if not colon or number.startswith("//"):
            name, number = entry.strip(), "1"
        elif not _is_number(number) and "//" in entry:
            name, number = entry.strip(), "1"  # the last colon was an address's own
        share = float(number) if _is_number(number) else math.nan
        if not name or name in shares or not 0.0 < share < math.inf:
            raise ValueError(
                f"`opponents` ({text!r}) must list each name once with a positive share, as in 'self:0.5,pool:0.4,random:0.1', "
                f"and {entry.strip()!r} does not fit."
            )
        shares[name] = share
    total = math.fsum(shares.values())
    return {name: share / total for name, share in shares.items()}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
