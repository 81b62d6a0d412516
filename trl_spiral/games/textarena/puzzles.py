"""TextArena's puzzles: games of one seat, with a return of 1 if they are solved and less otherwise."""

from __future__ import annotations

from typing import Any

from trl_spiral.games.base import Traits
from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.games.textarena.family import Family, uppercase_move


PUZZLE = Traits(seats=1, zero_sum=False, lowest=0.0)


def tower_of_hanoi(env: Any) -> tuple[str, ...]:
    """Moves of the top disk of a tower to a tower that is empty or has a larger disk on top."""
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
            uppercase_move,
            tower_of_hanoi,
            observation="first_last",
            max_turns=256,  # not reached: the environments have limits of at most 254 turns
            traits=PUZZLE,
        ),
        ("", "-medium", "-hard", "-hardcore", "-extreme"),
        note="unsolved one turn after twice the fewest moves, it returns the share of disks that are right on the "
        "last tower",
    ),
)
