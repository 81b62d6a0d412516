"""A scripted player of pig: roll up to a number of points, then hold."""

from __future__ import annotations

import re

from trl_spiral.players.scripted import ScriptedPlayer
from trl_spiral.types import Observation


PIG_DICE = "PigDice-v0"
"""Variants such as `PigDice-v0-50` differ in the points that win, which the rules state."""


class HoldPlayer(ScriptedPlayer):
    """
    Player of pig that holds as soon as its turn total is `points`, or enough to win.

    With a turn total of 20, a roll gains nothing on average. It loses 20 with probability 1/6. It gains 2, 3, 4, 5 or
    6 with probability 1/6 each, and these add up to 20.

    Args:
        points (`int`, defaults to `20`):
            Turn total at which it holds, at least 1.
        game (`str`, defaults to `"PigDice-v0"`):
            Game to play: `"PigDice-v0"` or one of its variants.

    Raises:
        ValueError: If `points` is below 1, or it is another game.
    """

    def __init__(self, points: int = 20, game: str = PIG_DICE) -> None:
        if game != PIG_DICE and not game.startswith(f"{PIG_DICE}-"):
            raise ValueError(
                f"There is no 'hold' player for {game}: it plays only {PIG_DICE} and its variants. Use 'random'."
            )
        if points < 1:
            raise ValueError(f"`points` ({points}) must be at least 1: no player wins without a roll. Use 20.")
        super().__init__(f"hold-{points}", self._choose_by_total)
        self.points = points

    def _choose_by_total(self, observation: Observation) -> str:
        rules, board = observation.messages[-1]["content"].rsplit("Current Total Scores:", 1)
        total = _number(r"turn total is (\d+)", board)
        score = _number(rf"Player {observation.seat}: '(\d+)'", board)
        goal = _number(r"First to (\d+) points", rules)
        return "[hold]" if total >= self.points or score + total >= goal else "[roll]"


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, f"no {pattern!r} in the observation of PigDice"
    return int(found[1])
