"""
Self-play for language models on TRL.

Every public name can be imported from here. Importing this package loads neither torch nor TextArena: each name is
looked up when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


__version__ = "0.1.0"

_NAMES = {
    # Training
    "training.config": ["SpiralConfig"],
    "training.options": ["SpiralParser"],
    "training.trainer": ["SpiralTrainer"],
    "training.preflight": ["check_fresh_pool", "check_reference", "check_vllm", "reserve_output_dir"],
    "rollout_func": ["SelfPlayRollout"],
    "game_environment": ["GameEnvironment"],
    "algorithms": ["AlgorithmConfig", "AlgorithmTrainer"],
    "machine": ["explicit", "is_set", "parse_for_platform"],
    "callbacks": [
        "CollapseCallback",
        "EntropyScheduleCallback",
        "ExploitabilityCallback",
        "GradingCallback",
        "LiveCallback",
        "MBPPArguments",
        "MBPPCallback",
        "MBPPParser",
        "MatchCallback",
        "MathCallback",
        "OpponentPoolCallback",
        "PreemptionCallback",
        "SelfPlayProgressCallback",
        "TicTacToeCallback",
        "TranscriptCallback",
    ],
    # Self-play
    "selfplay.advantages": ["AdvantageEstimator", "BatchMean", "GroupMean", "ReturnsOnly", "RoleBaseline"],
    "selfplay.position_values": ["PositionValues"],
    "selfplay.curriculum": ["Curriculum", "LinearCurriculum"],
    "selfplay.settings": ["SelfPlaySettings"],
    "selfplay.matchmaking": ["Matchmaker"],
    "selfplay.referee": ["Forfeit", "Start", "play", "referee"],
    "opponents": ["OpponentPool", "Opponents", "pool_from_checkpoints", "pool_from_hub"],
    "types": ["Ending", "Episode", "Observation", "Reply", "Request", "Sampling", "Trajectory", "Turn"],
    "text.prompts": ["PromptRenderer"],
    # Games and players
    "games": ["Game", "Match", "Traits", "get_game", "register_game"],
    "games.textarena.adapter": ["register_engines"],
    "players": [
        "EndpointPlayer",
        "EquilibriumPlayer",
        "HumanPlayer",
        "MCTSPlayer",
        "MinimaxPlayer",
        "Player",
        "PolicyPlayer",
        "RandomPlayer",
        "ScriptedPlayer",
        "scripted_player",
    ],
    # Engines
    "engines.http.client": ["ServerLost"],
    "engines.http.openai": ["EndpointEngine"],
    "engines.http.vllm_server": ["ServerEngine"],
    "engines.build": ["build_opponents", "build_players", "read_names", "saved_player"],
    "engines.policies": ["Router"],
    # Tasks, rewards and sandboxes
    "tasks": ["Problem", "Score", "Task", "get_task", "read_answer", "register_task", "task_dataset"],
    "rewards": ["ExecutionReward", "TaskReward", "UnitTestReward"],
    "sandbox": ["BubblewrapSandbox", "CannotContain", "Job", "Limits", "LocalSandbox", "Sandbox", "Trial"],
    # Evaluation
    "evaluation.matches": ["MatchReport", "evaluate_matches", "match_table", "play_matches"],
    "evaluation.exact.exploitability": [
        "StrategyPlayer",
        "average_strategy",
        "best_responder",
        "best_responses",
        "exploitability",
        "nash_conv",
    ],
    "evaluation.exact.policy_tables": ["read_policy_table"],
    "evaluation.problems.math_sets": ["MathSet"],
    "engines.local.strategies": ["language_model_strategy"],
    # Tiny models, for tests and quick starts
    "tiny.coder": ["make_tiny_coder"],
    "tiny.player": ["TinyPlayerRecipe", "make_tiny_player"],
    "tiny.solver": ["make_tiny_solver"],
}
"""Public names by module."""

_EXPORTS = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
