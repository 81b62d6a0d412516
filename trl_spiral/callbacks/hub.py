"""Data sets of the Hub, and one sentence where they cannot be had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def hub_rows(name: str, hub: str, config: str | None, split: str) -> Iterable[Mapping[str, Any]]:
    """
    Rows of a data set, in its order.

    Args:
        name (`str`):
            What it is to the user, for the sentence.
        hub, config, split (`str`):
            As for `datasets.load_dataset`.

    Raises:
        ValueError: If it cannot be had.
    """
    from datasets import load_dataset

    try:
        return load_dataset(hub, config, split=split)
    except (OSError, ValueError) as error:  # what `datasets` raises offline, and for a data set that is gone
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(" :.")
        raise ValueError(f"The {name} cannot be had from the Hub ({reason}). Give a file of it as `path`.") from error
