"""
Self-play for language models on TRL.

Importing this package loads neither torch nor TextArena: names are looked up when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


__version__ = "0.1.0"

_EXPORTS = {
    "BatchMean": "advantages",
    "Ending": "types",
    "EndpointEngine": "engines.endpoint",
    "EndpointPlayer": "players.endpoint",
    "Episode": "types",
    "EquilibriumPlayer": "players",
    "Forfeit": "rollout",
    "Game": "games",
    "GameEnvironment": "environment",
    "GroupMean": "advantages",
    "HumanPlayer": "players",
    "MCTSPlayer": "players",
    "Match": "games",
    "MinimaxPlayer": "players",
    "Observation": "types",
    "OpponentPool": "opponents",
    "Opponents": "opponents",
    "Player": "players",
    "PolicyPlayer": "players",
    "PositionValues": "advantages",
    "RandomPlayer": "players",
    "Reply": "types",
    "Request": "types",
    "ReturnsOnly": "advantages",
    "RoleBaseline": "advantages",
    "Router": "engines.router",
    "Sampling": "types",
    "ScriptedPlayer": "players",
    "ServerEngine": "engines.http",
    "ServerLost": "engines.transport",
    "SelfPlayRollout": "selfplay",
    "SpiralConfig": "spiral_config",
    "SpiralTrainer": "spiral_trainer",
    "Start": "rollout",
    "Traits": "games",
    "Trajectory": "types",
    "Turn": "types",
    "get_game": "games",
    "play": "rollout",
    "referee": "rollout",
    "register_game": "games",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
