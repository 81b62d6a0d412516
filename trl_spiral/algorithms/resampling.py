"""Merge two generation batches into one of the same size that has more useful groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch


Value = TypeVar("Value")


def choose_groups(kept: Sequence[bool], fresh: Sequence[bool], ranks: int) -> list[int]:
    """
    Return the groups of the merged batch: useful fresh groups replace useless groups of the old batch.

    A group stays on its rank, and the result is the same on all ranks.

    Args:
        kept (`Sequence[bool]`):
            Whether each group of the old batch is useful, over all ranks, with the same number of groups on each.
        fresh (`Sequence[bool]`):
            Whether each group of the fresh batch is useful.
        ranks (`int`):
            Number of ranks.

    Returns:
        `list[int]`: Group numbers of the merged batch. Fresh groups are numbered after those of the old batch.
    """
    each = len(kept) // ranks
    chosen = []
    for start in range(0, len(kept), each):
        places = range(start, start + each)
        spare = [len(kept) + place for place in places if fresh[place]]
        chosen += [place if kept[place] or not spare else spare.pop(0) for place in places]
    return chosen


def rows_of(groups: Sequence[int], size: int) -> list[int]:
    """Return the row numbers of groups."""
    return [group * size + row for group in groups for row in range(size)]


def pick(first: Sequence[Value], second: Sequence[Value], rows: Sequence[int]) -> list[Value]:
    """Return rows of two concatenated lists."""
    both = [*first, *second]
    return [both[row] for row in rows]


def merge(first: Mapping[str, Any], second: Mapping[str, Any], rows: Sequence[int], pad: int) -> dict[str, Any]:
    """
    Return rows of two concatenated batches of TRL.

    Args:
        first, second (`Mapping[str, Any]`):
            Results of TRL's `_generate_and_score_completions`: tensors of shape (rows, …), prompts padded on the left,
            completions on the right.
        rows (`Sequence[int]`):
            Rows of the result, in the concatenated batches.
        pad (`int`):
            Padding token.

    Returns:
        `dict[str, Any]`: The merged batch. Values without rows, such as the number of tokens, are those of `first`.

    Raises:
        ValueError: If a batch contains more than text.
    """
    merged = {}
    for name, value in first.items():
        if not isinstance(value, torch.Tensor) or (value.dim() and len(value) != len(first["completion_ids"])):
            raise ValueError(
                f"A batch with {name!r} cannot be resampled: only rows of text can be merged. Set `gpg_min_useful` to "
                "0."
            )
        if value.dim():
            padding = pad if name.endswith("_ids") else 0
            value = _cat(value, second[name], padding, left=name.startswith("prompt_"))[list(rows)]
        merged[name] = value
    return merged


def _cat(first: torch.Tensor, second: torch.Tensor, padding: int, left: bool) -> torch.Tensor:
    if first.dim() == 1:
        return torch.cat([first, second])
    width = max(first.size(1), second.size(1))
    sides = [(width - part.size(1), 0) if left else (0, width - part.size(1)) for part in (first, second)]
    return torch.cat(
        [torch.nn.functional.pad(part, side, value=padding) for part, side in zip((first, second), sides, strict=True)]
    )
