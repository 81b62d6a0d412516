"""
Requests over HTTP, side by side: what the engines behind an address share.

A thread waits for each request that is under way, on a connection of its own that it keeps. Threads that wait cost next
to nothing, so the standard library is enough.
"""

from __future__ import annotations

import http.client
import json
import math
import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from trl_spiral.text.printable import reported


# "Try again": too many requests, an error inside the server, and what a proxy says of a server that is not up.
_PASSING = {429, 500, 502, 503, 504}
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 2.0  # seconds; doubled from try to try
_CONNECTING = 10.0  # seconds
_MAX_MESSAGE = 500  # characters of a server's error page


class ServerLost(ConnectionError):
    """A server has not answered for longer than one was ready to wait."""


class NeverSent(ConnectionAbortedError):
    """A request was cancelled before any of it was sent."""


class BadAnswer(RuntimeError):
    """A server has answered, and not with what was asked for."""


@dataclass(frozen=True)
class Key:
    """A secret that no `repr` shows."""

    value: str = field(repr=False)


class Received(NamedTuple):
    """What came back for a request."""

    status: int
    content: bytes
    retry_after: float  # seconds for which the sender asks to be left alone, 0 where it does not say


class Call:
    """One request under way: the caller's `ticket`, and the connection on which it is being answered, if it is."""

    def __init__(self, ticket: int, path: str, body: bytes | None = None) -> None:
        self.ticket = ticket
        self.path = path
        self.body = body  # JSON to post; without it, the request is a GET
        self.cancelled = False
        self.connection: http.client.HTTPConnection | None = None


