"""
Self-play for language models on TRL.

Importing this package loads neither torch nor TextArena: names are looked up when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


__version__ = "0.1.0"

_EXPORTS = {
    "AlgorithmConfig": "algorithms",
    "AlgorithmTrainer": "algorithms",
    "BatchMean": "advantages",
    "BubblewrapSandbox": "sandbox",
    "Ending": "types",
    "EndpointEngine": "engines.endpoint",
    "EndpointPlayer": "players.endpoint",
    "Episode": "types",
    "EquilibriumPlayer": "players",
    "ExecutionReward": "rewards",
    "Forfeit": "rollout",
    "Game": "games",
    "GameEnvironment": "environment",
    "GroupMean": "advantages",
    "HumanPlayer": "players",
    "LocalSandbox": "sandbox",
    "MCTSPlayer": "players",
    "Match": "games",
    "MinimaxPlayer": "players",
    "Observation": "types",
    "OpponentPool": "opponents",
    "Opponents": "opponents",
    "Player": "players",
    "PolicyPlayer": "players",
    "PositionValues": "advantages",
    "PreemptionCallback": "preemption",
    "RandomPlayer": "players",
    "RemoteSandbox": "sandbox",
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
    "Task": "tasks",
    "TaskReward": "tasks",
    "Traits": "games",
    "Trajectory": "types",
    "Turn": "types",
    "UnitTestReward": "rewards",
    "get_game": "games",
    "get_task": "tasks",
    "play": "rollout",
    "referee": "rollout",
    "register_game": "games",
    "register_task": "tasks",
    "task_dataset": "tasks",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
