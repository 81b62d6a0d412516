"""What an estimator is, and those that judge a turn by the return of its episode."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trl_spiral.selfplay.results import Result
from trl_spiral.types import SELF


Role = tuple[str, int, str]
"""
What a baseline is kept for: (game, seat, class of opponent). What a seat can expect depends on whom it meets as much as on
where it sits, and a baseline over all of them would give every turn against a weak opponent a positive advantage.
"""

Advantages = tuple[tuple[float, ...], ...]
"""Of one episode: for each seat, one number per turn; none for seats that are not trained on."""


class AdvantageEstimator(Protocol):
    """
    Turns a batch of results into advantages.

    Called with the same results, in order of their counters, on every rank; so every rank holds the same state without
    ever sending it.
    """

    def __call__(self, results: Sequence[Result], update: bool = True) -> list[Advantages]:
        """
        Advantages of each result, read before anything is updated.

        Args:
            results (`Sequence[Result]`):
                All ranks' episodes of one batch. Broken ones get zeros and move nothing.
            update (`bool`, defaults to `True`):
                Whether the estimator learns from them; evaluation passes `False`.
        """

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs, as plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state_dict` gave."""

    def metrics(self) -> dict[str, float]:
        """What is worth logging, by name."""


class RoleBaseline:
    """
    Role-conditioned Advantage Estimation: return minus a moving average of that role's returns.

    A role is a (game, seat, class of opponent). The baseline is read before it is updated, set to the first batch's mean at first sight
    of a role, and then moved once per batch:

        baseline <- decay * baseline + (1 - decay) * mean return of the batch

    From [SPIRAL](https://huggingface.co/papers/2506.24119), which moves it after every episode; `per_episode=True`
    does the same, in the order of episode counters, from a baseline of zero.

    Args:
        decay (`float`, defaults to `0.95`):
            Share of the baseline kept at each batch (or episode), in [0, 1).
        discount (`float`, defaults to `1.0`):
            Factor by which a turn's advantage shrinks for every later turn of its seat.
        per_episode (`bool`, defaults to `False`):
            Whether the baseline moves after every episode.
    """

    def __init__(self, decay: float = 0.95, discount: float = 1.0, per_episode: bool = False) -> None:
        self.decay = decay
        self.discount = discount
        self.per_episode = per_episode
        self.baselines: dict[Role, float] = {}

    def __call__(self, results: Sequence[Result], update: bool = True) -> list[Advantages]:
        if self.per_episode:
            return self._one_by_one(results, update)
        means = {role: mean_of(returns) for role, returns in returns_by_role(results).items()}
        baselines = {**means, **self.baselines}
        if update:
            for role, mean in means.items():
                self.baselines[role] = self.decay * baselines[role] + (1.0 - self.decay) * mean
        return [_spread(result, _of_seats(result, baselines), self.discount) for result in results]

    def _one_by_one(self, results: Sequence[Result], update: bool) -> list[Advantages]:
        baselines = dict(self.baselines)
        advantages = []
        for result in results:
            known = _of_seats(result, baselines)
            advantages.append(_spread(result, known, self.discount))
            for seat in _learning_seats(result):
                moved = self.decay * known[seat] + (1.0 - self.decay) * result.returns[seat]
                baselines[result.game, seat, result.opponent] = moved
        if update:
            self.baselines = baselines
        return advantages

    def state_dict(self) -> dict[str, Any]:
        return {"baselines": [[*role, value] for role, value in sorted(self.baselines.items())]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.baselines = {_role(*role): float(value) for *role, value in state["baselines"]}

    def metrics(self) -> dict[str, float]:
        return {
            f"baseline/{game}/seat{seat}" + ("" if opponent == SELF else f"/{opponent}"): value
            for (game, seat, opponent), value in sorted(self.baselines.items())
        }


class _Stateless:
    """An estimator that looks at nothing but the batch."""

    def __init__(self, discount: float = 1.0) -> None:
        self.discount = discount

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state

    def metrics(self) -> dict[str, float]:
        return {}


class ReturnsOnly(_Stateless):
    """No baseline: the advantage is the return, as in REINFORCE."""

    def __call__(self, results: Sequence[Result], update: bool = True) -> list[Advantages]:
        return [_spread(result, (0.0,) * len(result.returns), self.discount) for result in results]


class BatchMean(_Stateless):
    """Return minus the mean return of the same role in this batch."""

    def __call__(self, results: Sequence[Result], update: bool = True) -> list[Advantages]:
        means = {role: mean_of(returns) for role, returns in returns_by_role(results).items()}
        return [_spread(result, _of_seats(result, means), self.discount) for result in results]


class GroupMean(_Stateless):
    """
    Return minus the mean return of the same seat over the episodes that started from the same deal and opening, against
    the same class of opponent.

    With `games_per_start` episodes a group, this is GRPO's group baseline with "the same prompt" read as "the same
    start": luck of the deal and strength of the opening cancel. A group of one has no baseline but itself and is
    worth zero.
    """

    def __call__(self, results: Sequence[Result], update: bool = True) -> list[Advantages]:
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


def _role(game: str, seat: int, opponent: str = SELF) -> Role:
    """A role as it was saved; before there were opponents, without their class."""
    return game, int(seat), opponent


def _learning_seats(result: Result) -> list[int]:
    return [seat for seat, learns in enumerate(result.learners) if learns]


def returns_by_role(results: Sequence[Result]) -> dict[Role, list[float]]:
    returns: dict[Role, list[float]] = defaultdict(list)
    for result in results:
        for seat in _learning_seats(result):
            returns[result.game, seat, result.opponent].append(result.returns[seat])
    return returns


def mean_of(values: Sequence[float]) -> float:
    # `fsum` is exact, so the mean does not depend on the order in which ranks are listed.
    return math.fsum(values) / len(values)


def _of_seats(result: Result, baselines: Mapping[Role, float]) -> list[float]:
    """Each seat's baseline; 0 for a role never seen, which is either new or not trained on."""
    return [baselines.get((result.game, seat, result.opponent), 0.0) for seat in range(len(result.returns))]


def _spread(result: Result, baselines: Sequence[float], discount: float) -> Advantages:
    """Return minus baseline, over a seat's turns: the last gets it whole, each earlier one `discount` times the next."""
    return tuple(
        tuple((gain - baseline) * discount ** (len(positions) - 1 - turn) for turn in range(len(positions)))
        if learns
        else ()
        for gain, baseline, positions, learns in zip(
            result.returns, baselines, result.positions, result.learners, strict=True
        )
    )
