"""Options of `SpiralConfig` that hold keyword arguments, and those that were removed."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from trl import TrlParser

from trl_spiral.games import Game
from trl_spiral.selfplay.advantages import AdvantageEstimator, BatchMean, GroupMean, ReturnsOnly, RoleBaseline
from trl_spiral.selfplay.position_values import PositionValues


ESTIMATORS: Mapping[str, type[Any]] = {
    "role": RoleBaseline,
    "batch": BatchMean,
    "group": GroupMean,
    "none": ReturnsOnly,
    "position": PositionValues,
}
"""Advantage estimators, by the name that `advantage_estimator` uses."""

REMOVED = {
    **dict.fromkeys(
        ("illegal_move_return", "illegal_move_gain"),
        "set `forfeit` to the returns of the seat at fault and of the others, such as [-1.5, 0.5]",
    ),
    "pool_start": "set `pool_kwargs`, such as {'start': 40}",
    "pool_eviction": "set `pool_kwargs`, such as {'eviction': 'ladder'}",
    "pool_dtype": "set `pool_kwargs`, such as {'dtype': 'bfloat16'}",
    "pool_rating_games": "set `pool_kwargs`, such as {'rating_games': 32}",
    "pool_repair": "set `pool_kwargs`, such as {'repair': True}",
    "role_baseline_decay": "set `advantage_kwargs`, such as {'decay': 0.9}",
    "role_baseline_per_episode": "set `advantage_kwargs`, such as {'per_episode': True}",
    "turn_discount": "set `advantage_kwargs`, such as {'discount': 0.9}",
    "position_trace": "set `advantage_kwargs`, such as {'trace': 1.0}",
    "games_per_start": "set `advantage_kwargs` of `advantage_estimator='group'`, such as {'games_per_start': 8}",
    "entropy_coef_end": "add an `EntropyScheduleCallback` to the trainer",
    "live": "add a `LiveCallback` to the trainer",
    "keep_surplus": "leave it out, since rows that do not fit in a batch are always kept for the next one",
    "vllm_server_patience": "leave it out, since a vLLM server may always fail for 30 seconds",
    "eval_rows": "leave it out, since an evaluation always has 64 rows",
}
"""Options that were removed, and a clause that names the replacement."""


def refuse_removed(names: Iterable[str]) -> None:
    """
    Raises:
        ValueError: If one of the names is an option that was removed.
    """
    for name in names:
        if name in REMOVED:
            raise ValueError(f"`{name}` is not an option any more: {REMOVED[name]}.")


class SpiralParser(TrlParser):  # type: ignore[misc]  # TRL's types are not read
    """TRL's parser of command lines and YAML files, which names the replacement of an option that was removed."""

    def set_defaults_with_config(self, **settings: Any) -> list[str]:
        refuse_removed(settings)
        remaining: list[str] = super().set_defaults_with_config(**settings)
        return remaining

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        options = [word.partition("=")[0] for word in args or () if word.startswith("--")]
        refuse_removed(option.removeprefix("--").replace("-", "_") for option in options)
        return super().parse_known_args(args, namespace)


def make_estimator(
    name: str, advantage_kwargs: Mapping[str, Any] | None, games: Sequence[Game] = ()
) -> AdvantageEstimator:
    """
    Make the advantage estimator that a configuration names.

    Args:
        name (`str`):
            Key of `ESTIMATORS`.
        advantage_kwargs (`Mapping[str, Any]`, *optional*):
            Arguments of its class.
        games (sequence of [`~games.Game`], *optional*):
            The games that are played.

    Raises:
        ValueError: If there is no such estimator or argument, or an argument is out of range.
    """
    if name not in ESTIMATORS:
        raise ValueError(f"`advantage_estimator` ({name!r}) must be one of {', '.join(map(repr, ESTIMATORS))}.")
    given = dict(advantage_kwargs or {})
    known = [argument for argument in inspect.signature(ESTIMATORS[name]).parameters if argument != "rivals"]
    check_names("advantage_kwargs", given, [*known, "games_per_start"] if name == "group" else known)
    games_per_start(name, given)
    given.pop("games_per_start", None)
    if name == "position":
        traits = {game.name: game.traits for game in games}
        given["rivals"] = [
            game for game, of in traits.items() if of.seats == 2 and of.zero_sum and of.perfect_information
        ]
    estimator: AdvantageEstimator = ESTIMATORS[name](**given)
    return estimator


def games_per_start(name: str, advantage_kwargs: Mapping[str, Any] | None) -> int:
    """
    Return the number of episodes that share a start.

    Raises:
        ValueError: If the estimator compares such episodes, and there is only one of each.
    """
    number: int = (advantage_kwargs or {}).get("games_per_start", 1)
    if name == "group" and number < 2:
        raise ValueError(
            f"`games_per_start` ({number}) in `advantage_kwargs` must be at least 2 for "
            "`advantage_estimator='group'`: a group of one is its own baseline, and every advantage is zero."
        )
    return number


def check_names(option: str, given: Iterable[str], known: Collection[str]) -> None:
    """
    Raises:
        ValueError: If an option with keyword arguments contains an unknown one.
    """
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"`{option}` names {unknown[0]!r}; it takes {', '.join(known)}.")
