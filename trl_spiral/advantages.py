"""
Episodes in, one advantage per turn out.

Every estimator sees the *results* of all ranks' episodes in one order, so that its numbers depend neither on which rank
played what nor on which game ended first: one rank and two ranks with the same episodes get the same advantages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trl_spiral.types import POLICY, Ending, Episode


Role = tuple[str, int, str]
"""
What a baseline is kept for: (game, seat, class of opponent). What a seat can expect depends on whom it meets as much as on
where it sits, and a baseline over all of them would give every turn against a weak opponent a positive advantage.
"""

AGAINST_ITSELF = "self"
"""Class of the opponent where the policy fills every seat."""

Position = tuple[str, int, int, str]
"""What a value is kept for: (game, seat, fingerprint of the prompt, class of opponent)."""

Advantages = tuple[tuple[float, ...], ...]
"""Of one episode: for each seat, one number per turn; none for seats that are not trained on."""


@dataclass(frozen=True, slots=True)
class Result:
    """
    What estimators and metrics need of an episode, small enough to send to every rank.

    Attributes:
        counter (`int`):
            Number of the episode in the run.
        game (`str`):
            Name of the game.
        seed (`int`):
            Seed of the match: episodes that share it started from the same deal and opening.
        returns (`tuple[float, ...]`):
            Terminal payoff per seat.
        ending ([`~types.Ending`]):
            Why it ended.
        offender (`int`, *optional*):
            Seat whose fault ended it.
        learners (`tuple[bool, ...]`):
            Whether each seat's turns are trained on.
        positions (`tuple[tuple[int, ...], ...]`):
            For each seat, a fingerprint of the prompt at each of its turns; empty where the policy did not sit.
        order (`tuple[int, ...]`):
            The seat of each turn, in playing order.
        tokens (`int`):
            Tokens that the policy wrote.
        logprob_sum (`float`):
            Sum of the log-probabilities of all policy tokens, in nats.
        discarded_tokens (`int`):
            Policy tokens of drawn attempts that were played again.
        policy_turns (`int`):
            Turns taken by the policy.
        opening (`int`):
            Moves of the random opening.
        players (`tuple[str, ...]`):
            Name of whoever filled each seat.
        opponent (`str`):
            Class of the policy's opponents: baselines are kept for each apart.
    """

    counter: int
    game: str
    seed: int
    returns: tuple[float, ...]
    ending: Ending
    offender: int | None
    learners: tuple[bool, ...]
    positions: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    tokens: int
    logprob_sum: float
    discarded_tokens: int
    policy_turns: int
    opening: int
    players: tuple[str, ...] = ()
    opponent: str = AGAINST_ITSELF


def learning_seats(episode: Episode, winner_learns_from_forfeit: bool = True) -> tuple[int, ...]:
    """
    Seats whose turns are trained on: those that the policy filled, in an episode whose result means something.

    Args:
        episode ([`~types.Episode`]):
            What was played.
        winner_learns_from_forfeit (`bool`, defaults to `True`):
            Whether the seats that did not cause an illegal or truncated ending count.
    """
    if episode.ending.is_broken:
        return ()
    only = episode.offender if episode.ending.is_forfeit and not winner_learns_from_forfeit else None
    return tuple(
        trajectory.seat
        for trajectory in episode.trajectories
        if (only is None or trajectory.seat == only)
        and trajectory.turns
        and all(turn.policy == POLICY for turn in trajectory.turns)
    )


def summarize(episode: Episode, learners: Sequence[int] | None = None, opponent: str = AGAINST_ITSELF) -> Result:
    """
    The [`Result`] of an episode.

    Args:
        episode ([`~types.Episode`]):
            What was played.
        learners (`Sequence[int]`, *optional*):
            Seats that are trained on; all `learning_seats` by default.
        opponent (`str`, defaults to `AGAINST_ITSELF`):
            Class of the policy's opponents.
    """
    learning = learning_seats(episode) if learners is None else learners
    mine = [[turn for turn in seat.turns if turn.policy == POLICY] for seat in episode.trajectories]
    return Result(
        counter=episode.counter,
        game=episode.game,
        seed=episode.seed,
        returns=episode.returns,
        ending=episode.ending,
        offender=episode.offender,
        learners=tuple(seat in learning for seat in range(len(mine))),
        positions=tuple(tuple(hash(turn.prompt_ids) for turn in turns) for turns in mine),
        order=episode.order,
        tokens=episode.policy_tokens,
        logprob_sum=math.fsum(logprob for turns in mine for turn in turns for logprob in turn.logprobs),
        discarded_tokens=episode.discarded_tokens,
        policy_turns=sum(map(len, mine)),
        opening=episode.opening,
        players=episode.players,
        opponent=opponent,
    )


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
        means = {role: _mean(returns) for role, returns in _returns_by_role(results).items()}
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
            f"baseline/{game}/seat{seat}" + ("" if opponent == AGAINST_ITSELF else f"/{opponent}"): value
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
        means = {role: _mean(returns) for role, returns in _returns_by_role(results).items()}
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
        means = {key: _mean(returns) for key, returns in groups.items()}
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
        fallback = {role: _mean(returns) for role, returns in _returns_by_role(results).items()}
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
                self.values[key] = value + weight * (_mean(seen) - value), count + len(seen)
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
        for known in (key, (game, seat, position, AGAINST_ITSELF)):
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


def _role(game: str, seat: int, opponent: str = AGAINST_ITSELF) -> Role:
    """A role as it was saved; before there were opponents, without their class."""
    return game, int(seat), opponent


def _position(game: str, seat: int, prompt: int, opponent: str = AGAINST_ITSELF) -> Position:
    return game, int(seat), int(prompt), opponent


def _learning_seats(result: Result) -> list[int]:
    return [seat for seat, learns in enumerate(result.learners) if learns]


def _returns_by_role(results: Sequence[Result]) -> dict[Role, list[float]]:
    returns: dict[Role, list[float]] = defaultdict(list)
    for result in results:
        for seat in _learning_seats(result):
            returns[result.game, seat, result.opponent].append(result.returns[seat])
    return returns


def _mean(values: Sequence[float]) -> float:
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
