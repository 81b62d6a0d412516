"""
Run code that a model wrote, in contained processes with limits.

The sandboxes are imported at first use: the helper process imports this package and needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trl_spiral.sandbox.base import (
    CallResult,
    CannotContain,
    Job,
    JobResult,
    Limits,
    ProgramEnding,
    Sandbox,
    Trial,
    TrialResult,
)


_SANDBOXES = {"BubblewrapSandbox": "bubblewrap", "LocalSandbox": "local"}

__all__ = [
    "CallResult",
    "CannotContain",
    "ProgramEnding",
    "Job",
    "Limits",
    "JobResult",
    "Sandbox",
    "Trial",
    "TrialResult",
    *_SANDBOXES,
]


def __getattr__(name: str) -> Any:
    if name not in _SANDBOXES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_SANDBOXES[name]}"), name)
