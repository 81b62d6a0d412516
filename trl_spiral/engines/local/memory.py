"""Number of sequences that fit into an accelerator's memory next to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARE = 0.6
"""Share of the free memory for the cache. The rest is for activations, and for copies as rows come and go."""


def rows_that_fit(model: PreTrainedModel, tokens: int, most: int) -> int:
    """
    Return how many sequences have keys and values that fit into the free memory of the model's device.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model that generates.
        tokens (`int`):
            Length of each sequence, prompt and reply.
        most (`int`):
            Upper limit; on a CPU, the result.

    Returns:
        `int`: At least 1.
    """
    if model.device.type != "cuda":
        return most
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    row = 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize * tokens
    free, _ = torch.cuda.mem_get_info(model.device)
    return max(1, min(most, int(SHARE * free / row)))
