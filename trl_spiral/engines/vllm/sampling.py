"""Sampling options and move constraints in vLLM's terms, for a colocated engine and over HTTP."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trl_spiral.types import Sampling


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Return the fields of a [`~types.Sampling`] under vLLM's names, as in `SamplingParams` and over HTTP."""
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
    r"""Return a regular expression of replies that end in a legal move: no backslash, then `\boxed{move}`."""
    return rf"[^\\]*\\boxed\{{({'|'.join(map(re.escape, moves))})\}}"
