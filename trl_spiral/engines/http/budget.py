"""Budget of requests and tokens for an endpoint that costs money."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any


class Budget:
    """
    A number of requests and of tokens. Each request takes its share before it is sent.

    A request reserves its largest possible cost, and settles for its real cost. A reservation that does not fit waits
    until others settle. The budget is spent when the next request does not fit and no other is in flight, so some
    tokens may be left. Use exceeds a limit only if a request costs more than it has reserved. All waiting happens in
    one event loop.

    Args:
        max_requests, max_tokens (`int`, *optional*):
            Most requests and tokens. No limit by default.

    Attributes:
        requests, tokens (`int`):
            Use so far.

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
        self._unsent = 0  # requests with a reservation that were not sent yet
        self._too_small = False  # for the latest request
        self._changed = asyncio.Event()

    @property
    def spent(self) -> bool:
        """True if no further request is granted."""
        return (
            self._too_small
            or (self.max_requests is not None and self.requests >= self.max_requests)
            or (self.max_tokens is not None and self.tokens >= self.max_tokens)
        )

    async def reserve(self, tokens: int) -> bool:
        """Reserve one request and a number of tokens. Returns `False` if the budget is spent."""
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
        """Count a request with a reservation: from now on the endpoint may charge for it."""
        self.requests += 1  # first, so that `state_dict` in another thread never counts too little
        self._unsent -= 1
        self._changed.set()

    def settle(self, reserved: int, used: int, sent: bool = True) -> None:
        """Replace a reservation by the tokens used. A request that was never sent uses nothing."""
        if sent:
            self.tokens += used
        else:
            self._unsent -= 1
        self._reserved -= reserved
        self._changed.set()

    def state_dict(self) -> dict[str, Any]:
        """Return the use so far, including reservations, and a token limit that was too small for a request."""
        return {
            "requests": self._unsent + self.requests,
            "tokens": self._reserved + self.tokens,
            "too_small": self.max_tokens if self._too_small else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the use so far. A spent budget stays spent unless its limit has been raised."""
        self.requests, self.tokens = int(state["requests"]), int(state["tokens"])
        limit = state.get("too_small")  # missing in older checkpoints
        self._too_small = limit is not None and self.max_tokens is not None and self.max_tokens <= limit

    def __str__(self) -> str:
        requests, tokens = (
            f"{used}" if limit is None else f"{used} of {limit}"
            for used, limit in ((self.requests, self.max_requests), (self.tokens, self.max_tokens))
        )
        return f"{requests} requests and {tokens} tokens"
