"""The drawing of tokens: which options of `generate` may shape it, and sampling by a random number for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation import (
    EosTokenCriteria,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MaxLengthCriteria,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)


SUPPORTED = {
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
    # A batch applies these two stopping criteria itself, row by row.
    EosTokenCriteria,
    MaxLengthCriteria,
}
"""Logits processors that read only the scores of a row, so rows of any age can share them, and stopping criteria."""


def check_options(made: Sequence[Any]) -> None:
    """
    Check the logits processors and stopping criteria that `generate` has made.

    Raises:
        ValueError: If one of them needs more than the scores of a row.
    """
    if unknown := [type(one).__name__ for one in made if type(one) not in SUPPORTED]:
        raise ValueError(
            f"The decoding loop draws each token from its scores alone and cannot apply {' and '.join(unknown)}; "
            "leave out the generation options behind them, or let vLLM generate."
        )


def draw_tokens(scores: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """
    Sample one token per row by inverting the cumulative distribution.

    Args:
        scores (`torch.Tensor` of shape (rows, vocabulary)):
            Processed logits; filtered tokens are -inf.
        uniform (`torch.Tensor` of shape (rows,)):
            One number in [0, 1) per row, float64.

    Returns:
        `torch.Tensor` of shape (rows,): Token ids, none of probability zero.
    """
    # float64: in float32, rounding of a cumulative sum over 150,000 tokens would lose rare tokens.
    cumulative = scores.double().softmax(-1).cumsum(-1)
    return torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0].clamp(
        max=scores.shape[-1] - 1
    )
