"""What several engines make of a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trl_spiral.types import Request, Sampling


def check_for_transformers(request: Request) -> None:
    """
    Raises:
        ValueError: If transformers cannot answer a request: it has no prompt, or is constrained to legal moves.
    """
    if not request.prompt_ids:
        raise ValueError("A request has an empty prompt. Check the prompt style.")
    if request.legal_moves:
        raise ValueError(
            f"A request is constrained to {len(request.legal_moves)} legal moves, and transformers cannot do that. Let "
            "vLLM generate, or leave the moves free."
        )


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """A [`~types.Sampling`] by the names that vLLM gives its parts, in `SamplingParams` and over HTTP."""
    fields = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p or 0.0,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": sampling.max_new_tokens,
    }
    return fields | ({"stop": list(sampling.stop), "include_stop_str_in_output": True} if sampling.stop else {})


def legal_reply(moves: Sequence[str]) -> str:
    r"""Regular expression of a reply that ends in one of these moves: anything without a box, then `\boxed{move}`."""
    return rf"[^\\]*\\boxed\{{({'|'.join(map(re.escape, moves))})\}}"
