"""
Ratings of the policy and its opponents with intervals, and their pairwise win rates.

They depend only on the results: ranks that get the same games have the same ratings.
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
"""Rating of a new player, in Elo points."""

BETA = 400.0 / math.log(10.0) / math.sqrt(2.0)
"""
Standard deviation of one performance, in points. With it, a lead of 400 points means odds of ten to one, as in Elo.

In the Bradley-Terry model, the odds of winning are exp(lead / (sqrt(2) x beta)) if both ratings are well known.
"""

SPREAD = 2.0 * BETA
"""Standard deviation of a new player's rating, about 246 points: twice `BETA`, the default of openskill."""

Z95 = NormalDist().inv_cdf(0.975)
"""Half width of the central 95 % of a normal distribution, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Played:
    """
    Result of one game. Leave out games that broke.

    Attributes:
        players (`tuple[str, ...]`):
            Player of each seat.
        returns (`tuple[float, ...]`):
            Terminal payoff per seat. Only the order matters.
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
                f"Game {self.counter} has {len(self.players)} players and {len(self.returns)} returns. Pass one of "
                "each per seat."
            )


@dataclass(frozen=True, slots=True)
class Rating:
    """
    Rating of a player in points: a lead of 400 means odds of ten to one.

    Attributes:
        mu (`float`):
            Estimate. Only differences between players are meaningful.
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
    Win rate of one player against another, over all games.

    Attributes:
        rate (`float`):
            Wins plus half of the draws, per game; `nan` if they never met.
        games (`int`):
            Number of games.
        low, high (`float`):
            95 % Wilson interval, for games won with probability `rate` and lost otherwise. With draws the results vary
            less, so the interval is wider than necessary.
    """

    rate: float
    games: int
    low: float
    high: float


