"""The HTTP client of all engines with an address: many requests at once, each attempt with one deadline."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeVar

import httpx2

from trl_spiral.text.printable import reported


# These log a line for each request with text of the server, which may repeat the key.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

_CONNECT_TIMEOUT = 10.0  # seconds for TCP, and again for TLS
_LONGEST_MESSAGE = 500  # characters of a server's error page

Result = TypeVar("Result")


class ServerLost(ConnectionError):
    """A server has not answered for longer than the caller waits."""


class BadAnswer(RuntimeError):
    """A server has refused a request, or its answer has the wrong form."""


class Received(NamedTuple):
    """One HTTP response."""

    status: int
    content: bytes
    retry_after: float  # seconds, from the header; 0 without one


class Client:
    """
    Sends requests to one server at the same time, each of them once, in a background thread.

    An attempt has `timeout` seconds, from connecting to the last byte of the answer. An answer above `max_bytes` is
    not read to its end. The key is sent as a bearer token, and never shown. Proxies and certificates come from the
    environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`). Redirects are not followed, because they would send the
    key to another server.

    Engines limit their requests with the semaphore `slots`, and count `retries` here. While the number of
    `connections` opened does not change, the same process answers.

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
        if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query:
            # The address may contain a secret, so it is not shown.
            raise ValueError(
                "The address of a server must read like `http://localhost:8000`, without a user's name, a password or "
                "a query."
            )
        if not 0.0 < timeout < math.inf:
            raise ValueError(f"`timeout` ({timeout}) must be a number of seconds above 0.")
        self.base_url = base_url.rstrip("/")
        self.timeout = timeout
        self.slots = asyncio.Semaphore(max_in_flight)
        self.connections = self.retries = 0
        # The `repr` of these headers hides the key.
        self._headers = httpx2.Headers({"Accept-Encoding": "identity", "Content-Type": "application/json"})
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._max_bytes = max_bytes
        # One library client for each connection. With a pool of 512 connections a request takes 6 ms of CPU time, and
        # 0.8 ms with a pool of one (httpx2 2.16).
        self._idle: list[tuple[httpx2.AsyncClient, object]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    # ---- in the caller's thread ----
    def submit(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Future[Result]:
        """Start a coroutine in the background thread. To cancel its future is to cancel its request."""
        if self._closed:
            raise RuntimeError(f"The engine of {self.base_url} is closed. Make a new one.")
        if self._loop is None:
            _tls()  # outside of the deadline of a request
            runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            self._loop = runner.get_loop()
            # A daemon, so that a server that hangs cannot delay the end of a program that fails.
            self._thread = threading.Thread(target=self._serve, args=(runner,), name=self.base_url, daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def request(self, path: str, body: Mapping[str, Any] | None = None) -> Received:
        """Send one request, a POST if it has a body, and wait for the response. Raises like `exchange`."""
        content = None if body is None else json.dumps(body).encode()
        return self.submit(lambda: self.exchange(path, content)).result()

    def close(self) -> None:
        """Cancel all requests, close all connections and end the thread."""
        self._closed = True
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = None

    # ---- in the background thread ----
    def _serve(self, runner: asyncio.Runner) -> None:
        with runner:  # cancels all requests at its end
            runner.get_loop().run_forever()
            runner.run(self._close_idle())

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop()[0].aclose()

    async def exchange(
        self, path: str, body: bytes | None = None, sending: Callable[[], object] = lambda: None
    ) -> Received:
        """
        Send a request once and read the whole response before the deadline.

        Without a body (JSON to post), the request is a GET. `sending` is called just before the body is sent.

        Raises:
            BadAnswer: If the response is too large.
            httpx2.HTTPError, OSError: If the connection fails, the response is not HTTP, or the deadline has passed.
        """

        async def content(body: bytes) -> AsyncIterator[bytes]:
            sending()
            yield body

        kept = False
        client, connection = self._idle.pop() if self._idle else (self._new_client(), None)
        posted: dict[str, Any] = {}
        if body is not None:
            posted = {"content": content(body), "headers": {"Content-Length": str(len(body))}}
        try:
            async with (
                asyncio.timeout(self.timeout),
                client.stream("POST" if posted else "GET", self.base_url + path, **posted) as response,
            ):
                if connection is not (connection := response.extensions["network_stream"]):
                    self.connections += 1
                received = bytearray()
                async for piece in response.aiter_bytes():
                    received += piece
                    if len(received) > self._max_bytes:
                        raise BadAnswer(f"{self.base_url} answered with more than {self._max_bytes} bytes.")
            kept = response.status_code == 200
        except TimeoutError:
            raise TimeoutError(f"no complete answer within {self.timeout:g} s") from None
        finally:
            # After an error, unread bytes of this response could reach another request.
            if kept:
                self._idle.append((client, connection))
            else:
                await client.aclose()
        return Received(response.status_code, bytes(received), _seconds(response.headers.get("Retry-After")))

    def _new_client(self) -> httpx2.AsyncClient:
        # Half of the time for TCP and half for TLS: httpcore2 2.16 leaks a socket if the deadline ends a handshake.
        timeout = httpx2.Timeout(None, connect=min(_CONNECT_TIMEOUT, self.timeout / 2))
        return httpx2.AsyncClient(
            headers=self._headers, verify=_tls(), timeout=timeout, limits=httpx2.Limits(max_connections=1)
        )

    # ---- texts of the server ----
    def reason(self, error: BaseException) -> str:
        """Return an error, or the first cause of a library error that has a message, on one line."""
        inner = error.__context__ if isinstance(error, httpx2.HTTPError) else None
        while inner is not None and str(inner):
            error = inner.exceptions[-1] if isinstance(inner, BaseExceptionGroup) else inner
            inner = error.__cause__ or error.__context__
        return self.message(f"{type(error).__name__}: {error}".encode(errors="replace"))

    def message(self, content: bytes) -> str:
        """Return the error message in a response of OpenAI, vLLM or FastAPI, or else all of it, on one line."""
        text = content.decode(errors="replace")
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
            for name in ("error", "message", "detail"):
                if isinstance(found, dict):
                    found = found.get(name, found)
            text = found if isinstance(found, str) else text
        return reported(self.without_key(text)[:_LONGEST_MESSAGE])

    def without_key(self, text: str) -> str:
        """
        Return a text of the server with the key removed.

        A key of less than eight characters stays: it is no secret (local servers accept `EMPTY`), and occurs in other
        words.
        """
        key = self._headers.get("Authorization", "").removeprefix("Bearer ")
        return text if len(key) < 8 else text.replace(key, "[key]")


@cache
def _tls() -> ssl.SSLContext:
    """Read the trusted certificates, once, because it takes about 50 ms."""
    return httpx2.create_ssl_context()


def _seconds(value: str | None) -> float:
    """Return a `Retry-After` in seconds. A date counts as none, so that nothing depends on the clock."""
    with suppress(TypeError, ValueError):
        if math.isfinite(seconds := float(value or 0)):
            return max(0.0, seconds)
    return 0.0
