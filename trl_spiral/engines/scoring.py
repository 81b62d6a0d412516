"""Exact probabilities of given replies, by scoring their tokens instead of sampling them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def reply_logprobs(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    replies: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    batch_size: int = 512,
) -> torch.Tensor:
    """
    Log-probability of each whole reply after its prompt, at several temperatures at once.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model; left in evaluation mode or not as it was.
        prompts, replies (`Sequence[Sequence[int]]`):
            Token ids, one pair a row. A reply's end-of-turn token belongs to it.
        temperatures (`Sequence[float]`):
            Each above zero.
        batch_size (`int`, defaults to `512`):
            Rows a forward pass.

    Returns:
        `torch.Tensor` of shape (rows, temperatures): In nats, float64, on the CPU.
    """
    training = model.training
    model.eval()
    result = torch.empty(len(prompts), len(temperatures), dtype=torch.float64)
    # Rows of like length share a batch, so that little is padding.
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]) + len(replies[row]))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        width = max(len(prompts[row]) + len(replies[row]) for row in rows)
        longest = max(len(replies[row]) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        scored = torch.zeros(len(rows), longest, dtype=torch.bool)
        for index, row in enumerate(rows):
            tokens = [*prompts[row], *replies[row]]
            ids[index, width - len(tokens) :] = torch.tensor(tokens)
            mask[index, width - len(tokens) :] = 1
            scored[index, longest - len(replies[row]) :] = True
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        ids, mask, positions = (tensor.to(model.device) for tensor in (ids, mask, positions))
        logits = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=longest + 1
        ).logits[:, :-1]
        targets = ids[:, -longest:, None]
        for column, temperature in enumerate(temperatures):
            logprobs = (logits.double() / temperature).log_softmax(-1).gather(-1, targets)[..., 0]
            result[rows, column] = (logprobs.cpu() * scored).sum(-1)
    model.train(training)
    return result
