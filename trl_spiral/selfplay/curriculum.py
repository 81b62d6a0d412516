"""Sampling weights of several games, fixed or changing during training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol


class Curriculum(Protocol):
    """
    Chooses the sampling weights of the games before each batch.

    Every rank calls it once per batch with the same arguments, and it must return the same on all of them. It may use
    no clock, and no random numbers but from a seed of its own. A curriculum with state also has `state_dict()`, which
    returns plain values, and `load_state_dict(state)`, which a resumed run calls.
    """

    def __call__(self, step: int, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """
        Return the weights of the games.

        Args:
            step (`int`):
                Optimizer steps taken.
            metrics (`Mapping[str, float]`):
                Metrics of the previous batch over all ranks, from [`~selfplay.metrics.measure`]; empty before the
                first.

        Returns:
            `Mapping[str, float]`: Weights by name of the game, up to a common factor. A missing game has weight 0.
        """
        ...


class LinearCurriculum:
    """
    Weights that change linearly from one mixture to another, and then stay.

    Args:
        start, end (`Mapping[str, float]`):
            Weights by name of the game, up to a common factor. A missing game has weight 0.
        steps (`int`):
            Optimizer steps after which the end is reached.

    Raises:
        ValueError: If weights are negative or all zero, or `steps` is not at least 1.
    """

    def __init__(self, start: Mapping[str, float], end: Mapping[str, float], steps: int) -> None:
        if steps < 1:
            raise ValueError(
                f"`steps` ({steps}) must be at least 1. For weights that do not change, use `game_weights`."
            )
        self.start = dict(zip(start, game_shares(list(start), list(start.values())), strict=True))
        self.end = dict(zip(end, game_shares(list(end), list(end.values())), strict=True))
        self.steps = steps

    def __call__(self, step: int, metrics: Mapping[str, float]) -> Mapping[str, float]:
        done = min(step / self.steps, 1.0)
        return {
            game: (1.0 - done) * self.start.get(game, 0.0) + done * self.end.get(game, 0.0)
            for game in (*self.start, *(game for game in self.end if game not in self.start))
        }


def game_shares(games: Sequence[str], weights: Sequence[float]) -> list[float]:
    """
    Normalize the weights of games.

    Args:
        games (`Sequence[str]`):
            Names of the games.
        weights (`Sequence[float]`):
            One weight per game, up to a common factor.

    Returns:
        `list[float]`: Shares that add up to 1.

    Raises:
        ValueError: If there is not one weight per game, a weight is negative or not a number, or all are zero.
    """
    listed = ", ".join(f"{weight:g}" for weight in weights)
    if len(weights) != len(games):
        raise ValueError(
            f"`game_weights` ({listed}) must be as many as `games` ({', '.join(games)}), in the same order. Leave "
            "them out for uniform weights."
        )
    if not all(math.isfinite(weight) and weight >= 0.0 for weight in weights) or not math.fsum(weights) > 0.0:
        raise ValueError(
            f"`game_weights` ({listed}) must be numbers of at least 0, not all of them 0. Give a game weight 0 to "
            "leave it out."
        )
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def named_shares(games: Sequence[str], weights: Mapping[str, float]) -> list[float]:
    """
    Normalize weights by name, as a curriculum returns them. A missing game has weight 0.

    Raises:
        ValueError: As `game_shares`, and if a name is not among the games.
    """
    if unknown := [name for name in weights if name not in games]:
        raise ValueError(f"The curriculum weighs {unknown[0]!r}, which is not among the games ({', '.join(games)}).")
    return game_shares(games, [weights.get(name, 0.0) for name in games])
