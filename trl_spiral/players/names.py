"""Scripted players by name, for configurations."""

from __future__ import annotations

import re

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


SCRIPTED = ("random", "minimax", "equilibrium", "mcts", "hold-20", "greedy", "odds")
"""
Names of scripted players. `"mcts-1000"` thinks a thousand games ahead of each move, and `"hold-25"` rolls up to 25.
"""

_MCTS = re.compile(r"mcts(?:-(\d+))?", re.ASCII)
_HOLD = re.compile(r"hold-(\d+)", re.ASCII)


def scripted_player(name: str, game: Game) -> Player:
    """
    The scripted player called `name`, for one game.

    Args:
        name (`str`):
            One of `SCRIPTED`, `"mcts-"` and a number of simulations, or `"hold-"` and a number of points.
        game ([`~games.Game`]):
            What it is to play.

    Raises:
        ValueError: If there is no such player, or none for this game.
    """
    check_scripted_name(name)
    if searching := _MCTS.fullmatch(name):
        return MCTSPlayer(game, int(searching[1])) if searching[1] else MCTSPlayer(game)
    if holding := _HOLD.fullmatch(name):
        return HoldPlayer(int(holding[1]), game.name)
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
            f"There is no random player for {game.name}, which cannot list its legal moves. Use an endpoint or a snapshot "
            "instead."
        )
    return RandomPlayer()


def has_random_player(game: Game) -> bool:
    """Return whether `scripted_player("random", game)` exists."""
    return game.name in (NEGOTIATION, CODE, FROZEN_CODE) or game.start(0).legal_actions() is not None


def check_scripted_name(name: str) -> None:
    """
    Raises:
        ValueError: If no scripted player has that name, in any game.
    """
    if name not in SCRIPTED and not _MCTS.fullmatch(name) and not _HOLD.fullmatch(name):
        raise ValueError(
            f"There is no scripted player called {name!r}. Choose {', '.join(map(repr, SCRIPTED))} or, for a thousand "
            "simulations a move, 'mcts-1000'."
        )
