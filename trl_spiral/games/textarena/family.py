"""What a row of the catalogue holds, and the forms of moves that many rows share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trl_spiral.games.base import Traits
from trl_spiral.games.textarena.adapter import TextArenaGame


HIDDEN = Traits(perfect_information=False)
DEALT = Traits(perfect_information=False, stochastic=True)


@dataclass(frozen=True)
class Family:
    """
    Games that differ in size alone.

    Attributes:
        game ([`TextArenaGame`]):
            One of them; the others have another ending to its name and nothing else.
        variants (`tuple[str, ...]`, defaults to the game itself):
            Endings of the names, the game's own (`""`) included.
        source (`str`, defaults to `"state"`):
            Where legal moves come from: the `"state"` of the game, its `"rules"` (the same at every turn),
            `"decisions"` (listed where a seat decides, free while it talks), or `"none"`.
        simultaneous (`bool`, defaults to `False`):
            Whether the seats choose at the same time: they are asked in turn, and none is told of the others' choice.
        note (`str`, *optional*):
            What TextArena does with the rules that a player would not expect.
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


def words(match: re.Match[str]) -> str:
    """A move of the groups that matched, in lower case with a space between."""
    return f"[{' '.join(part.lower() for part in match.groups() if part)}]"


def capitals(match: re.Match[str]) -> str:
    """The same in upper case."""
    return words(match).upper()


def always(*moves: str) -> Callable[[Any], tuple[str, ...]]:
    """Legal moves that never change."""
    return lambda env: moves


def draw(env: Any) -> tuple[float, ...]:
    """Nobody has won a game that cannot go on."""
    return (0.0,) * int(env.state.num_players)
