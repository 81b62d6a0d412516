"""Retries within a budget, for requests to an endpoint that costs money."""

from __future__ import annotations

import asyncio
import json
import random
import time
from asyncio import sleep
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import httpx2

from trl_spiral.engines.http.budget import Budget
from trl_spiral.engines.http.client import BadAnswer, Client, Received, ServerLost
from trl_spiral.types import Reply


FAILURES = {
    "too_many_requests": "HTTP 429",
    "server_errors": "HTTP 5xx",
    "hung_up": "hung up",
    "timed_out": "timed out",
    "rubbish": "rubbish",
    "refused": "refused",
}
"""Kinds of failed attempts: name of the metric, and words for it."""

_TEMPORARY = {408, 425}  # "request timeout" and "too early", like 429 and all of 5xx
_LONGEST_DELAY = 16.0  # seconds
_LONGEST_RETRY_AFTER = 60.0  # seconds; providers count requests by the minute
_SLOW = 10.0  # seconds; games do not wait for an endpoint that is gone and fails this slowly
# English has about four characters per token. https://help.openai.com/en/articles/4936856
_BYTES_PER_TOKEN = 4


class CountedReply(NamedTuple):
    """A reply, and the tokens that the endpoint has counted, if it reports them."""

    reply: Reply
    prompt_tokens: int | None
    new_tokens: int | None


class _Failure(Exception):
    """A failed attempt. Its kind is one of `FAILURES`, or `"spent"` for an attempt that the budget did not cover."""

    def __init__(self, kind: str, problem: str, retry_after: float = 0.0) -> None:
        super().__init__(problem)
        self.kind = kind
        self.retry_after = retry_after


