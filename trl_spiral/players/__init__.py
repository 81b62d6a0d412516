"""Who fills a seat."""

from __future__ import annotations

from trl_spiral.players.base import Player
from trl_spiral.players.endpoint import EndpointPlayer
from trl_spiral.players.human import HumanPlayer
from trl_spiral.players.policy import PolicyPlayer
from trl_spiral.players.scripted import RandomPlayer, ScriptedPlayer, random_move


__all__ = ["EndpointPlayer", "HumanPlayer", "Player", "PolicyPlayer", "RandomPlayer", "ScriptedPlayer", "random_move"]
