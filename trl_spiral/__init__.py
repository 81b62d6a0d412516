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
    "BatchMean": "selfplay.advantages",
    "BubblewrapSandbox": "sandbox",
    "Ending": "types",
    "EndpointEngine": "engines.http.openai",
    "EndpointPlayer": "players.endpoint",
    "Episode": "types",
    "EquilibriumPlayer": "players",
    "ExecutionReward": "rewards",
    "Forfeit": "selfplay.referee",
    "Game": "games",
    "GameEnvironment": "game_environment",
    "GroupMean": "selfplay.advantages",
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
    "PositionValues": "selfplay.position_values",
    "PreemptionCallback": "callbacks.preemption",
    "RandomPlayer": "players",
    "Reply": "types",
    "Request": "types",
    "ReturnsOnly": "selfplay.advantages",
    "RoleBaseline": "selfplay.advantages",
    "Router": "engines.router",
    "Sampling": "types",
    "ScriptedPlayer": "players",
    "ServerEngine": "engines.http.vllm_server",
    "ServerLost": "engines.http.client",
    "SelfPlayRollout": "rollout_func",
    "SelfPlaySettings": "selfplay.settings",
    "SpiralConfig": "training.config",
    "SpiralParser": "training.options",
    "SpiralTrainer": "training.trainer",
    "Start": "selfplay.referee",
    "Task": "tasks",
    "TaskReward": "rewards",
    "Traits": "games",
    "Trajectory": "types",
    "Turn": "types",
    "UnitTestReward": "rewards",
    "get_game": "games",
    "get_task": "tasks",
    "play": "selfplay.referee",
    "referee": "selfplay.referee",
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
