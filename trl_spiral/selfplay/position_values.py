"""The estimator that judges a turn by what its position, and the next one, have been worth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trl_spiral.selfplay.advantages import Advantages, Role, RoleBaseline, mean_of, returns_by_role
from trl_spiral.selfplay.results import Result
from trl_spiral.types import SELF


Position = tuple[str, int, int, str]
"""What a value is kept for: (game, seat, fingerprint of the prompt, class of opponent)."""


class PositionValues:
    """
    Generalised advantage estimation over turns, with a table of what each position has been worth.

    For games whose prompts come again. A position is a (game, seat, prompt, class of opponent); its value is a running mean of what
    followed, with at least `rate` weight on the newest batch so that it tracks a policy that improves. A turn's
    advantage is the sum over this and later turns of

        (discount * trace) ** k * (discount * value of the next position - value of this one)

    where after the last turn the return stands for the next position's value. This is
    [GAE](https://huggingface.co/papers/1506.02438) over turns instead of tokens. A position never seen before counts as
    it counts where the policy meets itself, and where it never did, as its role's mean return.

    The next position is the seat's own next one. In a game of `rivals` it is the position of whoever moves next, with
    its value turned around where that is the other seat: what a move has done is then judged by the position it leaves,
    before the rival's reply adds its own luck.

    Args:
        trace (`float`, defaults to `0.0`):
            The λ of GAE, in [0, 1]: at 0 only the next position's value counts, at 1 only the final return.
        rate (`float`, defaults to `0.1`):
            Least weight of a new batch in a position's value, in (0, 1].
        discount (`float`, defaults to `1.0`):
            Discount per turn.
        rivals (`Collection[str]`, defaults to none):
            Names of games for two seats, zero-sum and of perfect information.

    Raises:
        ValueError: When it is called, if a game among the `rivals` turns out to have another number of seats.
    """

    def __init__(
        self, trace: float = 0.0, rate: float = 0.1, discount: float = 1.0, rivals: Collection[str] = ()
    ) -> None:
        self.trace = trace
        self.rate = rate
        self.discount = discount
        self.rivals = frozenset(rivals)
        self.roles = RoleBaseline()
        self.values: dict[Position, tuple[float, int]] = {}

    def __call__(self, results: Sequence[Result], update: bool = True) -> list[Advantages]:
        fallback = {role: mean_of(returns) for role, returns in returns_by_role(results).items()}
        fallback |= self.roles.baselines
        targets: dict[Position, list[float]] = defaultdict(list)
        advantages = [
            ((),) * len(result.returns) if result.ending.is_broken else self._of(result, fallback, targets)
            for result in results
        ]
        if update:
            self.roles(results)
            for key, seen in targets.items():
                value, count = self.values.get(key, (0.0, 0))
                weight = max(self.rate, len(seen) / (count + len(seen)))
                self.values[key] = value + weight * (mean_of(seen) - value), count + len(seen)
        return advantages

    def _of(self, result: Result, fallback: Mapping[Role, float], targets: dict[Position, list[float]]) -> Advantages:
        """Walks one game backwards, and adds to `targets` what each of its positions turned out to be worth."""
        upcoming = [iter(positions) for positions in result.positions]
        path = [(seat, next(upcoming[seat])) for seat in result.order if result.positions[seat]]
        shared = result.game in self.rivals
        if shared and len(result.returns) != 2:
            raise ValueError(
                f"`rivals` name {result.game}, which has {len(result.returns)} seats: what a position is worth to one is "
                "minus what it is worth to the other only between two. Leave it out."
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
            # What an illegal move costs is no measure of the position: with it, a position at which the policy often
            # errs would come to expect the offence, and punish it less.
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

    def _value(self, key: Position, fallback: Mapping[Role, float]) -> float:
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
        self.values = {_position(*key): (value, n) for *key, value, n in state["values"]}

    def metrics(self) -> dict[str, float]:
        return {**self.roles.metrics(), "positions": float(len(self.values))}


def _position(game: str, seat: int, prompt: int, opponent: str = SELF) -> Position:
    return game, int(seat), int(prompt), opponent
