"""What may be asked of an endpoint that costs money."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any


class Budget:
    """
    A number of requests and of tokens. A share is taken before anything is sent.

    Each request reserves the most that its answer may cost, and settles for what it did cost. A reservation that does not
    fit next to the others waits for them to settle: the budget is spent only when it cannot hold the next request with
    nothing else under way. So it may end short of its last tokens, and is exceeded only by what a reservation could not
    foresee. All waiting happens in one event loop.

    Args:
        max_requests, max_tokens (`int`, *optional*):
            Most requests and tokens; no limit by default.

    Attributes:
        requests, tokens (`int`):
            What has been used.

    Raises:
        ValueError: If a limit is below 1.
    """

    def __init__(self, max_requests: int | None = None, max_tokens: int | None = None) -> None:
        for name, limit in (("max_requests", max_requests), ("max_tokens", max_tokens)):
            if limit is not None and limit < 1:
                raise ValueError(
                    f"`{name}` ({limit}) must be at least 1: nothing could be asked. Use `None` for no limit."
                )
        self.max_requests, self.max_tokens = max_requests, max_tokens
        self.requests = self.tokens = 0
        self._reserved = 0  # tokens
        self._unsent = 0  # requests that have a reservation and were not sent yet
        self._too_small = False  # for the request that was asked last
        self._changed = asyncio.Event()

    @property
    def spent(self) -> bool:
        """Whether nothing more is granted."""
        return (
            self._too_small
            or (self.max_requests is not None and self.requests >= self.max_requests)
            or (self.max_tokens is not None and self.tokens >= self.max_tokens)
        )

    async def reserve(self, tokens: int) -> bool:
        """Take one request and up to so many tokens; `False` if the budget is spent."""
        while not self.spent:
            if (self.max_requests is None or self.requests + self._unsent < self.max_requests) and (
                self.max_tokens is None or self.tokens + self._reserved + tokens <= self.max_tokens
            ):
                self._unsent += 1
                self._reserved += tokens
                return True
            if self._unsent or self._reserved:
                self._changed.clear()
                await self._changed.wait()
            else:
                self._too_small = True
                self._changed.set()
        return False

    def sent(self) -> None:
        """Count a request that has a reservation: from now on the other side may charge for it."""
        self.requests += 1  # first, so that `state_dict` in another thread never counts too little
        self._unsent -= 1
        self._changed.set()

    def settle(self, reserved: int, used: int, sent: bool = True) -> None:
        """Give a reservation back for what was used: nothing at all by a request that was never sent."""
        if sent:
            self.tokens += used
        else:
            self._unsent -= 1
        self._reserved -= reserved
        self._changed.set()

    def state_dict(self) -> dict[str, Any]:
        """Return what has been used, with the most that requests under way may cost, and a limit that was too small."""
        return {
            "requests": self._unsent + self.requests,
            "tokens": self._reserved + self.tokens,
            "too_small": self.max_tokens if self._too_small else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what had been used by then. A budget that was spent is so still, unless its limit has risen."""
        self.requests, self.tokens = int(state["requests"]), int(state["tokens"])
        limit = state.get("too_small")  # which older checkpoints do not say
        self._too_small = limit is not None and self.max_tokens is not None and self.max_tokens <= limit

    def __str__(self) -> str:
        requests, tokens = (
            f"{used} {what}" if limit is None else f"{used} of {limit} {what}"
            for used, limit, what in (
                (self.requests, self.max_requests, "requests"),
                (self.tokens, self.max_tokens, "tokens"),
            )
        )
        return f"{requests} and {tokens}"
