"""Settings of an evaluation at MBPP from environment variables, for example of a batch job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


ENVIRONMENT: Mapping[str, tuple[str, type]] = {
    "path": ("MBPP_DATASET_PATH", str),
    "split": ("MBPP_EVAL_SPLIT", str),
    "limit": ("MBPP_EVAL_NUM_QUESTIONS", int),
    "every": ("MBPP_EVAL_INTERVAL", int),
    "samples": ("MBPP_EVAL_SAMPLES", int),
    "temperature": ("MBPP_EVAL_TEMPERATURE", float),
    "max_new_tokens": ("MBPP_EVAL_MAX_NEW_TOKENS", int),
}
"""Environment variable and type of each setting."""

ONLY_MBPP = ("path", "split")
"""Settings that apply to MBPP only."""


def texts_from_environment(problem_set: str = "mbpp") -> dict[str, str]:
    """Return the settings in the environment as text. An empty variable does not count."""
    found = {name: os.environ.get(variable, "").strip() for name, (variable, _) in ENVIRONMENT.items()}
    return {name: text for name, text in found.items() if text and (problem_set == "mbpp" or name not in ONLY_MBPP)}


def from_environment(problem_set: str = "mbpp") -> dict[str, Any]:
    """
    Return the settings in the environment.

    Raises:
        ValueError: If a variable is not a number.
    """
    found = {}
    for name, text in texts_from_environment(problem_set).items():
        variable, kind = ENVIRONMENT[name]
        try:
            found[name] = kind(text)
        except ValueError as error:
            what = "a whole number" if kind is int else "a number"
            raise ValueError(
                f"The environment variable {variable} ({text}) must be {what}. Correct it, or unset it."
            ) from error
    return found
