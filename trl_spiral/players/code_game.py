"""A player of the code game, whose moves cannot be listed."""

from __future__ import annotations

import random

from trl_spiral.games.code_game import random_code_move
from trl_spiral.players.scripted import ScriptedPlayer
from trl_spiral.types import Observation


class RandomCoder(ScriptedPlayer):
    """A player that writes a small program and knows what it prints, and guesses without reading."""

    def __init__(self) -> None:
        super().__init__("random", _anything)


def _anything(observation: Observation) -> str:
    return random_code_move(observation.seat, random.Random(observation.seed))
