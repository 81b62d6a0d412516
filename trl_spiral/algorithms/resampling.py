"""Two generation batches made into one of the same size, which keeps what can be learned from of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch


Value = TypeVar("Value")


def choose_groups(kept: Sequence[bool], fresh: Sequence[bool], ranks: int) -> list[int]:
    """
    Which groups make up the merged batch: those of the batch so far, with useful fresh ones in place of useless ones.

    A group never moves to another rank, and the result is the same on all of them.

    Args:
        kept (`Sequence[bool]`):
            Whether each group of the batch so far is useful, over all ranks, each of which holds as many.
        fresh (`Sequence[bool]`):
            The same of the batch that was generated now.
        ranks (`int`):
            Number of ranks.

    Returns:
        `list[int]`: For each place of the merged batch, the number of a group, in which fresh ones follow those so far.
    """
    each = len(kept) // ranks
    chosen = []
    for start in range(0, len(kept), each):
        places = range(start, start + each)
        spare = [len(kept) + place for place in places if fresh[place]]
        chosen += [place if kept[place] or not spare else spare.pop(0) for place in places]
    return chosen


def rows_of(groups: Sequence[int], size: int) -> list[int]:
    """Numbers of the rows of some groups."""
    return [group * size + row for group in groups for row in range(size)]


def pick(first: Sequence[Value], second: Sequence[Value], rows: Sequence[int]) -> list[Value]:
    """The rows of two lists, one behind the other, that these numbers name."""
    both = [*first, *second]
    return [both[row] for row in rows]


def merge(first: Mapping[str, Any], second: Mapping[str, Any], rows: Sequence[int], pad: int) -> dict[str, Any]:
    """
    The rows of two of TRL's batches, one behind the other, that these numbers name.

    Args:
        first, second (`Mapping[str, Any]`):
            What TRL's `_generate_and_score_completions` returns: tensors of shape (rows, …), prompts padded on the left,
            completions on the right.
        rows (`Sequence[int]`):
            Rows of the result.
        pad (`int`):
            The padding token.

    Returns:
        `dict[str, Any]`: As both. What is no row's, such as the number of tokens, is the first's.

    Raises:
        ValueError: If a batch holds more than text.
    """
    merged = {}
    for name, value in first.items():
        if not isinstance(value, torch.Tensor) or (value.dim() and len(value) != len(first["completion_ids"])):
            raise ValueError(
                f"A batch with {name!r} cannot be resampled: rows of text alone are put together. Set `gpg_min_useful` to 0."
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
