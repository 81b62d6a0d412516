"""What may be asked of an endpoint that costs money."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any


class Budget:
    """
    A number of requests and of tokens, taken before anything is sent, by any number of threads.

    Whoever is about to ask reserves the most that the answer may cost, and settles with what it did cost. Where that does
    not fit beside the reservations of others, `reserve` waits for them to settle: the budget is spent only when it cannot
    hold the next request with nothing else under way. So it may end short of its last tokens, and is exceeded only by
    what a reservation could not know.

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
        self._reserved = 0
        self._too_small = False  # for the request that was asked last
        self._changed = threading.Condition()

    @property
    def spent(self) -> bool:
        """Whether nothing more is granted."""
        return (
            self._too_small
            or (self.max_requests is not None and self.requests >= self.max_requests)
            or (self.max_tokens is not None and self.tokens >= self.max_tokens)
        )

    def reserve(self, tokens: int) -> bool:
        """Takes one request and up to so many tokens; `False` if the budget is spent."""
        with self._changed:
            while not self.spent:
                if self.max_tokens is None or self.tokens + self._reserved + tokens <= self.max_tokens:
                    self.requests += 1
                    self._reserved += tokens
                    return True
                if self._reserved:
                    self._changed.wait()
                else:
                    self._too_small = True
                    self._changed.notify_all()
            return False

    def settle(self, reserved: int, used: int, sent: bool = True) -> None:
        """Gives a reservation back for what was really used: nothing at all by a request that was never sent."""
        with self._changed:
            self._reserved -= reserved
            if sent:
                self.tokens += used
            else:
                self.requests -= 1
            self._changed.notify_all()

    def state_dict(self) -> dict[str, Any]:
        """What has been used, requests under way at the most that they may cost, and the limit that was too small for one."""
        with self._changed:
            return {
                "requests": self.requests,
                "tokens": self.tokens + self._reserved,
                "too_small": self.max_tokens if self._too_small else None,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what had been used by then. A budget that was spent is so still, unless its limit has risen."""
        with self._changed:
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
