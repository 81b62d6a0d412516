"""Several policies behind one engine: routed to engines of their own, or swapped into one set of weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from trl_spiral.selfplay.referee import Engine
from trl_spiral.types import POLICY, Reply, Request


SWITCHES = "weight_switches"
"""Metric: number of times that weights replaced others. Every engine that holds several policies reports it."""

# Seconds to wait for each remote engine in turn while there is no local work.
_REMOTE_WAIT = 0.01


class SwappingEngine:
    """
    Serves several policies from one model by swapping weights. Drains the queue of one policy before it loads the
    next.

    The inner engine receives only requests of the resident policy, under the name `POLICY`. Others are queued here.
    Weights change only while no request is in flight, so one policy writes a reply from its first token to its last.
    The policy with the oldest waiting request is loaded next. If it were the one with the most requests, the policy in
    training would be loaded again after every opponent, because it has the other seat of all games.

    Args:
        inner ([`~selfplay.referee.Engine`]):
            Answers `POLICY` with the weights that are in place.
        load (`Callable[[str], None]`):
            Loads the weights of a policy and drops everything that was computed with others.
        policies (`Collection[str]`):
            Names that `load` accepts.
        resident (`str`, *optional*):
            Policy whose weights are in place already.
    """

    def __init__(
        self, inner: Engine, load: Callable[[str], None], policies: Collection[str], resident: str | None = None
    ) -> None:
        self.resident = resident
        self._inner = inner
        self._load = load
        self._policies = frozenset(policies)
        self._waiting: dict[str, dict[int, Request]] = {}  # by policy, oldest first; never the resident one
        self._in_flight: set[int] = set()
        self._switches = 0

    @property
    def would_switch(self) -> bool:
        """True if the next step starts by loading other weights: only requests of other policies are waiting."""
        return not self._in_flight and bool(self._waiting)

    def add(self, ticket: int, request: Request) -> None:
        """
        Accept a request.

        Raises:
            ValueError: If the weights of its policy cannot be loaded.
        """
        if request.policy not in self._policies:
            raise ValueError(
                f"A request names the policy {request.policy!r}, and this engine can load {sorted(self._policies)}. "
                "Pass its weights as a snapshot."
            )
        if request.policy == self.resident:
            self._pass_on(ticket, request)
        else:
            self._waiting.setdefault(request.policy, {})[ticket] = request

    def step(self) -> list[tuple[int, Reply]]:
        """Work until at least one request is answered. Swaps weights first if the resident policy has no requests."""
        if self.would_switch:
            self._switch()
        answered = list(self._inner.step())
        self._in_flight -= {ticket for ticket, _ in answered}
        if self.resident == POLICY:
            return answered
        return [(ticket, replace(reply, version=0)) for ticket, reply in answered]

    def abort(self, tickets: Sequence[int]) -> None:
        """Drop requests, waiting or in flight."""
        gone = [ticket for ticket in tickets if ticket in self._in_flight]
        if gone:
            self._inner.abort(gone)
            self._in_flight -= set(gone)
        for policy in list(self._waiting):
            left = {ticket: request for ticket, request in self._waiting.pop(policy).items() if ticket not in tickets}
            if left:
                self._waiting[policy] = left

    def metrics(self) -> dict[str, float]:
        """Metrics of the inner engine, and `weight_switches` since the last call."""
        switches, self._switches = self._switches, 0
        return {**self._inner.metrics(), SWITCHES: float(switches)}

    def _switch(self) -> None:
        policy = next(iter(self._waiting))
        self.resident = None  # if loading fails, the weights belong to no policy
        self._load(policy)
        self.resident = policy
        self._switches += 1
        for ticket, request in self._waiting.pop(policy).items():
            self._pass_on(ticket, request)

    def _pass_on(self, ticket: int, request: Request) -> None:
        self._inner.add(ticket, replace(request, policy=POLICY))
        self._in_flight.add(ticket)


@runtime_checkable
class RemoteEngine(Engine, Protocol):
    """An engine whose work goes on elsewhere between calls."""

    def poll(self, timeout: float | None = 0.0) -> Sequence[tuple[int, Reply]]:
        """Return the answers that are available, or become available within `timeout` seconds."""


class Router:
    """
    Sends each request to the engine of its policy.

    Local engines work only while they are stepped; remote ones (those with a `poll`) work all the time. So this never
    waits for a remote engine while a local one has work. A [`SwappingEngine`] may load other weights only while no
    other local engine has work, because that work may lead to more requests for the weights in place. So all games
    against one opponent are played to their ends before the next opponent is loaded.

    Args:
        engines (`Mapping[str, Engine]`):
            Engines by policy name. One engine may have several names.
        default ([`~selfplay.referee.Engine`]):
            Answers all other policies.
    """

    def __init__(self, engines: Mapping[str, Engine], default: Engine) -> None:
        self._engines = dict(engines)
        self._default = default
        self._names: dict[int, str] = {}  # first name of each engine, by identity
        self._distinct: list[Engine] = []
        for name, engine in [*engines.items(), ("default", default)]:
            if id(engine) not in self._names:
                self._names[id(engine)] = name
                self._distinct.append(engine)
        self._waiting: dict[int, Engine] = {}

    def add(self, ticket: int, request: Request) -> None:
        """Send a request to its engine."""
        engine = self._engines.get(request.policy, self._default)
        engine.add(ticket, request)
        self._waiting[ticket] = engine

    def step(self) -> list[tuple[int, Reply]]:
        """Step every local engine that has work, and add the answers of the remote ones."""
        assert self._waiting, "an engine is stepped only while a request waits"
        asked = {id(engine) for engine in self._waiting.values()}
        busy = [engine for engine in self._distinct if id(engine) in asked]
        remote = [engine for engine in busy if isinstance(engine, RemoteEngine)]
        local = [engine for engine in busy if not isinstance(engine, RemoteEngine)]
        # If all local engines would switch, there is no other local work, and all of them switch.
        local = [engine for engine in local if not _would_switch(engine)] or local
        answered = [answer for engine in local for answer in engine.step()]
        while True:
            for engine in remote:
                answered += engine.poll(0.0 if answered else _REMOTE_WAIT)
            if answered:
                break
        for ticket, _ in answered:
            del self._waiting[ticket]
        return answered

    def abort(self, tickets: Sequence[int]) -> None:
        """Drop requests."""
        for engine in self._distinct:
            theirs = [ticket for ticket in tickets if self._waiting.get(ticket) is engine]
            if theirs:
                engine.abort(theirs)
        for ticket in tickets:
            self._waiting.pop(ticket, None)

    def metrics(self) -> dict[str, float]:
        """
        Metrics of all engines. If there are several, each has the prefix `{policy}/`, or `default/`.

        `weight_switches` is their sum, without a prefix.
        """
        if len(self._distinct) == 1:
            return self._distinct[0].metrics()
        metrics: dict[str, float] = {}
        for engine in self._distinct:
            for name, value in engine.metrics().items():
                if name == SWITCHES:
                    metrics[name] = metrics.get(name, 0.0) + value
                else:
                    metrics[f"{self._names[id(engine)]}/{name}"] = value
        return metrics


def _would_switch(engine: Engine) -> bool:
    return isinstance(engine, SwappingEngine) and engine.would_switch
