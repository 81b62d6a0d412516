"""What names of opponents and contestants have in common: scripted players for several games, addresses, short names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from trl_spiral.games import Game
from trl_spiral.players import Player, scripted_player
from trl_spiral.players.names import SCRIPTED
from trl_spiral.types import BASE, HUMAN, POLICY, POOL, SELF, Observation, Reply, Request, Turn


TAKEN = (SELF, POOL, BASE, POLICY, HUMAN, *SCRIPTED)
"""Names that mean somebody already."""

_ENDPOINT = re.compile(r"(https?://[^#]+)#(.+)")


def read_endpoint(name: str) -> tuple[str, str] | None:
    """Address and model of `https://host/v1#model`; `None` for any other name."""
    found = _ENDPOINT.fullmatch(name)
    return (found[1], found[2]) if found else None


def short_names(short: Sequence[tuple[str, str]], taken: Collection[str] = TAKEN) -> dict[str, str]:
    """
    Names for logs and tables, where an address or a path would be long.

    Args:
        short (`Sequence[tuple[str, str]]`):
            Each whole name and what it would be called.
        taken (`Collection[str]`):
            Names that mean somebody else.

    Returns:
        `dict[str, str]`: By whole name; the whole name itself where the short one is not its alone.
    """
    called = Counter(name for _, name in short)
    return {whole: name if called[name] == 1 and name not in taken else whole for whole, name in short}


def scripted_guest(name: str, games: Sequence[Game]) -> Player:
    """
    The scripted player called `name`, for all of the games.

    Raises:
        ValueError: If there is no such player, or a game has none.
    """
    return _ByGame(name, {game.name: scripted_player(name, game) for game in games})


class _ByGame:
    """A scripted player that knows several games."""

    def __init__(self, name: str, players: dict[str, Player]) -> None:
        self.name = name
        self._players = players

    def ask(self, observation: Observation) -> Turn | Request:
        return self._players[observation.game].ask(observation)

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        return self._players[observation.game].answer(observation, request, reply)
