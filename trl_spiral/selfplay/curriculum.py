"""How much of each game is played: weights that stay, and weights that change as training goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol


class Curriculum(Protocol):
    """
    Says before each batch how much of each game is played in it.

    Called once per batch, on every rank with the same arguments, so it must answer the same on all of them: no clock, no
    random numbers but from a seed of its own. One that remembers anything also has `state_dict()`, of plain values, and
    `load_state_dict(state)`: a resumed run goes on where it was.
    """

    def __call__(self, step: int, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """
        Weights of the games.

        Args:
            step (`int`):
                Optimizer steps taken.
            metrics (`Mapping[str, float]`):
                What [`~selfplay.metrics.measure`] said of the last batch, over all ranks; empty before the first.

        Returns:
            `Mapping[str, float]`: By name of the game, up to a common factor. A game that is not named is not played.
        """
        ...


class LinearCurriculum:
    """
    Weights that move evenly from one mixture to another, and stay there.

    Args:
        start, end (`Mapping[str, float]`):
            Weights by name of the game. Each is taken as shares of its own sum; a game that is not named has none.
        steps (`int`):
            Optimizer steps after which the end is reached.

    Raises:
        ValueError: If weights are negative or all zero, or `steps` is not at least 1.
    """

    def __init__(self, start: Mapping[str, float], end: Mapping[str, float], steps: int) -> None:
        if steps < 1:
            raise ValueError(f"`steps` ({steps}) must be at least 1: there is no way from one mixture to another.")
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
    What share of the games is of each.

    Args:
        games (`Sequence[str]`):
            Their names.
        weights (`Sequence[float]`):
            One each, in their order, up to a common factor.

    Returns:
        `list[float]`: They add up to 1.

    Raises:
        ValueError: If there is not one weight a game, one is negative or no number, or all are zero.
    """
    told = ", ".join(f"{weight:g}" for weight in weights)
    if len(weights) != len(games):
        raise ValueError(
            f"`game_weights` ({told}) must be as many as `games` ({', '.join(games)}), in the same order. Leave them out "
            "to play each as often as another."
        )
    if not all(math.isfinite(weight) and weight >= 0.0 for weight in weights) or not math.fsum(weights) > 0.0:
        raise ValueError(
            f"`game_weights` ({told}) must be numbers of at least 0, not all of them 0. Give a game weight 0 to leave it "
            "out."
        )
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def named_shares(games: Sequence[str], weights: Mapping[str, float]) -> list[float]:
    """
    The same for weights by name, as a curriculum gives them: a game that is not named has none.

    Raises:
        ValueError: Also if a name is not among the games.
    """
    if unknown := [name for name in weights if name not in games]:
        raise ValueError(f"The curriculum weighs {unknown[0]!r}, which is not among the games ({', '.join(games)}).")
    return game_shares(games, [weights.get(name, 0.0) for name in games])
