"""Players that follow a rule. They need no engine and are never trained on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from trl_spiral.types import Observation, Reply, Request, Turn


class ScriptedPlayer:
    """
    Player that computes its move from the observation.

    Args:
        name (`str`):
            Name in tables and transcripts.
        choose (`Callable[[Observation], str | None]`):
            Returns the move, or `None` to forfeit. Its only source of randomness is `observation.seed`.
    """

    def __init__(self, name: str, choose: Callable[[Observation], str | None]) -> None:
        self.name = name
        self._choose = choose

    def ask(self, observation: Observation) -> Turn | Request:
        """Return the turn."""
        action = self._choose(observation)
        return Turn(action=action, text=action or "")

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        """Never called: `ask` makes no requests."""
        raise AssertionError(f"{self.name} made no request")


class RandomPlayer(ScriptedPlayer):
    """Player that chooses uniformly among the legal moves."""

    def __init__(self, name: str = "random") -> None:
        super().__init__(name, random_move)


def random_move(observation: Observation) -> str:
    """
    Draw a uniformly random legal move from the observation's seed.

    Raises:
        ValueError: If the game cannot list its legal moves.
    """
    if observation.legal_actions is None:
        raise ValueError(
            f"{observation.game} cannot list its legal moves, so a random player cannot choose one. Use a scripted "
            "player of this game."
        )
    return random.Random(observation.seed).choice(observation.legal_actions)


def drawn_move(moves: Mapping[str, float], observation: Observation) -> str:
    """Draw a move from its probabilities and the observation's seed."""
    return random.Random(observation.seed).choices(tuple(moves), tuple(moves.values()))[0]
