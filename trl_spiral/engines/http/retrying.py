"""Requests that are tried again: for a while at a server of our own, within a budget at an endpoint that costs money."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import httpx2

from trl_spiral.engines.http.budget import Budget
from trl_spiral.engines.http.client import BadAnswer, Call, Received, ServerLost, Transport
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

# Too many requests, an error inside the server, and the errors of a proxy whose server is not up.
_PATIENT_WITH = {429, 500, 502, 503, 504}
_FIRST_DELAY, _LONGEST_PATIENT_DELAY = 0.2, 2.0  # seconds; doubled from try to try
# "Try again" next to 429 and all of 5xx: timeouts and "too early".
_PASSING = {408, 425}
_LONGEST_DELAY = 16.0  # seconds
_LONGEST_RETRY_AFTER = 60.0  # seconds; providers count requests by the minute
_SLOW = 10.0  # seconds for which a round of games may wait for an endpoint that is gone
# A reply of 100,000 tokens with its reasoning has about 1 MB.
_LARGEST_ANSWER = 4 * 2**20  # bytes
# English has about four characters a token. https://help.openai.com/en/articles/4936856
_BYTES_PER_TOKEN = 4


class PatientTransport(Transport):
    """
    Sends requests to a server of our own, and tries again for a while after failures.

    A failed connection, a timeout and the statuses 429, 500, 502, 503 and 504 are tried again: after 0.2 s, after 0.4 s,
    and so on up to every 2 s. When a request has failed for `patience` seconds and no other was answered meanwhile, the
    server is given up. Until it answers again, later requests are tried once. Answers are JSON.
    """

    def __init__(
        self, base_url: str, max_in_flight: int = 256, patience: float = 30.0, timeout: float = 600.0
    ) -> None:
        super().__init__(base_url, max_in_flight=max_in_flight, timeout=timeout)
        self._patience = patience
        self._lost = False
        self._answered = -math.inf  # when it did last

    def get(self, path: str) -> bytes:
        """
        Return the page at `path`. Waits for it.

        Raises:
            BadAnswer: If it has no such page.
            ServerLost: If it does not answer.
        """
        content: bytes = self.wait_for(self._insist(Call(-1, path)))
        return content

    async def answer(self, call: Call) -> Any:
        content = await self._insist(call)
        try:
            return json.loads(content)
        except ValueError:
            raise BadAnswer(
                f"{self.base_url}{call.path} answered with what is no JSON: {self.message(content)!r}. Look whether "
                "the address is that of an OpenAI-compatible server."
            ) from None

    async def _insist(self, call: Call) -> bytes:
        """Try until there is an answer, and no longer than patience lasts."""
        delay, failing_since = _FIRST_DELAY, math.inf
        while True:
            try:
                status, content, _ = await self.exchange(call)
                problem = f"HTTP {status}: {self.message(content)}"
            except (OSError, httpx2.HTTPError) as error:
                status, content, problem = None, b"", self.reason(error)
            now = time.monotonic()
            if status is not None and status not in _PATIENT_WITH:
                self._lost, self._answered = False, now
                break
            failing_since = min(failing_since, now)
            if self._lost or now - max(failing_since, self._answered) >= self._patience:
                self._lost = True
                raise ServerLost(
                    f"The server at {self.base_url} has answered nothing for {self._patience:g} seconds (last: "
                    f"{problem}). Look whether it runs and start it again, or be more patient."
                )
            self.retries += 1
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_PATIENT_DELAY)
        if status != 200:
            raise BadAnswer(f"{self.base_url}{call.path} refused a request with {problem}")
        return content


class Answer(NamedTuple):
    """A reply, and the tokens that the endpoint counted, if it reports them."""

    reply: Reply
    prompt_tokens: int | None
    new_tokens: int | None


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
    endpoint says in `Retry-After`, up to 60 s. A request that has failed on its last try is answered with `ServerLost`.
    One that timed out is not tried again: it has taken long enough, and may have been paid for.

    An endpoint is gone when a request has failed on its last try, or more requests in a row than a request has retries
    have timed out, and nothing was answered meanwhile. Until it answers again, requests are tried once. Where even that
    takes long (10 s or a quarter of the timeout), they are lost at once, and one at a time is tried in the background.

    A refusal, which waiting does not help (a wrong key, an unknown model), is answered with `BadAnswer` while nothing has
    ever been answered, and later with `ServerLost`. Every try takes its share of `budget`, unless the endpoint could not
    be reached.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None,
        read_answer: Callable[[bytes], Answer],  # raises `BadAnswer` for rubbish
        budget: Budget,
        max_in_flight: int,
        max_retries: int,
        retry_delay: float,
        timeout: float,
    ) -> None:
        super().__init__(base_url, key, max_in_flight, timeout=timeout, max_bytes=_LARGEST_ANSWER)
        # Failed tries by kind. All kinds from the start: its size must not change while another thread reads it.
        self.failures = Counter(dict.fromkeys(FAILURES, 0))
        self.answered = 0  # requests that were answered well
        self.last_problem = ""
        self._read_answer = read_answer
        self._budget = budget
        self._max_retries = max_retries
        self._retry_delay = retry_delay
        self._gone = self._slow = False
        self._probe: asyncio.Task[None] | None = None
        self._timeouts = 0  # in a row

    def post(self, ticket: int, path: str, body: Mapping[str, Any]) -> None:
        """Send a request, unless the budget is spent."""
        if self._budget.spent:
            self.give(ticket, self._lost(f"the budget is spent: {self._budget}"))
        else:
            super().post(ticket, path, body)

    async def answer(self, call: Call) -> Any:
        """Return an `Answer`, or an exception. It has no traceback, which might hold the key."""
        if self._gone and self._slow:
            if self._probe is None or self._probe.done():
                self._probe = asyncio.create_task(self._try_again(call))
            return self._lost(self.last_problem)
        # Drawn from the request, whose seed is its own: the same in every run, whatever else is under way.
        jitter = random.Random(call.body)
        delay, answered = self._retry_delay, self.answered
        for left in range(self._max_retries, -1, -1):
            try:
                return await self._try(call)
            except _Spent:
                return self._lost(f"the budget is spent: {self._budget}")
            except _Failure as error:
                failure = error
            # One request alone may be at fault; where nothing else was answered meanwhile, it is the endpoint.
            silent = self.answered == answered
            if failure.kind == "timed_out":
                self._timeouts += silent
                self._gone |= self._timeouts > self._max_retries
                break
            if failure.kind == "refused":
                break
            self._gone |= silent and left == 0
            if left == 0 or self._gone:
                break
            self.retries += 1
            await self.wait(max(delay * jitter.uniform(0.5, 1.0), min(failure.retry_after, _LONGEST_RETRY_AFTER)))
            delay = min(2 * delay, _LONGEST_DELAY)
        if failure.kind == "refused" and not self.answered:
            return BadAnswer(f"{self.base_url}{call.path} refused a request with {failure}")
        return self._lost(str(failure))

    async def _try_again(self, call: Call) -> None:
        """Find out whether an endpoint that is gone answers again. No game waits for this."""
        with suppress(_Failure, _Spent):  # a failure is counted, and a later request is tried
            await self._try(call)

    async def wait(self, seconds: float) -> None:
        """Wait before the next try."""
        await asyncio.sleep(seconds)

    def _lost(self, problem: str) -> ServerLost:
        self.last_problem = problem
        return ServerLost(f"No reply could be had from {self.base_url}: {problem}")

    async def _try(self, call: Call) -> Answer:
        """Send a request once, within the budget."""
        began = time.monotonic()
        try:
            answer = await self._ask(call)
        except _Failure as failure:
            self.failures[failure.kind] += 1
            self._slow = time.monotonic() - began >= min(_SLOW, self.timeout / 4)
            raise
        self.answered += 1
        self._gone, self._timeouts = False, 0
        return answer

    async def _ask(self, call: Call) -> Answer:
        assert call.body is not None
        body = json.loads(call.body)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
        # A token is at least a byte, and escapes and field names make up for what a chat template adds.
        most = len(call.body) + limit
        if not await self._budget.reserve(most):
            raise _Spent
        prompt = len(call.body) // _BYTES_PER_TOKEN
        used = prompt + limit  # where there is no answer: as if all of it had been written
        try:
            received = await self.exchange(call)
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
        except (OSError, httpx2.HTTPError) as error:
            kind = "timed_out" if isinstance(error, TimeoutError) else "hung_up"
            raise _Failure(kind, self.reason(error)) from None
        except BadAnswer as error:
            raise _Failure("rubbish", str(error)) from None
        finally:
            self._budget.settle(most, used, call.sent)
        raise self._refusal(received)

    def sending(self, call: Call) -> None:
        """Count a request, the body of which is about to be sent."""
        super().sending(call)
        self._budget.sent()

    def _refusal(self, received: Received) -> _Failure:
        status = received.status
        problem = f"HTTP {status}: {self.message(received.content)}"
        if status == 429:
            return _Failure("too_many_requests", problem, received.retry_after)
        if status >= 500 or status in _PASSING:
            return _Failure("server_errors", problem, received.retry_after)
        return _Failure("refused" if status >= 300 else "rubbish", problem)
