"""Players that follow a rule. They take their turns at once and are never trained on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from trl_spiral.types import Observation, Reply, Request, Turn


class ScriptedPlayer:
    """
    A player that is a function from an observation to a move.

    Args:
        name (`str`):
            For tables and transcripts.
        choose (`Callable[[Observation], str | None]`):
            The move, or `None` to forfeit. Its only source of randomness is `observation.seed`.
    """

    def __init__(self, name: str, choose: Callable[[Observation], str | None]) -> None:
        self.name = name
        self._choose = choose

    def ask(self, observation: Observation) -> Turn | Request:
        """The chosen turn."""
        action = self._choose(observation)
        return Turn(action=action, text=action or "")

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        """Never called: a scripted player asks nothing of an engine."""
        raise AssertionError(f"{self.name} asked for no reply")


class RandomPlayer(ScriptedPlayer):
    """A player that takes any legal move, each as likely as another."""

    def __init__(self, name: str = "random") -> None:
        super().__init__(name, random_move)


def random_move(observation: Observation) -> str:
    """
    A uniformly random legal move, drawn from the observation's seed.

    Raises:
        ValueError: If the game cannot list its legal moves.
    """
    if observation.legal_actions is None:
        raise ValueError(
            f"{observation.game} cannot list its legal moves, so a random player has nothing to choose from. Use a "
            "scripted player that knows the game."
        )
    return random.Random(observation.seed).choice(observation.legal_actions)


def drawn_move(moves: Mapping[str, float], observation: Observation) -> str:
    """A move of a strategy, drawn by its probabilities from the observation's seed."""
    return random.Random(observation.seed).choices(tuple(moves), tuple(moves.values()))[0]
