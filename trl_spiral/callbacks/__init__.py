"""Callbacks, for any trainer of TRL's: grade the policy while it learns, keep its earlier selves, write transcripts, show progress."""

from trl_spiral.callbacks.entropy_schedule import EntropyScheduleCallback
from trl_spiral.callbacks.exploitability import ExploitabilityCallback
from trl_spiral.callbacks.live import LiveCallback
from trl_spiral.callbacks.matches import MatchCallback
from trl_spiral.callbacks.math import MathCallback
from trl_spiral.callbacks.mbpp import MBPPCallback
from trl_spiral.callbacks.mbpp_arguments import MBPPArguments, MBPPParser
from trl_spiral.callbacks.monitoring import CollapseCallback
from trl_spiral.callbacks.pool import OpponentPoolCallback
from trl_spiral.callbacks.progress import SelfPlayProgressCallback
from trl_spiral.callbacks.tictactoe import TicTacToeCallback
from trl_spiral.callbacks.transcripts import TranscriptCallback


__all__ = [
    "CollapseCallback",
    "EntropyScheduleCallback",
    "ExploitabilityCallback",
    "LiveCallback",
    "MBPPArguments",
    "MBPPCallback",
    "MBPPParser",
    "MatchCallback",
    "MathCallback",
    "OpponentPoolCallback",
    "SelfPlayProgressCallback",
    "TicTacToeCallback",
    "TranscriptCallback",
]
