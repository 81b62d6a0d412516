"""The classic rule for pig: roll up to so many points, then hold."""

from __future__ import annotations

import re

from trl_spiral.players.scripted import ScriptedPlayer
from trl_spiral.types import Observation


PIG_DICE = "PigDice-v0"
"""Its variants, such as `PigDice-v0-50`, differ in how many points win, which the rules tell."""


class HoldPlayer(ScriptedPlayer):
    """
    A player of pig that holds once its turn has brought `points`, or enough to win.

    With 20 points in hand, a roll is worth nothing: a sixth of the time it loses 20, and it brings 2 + 3 + 4 + 5 + 6 = 20
    a sixth of the time each.

    Args:
        points (`int`, defaults to `20`):
            At least 1.
        game (`str`, defaults to `"PigDice-v0"`):
            What it is to play: that or one of its variants.

    Raises:
        ValueError: If it would never roll, or is to play another game.
    """

    def __init__(self, points: int = 20, game: str = PIG_DICE) -> None:
        if game != PIG_DICE and not game.startswith(f"{PIG_DICE}-"):
            raise ValueError(
                f"There is no player that holds for {game}: it plays {PIG_DICE} and its variants alone. Use 'random'."
            )
        if points < 1:
            raise ValueError(f"`points` ({points}) must be at least 1: nobody wins without a roll. Use 20.")
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
    assert found is not None, f"no {pattern!r} in what PigDice shows"
    return int(found[1])
