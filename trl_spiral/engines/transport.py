"""The HTTP client of all engines with an address: many requests at once, each with a deadline."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import queue
import ssl
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import httpx2


# These log a line for each request, with words of the server, which may repeat the key.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

# Too many requests, an error inside the server, and the errors of a proxy whose server is not up.
_PASSING = {429, 500, 502, 503, 504}
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 2.0  # seconds; doubled from try to try
_CONNECTING = 10.0  # seconds for TCP, and again for TLS, within the deadline of a try
_MAX_MESSAGE = 500  # characters of a server's error page


class ServerLost(ConnectionError):
    """A server has not answered for longer than one was ready to wait."""


class BadAnswer(RuntimeError):
    """A server has answered, and not with what was asked for."""


@dataclass(frozen=True)
class Key:
    """A secret that no `repr` shows."""

    value: str = field(repr=False)


class Received(NamedTuple):
    """One HTTP response."""

    status: int
    content: bytes
    retry_after: float  # seconds, from the header; 0 without one


@dataclass(eq=False)
class Call:
    """
    One request.

    Attributes:
        ticket (`int`):
            The caller's name for it.
        body (`bytes`, *optional*):
            JSON to post. Without it, the request is a GET.
        sent (`bool`):
            Whether the body of the current try was sent, so that the server may answer and charge for it.
    """

    ticket: int
    path: str
    body: bytes | None = None
    sent: bool = False
    task: asyncio.Task[None] | None = None


class Transport:
    """
    Sends requests to one server at the same time, and tries again for a while after failures.

    A background thread runs an event loop, so requests progress while the caller does something else. A failed connection,
    a timeout and the statuses 429, 500, 502, 503 and 504 are tried again: after 0.2 s, after 0.4 s, and so on up to every
    2 s. Proxies and certificates come from the environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`). Redirects are
    not followed, since they would take the key elsewhere.

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
            Deadline of each try in seconds, from connecting to the last byte of the answer.
        max_bytes (`int`, defaults to 64 MiB):
            Largest answer. A larger one is not read to its end.

    Attributes:
        retries (`int`):
            How often a request had to be tried again.
        dials (`int`):
            How many connections were opened. While it does not change, the same process answers.

    Raises:
        ValueError: If the URL is none, or `timeout` is no number of seconds.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None = None,
        max_in_flight: int = 256,
        patience: float = 30.0,
        timeout: float = 600.0,
        max_bytes: int = 2**26,
    ) -> None:
        try:
            url = httpx2.URL(base_url)
        except httpx2.InvalidURL:
            url = httpx2.URL("")
        # What is refused may be a secret, so that the address is not shown here.
        if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query:
            raise ValueError(
                "The address of a server must read like `http://localhost:8000`, without a user's name, a password or a "
                "query."
            )
        if not 0.0 < timeout < math.inf:
            raise ValueError(f"`timeout` ({timeout}) must be a number of seconds above 0.")
        self.base_url = base_url.rstrip("/")
        self.retries = self.dials = 0
        self._key = None if key is None else Key(key)
        self._patience = patience
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._failing_since: float | None = None
        self._calls: dict[int, Call] = {}
        self._done: queue.SimpleQueue[tuple[Call, Any]] = queue.SimpleQueue()
        self._slots = asyncio.Semaphore(max_in_flight)
        # One client for each connection: a pool of 512 connections takes 6 ms of work for each request, and one of a
        # single connection takes 0.8 ms (httpx2 2.16).
        self._idle: list[tuple[httpx2.AsyncClient, object]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        """How many requests wait for their answer to be taken."""
        return len(self._calls)

    # ---- in the caller's thread ----
    def post(self, ticket: int, path: str, body: Mapping[str, Any]) -> None:
        """Send a request. `take` returns its answer."""
        loop = self._running()
        call = self._calls[ticket] = Call(ticket, path, json.dumps(body).encode())
        loop.call_soon_threadsafe(self._start, call)

    def give(self, ticket: int, answer: Any) -> None:
        """Answer a request without sending it."""
        call = self._calls[ticket] = Call(ticket, "")
        self._done.put((call, answer))

    def take(self, timeout: float | None = None) -> list[tuple[int, Any]]:
        """
        Return the answers that have come in, each as (ticket, JSON or an exception), and only once.

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
        """Forget requests and hang up, so that the server stops working on them."""
        calls = [call for ticket in tickets if (call := self._calls.pop(ticket, None)) is not None]
        if self._loop is not None and calls:
            self._loop.call_soon_threadsafe(self._stop, calls, not self._calls)

    def get(self, path: str) -> bytes:
        """
        Return the page at `path`. Waits for it.

        Raises:
            BadAnswer: If it has no such page.
            ServerLost: If it does not answer.
        """
        content: bytes = self._wait_for(self._insist(Call(-1, path)))
        return content

    def request(self, path: str, body: Mapping[str, Any] | None = None) -> Received:
        """
        Send one request, post `body` if there is one, and return the response. Waits for it and does not try again.

        Raises:
            BadAnswer: If the response is too large.
            httpx2.HTTPError, OSError: If there is none.
        """
        received: Received = self._wait_for(self.exchange(Call(-1, path, body and json.dumps(body).encode())))
        return received

    def close(self) -> None:
        """Cancel all requests, close all connections and end the thread."""
        self._closed = True
        self._calls.clear()
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = self._thread = None

    def _wait_for(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._running()).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        """Return the event loop, started on first use."""
        if self._closed:
            raise RuntimeError(f"The engine of {self.base_url} is closed. Make a new one.")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon, so that a server that does not answer cannot hold up a program that ends by an error.
            name = f"asks {self.base_url}"
            self._thread = threading.Thread(target=self._serve, args=(self._loop,), name=name, daemon=True)
            self._thread.start()
        return self._loop

    # ---- in the background thread ----
    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        loop.run_until_complete(self._hang_up())
        loop.close()

    async def _hang_up(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client, _ in self._idle:
            await client.aclose()
        await asyncio.get_running_loop().shutdown_asyncgens()

    def _start(self, call: Call) -> None:
        call.task = asyncio.get_running_loop().create_task(self._run(call))

    def _stop(self, calls: Sequence[Call], none_left: bool) -> None:
        for call in calls:
            if call.task is not None:
                call.task.cancel()
        if none_left and self._failing_since is not None:
            # A server that was not given up yet must not be given up by the next failure, hours later.
            if time.monotonic() - self._failing_since < self._patience:
                self._failing_since = None

    async def _run(self, call: Call) -> None:
        answer: Any
        try:
            async with self._slots:
                answer = await self.answer(call)
        except Exception as error:  # raised again where answers are taken
            answer = error
        self._done.put((call, answer))

    async def answer(self, call: Call) -> Any:
        """Return what `take` is to give for a request."""
        content = await self._insist(call)
        try:
            return json.loads(content)
        except ValueError:
            raise BadAnswer(
                f"{self.base_url}{call.path} answered with what is no JSON: {self.message(content)!r}. Look whether the "
                "address is that of an OpenAI-compatible server."
            ) from None

    async def _insist(self, call: Call) -> bytes:
        """Try until there is an answer, and no longer than patience lasts."""
        delay = _FIRST_DELAY
        while True:
            try:
                status, content, _ = await self.exchange(call)
                problem = f"HTTP {status}: {self.message(content)}"
            except (OSError, httpx2.HTTPError) as error:
                status, content, problem = None, b"", self.reason(error)
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
            await self.wait(delay)
            delay = min(2 * delay, _LONGEST_DELAY)
        if status != 200:
            raise BadAnswer(f"{self.base_url}{call.path} refused a request with {problem}")
        return content

    async def exchange(self, call: Call) -> Received:
        """
        Send a request once and read all of the response before the deadline.

        Raises:
            BadAnswer: If the response is too large.
            httpx2.HTTPError, OSError: If the connection fails, the response is not HTTP, or the deadline has passed.
        """
        call.sent = kept = False
        client, connection = self._idle.pop() if self._idle else (self._client(), None)
        method, headers, content = "GET", {}, None
        if call.body is not None:
            method, content = "POST", self._content(call, call.body)
            headers = {"Content-Length": str(len(call.body)), "Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(self._timeout),
                client.stream(method, self.base_url + call.path, content=content, headers=headers) as response,
            ):
                if connection is not (connection := response.extensions["network_stream"]):
                    self.dials += 1
                received = bytearray()
                async for piece in response.aiter_bytes():
                    received += piece
                    if len(received) > self._max_bytes:
                        raise BadAnswer(f"{self.base_url} answered with more than {self._max_bytes} bytes.")
            kept = response.status_code == 200
        except TimeoutError:
            raise TimeoutError(f"no complete answer within {self._timeout:g} s") from None
        finally:
            # After an error, what is left of this response could reach another request.
            if kept:
                self._idle.append((client, connection))
            else:
                await client.aclose()
        return Received(response.status_code, bytes(received), _seconds(response.headers.get("Retry-After")))

    async def _content(self, call: Call, body: bytes) -> AsyncIterator[bytes]:
        """Yield the body of a request when the connection is made and the headers are sent."""
        self.sending(call)
        yield body

    def sending(self, call: Call) -> None:
        """Mark a request, the body of which is about to be sent."""
        call.sent = True

    def _client(self) -> httpx2.AsyncClient:
        headers = {"Accept-Encoding": "identity"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.value}"
        return httpx2.AsyncClient(
            headers=headers,
            verify=_tls(),
            timeout=httpx2.Timeout(None, connect=_CONNECTING),
            limits=httpx2.Limits(max_connections=1),
        )

    async def wait(self, seconds: float) -> None:
        """Wait before the next try."""
        await asyncio.sleep(seconds)

    # ---- what the other side said ----
    def reason(self, error: BaseException) -> str:
        """Return the first cause of an error that has a message, on one line."""
        while (cause := error.__cause__ or error.__context__) and str(cause):
            error = cause.exceptions[-1] if isinstance(cause, BaseExceptionGroup) else cause
        return self.message(f"{type(error).__name__}: {error}".encode(errors="replace"))

    def message(self, content: bytes) -> str:
        """Return the error message in a response of OpenAI, vLLM or FastAPI, or else the page itself, on one line."""
        text = content.decode(errors="replace")
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
            for name in ("error", "message", "detail"):
                if isinstance(found, dict):
                    found = found.get(name, found)
            text = found if isinstance(found, str) else text
        return "".join(char if char.isprintable() else " " for char in self.shown(text)[:_MAX_MESSAGE])

    def shown(self, text: str) -> str:
        """
        Return a text of the server without the key, in case it repeats it.

        A key of less than eight characters is none to hide, such as the `EMPTY` that local servers are given, and would be
        found in what has nothing to do with it.
        """
        return text if self._key is None or len(self._key.value) < 8 else text.replace(self._key.value, "[key]")


@cache
def _tls() -> ssl.SSLContext:
    """Return the certificates to trust, read once: it takes some 50 ms."""
    return httpx2.create_ssl_context()


def _seconds(value: str | None) -> float:
    """Return a `Retry-After` in seconds. One that is a date counts as none: nothing here depends on the clock."""
    with suppress(TypeError, ValueError):
        if math.isfinite(seconds := float(value or 0)):
            return max(0.0, seconds)
    return 0.0
