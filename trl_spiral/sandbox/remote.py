"""
A sandbox on another machine, asked over HTTP. The server is in `server.py`.

What comes back is checked as if the programs had written it, since one that breaks out of its sandbox over there can.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Any, TypeVar
from urllib.parse import urlsplit

from trl_spiral.sandbox.base import Job, Limits, Outcome, Trial, Verdict
from trl_spiral.sandbox.messages import (
    MAX_REQUEST,
    TOKEN_VARIABLE,
    VERSION,
    Malformed,
    answer_bytes,
    limits_from,
    outcome_from,
    parsed,
    taken,
    token_from,
    verdict_from,
)
from trl_spiral.text.printable import reported


_MAX_ANSWER = 64 * 2**20  # bytes, unless a single job needs more
_MOST_JOBS = 64  # in a request, so that its answer comes within the timeout
_RETRY_DELAYS = (0.2, 1.0, 3.0)  # seconds
_CONNECTING = 10.0  # seconds
_MAX_MESSAGE = 500  # characters of a server's complaint

Asked = TypeVar("Asked", Job, Trial)
Told = TypeVar("Told", Outcome, Verdict)


class RemoteSandbox:
    """
    A sandbox that runs its programs on another machine, where `trl-spiral serve-sandbox` runs.

    What programs may use is settled there, and a connection that fails is tried again three times in 4 seconds: to run a
    program twice does no harm. It may be used by several threads.

    Args:
        url (`str`):
            Where the server is, `http://…` or `https://…`. Redirects, and proxies that the environment names, are not
            followed.
        token (`str`, *optional*):
            The server's token; by default the one in the environment variable `TRL_SPIRAL_SANDBOX_TOKEN`, if it is set.
        timeout (`float`, defaults to `300.0`):
            Longest wait, in seconds, for the answer to a request of at most 64 jobs, with what others have asked of the
            server before it.

    Attributes:
        limits ([`Limits`]):
            What programs may use there.

    Raises:
        ConnectionError: If the server cannot be reached, is of another version or none of ours.
        PermissionError: If the token is missing or wrong.
        TimeoutError: If it does not answer in time.
        ValueError: If an argument, or later a job, is none that can be sent.
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = 300.0) -> None:
        parts = urlsplit(url)
        # What is refused may hold a secret, so that the address is not shown.
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            raise ValueError(
                "The address of a sandbox server must read like `http://10.0.0.2:8200`, without a user's name, a password "
                "or a query."
            )
        if not (timeout > 0 and math.isfinite(timeout)):
            raise ValueError(f"`timeout` ({timeout}) must be a number of seconds above 0.")
        self.url = url.rstrip("/")
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._token = token_from(os.environ.get(TOKEN_VARIABLE)) if token is None else token_from(token)
        self._timeout = timeout
        self._closed = False
        self.limits = self._greet()

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Runs programs over there. Outcomes in the order of the jobs."""
        return self._ask("run", jobs, outcome_from)

    def judge(self, trials: Sequence[Trial]) -> list[Verdict]:
        """Puts programs to their tests over there. Verdicts in the order of the trials."""
        return self._ask("judge", trials, verdict_from)

    def close(self) -> None:
        """Ends the use of it. The server goes on."""
        self._closed = True

    def __enter__(self) -> RemoteSandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _greet(self) -> Limits:
        said = self._insist("GET", "/sandbox", None, 2**16)
        try:
            version = said.get("version") if type(said) is dict else None
            if type(version) is int and version != VERSION:
                raise ConnectionError(
                    f"The sandbox server at {self.url} speaks version {version}, and this is version {VERSION}. Install "
                    "the same trl-spiral on both machines."
                )
            return limits_from(taken(said, version=int, limits=dict)[1])
        except Malformed as error:
            raise self._no_server(error) from None

    def _ask(self, what: str, asked: Sequence[Asked], told_from: Callable[[Any, Asked, Limits], Told]) -> list[Told]:
        if self._closed:
            raise RuntimeError("The sandbox is closed. Make a new one.")
        told: list[Told] = []
        for batch in _batches(asked, self.limits):
            body = json.dumps([asdict(one) for one in batch]).encode()
            most = 2 + sum(answer_bytes(one, self.limits) for one in batch)
            said = self._insist("POST", f"/v{VERSION}/{what}", body, most)
            try:
                if type(said) is not list or len(said) != len(batch):
                    raise Malformed("not one answer for each job")
                told += [told_from(one, to, self.limits) for one, to in zip(said, batch, strict=True)]
            except Malformed as error:
                raise self._no_server(error) from None
        return told

    def _insist(self, method: str, path: str, body: bytes | None, most: int) -> Any:
        """The JSON at `path`, of `most` bytes."""
        for delay in (*_RETRY_DELAYS, None):
            try:
                received = self._exchange(method, path, body, most)
                break
            except (OSError, http.client.HTTPException) as error:
                if delay is None:
                    raise ConnectionError(
                        f"The sandbox server at {self.url} cannot be reached ({type(error).__name__}: "
                        f"{reported(error)}). Look "
                        "whether `trl-spiral serve-sandbox` runs there and listens at this address."
                    ) from None
            time.sleep(delay)
        if received is None:
            raise TimeoutError(
                f"The sandbox server at {self.url} has not answered within {self._timeout:g} seconds. Give it more "
                "workers, or this `RemoteSandbox` a longer `timeout`."
            )
        status, content = received
        if status == 401:
            raise PermissionError(
                f"The sandbox server at {self.url} refuses the token. Give the one that it was started with, as `token` "
                f"or in {TOKEN_VARIABLE}."
            )
        try:
            if len(content) > most:
                raise Malformed("more bytes than its limits allow")
            said = parsed(content)
            if status == 200:
                return said
            (complaint,) = taken(said, error=str)
        except Malformed as error:
            raise self._no_server(f"HTTP {status}, {error}") from None
        complaint = reported(complaint[:_MAX_MESSAGE])
        if status == 400:
            raise ValueError(f"The sandbox server at {self.url} refused the request: {complaint}")
        raise ConnectionError(f"The sandbox server at {self.url} failed with HTTP {status}: {complaint}")

    def _exchange(self, method: str, path: str, body: bytes | None, most: int) -> tuple[int, bytes] | None:
        """Sends a request, just once, and reads the answer, up to a byte more than `most`. `None` if it takes too long."""
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        with closing(self._kind(self._host, self._port, timeout=min(_CONNECTING, self._timeout))) as connection:
            connection.connect()
            sock = connection.sock
            # A socket's own timeout begins anew with each byte; this one is for all of them.
            sock.settimeout(None)
            late = threading.Event()
            clock = threading.Timer(self._timeout, _hang_up, (sock, late))
            clock.start()
            try:
                connection.request(method, self._prefix + path, body, headers)
                with connection.getresponse() as response:
                    content = response.read(most + 1)
                    if response.length and len(content) <= most:  # read() says nothing of a server that died meanwhile
                        raise http.client.IncompleteRead(content, response.length)
                    return response.status, content
            except (OSError, http.client.HTTPException):
                if late.is_set():
                    return None
                raise
            finally:
                clock.cancel()
                clock.join()

    def _no_server(self, why: object) -> ConnectionError:
        return ConnectionError(
            f"{self.url} has not answered as a sandbox server does ({why}). Look whether the address is that of "
            "`trl-spiral serve-sandbox`."
        )


def _hang_up(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):  # the other side hung up first
        # Below TLS, whose own farewell would get in the way of the thread that is reading.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _batches(asked: Sequence[Asked], limits: Limits) -> list[list[Asked]]:
    """What to ask, cut so that neither a request nor its answer is too long, and neither takes too long."""
    batches: list[list[Asked]] = []
    request = answer = 0
    for one in asked:
        size, most = len(json.dumps(asdict(one))) + 2, answer_bytes(one, limits)
        if size + 2 > MAX_REQUEST:
            raise ValueError(f"A job of {size} bytes is too long for a remote sandbox, which takes {MAX_REQUEST}.")
        request, answer = request + size, answer + most
        if not batches or len(batches[-1]) == _MOST_JOBS or request + 2 > MAX_REQUEST or answer > _MAX_ANSWER:
            batches.append([])
            request, answer = size, most
        batches[-1].append(one)
    return batches
