"""The server behind [`RemoteSandbox`]: a sandbox of this machine for others, over HTTP."""

from __future__ import annotations

import hmac
import ipaddress
import json
import selectors
import socket
import socketserver
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from trl_spiral.sandbox.base import Limits, Sandbox
from trl_spiral.sandbox.messages import (
    MAX_OUTPUT,
    MAX_REQUEST,
    TOKEN_VARIABLE,
    VERSION,
    Malformed,
    job_from,
    limits_to,
    outcome_to,
    parsed,
    token_from,
    trial_from,
    verdict_to,
)


class SandboxServer(ThreadingHTTPServer):
    """
    Serves a sandbox. Requests that come in together take turns, each with as many programs as the sandbox has `workers`, or one
    where it does not say. A request whose client has gone is dropped at its next turn.

    Args:
        sandbox ([`Sandbox`]):
            What runs the programs. It is not closed with the server.
        limits ([`Limits`]):
            What programs may use in it.
        host (`str`, defaults to `"127.0.0.1"`):
            Address to listen at.
        port (`int`, defaults to `0`):
            Port to listen at; 0 takes one that is free.
        token (`str`, *optional*):
            What clients have to know.

    Raises:
        OSError: If it cannot listen there.
        ValueError: If others than this machine could ask it without a token, an answer would be too long to send, or there
            is no such port.
    """

    daemon_threads = True  # a client that is slow to hang up does not keep the server from ending
    request_queue_size = 128

    def __init__(
        self,
        sandbox: Sandbox,
        limits: Limits,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
    ) -> None:
        if not 0 <= port <= 65535:
            raise ValueError(f"`port` ({port}) must be in [0, 65535]; 0 takes one that is free.")
        if token is None and not _is_loopback(host):
            raise ValueError(
                f"`host` ({host}) can be reached from other machines, where anybody could run programs here. Set a token "
                f"in {TOKEN_VARIABLE} (`openssl rand -hex 32` writes one), or listen at 127.0.0.1."
            )
        if limits.output_bytes > MAX_OUTPUT:
            raise ValueError(f"`output_bytes` ({limits.output_bytes}) must be at most {MAX_OUTPUT} in a server.")
        self.sandbox = sandbox
        self.limits = limits
        self.token = token_from(token)
        self.workers: int = getattr(sandbox, "workers", 1)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """Its address."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if self.address_family == socket.AF_INET6 else f"http://{host!s}:{port}"

    def server_bind(self) -> None:
        """Binds. `HTTPServer` would ask a name server what this machine is called, too."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a client that hung up."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names_loopback(address: str) -> bool:
    """Whether a `Host` header, with its port, is this machine itself."""
    try:
        return _is_loopback(urlsplit(f"//{address}").hostname or "")
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    server: SandboxServer
    timeout = 60.0  # seconds in which nothing comes, after which a client has gone

    def do_GET(self) -> None:
        if self._admits():
            if self.path == "/sandbox":
                self._answer(200, {"version": VERSION, "limits": limits_to(self.server.limits)})
            else:
                self._refuse(404, f"no such page; this sandbox server speaks version {VERSION}")

    def do_POST(self) -> None:
        if not self._admits():
            return
        sandbox = self.server.sandbox
        if self.path == f"/v{VERSION}/run":
            self._work(job_from, sandbox.run, outcome_to)
        elif self.path == f"/v{VERSION}/judge":
            self._work(trial_from, sandbox.judge, verdict_to)
        else:
            self._refuse(404, f"no such page; this sandbox server speaks version {VERSION}")

    def _admits(self) -> bool:
        token, given = self.server.token, self.headers.get("Authorization", "")
        # In constant time, or the time it takes would give the token away letter by letter.
        if token is not None and not hmac.compare_digest(f"Bearer {token}".encode(), given.encode()):
            self._refuse(401, "the token is missing or wrong")
            return False
        # A web page whose name its owner has resolved to this machine may ask without being asked first.
        if token is None and not _names_loopback(self.headers.get("Host", "")):
            self._refuse(403, "without a token, this server answers to the name of its own machine only (127.0.0.1)")
            return False
        return True

    def _work(
        self, asked_from: Callable[[Any], Any], work: Callable[[list[Any]], list[Any]], told_to: Callable[[Any], Any]
    ) -> None:
        # A web page that is open in a browser of this machine can send anything but this type without being asked first.
        if self.headers.get_content_type() != "application/json":
            return self._refuse(400, "the content must be application/json")
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            return self._refuse(400, "the length of the content must be given")
        if not 0 <= length <= MAX_REQUEST:
            return self._refuse(400, f"a request of {length} bytes must be of at most {MAX_REQUEST}")
        try:
            asked = parsed(self.rfile.read(length))
            if type(asked) is not list:
                raise Malformed("not a list")
            wanted = [asked_from(one) for one in asked]
            told = []
            for at in range(0, len(wanted), self.server.workers):
                if self._is_abandoned():
                    self.close_connection = True
                    return None
                told += [told_to(one) for one in work(wanted[at : at + self.server.workers])]
        except ValueError as error:
            return self._refuse(400, str(error))
        except Exception as error:  # the sandbox's own trouble, which its client has to hear of
            return self._refuse(500, f"{type(error).__name__}: {error}")
        return self._answer(200, told)

    def _is_abandoned(self) -> bool:
        """Whether the client has hung up, and nobody waits for an answer."""
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self.connection, selectors.EVENT_READ)
                return bool(selector.select(0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True

    def _refuse(self, status: int, why: str) -> None:
        self._answer(status, {"error": why})

    def _answer(self, status: int, data: Any) -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing of each request."""
