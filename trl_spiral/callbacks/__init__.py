"""Callbacks for any trainer of TRL: grades, snapshots for opponent pools, transcripts, monitoring and progress."""

from trl_spiral.callbacks.entropy_schedule import EntropyScheduleCallback
from trl_spiral.callbacks.exploitability import ExploitabilityCallback
from trl_spiral.callbacks.grading import GradingCallback
from trl_spiral.callbacks.live import LiveCallback
from trl_spiral.callbacks.matches import MatchCallback
from trl_spiral.callbacks.math import MathCallback
from trl_spiral.callbacks.mbpp import MBPPArguments, MBPPCallback, MBPPParser
from trl_spiral.callbacks.monitoring import CollapseCallback
from trl_spiral.callbacks.pool import OpponentPoolCallback
from trl_spiral.callbacks.preemption import PreemptionCallback
from trl_spiral.callbacks.progress import SelfPlayProgressCallback
from trl_spiral.callbacks.tictactoe import TicTacToeCallback
from trl_spiral.callbacks.transcripts import TranscriptCallback


__all__ = [
    "CollapseCallback",
    "EntropyScheduleCallback",
    "ExploitabilityCallback",
    "GradingCallback",
    "LiveCallback",
    "MBPPArguments",
    "MBPPCallback",
    "MBPPParser",
    "MatchCallback",
    "MathCallback",
    "OpponentPoolCallback",
    "PreemptionCallback",
    "SelfPlayProgressCallback",
    "TicTacToeCallback",
    "TranscriptCallback",
]
