"""A scripted player of the code game."""

from __future__ import annotations

import random

from trl_spiral.games.code_game import random_code_move
from trl_spiral.players.scripted import ScriptedPlayer
from trl_spiral.types import Observation


class RandomCoder(ScriptedPlayer):
    """Player that writes a small random program with its output, and guesses outputs at random."""

    def __init__(self) -> None:
        super().__init__("random", _random_move)


def _random_move(observation: Observation) -> str:
    return random_code_move(observation.seat, random.Random(observation.seed))
