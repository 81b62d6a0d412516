"""Exact probabilities of given replies, from the scores of their tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from transformers import PreTrainedModel


_MOST_LOGITS = 2**27
"""Logits of a batch: 1 GiB in float64. With a vocabulary of 150,000, larger batches exceed the memory of a GPU."""


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
    Compute the log-probability of each whole reply after its prompt, at several temperatures at once.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model. Its training mode is restored.
        prompts, replies (`Sequence[Sequence[int]]`):
            Token ids, one pair per row. A reply includes its end-of-turn token.
        temperatures (`Sequence[float]`):
            Each above zero.
        batch_size (`int`, defaults to `512`):
            Rows per forward pass; fewer if the vocabulary is large.
        floor (`float`, defaults to no floor):
            Threshold in nats. If the first token of a reply is less likely at every temperature, the rest is not
            scored, and the result is the log-probability of that token, an upper bound.

    Returns:
        `torch.Tensor` of shape (rows, temperatures): In nats, float64, on the CPU.
    """
    training = model.training
    model.eval()
    result = torch.empty(len(prompts), len(temperatures), dtype=torch.float64)
    likely: Sequence[int] = range(len(prompts))
    if floor > -math.inf:
        _score_first_tokens(model, prompts, replies, temperatures, batch_size, result)
        likely = (result.max(-1).values >= floor).nonzero()[:, 0].tolist()
    # Rows of similar length share a batch, to save padding.
    order = sorted(likely, key=lambda row: len(prompts[row]) + len(replies[row]))
    batch_size = _rows_that_fit(model, batch_size, columns=max(map(len, replies), default=0) + 1)
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


def _score_first_tokens(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    replies: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    batch_size: int,
    result: torch.Tensor,
) -> None:
    """Fill `result` with the log-probability of each reply's first token. Each prompt is read only once."""
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows_of.setdefault(tuple(prompt), []).append(row)
    order = sorted(rows_of, key=len)
    batch_size = _rows_that_fit(model, batch_size, columns=1)
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        width = max(map(len, batch))
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        ids, mask, positions = (tensor.to(model.device) for tensor in (ids, mask, positions))
        logits = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=1
        ).logits[:, -1]
        rows = [row for prompt in batch for row in rows_of[prompt]]
        places = [place for place, prompt in enumerate(batch) for _ in rows_of[prompt]]
        firsts = [replies[row][0] for row in rows]
        for column, temperature in enumerate(temperatures):
            result[rows, column] = (logits.double() / temperature).log_softmax(-1)[places, firsts].cpu()


def _rows_that_fit(model: PreTrainedModel, batch_size: int, columns: int) -> int:
    """Return the rows of a batch whose logits, at `columns` positions, are at most `_MOST_LOGITS`."""
    return max(1, min(batch_size, _MOST_LOGITS // (columns * model.config.get_text_config().vocab_size)))
