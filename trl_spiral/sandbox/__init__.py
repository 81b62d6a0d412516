"""Run code that a model wrote, in contained processes with limits."""

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
from trl_spiral.sandbox.bubblewrap import BubblewrapSandbox
from trl_spiral.sandbox.local import LocalSandbox


__all__ = [
    "BubblewrapSandbox",
    "CallResult",
    "CannotContain",
    "Job",
    "JobResult",
    "Limits",
    "LocalSandbox",
    "ProgramEnding",
    "Sandbox",
    "Trial",
    "TrialResult",
]