class BudgetedRetries:
    """
    Retries at an endpoint that costs money and may fail in any way.

    Failures that may be temporary are retried, including rubbish: after `retry_delay` seconds, then twice that, and so
    on up to 16 s. Each delay is shortened by up to a half, so that requests that failed together do not return
    together. A longer `Retry-After` of the endpoint counts, up to 60 s. If the last attempt fails, the answer is
    `ServerLost`. A request that timed out is not retried: it has taken long enough, and may have been charged.

    An endpoint is gone if nothing was answered meanwhile and a request has failed on its last attempt, or more than
    `max_retries` requests in a row have timed out. Until it answers again, requests are tried once. If even that is
    slow (10 s or a quarter of the timeout), they are lost at once, and one at a time is tried in the background.

    A refusal, which a retry cannot help (a wrong key, an unknown model), is a `BadAnswer` before the first good
    answer, and a `ServerLost` later. Every attempt takes its share of `budget`, unless the endpoint could not be
    reached.

    Args:
        read (`Callable[[bytes], CountedReply]`):
            Reads an answer. Raises `BadAnswer` for rubbish.

    Attributes:
        failures (`Counter[str]`):
            Failed attempts by kind.
        answered (`int`):
            Requests with a good answer.
        last_problem (`str`):
            Reason of the latest lost reply.
    """

    def __init__(
        self,
        client: Client,
        read: Callable[[bytes], CountedReply],
        budget: Budget,
        max_retries: int,
        retry_delay: float,
    ) -> None:
        # All kinds from the start: the size must not change while another thread reads it.
        self.failures = Counter(dict.fromkeys(FAILURES, 0))
        self.answered = 0
        self.last_problem = ""
        self._client, self._read, self._budget = client, read, budget
        self._max_retries, self._retry_delay = max_retries, retry_delay
        self._gone = self._slow = False
        self._probe: asyncio.Task[None] | None = None
        self._timeouts = 0  # in a row

    async def ask(self, path: str, body: bytes) -> CountedReply | Exception:
        """Return an answer, or an exception without a traceback, which might contain the key."""
        if self._budget.spent:
            return self._lost(self._spent())
        async with self._client.slots:
            if self._gone and self._slow:
                if self._probe is None or self._probe.done():
                    self._probe = asyncio.create_task(self._check_again(path, body))
                return self._lost(self.last_problem)
            try:
                return await self._insist(path, body)
            except _Failure as failure:
                if failure.kind == "refused" and not self.answered:
                    return BadAnswer(f"{self._client.base_url}{path} refused a request with {failure}")
                return self._lost(str(failure))

    def _lost(self, problem: str) -> ServerLost:
        self.last_problem = problem
        return ServerLost(f"No reply could be had from {self._client.base_url}: {problem}")

    def _spent(self) -> str:
        return f"the budget is spent: {self._budget}"

    async def _insist(self, path: str, body: bytes) -> CountedReply:
        """Try a request up to its last retry, and raise the failure of the last attempt."""
        # Seeded by the request, so that delays are the same in every run, whatever else is in flight.
        jitter = random.Random(body)
        delay, answered, left = self._retry_delay, self.answered, self._max_retries
        while True:
            try:
                return await self._try(path, body)
            except _Failure as failure:
                # If other requests were answered meanwhile, this request may be at fault. If not, the endpoint is.
                silent = self.answered == answered
                if failure.kind == "timed_out":
                    self._timeouts += silent
                    self._gone |= self._timeouts > self._max_retries
                elif failure.kind in FAILURES and failure.kind != "refused":
                    self._gone |= silent and left == 0
                if failure.kind in ("timed_out", "refused", "spent") or left == 0 or self._gone:
                    raise
                retry_after = min(failure.retry_after, _LONGEST_RETRY_AFTER)
            left -= 1
            self._client.retries += 1
            await sleep(max(delay * jitter.uniform(0.5, 1.0), retry_after))
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _check_again(self, path: str, body: bytes) -> None:
        """Find out whether an endpoint that is gone answers again. No game waits for this."""
        with suppress(_Failure):  # it is counted, and a later request is tried
            await self._try(path, body)

    async def _try(self, path: str, body: bytes) -> CountedReply:
        """Send a request once, and record the result."""
        began = time.monotonic()
        try:
            answer = await self._send(path, body)
        except _Failure as failure:
            if failure.kind in FAILURES:
                self.failures[failure.kind] += 1
                self._slow = time.monotonic() - began >= min(_SLOW, self._client.timeout / 4)
            raise
        self.answered += 1
        self._gone, self._timeouts = False, 0
        return answer

    async def _send(self, path: str, body: bytes) -> CountedReply:
        """Send a request once, within the budget."""
        sent = False

        def sending() -> None:
            nonlocal sent
            sent = True
            self._budget.sent()

        fields = json.loads(body)
        limit = fields.get("max_completion_tokens") or fields.get("max_tokens") or 0
        # A token is at least one byte. Escapes and field names make up for the tokens of a chat template.
        most = len(body) + limit
        if not await self._budget.reserve(most):
            raise _Failure("spent", self._spent())
        prompt = len(body) // _BYTES_PER_TOKEN
        used = prompt + limit  # without an answer, assume that the full completion was generated
        try:
            received = await self._client.exchange(path, body, sending)
            if received.status >= 400:
                used = 0
            if received.status != 200:
                raise self._failure_of(received)
            answer = self._read(received.content)
            prompt = prompt if answer.prompt_tokens is None else answer.prompt_tokens
            new = answer.new_tokens
            if new is None:
                new = len(answer.reply.text.encode()) // _BYTES_PER_TOKEN
            used = prompt + new
            return answer._replace(prompt_tokens=prompt, new_tokens=new)
        except (OSError, httpx2.HTTPError) as error:
            kind = "timed_out" if isinstance(error, TimeoutError) else "hung_up"
            raise _Failure(kind, self._client.reason(error)) from None
        except BadAnswer as error:
            raise _Failure("rubbish", str(error)) from None
        finally:
            self._budget.settle(most, used, sent)

    def _failure_of(self, received: Received) -> _Failure:
        status, problem = received.status, f"HTTP {received.status}: {self._client.message(received.content)}"
        if status == 429:
            return _Failure("too_many_requests", problem, received.retry_after)
        if status >= 500 or status in _TEMPORARY:
            return _Failure("server_errors", problem, received.retry_after)
        return _Failure("refused" if status >= 300 else "rubbish", problem)
