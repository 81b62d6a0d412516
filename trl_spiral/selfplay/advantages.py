"""Advantage estimators: their interface, and those that use the return of the whole episode."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trl_spiral.selfplay.results import Result
from trl_spiral.types import SELF


Role = tuple[str, int, str]
"""
Key of a baseline: (game, seat, class of opponent). The expected return depends on the opponent as much as on the seat.
A baseline over all opponents would give every turn against a weak one a positive advantage.
"""

Advantages = tuple[tuple[float, ...], ...]
"""Advantages of one episode: for each seat, one number per turn; none for seats that are not trained on."""


class AdvantageEstimator(Protocol):
    """
    Computes advantages from the results of a batch.

    Every rank calls both methods with the same results, in order of their counters. So all ranks hold the same state
    without exchanging it.
    """

    def advantages(self, results: Sequence[Result]) -> list[Advantages]:
        """
        Return the advantages of each result, without changing the estimator.

        Args:
            results (`Sequence[Result]`):
                Episodes of all ranks. The seats of a broken episode get no advantages.
        """

    def update(self, results: Sequence[Result]) -> None:
        """
        Learn from the results of a training batch. Called once per batch, after its advantages are computed.

        Args:
            results (`Sequence[Result]`):
                Episodes of all ranks. Broken ones must change nothing.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""

    def metrics(self) -> dict[str, float]:
        """Return what to log, by name."""


