"""The protocol of players. A player gets observations, never the state of a game."""

from __future__ import annotations

from typing import Protocol

from trl_spiral.types import Observation, Reply, Request, Turn


class Player(Protocol):
    """
    Returns a turn for each observation, directly or through an engine.

    A player stores nothing between decisions: the observation contains the earlier turns of its seat. So one player
    can play many episodes concurrently.
    """

    @property
    def name(self) -> str:
        """Name in tables, transcripts and ratings."""

    def ask(self, observation: Observation) -> Turn | Request:
        """Return a turn, or a request for an engine."""

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        """Convert an engine's reply to `request` into a turn."""
