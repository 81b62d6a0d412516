"""Rows of the catalogue of TextArena's games, and the formats of moves that many rows share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trl_spiral.games.base import Traits
from trl_spiral.games.textarena.adapter import TextArenaGame


HIDDEN = Traits(perfect_information=False)
DEALT = Traits(perfect_information=False, stochastic=True)
TALK = Traits(perfect_information=False, free_text=True)
DEALT_TALK = Traits(perfect_information=False, stochastic=True, free_text=True)


@dataclass(frozen=True)
class Family:
    """
    Games that differ in size only.

    Attributes:
        game ([`TextArenaGame`]):
            One of the games. The others differ in the suffix of the name only.
        variants (`tuple[str, ...]`, defaults to the game itself):
            Suffixes of the names, with `""` for `game` itself.
        source (`str`, defaults to `"state"`):
            Source of legal moves: the `"state"` of the game, its `"rules"` (the same at every turn), `"decisions"`
            (listed in decision phases, free text in talk phases), or `"none"`.
        simultaneous (`bool`, defaults to `False`):
            Whether the seats choose simultaneously: they move in turn, and no seat observes the choices of the others.
        note (`str`, *optional*):
            Rules of TextArena's implementation that a player would not expect.
    """

    game: TextArenaGame
    variants: tuple[str, ...] = ("",)
    source: str = "state"
    simultaneous: bool = False
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.game.name + variant for variant in self.variants)

    def make(self, name: str) -> TextArenaGame:
        return replace(self.game, name=name)


def lowercase_move(match: re.Match[str]) -> str:
    """Return a move of the matched groups, in lower case, separated by spaces."""
    return f"[{' '.join(part.lower() for part in match.groups() if part)}]"


def uppercase_move(match: re.Match[str]) -> str:
    """Return a move of the matched groups, in upper case, separated by spaces."""
    return lowercase_move(match).upper()


def always(*moves: str) -> Callable[[Any], tuple[str, ...]]:
    """Return a source of constant legal moves."""
    return lambda env: moves


def no_winner(env: Any) -> tuple[float, ...]:
    """Return the payoffs of a draw."""
    return (0.0,) * int(env.state.num_players)
