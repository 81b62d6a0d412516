"""
Who sits at the table: the policy, its earlier selves, and whoever else was invited.

`Opponents` fills the seats of every episode from its seed alone, and is told how games ended; what it then knows changes
whom the policy meets next. All ranks are told the same, so all of them know the same.
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


class Matchmaker(Protocol):
    """Fills the seats of one episode."""

    def __call__(self, policy: Player, seats: int, seed: int) -> Sequence[Player]:
        """
        One player per seat.

        Args:
            policy ([`~players.Player`]):
                The policy that is being trained.
            seats (`int`):
                Seats to fill.
            seed (`int`):
                The only source of randomness: same episode, same players.
        """


@runtime_checkable
class LimitedEngine(Protocol):
    """An engine that may come to an end, and remembers how much it has given."""

    @property
    def spent(self) -> bool:
        """Whether it will answer nothing any more."""

    def state_dict(self) -> dict[str, Any]:
        """What has been used, as plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state_dict` gave."""


class Opponents:
    """
    Everybody whom the policy meets: who they are, how often, and how it has gone. A [`Matchmaker`].

    For each episode it draws one opponent, by share, and one seat for the policy, each seat as likely as another; the
    opponent fills the others. Against itself, the policy fills every seat and is trained in every seat. Where the opponents
    are earlier selves and there are several seats to fill, each is drawn by itself.

    Args:
        shares (`Mapping[str, float]`, *optional*):
            How often each is met: `"self"` for the policy itself, `"pool"` for its earlier selves, `"base"` for the model
            that training started from, and names of `players`. By default itself alone.
        pool ([`OpponentPool`], *optional*):
            Earlier selves, needed for `"pool"` and, unless training is LoRA, for `"base"`. While it is empty, the
            policy meets itself in their place.
        matchmaking (`str` or `Scheme`, defaults to `"uniform"`):
            Which earlier self is drawn; see [`~opponents.matchmaking.SCHEMES`].
        players (`Mapping[str, Player]`, *optional*):
            Other players by name.
        engines (`Mapping[str, Engine]`, *optional*):
            Who answers players that ask an engine of their own, by policy name.

    Raises:
        ValueError: If a share names nobody.
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
                    f"The opponents' shares name {name!r}, and there is no such player: {sorted(self.players)}."
                )
        if POOL in self.shares and pool is None:
            raise ValueError("Earlier selves are to be met and there is no pool. Pass `pool=OpponentPool(folder)`.")

    def prepare(self) -> dict[str, Path | None]:
        """
        Settles who may be met and how likely each earlier self is, until it is called again. To be called before games
        are started.

        Returns:
            `dict[str, Path | None]`: Folders of the weights that may be asked for, by policy name; `None` for the base
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
        """How everybody has fared: the pool's, where there is one."""
        return self._ratings if self.pool is None else self.pool.ratings

    def candidates(self) -> list[Candidate]:
        """The earlier selves, oldest first, and the policy."""
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
        # Not `isinstance` of a protocol, which is slow, and this is asked for every game.
        playing_as: Callable[[str], Player] | None = getattr(policy, "playing_as", None)
        if playing_as is None:
            raise TypeError(
                f"{type(policy).__name__} cannot play with an earlier self's weights. Give it a `playing_as(name)`, as "
                "`PolicyPlayer` has."
            )
        return playing_as(name)

    def kind(self, name: str) -> str:
        """What sort of opponent a player's name belongs to: `"pool"` for every earlier self, else the name itself."""
        return POOL if self.pool is not None and name in self.pool and name != BASE else name

    def against(self, players: Sequence[str]) -> str:
        """Class of the opponents at a table: their sorts, or `"self"` where the policy fills every seat."""
        return "+".join(sorted({self.kind(name) for name in players if name != POLICY})) or SELF

    def record(self, results: Sequence[Result]) -> None:
        """
        Learns how games of training ended. To be called on every rank with the same results, in order of their counters.
        """
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
        """Return all that a resumed run needs, but for the pool; of limited engines, this rank's own share."""
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
                logger.warning("What %s has been asked so far is forgotten: it is no opponent any more.", name)

    def metrics(self) -> dict[str, float]:
        """What is worth logging of the latest batch and of the pool, by name."""
        if set(self.shares) == {SELF}:
            return {}
        total = sum(self._met.values())
        numbers = {f"share/{name}": met / total for name, met in sorted(self._met.items())}
        if self.pool is not None:
            numbers |= {"size": float(len(self.pool)), "bytes": float(self.pool.size)}
        return numbers | self.ratings.metrics()
