"""Interfaces through which self-play fills seats and reports results. [`~opponents.Opponents`] implements both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trl_spiral.players.base import Player
from trl_spiral.selfplay.results import Result


class Matchmaker(Protocol):
    """Fills the seats of one episode."""

    def __call__(self, policy: Player, seats: int, seed: int) -> Sequence[Player]:
        """
        Return one player per seat.

        Args:
            policy ([`~players.Player`]):
                The policy in training.
            seats (`int`):
                Number of seats.
            seed (`int`):
                The only source of randomness: the same episode has the same players.
        """


class ResultTracker(Protocol):
    """Follows results over a run, and sorts opponents into classes."""

    def against(self, players: Sequence[str]) -> str:
        """Return the class of the opponents at a table, from the names of all players."""

    def record(self, results: Sequence[Result]) -> None:
        """Store the results of a training batch. All ranks call it with the same results, in order of counters."""

    def metrics(self) -> dict[str, float]:
        """Return what to log of the latest batch, by name without a prefix."""