class RoleBaseline:
    """
    Role-conditioned advantage estimation: return minus a moving average of the role's returns.

    A role is a (game, seat, class of opponent). Its baseline starts at the mean of the first batch that contains it.
    Each update then moves it:

        baseline <- decay * baseline + (1 - decay) * mean return of the batch

    From [SPIRAL](https://huggingface.co/papers/2506.24119), which moves the baseline after every episode.
    `per_episode=True` does the same, in order of episode counters, from a baseline of zero.

    Args:
        decay (`float`, defaults to `0.95`):
            Share of the baseline kept at each batch (or episode), in [0, 1).
        discount (`float`, defaults to `1.0`):
            Factor on a turn's advantage for every later turn of its seat, in (0, 1].
        per_episode (`bool`, defaults to `False`):
            Whether the baseline moves after every episode.

    Raises:
        ValueError: If `decay` or `discount` is out of range.
    """

    def __init__(self, decay: float = 0.95, discount: float = 1.0, per_episode: bool = False) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(
                f"`decay` ({decay}) must be in [0, 1): at 1 a baseline never moves. Use `0.0` to follow only the "
                "latest batch."
            )
        _check_discount(discount)
        self.decay = decay
        self.discount = discount
        self.per_episode = per_episode
        self.baselines: dict[Role, float] = {}

    def advantages(self, results: Sequence[Result]) -> list[Advantages]:
        if self.per_episode:
            return self._one_by_one(results)[0]
        baselines = {**_means_by_role(results), **self.baselines}
        return [_spread(result, _of_seats(result, baselines), self.discount) for result in results]

    def update(self, results: Sequence[Result]) -> None:
        if self.per_episode:
            self.baselines = self._one_by_one(results)[1]
            return
        for role, mean in _means_by_role(results).items():
            self.baselines[role] = self.decay * self.baselines.get(role, mean) + (1.0 - self.decay) * mean

    def _one_by_one(self, results: Sequence[Result]) -> tuple[list[Advantages], dict[Role, float]]:
        """Return the advantages, and the baselines after the last result."""
        baselines = dict(self.baselines)
        advantages = []
        for result in results:
            known = _of_seats(result, baselines)
            advantages.append(_spread(result, known, self.discount))
            for seat in _learning_seats(result):
                moved = self.decay * known[seat] + (1.0 - self.decay) * result.returns[seat]
                baselines[result.game, seat, result.opponent] = moved
        return advantages, baselines

    def state_dict(self) -> dict[str, Any]:
        return {"baselines": [[*role, value] for role, value in sorted(self.baselines.items())]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.baselines = {(game, int(seat), opponent): float(x) for game, seat, opponent, x in state["baselines"]}

    def metrics(self) -> dict[str, float]:
        return {
            f"baseline/{game}/seat{seat}" + ("" if opponent == SELF else f"/{opponent}"): value
            for (game, seat, opponent), value in sorted(self.baselines.items())
        }


class _Stateless:
    """Base of estimators that use nothing but the batch."""

    def __init__(self, discount: float = 1.0) -> None:
        _check_discount(discount)
        self.discount = discount

    def update(self, results: Sequence[Result]) -> None:
        del results

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state

    def metrics(self) -> dict[str, float]:
        return {}


class ReturnsOnly(_Stateless):
    """No baseline: the advantage is the return, as in REINFORCE."""

    def advantages(self, results: Sequence[Result]) -> list[Advantages]:
        return [_spread(result, (0.0,) * len(result.returns), self.discount) for result in results]


class BatchMean(_Stateless):
    """Return minus the mean return of the same role in this batch."""

    def advantages(self, results: Sequence[Result]) -> list[Advantages]:
        means = _means_by_role(results)
        return [_spread(result, _of_seats(result, means), self.discount) for result in results]


class GroupMean(_Stateless):
    """
    Return minus the mean return of the same seat over the episodes of one group: those with the same deal, opening and
    class of opponent.

    This is GRPO's group baseline, with the start of a game in place of a prompt: the luck of the deal and the strength
    of the opening cancel. `games_per_start` of [`SelfPlaySettings`] is the size of a group. In a group of one, all
    advantages are zero.
    """

    def advantages(self, results: Sequence[Result]) -> list[Advantages]:
        groups: dict[tuple[str, int, int, str], list[float]] = defaultdict(list)
        for result in results:
            for seat in _learning_seats(result):
                groups[result.game, result.seed, seat, result.opponent].append(result.returns[seat])
        means = {key: mean_of(returns) for key, returns in groups.items()}
        return [
            _spread(
                result,
                [
                    means.get((result.game, result.seed, seat, result.opponent), 0.0)
                    for seat in range(len(result.returns))
                ],
                self.discount,
            )
            for result in results
        ]


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of numbers. It does not depend on their order, since `fsum` is exact."""
    return math.fsum(values) / len(values)


def returns_by_role(results: Sequence[Result]) -> dict[Role, list[float]]:
    """Return the returns of the seats that are trained on."""
    returns: dict[Role, list[float]] = defaultdict(list)
    for result in results:
        for seat in _learning_seats(result):
            returns[result.game, seat, result.opponent].append(result.returns[seat])
    return returns


def _means_by_role(results: Sequence[Result]) -> dict[Role, float]:
    return {role: mean_of(returns) for role, returns in returns_by_role(results).items()}


def _learning_seats(result: Result) -> list[int]:
    return [seat for seat, learns in enumerate(result.learners) if learns]


def _of_seats(result: Result, baselines: Mapping[Role, float]) -> list[float]:
    """Return the baseline of each seat; 0 for a role that is new or not trained on."""
    return [baselines.get((result.game, seat, result.opponent), 0.0) for seat in range(len(result.returns))]


def _spread(result: Result, baselines: Sequence[float], discount: float) -> Advantages:
    """Return minus baseline, for each turn of a seat. Each turn gets `discount` times as much as the next one."""
    return tuple(
        tuple((gain - baseline) * discount ** (len(positions) - 1 - turn) for turn in range(len(positions)))
        if learns
        else ()
        for gain, baseline, positions, learns in zip(
            result.returns, baselines, result.positions, result.learners, strict=True
        )
    )


def _check_discount(discount: float) -> None:
    if not 0.0 < discount <= 1.0:
        raise ValueError(f"`discount` ({discount}) must be in (0, 1]. Use 1 for no discount.")
