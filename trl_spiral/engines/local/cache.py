"""Key-value caches of batches whose rows come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, LinearAttentionCacheLayerMixin


if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

SPARE_COLUMNS = 64
"""Free columns of a cache after it had to be copied to a larger one."""


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer, with spare columns. `DynamicLayer` copies all of them for each token."""

    _room: tuple[torch.Tensor, torch.Tensor] | None = None
    _view: torch.Tensor | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append columns. Returns all columns, as views that are valid until the next call."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self.get_seq_length()
        after = before + key_states.shape[-2]
        # Code that removes rows or columns replaces `keys`, which then is no longer our view.
        if self._room is None or self.keys is not self._view or self._room[0].shape[-2] < after:
            rows, heads, _, size = key_states.shape
            self._room = (
                key_states.new_empty(rows, heads, after + SPARE_COLUMNS, size),
                value_states.new_empty(rows, heads, after + SPARE_COLUMNS, value_states.shape[-1]),
            )
            if before:
                self._room[0][:, :, :before] = self.keys
                self._room[1][:, :, :before] = self.values
        self._room[0][:, :, before:after] = key_states
        self._room[1][:, :, before:after] = value_states
        self.keys, self.values = (tensor[:, :, :after] for tensor in self._room)
        self._view = self.keys
        return self.keys, self.values


def make_growing(cache: Cache) -> None:
    """Give an empty cache growing layers if all of its layers are plain tensors with a column for each token."""
    if all(type(layer) is DynamicLayer for layer in cache.layers) and not cache.offloading:
        cache.layers = [GrowingLayer() for _ in cache.layers]


def is_growing(cache: Cache) -> bool:
    """Return whether a cache has growing layers. Only then can the rows of another cache join it."""
    return all(type(layer) is GrowingLayer for layer in cache.layers)


def keep_columns(cache: Cache, columns: torch.Tensor) -> None:
    """Remove all columns of a growing cache but those of the given indices."""
    for layer in cache.layers:
        cached = columns[columns < layer.keys.shape[-2]]
        layer.keys, layer.values = layer.keys[:, :, cached], layer.values[:, :, cached]


def append_rows(cache: Cache, other: Cache, width: int) -> None:
    """Append the rows of another growing cache. Both are padded on the left to `width` columns."""
    for mine, theirs in zip(cache.layers, other.layers, strict=True):
        mine.keys = torch.cat([_widened(mine.keys, width), _widened(theirs.keys, width)])
        mine.values = torch.cat([_widened(mine.values, width), _widened(theirs.values, width)])


def _widened(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Return keys or values, of shape (rows, heads, columns, size), with columns of zeros on the left."""
    return pad(tensor, (0, 0, width - tensor.shape[-2], 0))


def check_cache(model: PreTrainedModel, cache: Cache | None) -> None:
    """
    Raises:
        ValueError: If finished rows cannot be dropped from a cache that `generate` has made.
    """
    layers = cache.layers if cache is not None else []
    if not layers or not all(isinstance(x, (CacheLayerMixin, LinearAttentionCacheLayerMixin)) for x in layers):
        raise ValueError(
            f"{type(model).__name__} gives `generate` no cache from which finished rows can be dropped (it has "
            f"{type(cache).__name__}). Set `use_cache=True`, or let vLLM generate."
        )
