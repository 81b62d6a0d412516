"""
Names of players, as configurations and the command line write them.

| name | player |
|---|---|
| `minimax`, `mcts-200` | a scripted player |
| `human` | a person at the terminal |
| `https://host/v1#model` | a model behind an endpoint |
| `run/checkpoint-40`, `org/model` | a model or a LoRA adapter, by folder or Hub id |
| `run/opponents` | all snapshots of a pool |
| `run/opponents#step-40` | one snapshot of a pool |

Paths are looked up by [`~engines.build.read_names`].
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trl_spiral.games import Game
from trl_spiral.games.code_game import FROZEN as FROZEN_CODE
from trl_spiral.games.code_game import NAME as CODE
from trl_spiral.games.negotiation import NAME as NEGOTIATION
from trl_spiral.players.base import Player
from trl_spiral.players.code_game import RandomCoder
from trl_spiral.players.equilibrium import EquilibriumPlayer
from trl_spiral.players.liars_dice import OddsPlayer
from trl_spiral.players.mcts import MCTSPlayer
from trl_spiral.players.minimax import MinimaxPlayer
from trl_spiral.players.negotiation import GreedyNegotiator, RandomNegotiator
from trl_spiral.players.pig import HoldPlayer
from trl_spiral.players.scripted import RandomPlayer
from trl_spiral.types import BASE, HUMAN, POLICY, POOL, SELF, Observation, Reply, Request, Turn


SCRIPTED = ("random", "minimax", "equilibrium", "mcts", "hold-20", "greedy", "odds")
"""Names of scripted players. `"mcts-1000"` sets the simulations per move, `"hold-25"` the points to roll up to."""

RESERVED = frozenset((SELF, POOL, BASE, POLICY, HUMAN, *SCRIPTED))
"""Names that an endpoint or a model never gets as its short name."""

_MCTS = re.compile(r"mcts(?:-(\d+))?", re.ASCII)
_HOLD = re.compile(r"hold-(\d+)", re.ASCII)
_ENDPOINT = re.compile(r"(https?://[^#]+)#(.+)")


@dataclass(frozen=True, slots=True)
class PlayerName:
    """
    A player's name, classified.

    Attributes:
        text (`str`):
            The name as written; unique to this player.
        kind (`str`):
            `"scripted"`, `"human"`, `"endpoint"`, `"path"` or, once a path is looked up, `"model"` or `"snapshot"`.
        short (`str`):
            Name for logs and tables, used if it is unique; see `short_names`.
        folder (`Path`, *optional*):
            Folder of a snapshot, in that of its pool.
    """

    text: str
    kind: Literal["scripted", "human", "endpoint", "path", "model", "snapshot"]
    short: str
    folder: Path | None = None


def parse_name(text: str) -> PlayerName:
    """Classify a name by its form alone. A folder called `random` is `./random`."""
    if _is_scripted(text):
        return PlayerName(text, "scripted", text)
    if text == HUMAN:
        return PlayerName(text, "human", text)
    if endpoint := parse_endpoint(text):
        return PlayerName(text, "endpoint", endpoint[1])
    return PlayerName(text, "path", text)


def parse_endpoint(text: str) -> tuple[str, str] | None:
    """Return address and model of `https://host/v1#model`, or `None` for any other name."""
    found = _ENDPOINT.fullmatch(text)
    return (found[1], found[2]) if found else None


def short_names(names: Sequence[PlayerName]) -> dict[str, str]:
    """
    Names for logs and tables, where an address or a path would be long.

    Args:
        names (`Sequence[PlayerName]`):
            All players of a run or a command.

    Returns:
        `dict[str, str]`: Short name of each by its text; the text itself where the short name is not unique.
    """
    counts = Counter(name.short for name in names)
    taken = RESERVED | {name.text for name in names}
    return {
        name.text: name.short if counts[name.short] == 1 and name.short not in taken else name.text for name in names
    }


def parse_opponents(text: str) -> dict[str, float]:
    """
    Parse opponents and their shares of the games, such as `"self:0.5,pool:0.4,random:0.1"`.

    Args:
        text (`str`):
            Entries `name:share`, separated by commas. A name without a share counts 1. A name may contain colons, as
            an address does.

    Returns:
        `dict[str, float]`: Shares, scaled to a sum of 1, in the order of the text.

    Raises:
        ValueError: If a name is empty or repeated, or a share is not a positive number.
    """
    shares: dict[str, float] = {}
    for entry in text.split(","):
        name, colon, number = entry.strip().rpartition(":")
        is_part_of_address = number.startswith("//") or (not _is_number(number) and "//" in entry)
        if not colon or is_part_of_address:
            name, number = entry.strip(), "1"
        share = float(number) if _is_number(number) else math.nan
        if not name or name in shares or not 0.0 < share < math.inf:
            raise ValueError(
                f"`opponents` ({text!r}) must list each name once with a positive share, as in "
                f"'self:0.5,pool:0.4,random:0.1', and {entry.strip()!r} does not fit."
            )
        shares[name] = share
    total = math.fsum(shares.values())
    return {name: share / total for name, share in shares.items()}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# ---- scripted players ----
def scripted_player(name: str, game: Game) -> Player:
    """
    Make a scripted player for one game.

    Args:
        name (`str`):
            One of `SCRIPTED`, `"mcts-"` and a number of simulations, or `"hold-"` and a number of points.
        game ([`~games.Game`]):
            Game to play.

    Raises:
        ValueError: If there is no such player, or none for this game.
    """
    check_scripted_name(name)
    if mcts := _MCTS.fullmatch(name):
        return MCTSPlayer(game, int(mcts[1])) if mcts[1] else MCTSPlayer(game)
    if hold := _HOLD.fullmatch(name):
        return HoldPlayer(int(hold[1]), game.name)
    if name == "greedy":
        return GreedyNegotiator(game.name)
    if name == "odds":
        return OddsPlayer(game.name)
    if name == "minimax":
        return MinimaxPlayer(game.name)
    if name == "equilibrium":
        return EquilibriumPlayer(game.name)
    if game.name == NEGOTIATION:
        return RandomNegotiator()
    if game.name in (CODE, FROZEN_CODE):
        return RandomCoder()
    if not has_random_player(game):
        raise ValueError(
            f"There is no random player for {game.name}, which cannot list its legal moves. Use an endpoint or a "
            "snapshot instead."
        )
    return RandomPlayer()


def has_random_player(game: Game) -> bool:
    """Return whether `scripted_player("random", game)` exists."""
    return game.name in (NEGOTIATION, CODE, FROZEN_CODE) or game.start(0).legal_actions() is not None


def scripted_player_for_games(name: str, games: Sequence[Game]) -> Player:
    """
    Make a scripted player that plays each of the games, under the given name.

    Raises:
        ValueError: If there is no such player, or a game has none.
    """
    return _PlayerByGame(name, {game.name: scripted_player(name, game) for game in games})


class _PlayerByGame:
    """Passes each observation on to the player of its game."""

    def __init__(self, name: str, players: dict[str, Player]) -> None:
        self.name = name
        self._players = players

    def ask(self, observation: Observation) -> Turn | Request:
        return self._players[observation.game].ask(observation)

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        return self._players[observation.game].answer(observation, request, reply)


def check_scripted_name(name: str) -> None:
    """Raise `ValueError` if no scripted player has that name, in any game."""
    if not _is_scripted(name):
        raise unknown_name(name)


def unknown_name(name: str, others: str = "") -> ValueError:
    """Return the error for a name that no scripted player has. `others` lists more choices, with a leading comma."""
    known = ", ".join(map(repr, SCRIPTED))
    return ValueError(
        f"There is no scripted player called {name!r}. Choose {known} or, for 1000 simulations a move, "
        f"'mcts-1000'{others}."
    )


def _is_scripted(name: str) -> bool:
    return name in SCRIPTED or bool(_MCTS.fullmatch(name) or _HOLD.fullmatch(name))
