"""Scripted players by name, for configurations."""

from __future__ import annotations

import re

from trl_spiral.games import Game
from trl_spiral.players.base import Player
from trl_spiral.players.equilibrium import EquilibriumPlayer
from trl_spiral.players.mcts import MCTSPlayer
from trl_spiral.players.minimax import MinimaxPlayer
from trl_spiral.players.scripted import RandomPlayer


SCRIPTED = ("random", "minimax", "equilibrium", "mcts")
"""Names of scripted players. `"mcts-1000"` thinks a thousand games ahead of each move."""

_MCTS = re.compile(r"mcts(?:-(\d+))?", re.ASCII)


def scripted_player(name: str, game: Game) -> Player:
    """
    The scripted player called `name`, for one game.

    Args:
        name (`str`):
            One of `SCRIPTED`, or `"mcts-"` and a number of simulations.
        game ([`~games.Game`]):
            What it is to play.

    Raises:
        ValueError: If there is no such player, or none for this game.
    """
    check_scripted_name(name)
    if searching := _MCTS.fullmatch(name):
        return MCTSPlayer(game, int(searching[1])) if searching[1] else MCTSPlayer(game)
    if name == "minimax":
        return MinimaxPlayer(game.name)
    if name == "equilibrium":
        return EquilibriumPlayer(game.name)
    if game.start(0).legal_actions() is None:
        raise ValueError(
            f"There is no random player for {game.name}, which cannot list its legal moves. Use an endpoint or a snapshot "
            "instead."
        )
    return RandomPlayer()


def check_scripted_name(name: str) -> None:
    """
    Raises:
        ValueError: If no scripted player has that name, in any game.
    """
    if name not in SCRIPTED and not _MCTS.fullmatch(name):
        raise ValueError(
            f"There is no scripted player called {name!r}. Choose {', '.join(map(repr, SCRIPTED))} or, for a thousand "
            "simulations a move, 'mcts-1000'."
        )