@dataclass(slots=True)
class _Tally:
    """Games between two players, from the side of the first. `score` and `weight` decay, the counts do not."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    score: float = 0.0
    weight: float = 0.0

    def turned(self) -> _Tally:
        return _Tally(self.losses, self.draws, self.wins, self.weight - self.score, self.weight)


class Ratings:
    """
    Ratings and pairwise results of all players.

    Ratings follow the Bradley-Terry model of Weng and Lin (2011), "A Bayesian Approximation Method for Online
    Ranking". Each game updates both players, so the order of games matters a little, far less than the intervals. A
    game with more than two seats counts as one game for each pair of seats. Two seats of the same player are not
    compared. Draws count as half a win.

    Training changes the policy, and the snapshots stay. So for each batch the policy's uncertainty grows by `drift`;
    without it, its rating would freeze after about 1,000 games. The weight of the policy's earlier results decays by
    `decay` per batch. Both apply only to the policy.

    Seats are not modeled. If a game favors a seat, ratings are noisier, and unbiased if seats are drawn uniformly. In
    tic-tac-toe between random players, the first seat wins 58.5 % and the second 28.8 %.

    Args:
        decay (`float`, defaults to `0.95`):
            Factor per batch on the weight of the policy's earlier results, in (0, 1]. At 0.95 about 20 batches count.
        drift (`float`, defaults to `10.0`):
            Standard deviation, in points, of the policy's change per batch. At 10, a steady gain of 1,000 points in
            100 batches is plausible.

    Attributes:
        games (`int`):
            Number of results counted, one for each pair of seats, those of deleted players included.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(self, decay: float = 0.95, drift: float = 10.0) -> None:
        if not 0.0 < decay <= 1.0:
            raise ValueError(
                f"`decay` ({decay}) must be in (0, 1]: it is the factor on earlier results. Use `1.0` to keep all."
            )
        if drift < 0.0:
            raise ValueError(f"`drift` ({drift}) must not be negative. Use `0.0` for a policy that does not learn.")
        self.decay = decay
        self.drift = drift
        self.games = 0
        # `tau` would widen the uncertainty of all players at each game. A `gamma` below 1 keeps variances too large:
        # intervals of nominally 95 % then cover 98 to 100 %.
        self._model = BradleyTerryFull(mu=START, sigma=SPREAD, beta=BETA, tau=0.0, gamma=lambda *_: 1.0)
        self._ratings: dict[str, tuple[float, float]] = {}
        # By pairs of names in alphabetical order.
        self._tallies: dict[tuple[str, str], _Tally] = {}

    def update(self, played: Sequence[Played], policy_moved: bool = True) -> None:
        """
        Update the ratings from a batch. Every rank must pass all of its games.

        Args:
            played (`Sequence[Played]`):
                Games of the batch. They are counted in the order of their counters, or as given if these are equal.
            policy_moved (`bool`, defaults to `True`):
                Whether the policy was trained since the last batch. Pass `False` for games between other players.
        """
        if policy_moved and POLICY in self._ratings:
            mu, sigma = self._ratings[POLICY]
            # The uncertainty is at most that of a new player.
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
        """Count a game between two players, with the return of each."""
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
        """Start a new snapshot with the rating of `parent` and without games."""
        self.remove(name)
        self._ratings[name] = self._belief(parent)

    def remove(self, name: str) -> None:
        """Delete a player's rating and results. `games` and the ratings of other players do not change."""
        self._ratings.pop(name, None)
        self._tallies = {pair: tally for pair, tally in self._tallies.items() if name not in pair}

    # ---- results ----
    @property
    def names(self) -> tuple[str, ...]:
        """Players with a rating, in the order in which they were added."""
        return tuple(self._ratings)

    def rating(self, name: str) -> Rating:
        """Return a player's rating, or that of a new player if it has never played."""
        mu, sigma = self._belief(name)
        return Rating(mu, sigma, mu - Z95 * sigma, mu + Z95 * sigma)

    def win_rate(self, name: str, rival: str) -> WinRate:
        """Return the win rate of `name` against `rival` over all of their games."""
        tally = self._tally(name, rival)
        games = tally.wins + tally.draws + tally.losses
        found = wilson((tally.wins + 0.5 * tally.draws) / games if games else math.nan, games)
        return WinRate(found.value, games, found.low, found.high)

    def recent_win_rate(self, name: str, rival: str, prior: float = 2.0) -> float:
        """
        Estimate the present win rate of `name` against `rival`.

        Args:
            name, rival (`str`):
                The players.
            prior (`float`, defaults to `2.0`):
                Weight of a prior win rate of 1/2, in games. With two games it is Laplace's rule of succession.

        Returns:
            `float`: In (0, 1); 1/2 for players that never met.
        """
        tally = self._tally(name, rival)
        return (tally.score + 0.5 * prior) / (tally.weight + prior)

    def matrix(self, names: Collection[str] | None = None) -> Matrix:
        """
        Return the present win rates, with decayed weights for the policy's earlier games.

        A pair with a weight of less than half a game is left out.

        Args:
            names (`Collection[str]`, *optional*):
                Rows and columns, in this order. Default: all players.
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
        Return metrics for a log.

        `win_rate/<name>` is the policy's present win rate against a rival, as in `recent_win_rate`, and `games/<name>`
        the number of their games. `cyclic_share` and `cycles` exist only if players met in a closed loop, so if
        snapshots also play each other. The share exists only if it is significant.

        Args:
            limit (`int`, defaults to `8`):
                Maximum number of rivals: those with the most recent games against the policy.
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
        """Return the state for a checkpoint, as values that JSON stores exactly."""
        return {
            "games": self.games,
            "ratings": {name: list(belief) for name, belief in self._ratings.items()},
            "results": [[*pair, *astuple(tally)] for pair, tally in self._tallies.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.games = state["games"]
        self._ratings = {name: (mu, sigma) for name, (mu, sigma) in state["ratings"].items()}
        self._tallies = {(name, rival): _Tally(*tally) for name, rival, *tally in state["results"]}

    def _belief(self, name: str) -> tuple[float, float]:
        return self._ratings.get(name, (START, SPREAD))

    def _tally(self, name: str, rival: str) -> _Tally:
        tally = self._tallies.get((min(name, rival), max(name, rival)), _Tally())
        return tally if name < rival else tally.turned()
