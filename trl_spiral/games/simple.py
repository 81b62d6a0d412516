"""Small TextArena games that need no more than their traits and a list of legal moves."""

from __future__ import annotations

from typing import Any

from trl_spiral.games.base import Traits
from trl_spiral.games.textarena import TextArenaGame


def connect_four() -> TextArenaGame:
    """ConnectFour-v0 on its usual board of six rows and seven columns."""

    def legal(env: Any) -> tuple[str, ...]:
        top = env.state.game_state["board"][0]
        return tuple(f"[col {column}]" for column, cell in enumerate(top) if cell == ".")

    return TextArenaGame(
        name="ConnectFour-v0",
        move=r"(?:col\s+)?([0-9])",
        form="[col {}]",
        legal=legal,
        observation="first_last",
        max_turns=42,
    )


def nim() -> TextArenaGame:
    """Nim-v0, piles of 3, 4 and 5; whoever takes the last object wins."""

    def legal(env: Any) -> tuple[str, ...]:
        piles = env.state.game_state["piles"]
        return tuple(f"[{pile} {count}]" for pile, size in enumerate(piles) for count in range(1, size + 1))

    return TextArenaGame(
        name="Nim-v0",
        move=r"([0-9])\s+([0-9])",
        form="[{} {}]",
        legal=legal,
        observation="first_last",
        max_turns=12,
    )


def pig_dice() -> TextArenaGame:
    """PigDice to 50 points, as in SPIRAL's PigDice-v1. The environment itself ends the game after 50 turns."""
    return TextArenaGame(
        name="PigDice-v0-50",
        move="roll|hold",
        legal=lambda env: ("[roll]", "[hold]"),
        observation="first_last",
        max_turns=120,
        traits=Traits(stochastic=True),
    )
