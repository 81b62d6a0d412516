"""
How strong the policy and its opponents are: ratings with intervals, and who beats whom.

Torch-free, and a function of the results alone: ranks that are given the same games hold the same numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import NormalDist
from typing import Any

from openskill.models import BradleyTerryFull

from trl_spiral.intervals import wilson
from trl_spiral.opponents.transitivity import Matrix, cycles, decompose
from trl_spiral.types import POLICY


START = 1500.0
"""Rating of a newcomer, in points, as in chess."""

BETA = 400.0 / math.log(10.0) / math.sqrt(2.0)
"""
Spread of one performance, in points: what makes a lead of 400 points mean odds of ten to one, as in chess.

Two players of the Bradley-Terry model win at odds of exp(lead / (sqrt(2) x beta)) once their ratings are well known.
"""

SPREAD = 2.0 * BETA
"""Standard deviation of a newcomer's rating, about 246 points: twice `BETA`, as openskill has it by default."""

Z95 = NormalDist().inv_cdf(0.975)
"""Standard deviations on either side of the mean that hold 95 % of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Played:
    """
    The result of one game. Games that broke say nothing about anybody: leave them out.

    Attributes:
        players (`tuple[str, ...]`):
            Who filled each seat.
        returns (`tuple[float, ...]`):
            Terminal payoff per seat. Only their order counts.
        counter (`int`):
            Number of the episode in the run.

    Raises:
        ValueError: If the two differ in length.
    """

    players: tuple[str, ...]
    returns: tuple[float, ...]
    counter: int = 0

    def __post_init__(self) -> None:
        if len(self.players) != len(self.returns):
            raise ValueError(
                f"Game {self.counter} has {len(self.players)} players and {len(self.returns)} returns. Give one per seat."
            )


@dataclass(frozen=True, slots=True)
class Rating:
    """
    A player's strength in points: a lead of 400 means odds of ten to one.

    Attributes:
        mu (`float`):
            Best estimate. Only differences between players mean anything.
        sigma (`float`):
            Its standard deviation.
        low, high (`float`):
            95 % interval.
    """

    mu: float
    sigma: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class WinRate:
    """
    One player's results against another over all games.

    Attributes:
        rate (`float`):
            Wins plus half of the draws, per game; `nan` if they never met.
        games (`int`):
            How many games.
        low, high (`float`):
            95 % interval (Wilson's), as if each game had been won or lost with probability `rate`. Draws vary less than
            that, so with draws it is wider than it need be, never narrower.
    """

    rate: float
    games: int
    low: float
    high: float


@dataclass(slots=True)
class _Tally:
    """Games between two players, as the first of them saw it; `score` and `weight` hold those that still count."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    score: float = 0.0
    weight: float = 0.0

    def turned(self) -> _Tally:
        return _Tally(self.losses, self.draws, self.wins, self.weight - self.score, self.weight)


class Ratings:
    """
    Ratings and pairwise results of everybody who has played.

    Ratings follow the Bradley-Terry model as in Weng and Lin (2011), "A Bayesian Approximation Method for Online
    Ranking": each game moves both players, so that the order of games matters a little, well within the intervals. A game
    of more than two seats counts as one game between each two of them; two seats of the same name say nothing about each
    other. Draws count as half a win.

    The policy moves and the snapshots do not. So at each batch the policy's uncertainty, and nobody else's, grows by
    `drift`, or its rating would freeze after some thousand games; and of its results, and nobody else's, those of earlier
    batches fade by `decay`.

    Seats are not modelled. Where a game favours one (in tic-tac-toe between random players the first wins 58.5 % and
    the second 28.8 %), results are noisier than they need be, and fair on average as long as seats are drawn fairly.

    Args:
        decay (`float`, defaults to `0.95`):
            Share of the policy's earlier results that is kept at each batch, in (0, 1]: at 0.95, some twenty batches count.
        drift (`float`, defaults to `10.0`):
            Standard deviation, in points, of how far training moves the policy in a batch. At 10, a steady climb of 1,000
            points in 100 batches is nothing unusual.

    Attributes:
        games (`int`):
            All results ever counted, one for each two seats, those of forgotten players included.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(self, decay: float = 0.95, drift: float = 10.0) -> None:
        if not 0.0 < decay <= 1.0:
            raise ValueError(
                f"`decay` ({decay}) must be in (0, 1]: it is the share of earlier results that is kept. Use `1.0` to keep all."
            )
        if drift < 0.0:
            raise ValueError(f"`drift` ({drift}) must not be negative. Use `0.0` for a policy that does not learn.")
        self.decay = decay
        self.drift = drift
        self.games = 0
        # Without openskill's `tau`, which would widen everybody's uncertainty at every game. Without its `gamma` below 1
        # too: it keeps variances larger than what the games leave, and intervals that claim 95 % hold 98 to 100 %.
        self._model = BradleyTerryFull(mu=START, sigma=SPREAD, beta=BETA, tau=0.0, gamma=lambda *_: 1.0)
        self._ratings: dict[str, tuple[float, float]] = {}
        # By the two names in alphabetical order.
        self._tallies: dict[tuple[str, str], _Tally] = {}

    def update(self, played: Sequence[Played], policy_moved: bool = True) -> None:
        """
        Learns from one batch, of which every rank must be given all games.

        Args:
            played (`Sequence[Played]`):
                The batch, in any order: games are counted in the order of their counters, and as given where these are
                equal.
            policy_moved (`bool`, defaults to `True`):
                Whether the policy has been trained since the last batch. Off for games among others.
        """
        if policy_moved and POLICY in self._ratings:
            mu, sigma = self._ratings[POLICY]
            # Nobody is known less well than a newcomer, however long they have not played.
            self._ratings[POLICY] = mu, min(math.hypot(sigma, self.drift), SPREAD)
        for pair, tally in self._tallies.items():
            if policy_moved and POLICY in pair:
                tally.score *= self.decay
                tally.weight *= self.decay
        for game in sorted(played, key=lambda game: game.counter):
            for one, other in itertools.combinations(zip(game.players, game.returns, strict=True), 2):
                if one[0] != other[0]:
                    self._count(*one, *other)

    def _count(self, name: str, value: float, rival: str, rivals_value: float) -> None:
        """One game between two players, and what each got from it."""
        ranks = [float(value < rivals_value), float(rivals_value < value)]
        teams = [[self._model.rating(*self._belief(player))] for player in (name, rival)]
        for player, (rated,) in zip((name, rival), self._model.rate(teams, ranks=ranks), strict=True):
            self._ratings[player] = rated.mu, rated.sigma
        first, second = (value, rivals_value) if name < rival else (rivals_value, value)
        tally = self._tallies.setdefault((min(name, rival), max(name, rival)), _Tally())
        tally.wins += first > second
        tally.draws += first == second
        tally.losses += first < second
        tally.score += 0.5 + 0.5 * ((first > second) - (first < second))
        tally.weight += 1.0
        self.games += 1

    def inherit(self, name: str, parent: str) -> None:
        """A snapshot starts with the rating of the policy that it was taken from, and with no games of its own."""
        self.forget(name)
        self._ratings[name] = self._belief(parent)

    def forget(self, name: str) -> None:
        """Drops a player's rating and results, which `games` goes on to count. Others keep what they won from it."""
        self._ratings.pop(name, None)
        self._tallies = {pair: tally for pair, tally in self._tallies.items() if name not in pair}

    # ---- looking ----
    @property
    def names(self) -> tuple[str, ...]:
        """Everybody who has a rating, in the order in which they got it."""
        return tuple(self._ratings)

    def rating(self, name: str) -> Rating:
        """A player's rating; a newcomer's if it has never played."""
        mu, sigma = self._belief(name)
        return Rating(mu, sigma, mu - Z95 * sigma, mu + Z95 * sigma)

    def win_rate(self, name: str, rival: str) -> WinRate:
        """Results of `name` against `rival` over all games that they played."""
        tally = self._tally(name, rival)
        games = tally.wins + tally.draws + tally.losses
        found = wilson((tally.wins + 0.5 * tally.draws) / games if games else math.nan, games)
        return WinRate(found.value, games, found.low, found.high)

    def recent_win_rate(self, name: str, rival: str, prior: float = 2.0) -> float:
        """
        How `name` fares against `rival` at present.

        Args:
            name, rival (`str`):
                The players.
            prior (`float`, defaults to `2.0`):
                Imagined games between them, half of them won. Two make the estimate Laplace's rule of succession.

        Returns:
            `float`: Share in (0, 1): 1/2 for two who never met.
        """
        tally = self._tally(name, rival)
        return (tally.score + 0.5 * prior) / (tally.weight + prior)

    def matrix(self, names: Collection[str] | None = None) -> Matrix:
        """
        Win rates at present: the policy's earlier games have faded, since it is no longer who played them.

        Pairs of whom less than half a game is left are taken for pairs that never met.

        Args:
            names (`Collection[str]`, *optional*):
                Rows and columns, in this order; everybody by default.
        """
        chosen = tuple(self.names if names is None else names)
        met = [[t if (t := self._tally(name, rival)).weight >= 0.5 else None for rival in chosen] for name in chosen]
        return Matrix(
            names=chosen,
            rates=tuple(tuple(t.score / t.weight if t else math.nan for t in row) for row in met),
            counts=tuple(tuple(t.weight if t else 0.0 for t in row) for row in met),
        )

    def metrics(self, limit: int = 8) -> dict[str, float]:
        """
        What is worth logging.

        `win_rate/<name>` is the policy's present rate against a rival, as in `recent_win_rate`, and `games/<name>` how many
        games they played in all. `cyclic_share` and `cycles` stand there only if players met in a closed loop, which
        snapshots do that also meet each other; and the share only where it can be told from chance.

        Args:
            limit (`int`, defaults to `8`):
                Most rivals named: those whom the policy has met most of late.
        """
        rivals = [name for name in self._ratings if self._tally(POLICY, name).weight]
        rivals.sort(key=lambda name: (-self._tally(POLICY, name).weight, name))
        metrics = {"games": float(self.games)}
        for name in (POLICY, *rivals[:limit]):
            rating = self.rating(name)
            metrics |= {
                f"rating/{name}": rating.mu,
                f"rating/{name}/low": rating.low,
                f"rating/{name}/high": rating.high,
            }
        for name in rivals[:limit]:
            metrics[f"win_rate/{name}"] = self.recent_win_rate(POLICY, name)
            metrics[f"games/{name}"] = float(self.win_rate(POLICY, name).games)
        matrix = self.matrix()
        parts = decompose(matrix)
        if parts.loops:
            metrics["cycles"] = float(len(cycles(matrix)))
        if not math.isnan(parts.cyclic_share):
            metrics["cyclic_share"] = parts.cyclic_share
        return metrics

    # ---- state ----
    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs, as values that JSON keeps exactly."""
        return {
            "games": self.games,
            "ratings": {name: list(belief) for name, belief in self._ratings.items()},
            "results": [[*pair, *astuple(tally)] for pair, tally in self._tallies.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state_dict` gave, in place of all that is here."""
        self.games = state["games"]
        self._ratings = {name: (mu, sigma) for name, (mu, sigma) in state["ratings"].items()}
        self._tallies = {(name, rival): _Tally(*tally) for name, rival, *tally in state["results"]}

    def _belief(self, name: str) -> tuple[float, float]:
        return self._ratings.get(name, (START, SPREAD))

    def _tally(self, name: str, rival: str) -> _Tally:
        tally = self._tallies.get((min(name, rival), max(name, rival)), _Tally())
        return tally if name < rival else tally.turned()
