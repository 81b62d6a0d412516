"""Base class of engines over HTTP."""

from __future__ import annotations

import json
import queue
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self

from trl_spiral.engines.http.client import BadAnswer, Client
from trl_spiral.types import Reply, Request


class HTTPEngine(ABC):
    """Sends each request as soon as it is added, and returns replies in the order of the answers."""

    _path: str

    def __init__(self, client: Client) -> None:
        self.client = client
        self._waiting: dict[int, tuple[Request, Future[Any]]] = {}
        self._answers: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
        self._requests = self._retries = self._new_tokens = self._takes = self._in_flight = 0

    def add(self, ticket: int, request: Request) -> None:
        """
        Send a request.

        Raises:
            ValueError: If the server cannot answer it.
        """
        body = json.dumps(self._body(request)).encode()
        future = self.client.submit(lambda: self._answer(body))
        self._waiting[ticket] = request, future
        self._requests += 1
        future.add_done_callback(lambda done: self._answers.put((ticket, done)))

    def step(self) -> list[tuple[int, Reply]]:
        """
        Wait until at least one request is answered.

        Raises:
            BadAnswer: If the server refuses a request, or its answer has the wrong form.
            ServerLost: If it does not answer.
            WeightsLost: If it has restarted, and its weights matter.
        """
        return self.poll(timeout=None)

    def poll(self, timeout: float | None = 0.0) -> list[tuple[int, Reply]]:
        """Return the answers that are available, or become available within `timeout` seconds. Raises like `step`."""
        in_flight = len(self._waiting)
        answered: list[tuple[int, Request, Any]] = []
        while self._waiting:
            try:
                ticket, future = self._answers.get(timeout=0 if answered else timeout)
            except queue.Empty:
                break
            # An aborted request may still be answered, and its ticket may belong to another request by now.
            request, expected = self._waiting.get(ticket, (None, None))
            if request is not None and future is expected:
                del self._waiting[ticket]
                answered.append((ticket, request, future.exception() or future.result()))
        if answered:
            self._takes += 1
            self._in_flight += in_flight
        return [(ticket, self._reply(request, answer)) for ticket, request, answer in answered]

    def abort(self, tickets: Sequence[int]) -> None:
        """Drop requests and close their connections, so that the server stops working on them."""
        for ticket in tickets:
            if ticket in self._waiting:
                self._waiting.pop(ticket)[1].cancel()

    def metrics(self) -> dict[str, float]:
        """
        Return metrics since the last call.

        `requests`, `retries`, `new_tokens` and `in_flight` (mean requests in flight whenever answers were taken).
        """
        retries = self.client.retries
        metrics = {
            "requests": float(self._requests),
            "retries": float(retries - self._retries),
            "new_tokens": float(self._new_tokens),
            "in_flight": self._in_flight / max(self._takes, 1),
        }
        self._retries = retries
        self._requests = self._new_tokens = self._takes = self._in_flight = 0
        return metrics

    def close(self) -> None:
        """Close all connections and end the thread."""
        self._waiting.clear()
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def _body(self, request: Request) -> dict[str, Any]:
        """Return the JSON to post for a request."""

    @abstractmethod
    async def _answer(self, body: bytes) -> Any:
        """Send a request, with retries, in the background thread. Returns or raises the `answer` of `_reply`."""

    @abstractmethod
    def _reply(self, request: Request, answer: Any) -> Reply:
        """Return the reply in an answer of the server, or raise the answer if it is an exception."""

    def bad_answer(self, problem: str, way_out: str) -> BadAnswer:
        """Return the error for an answer of the wrong form."""
        return BadAnswer(f"{self.client.base_url}{self._path} answered {problem}. {way_out}")

    def only_choice(self, answer: Any) -> dict[str, Any]:
        """
        Return the only choice of an answer.

        Raises:
            BadAnswer: If there is not exactly one.
        """
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self.bad_answer(
                f"without exactly one choice: {json.dumps(answer)[:200]}",
                "It must be OpenAI-compatible; and leave `n` and `stream` out of the extra fields.",
            )
        choice: dict[str, Any] = choices[0]
        return choice
