"""Replies from any OpenAI-compatible endpoint, messages in and text out."""

from __future__ import annotations

import inspect
import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from trl_spiral.engines.http.budget import Budget
from trl_spiral.engines.http.client import ServerLost
from trl_spiral.engines.http.retrying import FAILURES, Answer, RetryingTransport
from trl_spiral.engines.http.vllm_server import HTTPEngine
from trl_spiral.text.control import escape_control_text
from trl_spiral.text.printable import get_logger
from trl_spiral.types import Reply, Request


logger = get_logger(__name__)

BUDGETS = ("max_requests", "max_tokens")
"""Arguments of an engine that limit what it may ask altogether."""

_LOOK = "Look whether it is an OpenAI-compatible endpoint."


class EndpointEngine(HTTPEngine):
    """
    Answers requests through any OpenAI-compatible endpoint, messages in and text out. For opponents: without token ids,
    nothing can be learned from its replies.

    What an endpoint does wrong never ends a run. Errors, hang-ups and rubbish are tried again, and where that does not
    help, or `timeout` has passed, the reply is `"lost"`, which ends the game without a result. Until an endpoint that is
    gone answers again, its games are lost without such a wait. Only what waiting cannot help (a wrong key, an
    unknown model, a field that is refused) raises, and only while the endpoint has never answered anything.

    A budget is this engine's own (each rank has one), for its whole life, and goes on with `state_dict`. Every try takes its
    share before it is sent: the most that it may cost until that is known. Tokens count as the endpoint reports them, or
    else four bytes each; a try that brought neither an answer nor an error counts as if it had been answered at full
    length. So the requests of one process never exceed their budget, and its tokens only by what the endpoint did not
    tell, or wrote and charged beyond a request's `max_tokens`. A run that is killed and resumed may exceed it by what was
    spent after its last checkpoint.

    Args:
        base_url (`str`):
            What `/chat/completions` is added to, for example `https://api.openai.com/v1`.
        model (`str`):
            Name of the model.
        api_key_env (`str`, *optional*, defaults to `"OPENAI_API_KEY"`):
            Environment variable that holds the key; empty or `None` for an endpoint that wants none.
        extra (`Mapping[str, Any]`, *optional*):
            More fields of every request's body, which override ours.
        max_in_flight (`int`, defaults to `32`):
            Most requests that the endpoint gets at once.
        max_requests (`int`, *optional*):
            Most requests altogether, retries included.
        max_tokens (`int`, *optional*):
            Most tokens altogether, prompts included.
        max_retries (`int`, defaults to `6`):
            How often a request is tried again. Until an endpoint that is gone answers again, requests are tried at most
            once. It is gone when a request has failed to the last, or when more requests than this have timed out in a
            row.
        retry_delay (`float`, defaults to `0.5`):
            Seconds before the first retry, doubled from retry to retry up to 16. Six of them take 16 to 32 seconds.
        timeout (`float`, defaults to `120.0`):
            Longest wait, in seconds, for one reply, from connecting to its last byte. One that has not come by then is
            lost.

    Raises:
        ValueError: If the environment holds no such key, a budget is below 1 or `timeout` is not above 0.
    """

    _path = "/chat/completions"

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key_env: str | None = "OPENAI_API_KEY",
        extra: Mapping[str, Any] | None = None,
        max_in_flight: int = 32,
        max_requests: int | None = None,
        max_tokens: int | None = None,
        max_retries: int = 6,
        retry_delay: float = 0.5,
        timeout: float = 120.0,
    ) -> None:
        self._budget = Budget(max_requests, max_tokens)
        key = _key(api_key_env) if api_key_env else None
        self._line = RetryingTransport(
            base_url, key, self._read, self._budget, max_in_flight, max_retries, retry_delay, timeout
        )
        super().__init__(self._line)
        self._model = model
        self._extra = dict(extra or {})
        self._lost = 0
        self._told_spent = False
        self._told: Counter[str] = Counter()

    @property
    def spent(self) -> bool:
        """Whether the budget is spent. Everything that is asked from then on is lost at once."""
        return self._budget.spent

    def state_dict(self) -> dict[str, Any]:
        """What has been used of the budget, and how many requests were answered."""
        return {**self._budget.state_dict(), "answered": self._line.answered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Goes on from there, so that a resumed run gets no new budget. What was spent after the state was saved, by a run
        that was killed, nobody knows any more, and it can be spent again.
        """
        self._budget.load_state_dict(state)
        self._line.answered = int(state["answered"])
        self._told = self._counts()

    def poll(self, timeout: float | None = 0.0) -> list[tuple[int, Reply]]:
        """What is answered already, or within `timeout` seconds. Raises like `step`."""
        replies = super().poll(timeout)
        self._tell_if_spent()
        return replies

    def metrics(self) -> dict[str, float]:
        """
        Since last asked: `requests` (all that were sent), `retries`, `lost` (replies that could not be had, each of which has
        ended a game), `tokens` (of prompts too), `new_tokens`, `in_flight`, and failed tries by kind: `too_many_requests`,
        `server_errors`, `hung_up`, `timed_out`, `rubbish`, `refused`. Logs a line if any reply was lost.
        """
        self._tell_if_spent()
        common = super().metrics()
        counts = self._counts()
        new, self._told = counts - self._told, counts
        lost, self._lost = self._lost, 0
        if lost:
            failed = ", ".join(f"{new[kind]} {words}" for kind, words in FAILURES.items() if new[kind]) or "none"
            logger.warning(
                "Replies of %s that were lost, each of which has ended a game without a result: %d. Failed tries: %s. "
                "Last: %s",
                self._model,
                lost,
                failed,
                self._line.last_problem,
            )
        numbers = {kind: float(new[kind]) for kind in ("requests", "tokens", *FAILURES)}
        return common | {"lost": float(lost)} | numbers

    def close(self) -> None:
        """Hang up, end the thread, and log what has not been logged yet."""
        super().close()
        self.metrics()

    def _tell_if_spent(self) -> None:
        if self.spent and not self._told_spent:
            self._told_spent = True
            logger.warning(
                "The budget of %s is spent: %s. Games against it end without a result from here on.",
                self._model,
                self._budget,
            )

    def _counts(self) -> Counter[str]:
        return Counter(requests=self._budget.requests, tokens=self._budget.tokens, **self._line.failures)

    def _body(self, request: Request) -> dict[str, Any]:
        if not request.messages or request.legal_moves:
            raise ValueError(
                "An endpoint is asked by messages and cannot be held to legal moves, and a request has no messages or "
                "lists moves. Let an `EndpointPlayer` ask it."
            )
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [
                {**message, "content": escape_control_text(message["content"])} for message in request.messages
            ],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "seed": request.seed % 2**63,
        }
        # Not OpenAI's own fields, and so an error to some endpoints: sent only where they change something.
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.min_p:
            body["min_p"] = sampling.min_p
        if sampling.repetition_penalty != 1.0:
            body["repetition_penalty"] = sampling.repetition_penalty
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        return body | self._extra

    def _reply(self, request: Request, answer: Any) -> Reply:
        if isinstance(answer, ServerLost):
            self._lost += 1
            return Reply((), (), "lost")
        if isinstance(answer, Exception):
            raise answer
        self._new_tokens += answer.new_tokens
        return answer.reply

    def _read(self, content: bytes) -> Answer:
        """
        The reply that an answer holds, and its tokens where they are reported.

        Raises:
            BadAnswer: If it holds none.
        """
        try:
            # The key is struck out before anything of an answer is shown or kept.
            answer = json.loads(self._line.shown(json.dumps(json.loads(content))))
        except (ValueError, RecursionError):
            raise self.bad_answer(f"with what is no JSON: {self._line.message(content)!r}", _LOOK) from None
        choice = self.only_choice(answer)
        message, reason = choice.get("message"), choice.get("finish_reason")
        text = message.get("content") if isinstance(message, dict) else None
        if text is None and reason in ("length", "content_filter"):
            text = ""  # the limit was reached while it was still reasoning, or nothing was let through: no move
        if not isinstance(text, str) or reason == "error":
            raise self.bad_answer(f"without a message of text: {json.dumps(choice)[:200]}", _LOOK)
        usage = answer.get("usage")
        prompt, new = (
            _count(usage.get(f"{part}_tokens") if isinstance(usage, dict) else None)
            for part in ("prompt", "completion")
        )
        finish: Literal["stop", "length"] = "length" if reason == "length" else "stop"
        # JSON may hold halves of a character, which no file could be written with.
        return Answer(Reply((), (), finish, text=text.encode(errors="replace").decode()), prompt, new)


def check_endpoint_kwargs(options: Mapping[str, Any]) -> None:
    """Raise `ValueError` if arguments for an [`EndpointEngine`], other than its address and model, are wrong."""
    known = list(inspect.signature(EndpointEngine).parameters)[2:]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"`endpoint_kwargs` names {unknown[0]!r}; it takes {', '.join(known)}.")
    # No key is needed for this, and nothing is asked.
    EndpointEngine("http://localhost", "none", **{**options, "api_key_env": None})


def _count(value: object) -> int | None:
    """A number of tokens, if it can be one."""
    return value if type(value) is int and 0 <= value < 10**9 else None


def _key(variable: str) -> str:
    """
    The key in an environment variable.

    Raises:
        ValueError: If there is none, or what is there cannot be one. The message never shows it.
    """
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ValueError(
            f"The environment variable {variable} must hold the endpoint's key, in printable ASCII. Set it, or use "
            "`api_key_env=None` for an endpoint that wants none."
        )
    return key
