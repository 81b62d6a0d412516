"""
A real HTTP proxy that forwards all requests to a server, and fails on demand.

    with faulty_proxy(server.base_url) as proxy:
        proxy.fail_for = 10.0      # seconds of HTTP 500, from the next completion on
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


COMPLETIONS = "/v1/completions"


class FaultyProxy:
    """
    State and settings of a proxy.

    Attributes:
        completions (`int`):
            Completions forwarded so far.
        fail_for (`float`):
            Seconds of HTTP 500 for completions, counted from the next one.
        spoil (`Callable[[dict], None]`, *optional*):
            Changes each answer to a completion.
        at (`dict[int, Callable[[], None]]`):
            Actions by number of completions forwarded.
    """

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target).netloc
        self.completions = 0
        self.failures = 0
        self.fail_for = 0.0
        self.spoil: Callable[[dict], None] | None = None
        self.at: dict[int, Callable[[], None]] = {}
        self.base_url = ""
        self._failing_until: float | None = None
        self._lock = threading.Lock()

    def refuses(self) -> bool:
        """Count a completion, and return whether it is answered with HTTP 500."""
        with self._lock:
            if self.fail_for and self._failing_until is None:
                self._failing_until = time.monotonic() + self.fail_for
            if self._failing_until is not None and time.monotonic() < self._failing_until:
                self.failures += 1
                return True
            self.completions += 1
            action = self.at.pop(self.completions, None)
        if action:
            action()
        return False


@contextmanager
def faulty_proxy(target: str) -> Iterator[FaultyProxy]:
    """Run a proxy inside a `with` block."""
    proxy = FaultyProxy(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on("GET")

        def do_POST(self) -> None:
            self._pass_on("POST")

        def _pass_on(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            completion = self.path == COMPLETIONS
            if completion and proxy.refuses():
                return self._answer(500, b'{"error": {"message": "out of order"}}')
            connection = http.client.HTTPConnection(proxy.target, timeout=120)
            try:
                connection.request(method, self.path, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                status, content = response.status, response.read()
            except (OSError, http.client.HTTPException):
                self.close_connection = True  # like the server: no answer
                return None
            finally:
                connection.close()
            if completion and status == 200 and proxy.spoil:
                answer = json.loads(content)
                proxy.spoil(answer)
                content = json.dumps(answer).encode()
            return self._answer(status, content)

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 512

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that disconnected

    server = Server(("127.0.0.1", 0), Handler)
    proxy.base_url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
