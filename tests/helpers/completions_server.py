"""
A server with enough of vLLM's and OpenAI's HTTP protocol to play games, which can fail on demand.

It answers `/v1/completions` (token ids in and out, like `vllm serve`), `/chat/completions`, `/v1/models` and
`/metrics`. A function of the test writes its replies. The default is token 7 three times, or `\\boxed{[4]}`. It is a
real server on a real socket: it keeps connections alive, serves many at once, and can die and restart.
"""

import json
import random
import select
import socket
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


Body = dict[str, Any]
Tokens = tuple[int, ...]


def three_sevens(body: Body) -> Tokens:
    return (7, 7, 7)


def middle(body: Body) -> str:
    return "I take the middle: \\boxed{[4]}"


# Contents without a reply, sent with status 200.
RUBBISH = {
    "nothing": b"",
    "a page": b"<html>Welcome</html>",
    "a cut answer": b'{"choices": [{"index": 0, "mess',
    "no UTF-8": b'{"choices": "\xff\xfe\x80"}',
    "nesting without end": b"[" * 100_000,
    "an endless number": b'{"choices": ' + b"9" * 10_000 + b"}",
    "null": b"null",
    "a list": b"[1]",
    "an error": b'{"error": {"code": 429, "message": "Provider returned error"}}',
    "no choices": b'{"choices": []}',
    "choices of null": b'{"choices": null}',
    "choices of a wrong type": b'{"choices": ["\\\\boxed{[4]}"]}',
    "two choices": b'{"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}',
    "no message": b'{"choices": [{"finish_reason": "stop"}]}',
    "a message of a wrong type": b'{"choices": [{"message": "[4]"}]}',
    "content of null": b'{"choices": [{"message": {"content": null}, "finish_reason": "stop"}]}',
    "content of a number": b'{"choices": [{"message": {"content": 4}}]}',
    "content in parts": b'{"choices": [{"message": {"content": [{"type": "text", "text": "[4]"}]}}]}',
    "an error half-way": b'{"choices": [{"message": {"content": "I ta"}, "finish_reason": "error"}]}',
}
# Broken or invalid answers. The connection ends after each.
BROKEN = {
    "half an answer": b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"choices": [{"index"',
    "half a chunk": b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{"choices"',
    "a wrong chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "half of its headers": b"HTTP/1.1 200 OK\r\nContent-Le",
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a strange status": b"HTTP/1.1 two OK\r\n\r\n",
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"X-Name: value\r\n" * 1000 + b"\r\n",
}


def troubled(share: float) -> Callable[[Body, int], str | None]:
    """Return a plan that lets a share of all attempts fail. It depends only on the request and the attempt."""

    def plan(body: Body, attempt: int) -> str | None:
        rng = random.Random(f"{body['seed']} {attempt}")
        return rng.choice(["delay", "429", "500", "hang up", "rubbish"]) if rng.random() < share else None

    return plan


class CompletionsServer:
    """
    A server on a free port, for use as a context manager.

    Args:
        tokens (`Callable[[Body], Tokens]`):
            Token ids of the reply to a completion request.
        text (`Callable[[Body], str]`):
            The reply to a chat.

    Attributes:
        seen (`list[tuple[str, dict[str, str], Body]]`):
            Path, headers and body of every posted request, including refused ones, in order of arrival.
        gate (`threading.Event`):
            Posted requests are answered only while this is set, as it is at first.
        most_at_once (`int`):
            Most posted requests in progress at one time.
        hung_up (`int`):
            Requests whose client disconnected while they waited at the gate.
        dropped (`int`):
            Number of the next requests that are disconnected without an answer.
        failures (`list[tuple[int, object]]`):
            Status and content with which the next requests are refused, in this order.
        raw (`list[bytes]`):
            Raw bytes sent to the next requests before they are disconnected.
        headers (`dict[str, str]`):
            More headers of every answer.
        plan (`Callable[[Body, int], str | None]`):
            Failure of a request, by its body and the number of earlier attempts: `"delay"`, `"429"`, `"500"`, `"hang
            up"`, `"rubbish"` or none.
        happened (`Counter[str]`):
            Number of failures by kind.
        tries (`Counter[int]`):
            Number of attempts of a request, by its seed.
        answered (`set[int]`):
            Seeds of requests with a good answer by plan.
        spoil (`Callable[[Body], object]`):
            Last change to every answer.
        pages (`dict[str, bytes]`):
            Contents for a GET, by path.
    """

    def __init__(self, tokens: Callable[[Body], Tokens] = three_sevens, text: Callable[[Body], str] = middle) -> None:
        self.tokens, self.text = tokens, text
        self.seen: list[tuple[str, dict[str, str], Body]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.lock = threading.Lock()
        self.at_once = self.most_at_once = self.hung_up = self.dropped = 0
        self.failures: list[tuple[int, object]] = []
        self.spoil: Callable[[Body], object] = lambda answer: answer
        self.raw: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.plan: Callable[[Body, int], str | None] = lambda body, attempt: None
        self.happened: Counter[str] = Counter()
        self.tries: Counter[int] = Counter()
        self.answered: set[int] = set()
        self.starts = 0
        self.pages: dict[str, bytes] = {"/v1/models": b'{"data": [{"id": "tiny"}, {"id": "other"}]}'}
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[Body]:
        return [body for _, _, body in self.seen]

    def start(self) -> None:
        """Start the server, again on the same port."""
        self.starts += 1
        self.pages["/metrics"] = f"# HELP\nprocess_start_time_seconds {1.7e9 + self.starts:.2f}\n".encode()
        self.alive = True
        self.connections: set[socket.socket] = set()
        self.server = _Server(("127.0.0.1", self.port), _Handler)
        self.server.owner = self
        self.port = self.server.server_address[1]
        # Polled often, so that `kill` takes little time.
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def kill(self) -> None:
        """Stop like a killed process: disconnect all clients and close the port."""
        self.alive = False
        self.server.shutdown()
        self.hang_up()
        self.server.server_close()
        self.thread.join()

    def hang_up(self) -> None:
        """Close every connection, as servers do with idle ones."""
        with self.lock:
            connections = list(self.connections)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.alive:
            self.kill()

    def completion(self, body: Body) -> Body:
        """Return an answer of vLLM 0.31 to `/v1/completions`, with the fields that are read."""
        ids = list(self.tokens(body))
        choice = {
            "index": 0,
            "text": "",
            "logprobs": {
                "tokens": [f"token_id:{token}" for token in ids],
                "token_logprobs": [-0.25] * len(ids),
                "top_logprobs": [{f"token_id:{token}": -0.25} for token in ids],
            },
            "finish_reason": "length" if len(ids) == body["max_tokens"] else "stop",
            "prompt_token_ids": body["prompt"],
            "token_ids": ids,
        }
        return {"object": "text_completion", "model": body["model"], "choices": [choice]}

    def chat(self, body: Body) -> Body:
        message = {"role": "assistant", "content": self.text(body)}
        return {
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5},
        }


class _Server(ThreadingHTTPServer):
    request_queue_size = 512  # with the default of 5, a burst of connections waits for a second and more
    allow_reuse_address = True
    daemon_threads = False
    block_on_close = True
    owner: CompletionsServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, which is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and content go out in two writes
    server: _Server

    def setup(self) -> None:
        super().setup()
        with self.server.owner.lock:
            self.server.owner.connections.add(self.connection)
        if not self.server.owner.alive:  # accepted while the server was being killed
            self.server.owner.hang_up()

    def finish(self) -> None:
        with self.server.owner.lock:
            self.server.owner.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        page = self.server.owner.pages.get(self.path)
        self.answer(200 if page is not None else 404, page if page is not None else b'{"detail": "Not Found"}')

    def do_POST(self) -> None:
        owner = self.server.owner
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with owner.lock:
            owner.seen.append((self.path, dict(self.headers), body))
            owner.at_once += 1
            owner.most_at_once = max(owner.most_at_once, owner.at_once)
            failure = owner.failures.pop(0) if owner.failures else None
            drop = owner.dropped > 0
            owner.dropped -= drop
            raw = owner.raw.pop(0) if owner.raw else b""
            trouble = owner.plan(body, owner.tries[body.get("seed", 0)])
            owner.tries[body.get("seed", 0)] += 1
            if trouble:
                owner.happened[trouble] += 1
            if trouble in (None, "delay"):
                owner.answered.add(body.get("seed", 0))
        try:
            if not self.wait_at_gate() or drop:
                self.close_connection = True
                return
        finally:
            with owner.lock:
                owner.at_once -= 1
        if raw or trouble == "hang up":
            self.wfile.write(raw or BROKEN["half an answer"])
            self.close_connection = True
            return
        if trouble == "delay":
            threading.Event().wait(0.02)
        elif trouble == "rubbish":
            self.answer(200, random.Random(f"rubbish {len(owner.seen)}").choice(list(RUBBISH.values())))
            return
        elif trouble is not None:
            failure = int(trouble), {"error": {"message": f"Not now, {self.headers['Authorization']}"}}
        if failure is not None:
            self.answer(failure[0], json.dumps(failure[1]).encode())
            return
        made = {"/v1/completions": owner.completion, "/chat/completions": owner.chat}[self.path](body)
        answer = owner.spoil(made)
        self.answer(200, answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def wait_at_gate(self) -> bool:
        """Wait for the gate, and return whether the client is still connected."""
        owner = self.server.owner
        while not owner.gate.wait(0.01):
            # A waiting client sends nothing, so a readable socket means that it has disconnected.
            if not owner.alive or select.select([self.connection], [], [], 0)[0]:
                with owner.lock:
                    owner.hung_up += 1
                return False
        return owner.alive

    def answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in self.server.owner.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