class Transport:
    """
    Sends requests to one server at the same time, and insists for a while where it fails.

    A refused or broken connection, a timeout and the statuses 429, 500, 502, 503 and 504 are tried again: after 0.2 s,
    after 0.4 s, and so on up to every 2 s. Redirects are not followed, since they would take the key elsewhere, and proxies
    that the environment names are not used.

    Args:
        base_url (`str`):
            Where the server is, `http://…` or `https://…`.
        key (`str`, *optional*):
            Sent as a bearer token; never shown.
        max_in_flight (`int`, defaults to `256`):
            Most requests under way at once; the others wait their turn here.
        patience (`float`, defaults to `30.0`):
            Seconds, from a first failure on and without any success, after which the server is given up. Until it
            answers again, later requests are tried once.
        timeout (`float`, defaults to `600.0`):
            Longest wait, in seconds, for the answer to one request.

    Attributes:
        retries (`int`):
            How often a request had to be tried again.
        dials (`int`):
            How many connections were opened for requests that were posted. Where it has not changed, they are still
            answered by the process that answered before.

    Raises:
        ValueError: If the URL is none.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None = None,
        max_in_flight: int = 256,
        patience: float = 30.0,
        timeout: float = 600.0,
    ) -> None:
        url = urlsplit(base_url)
        # What is refused may be a secret, so that the address is not shown here.
        if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc or url.query:
            raise ValueError(
                "The address of a server must read like `http://localhost:8000`, without a user's name, a password or a "
                "query."
            )
        self.base_url = base_url.rstrip("/")
        self.retries = self.dials = 0
        self._host, self._port, self._prefix = url.hostname, url.port, url.path.rstrip("/")
        self._kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._key = None if key is None else Key(key)
        self._max_in_flight = max_in_flight
        self._patience = patience
        self._timeout = timeout
        self._calls: dict[int, Call] = {}
        self._todo: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Call, Any]] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._closed = threading.Event()
        # Guards what threads share: `retries`, `dials`, `_failing_since`, and every call's `cancelled` and `connection`.
        self.lock = threading.Lock()
        self._failing_since: float | None = None

    def __len__(self) -> int:
        """How many requests wait for their answer to be taken."""
        return len(self._calls)

    def post(self, ticket: int, path: str, body: Mapping[str, Any]) -> None:
        """Sends a request, whose answer `take` will give."""
        if self._closed.is_set():
            raise RuntimeError(f"The engine of {self.base_url} is closed. Make a new one.")
        call = self._calls[ticket] = Call(ticket, path, json.dumps(body).encode())
        self._todo.put(call)
        if len(self._workers) < min(self._max_in_flight, len(self._calls)):
            # A daemon, so that a program that ends by an error is not held up by a server that does not answer.
            self._workers.append(threading.Thread(target=self._work, name=f"asks {self._host}", daemon=True))
            self._workers[-1].start()

    def give(self, ticket: int, answer: Any) -> None:
        """Answers a request without sending it."""
        call = self._calls[ticket] = Call(ticket, "")
        self._done.put((call, answer))

    def take(self, timeout: float | None = None) -> list[tuple[int, Any]]:
        """
        The answers that have come in, each as (ticket, JSON or an exception), and only once.

        Args:
            timeout (`float`, *optional*):
                Longest wait for the first of them, in seconds; without it, as long as it takes.
        """
        taken: list[tuple[int, Any]] = []
        while self._calls:
            try:
                call, answer = self._done.get(timeout=0 if taken else timeout)
            except queue.Empty:
                break
            # What was cancelled may still be answered, and its ticket may stand for another request by now.
            if self._calls.get(call.ticket) is call:
                del self._calls[call.ticket]
                taken.append((call.ticket, answer))
        return taken

    def cancel(self, tickets: Sequence[int]) -> None:
        """Forgets requests and hangs up, which tells the server to stop."""
        calls = [call for ticket in tickets if (call := self._calls.pop(ticket, None)) is not None]
        with self.lock:
            for call in calls:  # all of them first, or those that wait would go out in place of those that are hung up
                call.cancelled = True
            for call in calls:
                if call.connection is not None and call.connection.sock is not None:
                    with suppress(OSError):  # it hung up first
                        # Below TLS, whose own farewell would get in the way of the thread that is reading.
                        socket.socket.shutdown(call.connection.sock, socket.SHUT_RDWR)
        with self.lock:
            if not self._calls and self._failing_since is not None:
                # Nobody waits any more. A server that was not given up yet must not be by the next failure, hours later.
                if time.monotonic() - self._failing_since < self._patience:
                    self._failing_since = None

    def get(self, path: str) -> bytes:
        """
        What stands at `path`, fetched at once and in this thread.

        Raises:
            BadAnswer: If it has no such page.
            ServerLost: If it does not answer.
        """
        with closing(self._connection()) as connection:
            return self._insist(Call(-1, path), connection)

    def close(self) -> None:
        """Cancels what is under way and ends all threads."""
        self._closed.set()
        self.cancel(list(self._calls))
        for _ in self._workers:
            self._todo.put(None)
        for worker in self._workers:
            worker.join()
        self._workers.clear()

    def _connection(self) -> http.client.HTTPConnection:
        return self._kind(self._host, self._port, timeout=_CONNECTING)

    def _work(self) -> None:
        with closing(self._connection()) as connection:
            while (call := self._todo.get()) is not None:
                answer: Any
                try:
                    answer = self.answer(call, connection)
                except Exception as error:  # raised again where answers are taken: no request is left without an end
                    connection.close()
                    answer = error
                self._done.put((call, answer))

    def answer(self, call: Call, connection: http.client.HTTPConnection) -> Any:
        """What `take` is to give for a request. Called in a thread of its own."""
        return self._json(call, self._insist(call, connection))

    def _insist(self, call: Call, connection: http.client.HTTPConnection) -> bytes:
        """Tries until there is an answer, and no longer than patience lasts."""
        delay = _FIRST_DELAY
        while True:
            try:
                status, content, _ = self._exchange(call, connection)
                problem = f"HTTP {status}: {self.message(content)}"
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                status, content, problem = (
                    None,
                    b"",
                    self.message(f"{type(error).__name__}: {error}".encode(errors="replace")),
                )
            with self.lock:
                if call.cancelled:
                    return b""
                now = time.monotonic()
                if status is not None and status not in _PASSING:
                    self._failing_since = None
                    break
                if self._failing_since is None:
                    self._failing_since = now
                if now - self._failing_since >= self._patience:
                    raise ServerLost(
                        f"The server at {self.base_url} has answered nothing for {self._patience:g} seconds (last: "
                        f"{problem}). Look whether it runs and start it again, or be more patient."
                    )
                self.retries += 1
            self.wait(delay)
            delay = min(2 * delay, _LONGEST_DELAY)
        if status != 200:
            raise BadAnswer(f"{self.base_url}{call.path} refused a request with {problem}")
        return content

    def _exchange(self, call: Call, connection: http.client.HTTPConnection) -> Received:
        """Sends a request, once more where the server had hung up, and reads the answer."""
        kept = connection.sock is not None
        try:
            return self.send(call, connection)
        except (ConnectionError, http.client.BadStatusLine):
            connection.close()
            # Servers hang up on connections that were idle for some seconds (vLLM: 5): no failure, just dial again.
            if not kept or call.cancelled:
                raise
            return self.send(call, connection)

    def dial(self, call: Call, connection: http.client.HTTPConnection) -> None:
        """Connects, unless it is connected."""
        if connection.sock is None:
            connection.connect()
            assert connection.sock is not None
            connection.sock.settimeout(self._timeout)
            with self.lock:
                self.dials += call.body is not None

    def send(self, call: Call, connection: http.client.HTTPConnection) -> Received:
        """
        Sends a request, just once, and reads the answer.

        Raises:
            http.client.HTTPException: If what comes is no answer.
            NeverSent: If nobody waits for it any more.
            OSError: If the connection fails.
        """
        self.dial(call, connection)
        with self.lock:
            if call.cancelled:
                raise NeverSent("cancelled before it was sent")
            call.connection = connection
        try:
            headers = {"Content-Type": "application/json"}
            if self._key is not None:
                headers["Authorization"] = f"Bearer {self._key.value}"
            method = "GET" if call.body is None else "POST"
            connection.request(method, self._prefix + call.path, call.body, headers)
            response = connection.getresponse()
            return Received(response.status, self.read(response), _seconds(response.headers.get("Retry-After")))
        finally:
            with self.lock:
                call.connection = None

    def read(self, response: http.client.HTTPResponse) -> bytes:
        """The content of an answer."""
        return response.read()

    def wait(self, seconds: float) -> None:
        """Waits, but not for longer than this is open."""
        self._closed.wait(seconds)

    def _json(self, call: Call, content: bytes) -> Any:
        if call.cancelled:
            return None
        try:
            return json.loads(content)
        except ValueError:
            raise BadAnswer(
                f"{self.base_url}{call.path} answered with what is no JSON: {self.message(content)!r}. Look whether the "
                "address is that of an OpenAI-compatible server."
            ) from None

    def message(self, content: bytes) -> str:
        """What a server says went wrong, as OpenAI, vLLM and FastAPI put it, or else the page it sent."""
        text = content.decode(errors="replace")
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
            for name in ("error", "message", "detail"):
                if isinstance(found, dict):
                    found = found.get(name, found)
            text = found if isinstance(found, str) else text
        return reported(self.shown(text)[:_MAX_MESSAGE])

    def shown(self, text: str) -> str:
        """
        A text of the other side's with the key struck out, should it have sent it back.

        A key of less than eight characters is none to hide, such as the `EMPTY` that local servers are given, and would be
        found in what has nothing to do with it.
        """
        return text if self._key is None or len(self._key.value) < 8 else text.replace(self._key.value, "[key]")


def _seconds(value: str | None) -> float:
    """A `Retry-After` in seconds. One that is a date counts as none: nothing here depends on the clock."""
    with suppress(TypeError, ValueError):
        if math.isfinite(seconds := float(value or 0)):
            return max(0.0, seconds)
    return 0.0
