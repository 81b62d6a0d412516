"""
The opponents of the policy, and the players of each episode.

`Opponents` draws the players of an episode from its seed. It records the results of games, which may change later
draws. Every rank records the same results, so all ranks draw alike.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trl_spiral.opponents.matchmaking import Candidate, Scheme, get_scheme, probabilities
from trl_spiral.opponents.pool import OpponentPool
from trl_spiral.opponents.ratings import Played, Ratings
from trl_spiral.players.base import Player
from trl_spiral.selfplay.referee import Engine
from trl_spiral.selfplay.results import Result
from trl_spiral.text.printable import get_logger
from trl_spiral.types import BASE, POLICY, POOL, SELF


logger = get_logger(__name__)


@runtime_checkable
class LimitedEngine(Protocol):
    """An engine with a budget, which a checkpoint stores."""

    @property
    def spent(self) -> bool:
        """True if the budget is spent. No further request is answered."""

    def state_dict(self) -> dict[str, Any]:
        """Return the part of the budget that is used, as plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class Opponents:
    """
    All opponents of the policy, with their shares of the episodes and their results. A [`Matchmaker`].

    For each episode it draws one opponent by share, and a uniformly random seat for the policy. The opponent fills the
    other seats. If it is the policy itself, all seats are trained. If it is the pool, a snapshot is drawn for each
    seat.

    Args:
        shares (`Mapping[str, float]`, *optional*, defaults to `{"self": 1.0}`):
            Share of the episodes by opponent: `"self"` for the policy itself, `"pool"` for its snapshots, `"base"` for
            the model that training started from, and names of `players`.
        pool ([`OpponentPool`], *optional*):
            Snapshots, required for `"pool"` and, unless training is LoRA, for `"base"`. While it is empty, the policy
            plays itself instead.
        matchmaking (`str` or `Scheme`, defaults to `"uniform"`):
            Scheme that selects a snapshot; see [`~opponents.matchmaking.SCHEMES`].
        players (`Mapping[str, Player]`, *optional*):
            Other players by name.
        engines (`Mapping[str, Engine]`, *optional*):
            Engines of players that need their own, by policy name.

    Raises:
        ValueError: If a share has no player, or the pool is missing.
    """

    def __init__(
        self,
        shares: Mapping[str, float] | None = None,
        pool: OpponentPool | None = None,
        matchmaking: str | Scheme = "uniform",
        players: Mapping[str, Player] | None = None,
        engines: Mapping[str, Engine] | None = None,
    ) -> None:
        self.shares = dict(shares or {SELF: 1.0})
        self.pool = pool
        self._ratings = Ratings()
        self.players = dict(players or {})
        self.engines = dict(engines or {})
        self._scheme = get_scheme(matchmaking) if isinstance(matchmaking, str) else matchmaking
        self._chances: dict[str, float] = {POLICY: 1.0}
        self._met: Counter[str] = Counter()
        self._spent: set[str] = set()
        for name in self.shares:
            if name not in (SELF, POOL, BASE) and name not in self.players:
                raise ValueError(
                    f"The opponents' shares name {name!r}, which is not one of the players {sorted(self.players)}. "
                    "Pass it in `players`, or leave it out."
                )
        if POOL in self.shares and pool is None:
            raise ValueError("The opponents include the pool, and there is none. Pass `pool=OpponentPool(folder)`.")

    def prepare(self) -> dict[str, Path | None]:
        """
        Compute the probability of each snapshot, and drop opponents with a spent budget. Call it before each batch.

        Returns:
            `dict[str, Path | None]`: Folders of the weights that may be requested, by policy name; `None` for the base
            model of a LoRA run.
        """
        spent = {name for name, engine in self.engines.items() if isinstance(engine, LimitedEngine) and engine.spent}
        self._spent = {share for share, player in self.players.items() if {share, player.name} & spent}
        needed: dict[str, Path | None] = {}
        if POOL in self.shares and self.pool is not None:
            candidates = self.candidates()
            chances = probabilities(self._scheme, candidates)
            self._chances = {
                candidate.name: chance for candidate, chance in zip(candidates, chances, strict=True) if chance > 0.0
            }
            needed |= {name: self.pool.path(name) for name in self._chances if name != POLICY}
        if BASE in self.shares:
            needed[BASE] = self.pool.path(BASE) if self.pool is not None and BASE in self.pool else None
        return needed

    @property
    def ratings(self) -> Ratings:
        """Ratings of all players: those of the pool, if there is one."""
        return self._ratings if self.pool is None else self.pool.ratings

    def candidates(self) -> list[Candidate]:
        """Return the snapshots, oldest first, and the policy."""
        if self.pool is None:
            return [Candidate(POLICY, 0)]
        ratings = self.pool.ratings
        present = ratings.rating(POLICY).mu
        return [
            Candidate(
                name=snapshot.name,
                step=snapshot.step,
                win_rate=ratings.recent_win_rate(POLICY, snapshot.name),
                games=ratings.win_rate(POLICY, snapshot.name).games,
                rating_gap=present - ratings.rating(snapshot.name).mu,
            )
            for snapshot in self.pool.snapshots
        ] + [Candidate(POLICY, self.pool.snapshots[-1].step if len(self.pool) else 0)]

    def __call__(self, policy: Player, seats: int, seed: int) -> Sequence[Player]:
        rng = random.Random(seed)
        shares = {name: share for name, share in self.shares.items() if name not in self._spent}
        name = rng.choices(list(shares), list(shares.values()))[0] if shares else SELF
        place = rng.randrange(seats)
        return tuple(policy if seat == place else self._opponent(name, policy, rng) for seat in range(seats))

    def _opponent(self, name: str, policy: Player, rng: random.Random) -> Player:
        if name == POOL:
            name = rng.choices(list(self._chances), list(self._chances.values()))[0]
        if name in (SELF, POLICY):
            return policy
        if name in self.players:
            return self.players[name]
        # `isinstance` with a protocol is slow, and this runs for every episode.
        playing_as: Callable[[str], Player] | None = getattr(policy, "playing_as", None)
        if playing_as is None:
            raise TypeError(
                f"{type(policy).__name__} cannot play with the weights of a snapshot. Give it a method "
                "`playing_as(name)`, as `PolicyPlayer` has."
            )
        return playing_as(name)

    def kind(self, name: str) -> str:
        """Return the class of an opponent: `"pool"` for a snapshot, and the name itself for others."""
        return POOL if self.pool is not None and name in self.pool and name != BASE else name

    def against(self, players: Sequence[str]) -> str:
        """Return the class of an episode's opponents: their classes joined, or `"self"` if there are none."""
        return "+".join(sorted({self.kind(name) for name in players if name != POLICY})) or SELF

    def record(self, results: Sequence[Result]) -> None:
        """Record the results of a batch. Call it on every rank with the same results, in order of their counters."""
        self._met = Counter(self.against(result.players) for result in results)
        if set(self.shares) != {SELF}:
            self.ratings.update(
                [
                    Played(result.players, result.returns, result.counter)
                    for result in results
                    if not result.ending.is_broken
                ]
            )

    # ---- state ----
    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, except for the pool. Budgets of engines are this rank's own."""
        return {
            "ratings": self._ratings.state_dict(),
            "met": dict(self._met),  # logged until the next batch
            "engines": {
                name: engine.state_dict() for name, engine in self.engines.items() if isinstance(engine, LimitedEngine)
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. The pool is restored by [`OpponentPool.restore`]."""
        self._met = Counter(state.get("met", {}))
        if "ratings" in state:
            self._ratings.load_state_dict(state["ratings"])
        for name, used in state.get("engines", {}).items():
            engine = self.engines.get(name)
            if isinstance(engine, LimitedEngine):
                engine.load_state_dict(used)
            else:
                logger.warning("The used budget of %s is dropped: it is no longer an opponent.", name)

    def metrics(self) -> dict[str, float]:
        """Return the shares of the latest batch, the size of the pool and the ratings, by name."""
        if set(self.shares) == {SELF}:
            return {}
        total = sum(self._met.values())
        numbers = {f"share/{name}": met / total for name, met in sorted(self._met.items())}
        if self.pool is not None:
            numbers |= {"size": float(len(self.pool)), "bytes": float(self.pool.size)}
        return numbers | self.ratings.metrics()
