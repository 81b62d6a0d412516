"""
TextArena's games, one row a family: what a move looks like, where legal moves come from, what a seat sees.

What the rows name is played through the adapter (`games/textarena/adapter.py`); `REFUSED` says of every other id why it is not.
Ids, rules and defects are those of TextArena 0.7.4. Two of its defects are everywhere and the adapter's to mend: text that
hangs an environment or forges a line, and games in which the seat to move has no move. What is particular to a game, and
part of its rules because TextArena plays it so, stands in the row's note.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from trl_spiral.games.base import game_names, get_game, register_game
from trl_spiral.games.textarena import boards, cards, dice, puzzles, talk
from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.games.textarena.family import Family
from trl_spiral.games.textarena.unsupported import REFUSED


__all__ = ["FAMILIES", "REFUSED", "Family", "Listed", "family_of", "list_games", "register_textarena_games"]

FAMILIES: tuple[Family, ...] = (
    *boards.FAMILIES,
    *dice.FAMILIES,
    *cards.FAMILIES,
    *talk.FAMILIES,
    *puzzles.FAMILIES,
)

_BY_NAME = {name: family for family in FAMILIES for name in family.names}


def register_textarena_games() -> None:
    """Adds every game of `FAMILIES` under TextArena's id. Loads nothing."""
    for name, family in _BY_NAME.items():
        register_game(name, partial(family.make, name))


def family_of(name: str) -> Family | None:
    """The row that a game comes from; `None` for games of our own and of users."""
    return _BY_NAME.get(name)


@dataclass(frozen=True)
class Listed:
    """
    A line of `trl-spiral games`.

    Attributes:
        name (`str`):
            TextArena's id, or the name of a game of our own or a user's.
        seats (`int`, *optional*):
            Number of seats, where the game can be played.
        kind (`str`):
            What its traits say, in words.
        legal_moves (`str`):
            Where legal moves come from: see [`Family`].
        observation (`str`):
            `"full"` for the whole history, `"first_last"` for the rules and the latest state; empty for games of our
            own, which decide by themselves.
        note (`str`):
            What a player would not expect, or why the game cannot be played.
    """

    name: str
    seats: int | None
    kind: str = ""
    legal_moves: str = ""
    observation: str = ""
    note: str = ""

    @property
    def playable(self) -> bool:
        return self.seats is not None


def list_games(text: str = "") -> list[Listed]:
    """
    Every registered game, then every id of TextArena that cannot be played, each part by name. Plays nothing.

    Args:
        text (`str`, *optional*):
            Only games whose name, kind or note holds it, in either case.
    """
    lines = [_line(name) for name in game_names()]
    lines += [Listed(name, None, note=why) for name, why in sorted(REFUSED.items())]
    needle = text.casefold()
    return [line for line in lines if needle in f"{line.name}\n{line.kind}\n{line.note}".casefold()]


def _line(name: str) -> Listed:
    game, family = get_game(name), family_of(name)
    traits = game.traits
    if family is not None and family.simultaneous:
        kind = "simultaneous"
    else:
        kind = "perfect information" if traits.perfect_information else "hidden information"
    kind += ", chance" * traits.stochastic + ", free text" * traits.free_text
    kind += ", not zero-sum" * (not traits.zero_sum)
    source = family.source if family is not None else "none" if traits.free_text else "state"
    observation = game.observation if isinstance(game, TextArenaGame) else ""
    return Listed(name, traits.seats, kind, source, observation, "" if family is None else family.note)
