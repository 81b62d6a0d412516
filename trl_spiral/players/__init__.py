"""Players: scripted, a policy, an endpoint, a person."""

from __future__ import annotations

from trl_spiral.players.base import Player
from trl_spiral.players.endpoint import EndpointPlayer
from trl_spiral.players.equilibrium import EquilibriumPlayer
from trl_spiral.players.human import HumanPlayer
from trl_spiral.players.mcts import MCTSPlayer
from trl_spiral.players.minimax import MinimaxPlayer
from trl_spiral.players.names import scripted_player
from trl_spiral.players.policy import PolicyPlayer
from trl_spiral.players.scripted import RandomPlayer, ScriptedPlayer, random_move


__all__ = [
    "EndpointPlayer",
    "EquilibriumPlayer",
    "HumanPlayer",
    "MCTSPlayer",
    "MinimaxPlayer",
    "Player",
    "PolicyPlayer",
    "RandomPlayer",
    "ScriptedPlayer",
    "random_move",
    "scripted_player",
]
