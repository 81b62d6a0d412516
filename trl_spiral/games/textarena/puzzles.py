"""
TextArena's puzzles: games of one seat, which return 1 where they are solved and less where they are not.
"""

from __future__ import annotations

from typing import Any

from trl_spiral.games.base import Traits
from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.games.textarena.family import Family, capitals


PUZZLE = Traits(seats=1, zero_sum=False, lowest=0.0)


def tower_of_hanoi(env: Any) -> tuple[str, ...]:
    """The top disk of a tower, to another that is empty or has a larger one on top."""
    towers = env.state.game_state["towers"]
    return tuple(
        f"[{source} {target}]"
        for source, disks in towers.items()
        for target, others in towers.items()
        if source != target and disks and (not others or others[-1] > disks[-1])
    )


FAMILIES = (
    Family(
        TextArenaGame(
            "TowerOfHanoi-v0",
            r"([abc])\s*+,?\s*+([abc])",
            capitals,
            tower_of_hanoi,
            observation="first_last",
            max_turns=256,  # none: the environments have caps of their own, of 254 turns at most
            traits=PUZZLE,
        ),
        ("", "-medium", "-hard", "-hardcore", "-extreme"),
        note="unsolved a turn after twice the fewest moves, it returns the share of disks that stand right on the last tower",
    ),
)
