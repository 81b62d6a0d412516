"""The HTTP client of all engines with an address: many requests at once, each try with a deadline."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import queue
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import httpx2

from trl_spiral.text.printable import reported


# They log a line for each request, with words of the server, which may repeat the key.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

_CONNECTING = 10.0  # seconds for TCP, and again for TLS
_LONGEST_MESSAGE = 500  # characters of a server's error page


class ServerLost(ConnectionError):
    """A server has not answered for longer than the caller is ready to wait."""


class BadAnswer(RuntimeError):
    """A server has answered something other than what was asked for."""


class Received(NamedTuple):
    """One HTTP response."""

    status: int
    content: bytes
    retry_after: float  # seconds, from the header; 0 without one


@dataclass(eq=False)
class Call:
    """One request."""

    ticket: int  # the caller's name for it
    path: str
    body: bytes | None = None  # JSON to post; without it, the request is a GET
    sent: bool = False  # whether the server has the body of the current try, and may charge for it
    task: asyncio.Task[None] | None = None


class Transport(ABC):
    """
    Sends requests to one server at the same time. A subclass decides what is tried again.

    A background thread runs an event loop, so requests progress while the caller does something else. Proxies and
    certificates come from the environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`). Redirects are not followed,
    since they would take the key elsewhere.

    Args:
        base_url (`str`):
            Address of the server, `http://…` or `https://…`.
        key (`str`, *optional*):
            Sent as a bearer token; never shown.
        max_in_flight (`int`, defaults to `256`):
            Most requests under way at once; the others wait their turn here.
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
        ValueError: If `base_url` or `timeout` is wrong.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None = None,
        max_in_flight: int = 256,
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
                "The address of a server must read like `http://localhost:8000`, without a user's name, a password or "
                "a query."
            )
        if not 0.0 < timeout < math.inf:
            raise ValueError(f"`timeout` ({timeout}) must be a number of seconds above 0.")
        self.base_url = base_url.rstrip("/")
        self.retries = self.dials = 0
        # Their `repr` hides the key.
        self._headers = httpx2.Headers({"Accept-Encoding": "identity", "Content-Type": "application/json"})
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self.timeout = timeout
        self._max_bytes = max_bytes
        self._calls: dict[int, Call] = {}
        self._done: queue.SimpleQueue[tuple[Call, Any]] = queue.SimpleQueue()
        self._slots = asyncio.Semaphore(max_in_flight)
        # One client for each connection. A pool of 512 connections costs 6 ms of computing per request, and a pool of one
        # 0.8 ms (httpx2 2.16).
        self._idle: list[tuple[httpx2.AsyncClient, object]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @abstractmethod
    async def answer(self, call: Call) -> Any:
        """Return what `take` is to give for a request. An exception is given as it is."""

    def __len__(self) -> int:
        """Return how many requests wait for their answer to be taken."""
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
        Return the answers that have come in, each as (ticket, answer or exception), and only once.

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
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop, calls)

    def request(self, path: str, body: Mapping[str, Any] | None = None) -> Received:
        """
        Send one request, with `body` if there is one, and wait for the response. It is not tried again.

        Raises:
            BadAnswer: If the response is too large.
            httpx2.HTTPError, OSError: If there is none.
        """
        received: Received = self.wait_for(self.exchange(Call(-1, path, body and json.dumps(body).encode())))
        return received

    def wait_for(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the background thread and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._running()).result()

    def close(self) -> None:
        """Cancel all requests, close all connections and end the thread."""
        self._closed = True
        self._calls.clear()
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = None

    def _running(self) -> asyncio.AbstractEventLoop:
        """Return the event loop, started on first use."""
        if self._closed:
            raise RuntimeError(f"The engine of {self.base_url} is closed. Make a new one.")
        if self._loop is None:
            _tls()  # not within the deadline of a request
            self._loop = asyncio.new_event_loop()
            # A daemon, so that a server that does not answer cannot hold up a program that ends by an error.
            self._thread = threading.Thread(target=self._serve, args=(self._loop,), name=self.base_url, daemon=True)
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
        await asyncio.sleep(0)  # in which sockets are closed

    def _start(self, call: Call) -> None:
        call.task = asyncio.create_task(self._run(call))

    def _stop(self, calls: Sequence[Call]) -> None:
        for call in calls:
            if call.task is not None:
                call.task.cancel()

    async def _run(self, call: Call) -> None:
        answer: Any
        try:
            async with self._slots:
                answer = await self.answer(call)
        except Exception as error:  # raised again where answers are taken
            answer = error
        self._done.put((call, answer))

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
            method, headers, content = "POST", {"Content-Length": str(len(call.body))}, self._content(call, call.body)
        try:
            async with (
                asyncio.timeout(self.timeout),
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
            raise TimeoutError(f"no complete answer within {self.timeout:g} s") from None
        finally:
            # After an error, what is left of this response could reach another request.
            if kept:
                self._idle.append((client, connection))
            else:
                await client.aclose()
        return Received(response.status_code, bytes(received), _seconds(response.headers.get("Retry-After")))

    async def _content(self, call: Call, body: bytes) -> AsyncIterator[bytes]:
        """Yield the body of a request once the connection is made and the headers are sent."""
        self.sending(call)
        yield body

    def sending(self, call: Call) -> None:
        """Mark a request as sent, just before its body is."""
        call.sent = True

    def _client(self) -> httpx2.AsyncClient:
        # Half of the time for each of TCP and TLS: httpcore2 2.16 leaves a socket open when the deadline ends a handshake.
        timeout = httpx2.Timeout(None, connect=min(_CONNECTING, self.timeout / 2))
        return httpx2.AsyncClient(
            headers=self._headers, verify=_tls(), timeout=timeout, limits=httpx2.Limits(max_connections=1)
        )

    # ---- texts of the server ----
    def reason(self, error: BaseException) -> str:
        """Return an error, or the first cause of an error of the client that has a message, on one line."""
        inner = error.__context__ if isinstance(error, httpx2.HTTPError) else None
        while inner is not None and str(inner):
            error = inner.exceptions[-1] if isinstance(inner, BaseExceptionGroup) else inner
            inner = error.__cause__ or error.__context__
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
        return reported(self.shown(text)[:_LONGEST_MESSAGE])

    def shown(self, text: str) -> str:
        """
        Return a text of the server with the key struck out.

        A key of less than eight characters is not hidden: it is no secret (local servers are given `EMPTY`), and occurs
        in unrelated words.
        """
        key = self._headers.get("Authorization", "").removeprefix("Bearer ")
        return text if len(key) < 8 else text.replace(key, "[key]")


@cache
def _tls() -> ssl.SSLContext:
    """Read the trusted certificates, once: it takes some 50 ms."""
    return httpx2.create_ssl_context()


def _seconds(value: str | None) -> float:
    """Return a `Retry-After` in seconds. A date counts as none: nothing here depends on the clock."""
    with suppress(TypeError, ValueError):
        if math.isfinite(seconds := float(value or 0)):
            return max(0.0, seconds)
    return 0.0
