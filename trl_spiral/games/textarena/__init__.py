"""
The catalogue of TextArena's games, one row per family: format of moves, source of legal moves, observation.

The adapter (`games/textarena/adapter.py`) plays the games of these rows. `UNSUPPORTED` has a reason for every other
id. Ids, rules and defects are those of TextArena 0.7.4. The adapter handles defects that many games share, such as
text that hangs an environment or forges a line. A row's note describes what is peculiar to its game.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from trl_spiral.games.base import game_names, get_game, register_game, register_unsupported
from trl_spiral.games.textarena import boards, cards, dice, puzzles, talk
from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.games.textarena.family import Family
from trl_spiral.games.textarena.unsupported import UNSUPPORTED


__all__ = ["FAMILIES", "UNSUPPORTED", "Family", "GameInfo", "family_of", "list_games", "register_textarena_games"]

FAMILIES: tuple[Family, ...] = (
    *boards.FAMILIES,
    *dice.FAMILIES,
    *cards.FAMILIES,
    *talk.FAMILIES,
    *puzzles.FAMILIES,
)

_BY_NAME = {name: family for family in FAMILIES for name in family.names}


def register_textarena_games() -> None:
    """Register every game of `FAMILIES` under TextArena's id, without loading it, and the reasons of `UNSUPPORTED`."""
    for name, family in _BY_NAME.items():
        register_game(name, partial(family.make, name))
    for name, reason in UNSUPPORTED.items():
        register_unsupported(name, reason)


def family_of(name: str) -> Family | None:
    """Return the row of a game; `None` for games that are not TextArena's."""
    return _BY_NAME.get(name)


@dataclass(frozen=True)
class GameInfo:
    """
    One line of `trl-spiral games`.

    Attributes:
        name (`str`):
            Name of the game, for TextArena's games their id.
        seats (`int`):
            Number of seats.
        kind (`str`):
            Its traits in words.
        legal_moves (`str`):
            Source of the legal moves: see [`Family`].
        observation (`str`):
            `"full"` for the whole history, `"first_last"` for the rules and the latest state; empty for games that are
            not TextArena's.
        note (`str`):
            What a player would not expect.
    """

    name: str
    seats: int
    kind: str
    legal_moves: str
    observation: str
    note: str


def list_games(text: str = "") -> list[GameInfo]:
    """
    List every registered game, sorted by name, without starting a match.

    Args:
        text (`str`, *optional*):
            List only games with this text in their name, kind or note. Case is ignored.
    """
    games = [_info(name) for name in game_names()]
    needle = text.casefold()
    return [game for game in games if needle in f"{game.name}\n{game.kind}\n{game.note}".casefold()]


def _info(name: str) -> GameInfo:
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
    return GameInfo(name, traits.seats, kind, source, observation, "" if family is None else family.note)
