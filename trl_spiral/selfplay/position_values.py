"""The advantage estimator that compares the values of successive positions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trl_spiral.selfplay.advantages import Advantages, Role, RoleBaseline, mean_of, returns_by_role
from trl_spiral.selfplay.results import Result
from trl_spiral.types import SELF


_Position = tuple[str, int, int, str]
"""Key of a value: (game, seat, hash of the prompt, class of opponent)."""


class PositionValues:
    """
    Generalized advantage estimation over turns, with a table of position values.

    For games in which prompts recur. A position is a (game, seat, prompt, class of opponent). Its value is a running
    mean of the returns that followed. The newest batch has a weight of at least `rate`, so that the value follows a
    policy that improves. A turn's advantage is the sum over this and later turns of

        (discount * trace) ** k * (discount * value of the next position - value of this one)

    where the return takes the place of the next value after the last turn. This is
    [GAE](https://huggingface.co/papers/1506.02438) over turns instead of tokens. A position that is new for a class of
    opponent has its value in self-play. If it is new there too, its value is the role's mean return.

    The next position is the seat's own next one. In a game of `rivals` it is the next position of either seat, with
    the sign changed for the other seat. A move is then judged by the position that it leaves, before the rival's
    reply.

    Args:
        trace (`float`, defaults to `0.0`):
            The λ of GAE, in [0, 1]: at 0 only the next position's value counts, at 1 only the final return.
        rate (`float`, defaults to `0.1`):
            Least weight of a new batch in a position's value, in (0, 1].
        discount (`float`, defaults to `1.0`):
            Discount per turn, in (0, 1].
        rivals (`Collection[str]`, defaults to none):
            Names of games for two seats, zero-sum and of perfect information.

    Raises:
        ValueError: If `trace`, `rate` or `discount` is out of range. In use, if a game of `rivals` does not have two
            seats.
    """

    def __init__(
        self, trace: float = 0.0, rate: float = 0.1, discount: float = 1.0, rivals: Collection[str] = ()
    ) -> None:
        if not 0.0 <= trace <= 1.0:
            raise ValueError(f"`trace` ({trace}) must be in [0, 1].")
        for name, value in (("rate", rate), ("discount", discount)):
            if not 0.0 < value <= 1.0:
                raise ValueError(f"`{name}` ({value}) must be in (0, 1].")
        self.trace = trace
        self.rate = rate
        self.discount = discount
        self.rivals = frozenset(rivals)
        self.roles = RoleBaseline()
        self.values: dict[_Position, tuple[float, int]] = {}

    def advantages(self, results: Sequence[Result]) -> list[Advantages]:
        return self._evaluate(results)[0]

    def update(self, results: Sequence[Result]) -> None:
        targets = self._evaluate(results)[1]
        self.roles.update(results)
        for key, seen in targets.items():
            value, count = self.values.get(key, (0.0, 0))
            weight = max(self.rate, len(seen) / (count + len(seen)))
            self.values[key] = value + weight * (mean_of(seen) - value), count + len(seen)

    def _evaluate(self, results: Sequence[Result]) -> tuple[list[Advantages], dict[_Position, list[float]]]:
        """Return the advantages, and the values that each position turned out to have."""
        fallback = {role: mean_of(returns) for role, returns in returns_by_role(results).items()}
        fallback |= self.roles.baselines
        targets: dict[_Position, list[float]] = defaultdict(list)
        advantages = [
            ((),) * len(result.returns) if result.ending.is_broken else self._of(result, fallback, targets)
            for result in results
        ]
        return advantages, targets

    def _of(self, result: Result, fallback: Mapping[Role, float], targets: dict[_Position, list[float]]) -> Advantages:
        """Return the advantages of one game, from its end to its start, and add its positions' values to `targets`."""
        upcoming = [iter(positions) for positions in result.positions]
        path = [(seat, next(upcoming[seat])) for seat in result.order if result.positions[seat]]
        shared = result.game in self.rivals
        if shared and len(result.returns) != 2:
            raise ValueError(
                f"`rivals` contains {result.game}, which has {len(result.returns)} seats. Only between two seats is "
                "the value of a position for one the negative of its value for the other. Leave this game out."
            )
        later: dict[int, tuple[float, float]] = {}
        backwards: list[list[float]] = [[] for _ in result.returns]
        for seat, position in reversed(path):
            key = result.game, seat, position, result.opponent
            value = self._value(key, fallback)
            if seat in later:
                following, ahead = later[seat]
                advantage = self.discount * following - value + self.discount * self.trace * ahead
            else:
                advantage = result.returns[seat] - value
            # The cost of an illegal move is not a value of the position. With it, a position at which the policy often
            # errs would expect the error, and punish it less.
            if not (result.ending.is_forfeit and seat == result.offender and seat not in later):
                targets[key].append(value + advantage)
            backwards[seat].append(advantage)
            later[seat] = value, advantage
            if shared:
                later[1 - seat] = -value, -advantage
        return tuple(
            tuple(reversed(numbers)) if learns else ()
            for learns, numbers in zip(result.learners, backwards, strict=True)
        )

    def _value(self, key: _Position, fallback: Mapping[Role, float]) -> float:
        game, seat, position, opponent = key
        for known in (key, (game, seat, position, SELF)):
            if known in self.values:
                return self.values[known][0]
        return fallback.get((game, seat, opponent), 0.0)

    def state_dict(self) -> dict[str, Any]:
        return {
            **self.roles.state_dict(),
            "values": [[*key, *value] for key, value in sorted(self.values.items())],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.roles.load_state_dict(state)
        self.values = {
            (game, int(seat), int(prompt), opponent): (value, count)
            for game, seat, prompt, opponent, value, count in state["values"]
        }

    def metrics(self) -> dict[str, float]:
        return {**self.roles.metrics(), "positions": float(len(self.values))}
