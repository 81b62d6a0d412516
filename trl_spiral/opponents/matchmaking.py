"""Who plays whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trl_spiral.players.base import Player


class Matchmaker(Protocol):
    """Fills the seats of one episode."""

    def __call__(self, policy: Player, seats: int, seed: int) -> Sequence[Player]:
        """
        One player per seat.

        Args:
            policy ([`~players.Player`]):
                The policy that is being trained.
            seats (`int`):
                Seats to fill.
            seed (`int`):
                The only source of randomness: same episode, same players.
        """


def mirror(policy: Player, seats: int, seed: int) -> Sequence[Player]:
    """The policy plays itself in every seat, and every seat is trained."""
    del seed
    return (policy,) * seats
