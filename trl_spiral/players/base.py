"""Whoever fills a seat: a player sees observations, never the state of a game."""

from __future__ import annotations

from typing import Protocol

from trl_spiral.types import Observation, Reply, Request, Turn


class Player(Protocol):
    """
    Answers observations with turns, at once or by way of an engine.

    A player keeps nothing between decisions: what it may remember of an episode is in the observation, so one player
    can sit at a thousand tables at the same time.
    """

    @property
    def name(self) -> str:
        """For tables, transcripts and ratings."""

    def ask(self, observation: Observation) -> Turn | Request:
        """A turn taken at once, or what to ask of an engine."""

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        """The turn that an engine's reply to `request` amounts to."""
