"""Several policies over one set of weights: whoever is loaded is served until nobody waits for them, then the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from trl_spiral.selfplay.referee import Engine
from trl_spiral.types import POLICY, Reply, Request


SWITCHES = "weight_switches"
"""Metric: how often weights were put in place of others. Every engine that holds several policies tells it."""


class PhasedEngine:
    """
    Serves several policies in turn through an engine that holds the weights of one at a time.

    Only the resident policy's requests reach that engine, under the name `POLICY`; the others' are kept. Weights change
    while nothing is in flight and never otherwise, so a reply is written by one policy from its first token to its last.
    The next to be loaded is the policy that has been waited for longest. Were it the one with the most requests, the
    policy in training would be loaded again after every opponent, to whose games it is the other seat; so it is loaded
    once for all of them.

    Args:
        inner ([`~selfplay.referee.Engine`]):
            Answers `POLICY` with whatever weights are in place.
        load (`Callable[[str], None]`):
            Puts a policy's weights in place and drops everything that was computed with others.
        policies (`Collection[str]`):
            Names that `load` knows.
        resident (`str`, *optional*):
            Whose weights are in place already.
    """

    def __init__(
        self, inner: Engine, load: Callable[[str], None], policies: Collection[str], resident: str | None = None
    ) -> None:
        self.resident = resident
        self._inner = inner
        self._load = load
        self._policies = frozenset(policies)
        self._waiting: dict[str, dict[int, Request]] = {}  # of policies not in place, longest waited for first
        self._in_flight: set[int] = set()
        self._switches = 0

    @property
    def would_switch(self) -> bool:
        """Whether a step would begin by loading other weights: somebody waits, and nobody for the resident policy."""
        return not self._in_flight and bool(self._waiting)

    def add(self, ticket: int, request: Request) -> None:
        """
        Takes a request.

        Raises:
            ValueError: If it names a policy whose weights cannot be loaded.
        """
        if request.policy not in self._policies:
            raise ValueError(
                f"A request names the policy {request.policy!r}, and this engine can load {sorted(self._policies)}. Pass "
                "its weights as a snapshot."
            )
        if request.policy == self.resident:
            self._hand_over(ticket, request)
        else:
            self._waiting.setdefault(request.policy, {})[ticket] = request

    def step(self) -> list[tuple[int, Reply]]:
        """Works until at least one request of the resident policy is answered, whoever that is by then."""
        if self.would_switch:
            self._switch()
        answered = list(self._inner.step())
        self._in_flight -= {ticket for ticket, _ in answered}
        if self.resident == POLICY:
            return answered
        return [(ticket, replace(reply, version=0)) for ticket, reply in answered]

    def abort(self, tickets: Sequence[int]) -> None:
        """Forgets requests, waiting or in flight."""
        gone = [ticket for ticket in tickets if ticket in self._in_flight]
        if gone:
            self._inner.abort(gone)
            self._in_flight -= set(gone)
        for policy in list(self._waiting):
            left = {ticket: request for ticket, request in self._waiting.pop(policy).items() if ticket not in tickets}
            if left:
                self._waiting[policy] = left

    def metrics(self) -> dict[str, float]:
        """What the inner engine tells, and `weight_switches`: how often weights were loaded since last asked."""
        switches, self._switches = self._switches, 0
        return {**self._inner.metrics(), SWITCHES: float(switches)}

    def _switch(self) -> None:
        policy = next(iter(self._waiting))
        self.resident = None  # until it is loaded, the weights are nobody's
        self._load(policy)
        self.resident = policy
        self._switches += 1
        for ticket, request in self._waiting.pop(policy).items():
            self._hand_over(ticket, request)

    def _hand_over(self, ticket: int, request: Request) -> None:
        self._inner.add(ticket, replace(request, policy=POLICY))
        self._in_flight.add(ticket)
