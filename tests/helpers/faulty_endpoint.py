"""
A chat endpoint on raw sockets, which gives some good answers and then fails in one of many ways.

    with FaultyEndpoint(FAULTS["never answers"], good=3) as endpoint:
        ...
        endpoint.fault = None  # good answers again
"""

import gzip
import json
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self


STEP = 0.05  # seconds between bytes, headers or status lines, less than any timeout
MEGABYTES = 10
LARGE = b" " * (MEGABYTES * 2**20)


def head(*headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "Content-Type: application/json", *headers, "", ""]).encode()


def answer(text: str | None, reason: str = "stop", *headers: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    content = json.dumps({"choices": [choice]}).encode()
    return head(f"Content-Length: {len(content)}", *headers) + content


def repeated(piece: bytes, first: bytes = b"") -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield first
        while True:
            yield piece

    return pieces


def once(piece: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter([piece])


zipped = gzip.compress(LARGE)
# Pieces sent for a request, one every `STEP` seconds. The connection ends after the last.
HANGS = {
    "100 Continue for ever": repeated(head(status="100 Continue")),
    "early hints for ever": repeated(head("Link: </a>", status="103 Early Hints")),
    "a header now and then": repeated(b"X-Name: value\r\n", b"HTTP/1.1 200 OK\r\n"),
    "half a status line": repeated(b"", b"HTTP/1.1 20"),
    "one byte at a time": repeated(b" ", head("Content-Length: 1000000")),
    "a chunk now and then": repeated(b"1\r\n \r\n", head("Transfer-Encoding: chunked")),
    "a redirect that never ends": repeated(b" ", head("Location: /", "Content-Length: 1000", status="307 Moved")),
    "never answers": repeated(b""),
}
FAILS = {
    "10 MB": once(head(f"Content-Length: {len(LARGE)}") + LARGE),
    "10 MB, zipped": once(head("Content-Encoding: gzip", f"Content-Length: {len(zipped)}") + zipped),
    "a cut body": once(head("Content-Length: 500") + b'{"choices": ['),
    "no HTTP": once(b"\x16\x03\x01\x02\x00garbage" * 100),
    "500": once(head("Content-Length: 0", status="500 Internal Server Error")),
    "429, come back in 30 years": once(
        head("Content-Length: 0", "Retry-After: 1000000000", status="429 Too Many Requests")
    ),
}
REFUSES = {"a redirect to itself": once(head("Location: /chat/completions", "Content-Length: 0", status="302 Found"))}
ANSWERS = {
    "content filter": once(answer("", "content_filter", "Connection: close")),
    "content filter without a text": once(answer(None, "content_filter", "Connection: close")),
}
FAULTS = {**HANGS, **FAILS, **REFUSES, **ANSWERS}


class FaultyEndpoint(socketserver.ThreadingTCPServer):
    """
    Args:
        fault (`Callable[[], Iterator[bytes]]`, *optional*):
            Answer to each request, one of `FAULTS`. By default, all answers are good.
        good (`int`, defaults to `0`):
            Number of good answers before the fault.
        text (`Callable[[dict], str]`):
            Text of a good answer.
        certificate (`Path`, *optional*):
            File with a certificate and its key, for an endpoint with TLS.

    Attributes:
        seen (`int`):
            Complete requests received.
    """

    allow_reuse_address = True
    daemon_threads = True  # they end when the client disconnects, which may be later
    block_on_close = False
    request_queue_size = 512

    def __init__(
        self,
        fault: Callable[[], Iterator[bytes]] | None,
        good: int = 0,
        text: Callable[[dict[str, Any]], str] = lambda body: "\\boxed{[4]}",
        certificate: Path | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.fault, self.good, self.text = fault, good, text
        self.seen = 0
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.over.set()
        self.shutdown()
        self.thread.join()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect, which is part of the tests."""


class _Handler(socketserver.StreamRequestHandler):
    server: FaultyEndpoint

    def handle(self) -> None:
        while body := self.body():
            with self.server.lock:
                self.server.seen += 1
                good = self.server.fault is None or self.server.seen <= self.server.good
            if good:
                self.wfile.write(answer(self.server.text(json.loads(body))))
                continue
            for piece in self.server.fault():
                self.wfile.write(piece)
                if self.server.over.wait(STEP):
                    break
            return

    def body(self) -> bytes:
        """Return the body of the next request, or nothing if the client has disconnected."""
        length = 0
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            if line[:1] == b"\x16":  # TLS, not a request
                return b"{}"
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return self.rfile.read(length)
