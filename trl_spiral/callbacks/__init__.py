"""Callbacks, for any trainer of TRL's: grade the policy while it learns, keep its earlier selves, write transcripts, show progress."""

from trl_spiral.callbacks.pool import OpponentPoolCallback
from trl_spiral.callbacks.progress import SelfPlayProgressCallback
from trl_spiral.callbacks.tictactoe import TicTacToeCallback
from trl_spiral.callbacks.transcripts import TranscriptCallback


__all__ = ["OpponentPoolCallback", "SelfPlayProgressCallback", "TicTacToeCallback", "TranscriptCallback"]
