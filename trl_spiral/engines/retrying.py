"""Requests to an endpoint that may fail, talk rubbish and cost money: tried a number of times, within a budget."""

from __future__ import annotations

import http.client
import json
import random
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trl_spiral.engines.budget import Budget
from trl_spiral.engines.transport import BadAnswer, Call, NeverSent, Received, ServerLost, Transport
from trl_spiral.types import Reply


FAILURES = {
    "too_many_requests": "HTTP 429",
    "server_errors": "HTTP 5xx",
    "hung_up": "hung up",
    "timed_out": "timed out",
    "rubbish": "rubbish",
    "refused": "refused",
}
"""How a try may fail: name of the metric, and the words for it."""

# "Try again" beside 429 and all of 5xx: timeouts and "too early".
_PASSING = {408, 425}
_LONGEST_DELAY = 16.0  # seconds
_LONGEST_RETRY_AFTER = 60.0  # seconds; providers count requests by the minute
# A reply of 100,000 tokens with its reasoning has about 1 MB.
_LARGEST_ANSWER = 4 * 2**20  # bytes
# English has about four characters a token. https://help.openai.com/en/articles/4936856
_BYTES_PER_TOKEN = 4


class Answer(NamedTuple):
    """What an endpoint answered, and the tokens that it counted, as far as it tells."""

    reply: Reply
    prompt_tokens: int | None
    new_tokens: int | None


Reader = Callable[[bytes], Answer]
"""Reads an answer. Raises [`BadAnswer`] for rubbish."""


class _Failure(Exception):
    """One try that brought nothing."""

    def __init__(self, kind: str, problem: str, retry_after: float = 0.0) -> None:
        super().__init__(problem)
        self.kind = kind
        self.retry_after = retry_after


class _Spent(Exception):
    """The budget holds no further try."""


