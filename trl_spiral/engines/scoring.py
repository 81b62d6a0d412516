"""Exact probabilities of given replies, by scoring their tokens instead of sampling them."""

from __future__ import annotations

import math
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
    floor: float = -math.inf,
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
        floor (`float`, defaults to no floor):
            A reply whose first token is less likely than this, in nats, at every temperature gets that token's
            log-probability, which is an upper bound, without the cost of scoring the rest.

    Returns:
        `torch.Tensor` of shape (rows, temperatures): In nats, float64, on the CPU.
    """
    training = model.training
    model.eval()
    if floor > -math.inf:
        firsts = list(dict.fromkeys(tuple(prompt) for prompt in prompts))
        spread = _next_logprobs(model, firsts, temperatures, batch_size)
        index = {prompt: row for row, prompt in enumerate(firsts)}
        rows = torch.tensor([index[tuple(prompt)] for prompt in prompts])
        result = spread[rows, :, torch.tensor([reply[0] for reply in replies])].double()
        likely = (result.max(-1).values >= floor).nonzero()[:, 0].tolist()
    else:
        result = torch.empty(len(prompts), len(temperatures), dtype=torch.float64)
        likely = range(len(prompts))
    # Rows of like length share a batch, so that little is padding.
    order = sorted(likely, key=lambda row: len(prompts[row]) + len(replies[row]))
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


def _next_logprobs(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], batch_size: int
) -> torch.Tensor:
    """Log-probabilities of the token that follows each prompt, of shape (prompts, temperatures, vocabulary)."""
    parts: list[torch.Tensor] = [torch.empty(0)] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        width = max(len(prompts[row]) for row in rows)
        ids = torch.tensor([[0] * (width - len(prompts[row])) + list(prompts[row]) for row in rows])
        mask = torch.tensor([[0] * (width - len(prompts[row])) + [1] * len(prompts[row]) for row in rows])
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        ids, mask, positions = (tensor.to(model.device) for tensor in (ids, mask, positions))
        logits = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=1
        ).logits[:, -1]
        scaled = torch.stack([(logits.double() / t).log_softmax(-1).float() for t in temperatures], dim=1).cpu()
        for row, logprobs in zip(rows, scaled, strict=True):
            parts[row] = logprobs
    return torch.stack(parts)
