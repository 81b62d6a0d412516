"""Several engines as one: each request goes to the engine that its policy names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from trl_spiral.engines.swapping import SWITCHES, PhasedEngine
from trl_spiral.selfplay.referee import Engine
from trl_spiral.types import Reply, Request


# Seconds for which each of several remote engines is waited for in turn, while nothing else is to be done.
_PATIENCE = 0.01


@runtime_checkable
class RemoteEngine(Engine, Protocol):
    """An engine that works elsewhere, whether it is asked to or not."""

    def poll(self, timeout: float | None = 0.0) -> Sequence[tuple[int, Reply]]:
        """What is answered already, or within `timeout` seconds."""


class Router:
    """
    Sends each request to the engine of its policy.

    Engines in this process work only while they are stepped, and remote ones, those with a `poll`, by themselves. So this
    never waits for a remote engine while a local one has work. Nor does it let a [`~engines.swapping.PhasedEngine`] load other
    weights while another local engine has work, which may bring games back that those in place can serve: so all games
    against one opponent are played to their ends before the next is loaded.

    Args:
        engines (`Mapping[str, Engine]`):
            Engines by policy name. One may stand under several names.
        default ([`~selfplay.referee.Engine`]):
            Answers all other policies.
    """

    def __init__(self, engines: Mapping[str, Engine], default: Engine) -> None:
        self._engines = dict(engines)
        self._default = default
        self._names: dict[int, str] = {}  # of every engine, each once, by identity
        self._each: list[Engine] = []
        for name, engine in [*engines.items(), ("default", default)]:
            if id(engine) not in self._names:
                self._names[id(engine)] = name
                self._each.append(engine)
        self._waiting: dict[int, Engine] = {}

    def add(self, ticket: int, request: Request) -> None:
        """Hands a request to its engine."""
        engine = self._engines.get(request.policy, self._default)
        engine.add(ticket, request)
        self._waiting[ticket] = engine

    def step(self) -> list[tuple[int, Reply]]:
        """Lets every local engine that has work do some, and adds what remote ones have answered."""
        assert self._waiting, "an engine is only asked to work while something waits"
        asked = {id(engine) for engine in self._waiting.values()}
        busy = [engine for engine in self._each if id(engine) in asked]
        remote = [engine for engine in busy if isinstance(engine, RemoteEngine)]
        local = [engine for engine in busy if not isinstance(engine, RemoteEngine)]
        # Where there is nothing else to be done here, they all have to switch.
        local = [engine for engine in local if not _would_switch(engine)] or local
        answered = [answer for engine in local for answer in engine.step()]
        while True:
            for engine in remote:
                answered += engine.poll(0.0 if answered else _PATIENCE)
            if answered:
                break
        for ticket, _ in answered:
            del self._waiting[ticket]
        return answered

    def abort(self, tickets: Sequence[int]) -> None:
        """Forgets requests."""
        for engine in self._each:
            theirs = [ticket for ticket in tickets if self._waiting.get(ticket) is engine]
            if theirs:
                engine.abort(theirs)
        for ticket in tickets:
            self._waiting.pop(ticket, None)

    def metrics(self) -> dict[str, float]:
        """
        What all engines tell; where there are several, under `{policy}/`, and `default/` for all other policies.

        `weight_switches` is their sum, without a prefix.
        """
        if len(self._each) == 1:
            return self._each[0].metrics()
        metrics: dict[str, float] = {}
        for engine in self._each:
            for name, value in engine.metrics().items():
                if name == SWITCHES:
                    metrics[name] = metrics.get(name, 0.0) + value
                else:
                    metrics[f"{self._names[id(engine)]}/{name}"] = value
        return metrics


def _would_switch(engine: Engine) -> bool:
    return isinstance(engine, PhasedEngine) and engine.would_switch