class RetryingTransport(Transport):
    """
    Sends requests to an endpoint that owes us nothing.

    Whatever may pass is tried again, rubbish included: after `retry_delay` seconds, then twice that, and so on up to 16 s,
    each shortened by up to a half so that requests that failed together do not return together; or after as long as the
    endpoint says in `Retry-After`, up to 60 s. A request that has failed on its last try is answered with `ServerLost`,
    as is every later one that fails at all, until one succeeds. One that timed out is not tried again: it has taken long
    enough, and may have been paid for.

    A refusal, which waiting does not help (a wrong key, an unknown model), is answered with `BadAnswer` while nothing has ever
    been answered, and later with `ServerLost`.

    Args:
        base_url, key, max_in_flight, timeout:
            As for [`Transport`]. The timeout holds for connecting and silence, and for the whole of an answer's content: some
            endpoints send blanks while they work, which would keep a connection alive for ever.
        read_answer (`Reader`):
            Reads answers.
        budget ([`Budget`]):
            What may be asked. Every try is a request of it, unless the endpoint could not be reached.
        max_retries (`int`):
            Tries of a request after its first.
        retry_delay (`float`):
            Seconds before the first of them.

    Attributes:
        failures (`Counter[str]`):
            Failed tries by name, see `FAILURES`.
        answered (`int`):
            Requests that were answered well.
        last_problem (`str`):
            What went wrong last.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None,
        read_answer: Reader,
        budget: Budget,
        max_in_flight: int,
        max_retries: int,
        retry_delay: float,
        timeout: float,
    ) -> None:
        super().__init__(base_url, key, max_in_flight, timeout=timeout)
        # All of them from the start: its size must not change while another thread reads it.
        self.failures = Counter(dict.fromkeys(FAILURES, 0))
        self.answered = 0
        self.last_problem = ""
        self._read_answer = read_answer
        self._budget = budget
        self._max_retries = max_retries
        self._retry_delay = retry_delay
        self._content_timeout = timeout
        self._gone = False

    def post(self, ticket: int, path: str, body: Mapping[str, Any]) -> None:
        """Sends a request, unless the budget is spent."""
        if self._budget.spent:
            self.give(ticket, self._lost(f"the budget is spent: {self._budget}"))
        else:
            super().post(ticket, path, body)

    def answer(self, call: Call, connection: http.client.HTTPConnection) -> Any:
        """An `Answer`, or an exception to tell why there is none. It has no traceback, which might hold the key."""
        # Drawn from the request, whose seed is its own: the same in every run, whatever else is under way.
        jitter = random.Random(call.body)
        delay, answered = self._retry_delay, self.answered
        for left in range(self._max_retries, -1, -1):
            if call.cancelled:  # and what nobody waits for shall not cost anything
                return None
            try:
                answer = self._try(call, connection)
            except _Spent:
                return self._lost(f"the budget is spent: {self._budget}")
            except _Failure as error:
                connection.close()  # there is no telling what else would come over it
                failure = error
            else:
                with self.lock:
                    self.answered += 1
                    self._gone = False
                return answer
            with self.lock:
                if call.cancelled:
                    return None
                self.failures[failure.kind] += 1
                if failure.kind in ("refused", "timed_out"):
                    break
                # One request alone may be at fault; where nothing else was answered meanwhile, it is the endpoint.
                self._gone |= left == 0 and self.answered == answered
                if left == 0 or self._gone:
                    break
                self.retries += 1
            self.wait(max(delay * jitter.uniform(0.5, 1.0), min(failure.retry_after, _LONGEST_RETRY_AFTER)))
            delay = min(2 * delay, _LONGEST_DELAY)
        if failure.kind == "refused" and not self.answered:
            return BadAnswer(f"{self.base_url}{call.path} refused a request with {failure}")
        return self._lost(str(failure))

    def _lost(self, problem: str) -> ServerLost:
        self.last_problem = problem
        return ServerLost(f"No reply could be had from {self.base_url}: {problem}")

    def _try(self, call: Call, connection: http.client.HTTPConnection) -> Answer:
        """One request, and no second one unnoticed: what is sent is what the budget has granted."""
        assert call.body is not None
        if connection.sock is not None and _has_ended(connection.sock):
            connection.close()
        if self._budget.spent:
            raise _Spent
        try:
            self.dial(call, connection)
        except OSError as error:
            raise self._failure("hung_up", error) from None
        body = json.loads(call.body)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
        # A token is at least a byte, and escapes and field names make up for what a chat template adds.
        most = len(call.body) + limit
        if not self._budget.reserve(most):
            raise _Spent
        prompt = len(call.body) // _BYTES_PER_TOKEN
        # What a request costs of which nobody tells: as if all of its answer had been written.
        used, sent = prompt + limit, True
        try:
            received = self.send(call, connection)
            if 400 <= received.status:
                used = 0
            elif received.status == 200:
                answer = self._read_answer(received.content)
                prompt = prompt if answer.prompt_tokens is None else answer.prompt_tokens
                new = answer.new_tokens
                if new is None:
                    new = len(answer.reply.text.encode()) // _BYTES_PER_TOKEN
                used = prompt + new
                return answer._replace(prompt_tokens=prompt, new_tokens=new)
        except (OSError, http.client.HTTPException) as error:
            sent = not isinstance(error, NeverSent)
            raise self._failure("timed_out" if isinstance(error, TimeoutError) else "hung_up", error) from None
        except BadAnswer as error:
            raise _Failure("rubbish", str(error)) from None
        finally:
            self._budget.settle(most, used, sent)
        raise self._refusal(received)

    def _refusal(self, received: Received) -> _Failure:
        status = received.status
        problem = f"HTTP {status}: {self.message(received.content)}"
        if status == 429:
            return _Failure("too_many_requests", problem, received.retry_after)
        if status >= 500 or status in _PASSING:
            return _Failure("server_errors", problem, received.retry_after)
        return _Failure("refused" if status >= 300 else "rubbish", problem)

    def _failure(self, kind: str, error: Exception) -> _Failure:
        return _Failure(kind, self.message(f"{type(error).__name__}: {error}".encode(errors="replace")))

    def read(self, response: http.client.HTTPResponse) -> bytes:
        """
        The content of an answer, all of it in time.

        Raises:
            BadAnswer: If it is too large.
            http.client.IncompleteRead: If the endpoint hung up before its end.
            TimeoutError: If it does not end.
        """
        deadline = time.monotonic() + self._content_timeout
        content = bytearray()
        while piece := response.read1(2**16):
            content += piece
            if len(content) > _LARGEST_ANSWER:
                raise BadAnswer(f"{self.base_url} answered with more than {_LARGEST_ANSWER // 2**20} MiB.")
            if time.monotonic() > deadline:
                raise TimeoutError(f"an answer that took longer than {self._content_timeout:g} s")
        if response.length:
            raise http.client.IncompleteRead(bytes(content), response.length)
        response.close()  # which `read1` does not, and the connection waits for
        return bytes(content)


def _has_ended(connection: socket.socket) -> bool:
    """Whether an idle connection has something to read: its end, or what is left of an answer of a wrong length."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(0))
