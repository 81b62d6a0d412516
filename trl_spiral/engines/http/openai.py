"""Generation by an OpenAI-compatible endpoint, with messages in and text out."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from trl_spiral.engines.http.budget import Budget
from trl_spiral.engines.http.client import Client, ServerLost
from trl_spiral.engines.http.engine import HTTPEngine
from trl_spiral.engines.http.retrying import FAILURES, BudgetedRetries, CountedReply
from trl_spiral.text.control import escape_control_text
from trl_spiral.text.printable import get_logger
from trl_spiral.types import Reply, Request


logger = get_logger(__name__)

BUDGETS = ("max_requests", "max_tokens")
"""Options of an endpoint that limit its total use."""

# A reply of 100,000 tokens with its reasoning has about 1 MB.
_LARGEST_ANSWER = 4 * 2**20  # bytes
_CHECK_ENDPOINT = "Look whether it is an OpenAI-compatible endpoint."


@dataclass(frozen=True)
class EndpointOptions:
    """
    Options of an [`EndpointEngine`].

    Args:
        api_key_env (`str`, *optional*, defaults to `"OPENAI_API_KEY"`):
            Environment variable with the key. Empty or `None` for an endpoint without keys.
        extra (`Mapping[str, Any]`, *optional*):
            More fields of every request's body. They override ours.
        max_in_flight (`int`, defaults to `32`):
            Most requests at the endpoint at once.
        max_requests (`int`, *optional*):
            Total requests, including retries. No limit by default.
        max_tokens (`int`, *optional*):
            Total tokens, including prompts. No limit by default.
        max_retries (`int`, defaults to `6`):
            Most retries of a request. An endpoint is gone when a request has failed on its last attempt, or when more
            requests than this have timed out in a row. Until it answers again, requests are tried at most once.
        retry_delay (`float`, defaults to `0.5`):
            Seconds before the first retry, doubled from retry to retry up to 16. Six retries take 16 to 32 seconds.
        timeout (`float`, defaults to `120.0`):
            Longest wait in seconds for one reply, from connecting to its last byte. Later replies are lost.
    """

    api_key_env: str | None = "OPENAI_API_KEY"
    extra: Mapping[str, Any] | None = None
    max_in_flight: int = 32
    max_requests: int | None = None
    max_tokens: int | None = None
    max_retries: int = 6
    retry_delay: float = 0.5
    timeout: float = 120.0


class EndpointEngine(HTTPEngine):
    """
    Answers requests through an OpenAI-compatible endpoint. For opponents: replies without token ids cannot be trained
    on.

    Failures of an endpoint never end a run. Errors, broken connections and rubbish are retried. If that does not help,
    or `timeout` has passed, the reply is `"lost"`, which ends the game without a result. Games against an endpoint
    that is gone are lost without that wait, until it answers again. Only an error that a retry cannot help (a wrong
    key, an unknown model, a refused field) raises, and only before the first good answer.

    The budget belongs to this engine (each rank has its own) for its whole life, and `state_dict` carries it over.
    Every attempt reserves its largest possible cost before it is sent. Tokens count as the endpoint reports them, or
    else four bytes each. An attempt without an answer or an error counts as if the full completion was generated. So
    requests of one process never exceed the budget. Tokens exceed it only by those that the endpoint did not report,
    or charged beyond a request's `max_tokens`. A run that is killed and resumed may exceed it by the use since its
    last checkpoint.

    Args:
        base_url (`str`):
            Address to which `/chat/completions` is added, for example `https://api.openai.com/v1`.
        model (`str`):
            Name of the model.
        options (*optional*):
            Fields of [`EndpointOptions`].

    Raises:
        ValueError: If the environment has no such key, a budget is below 1 or `timeout` is not above 0.
    """

    _path = "/chat/completions"

    def __init__(self, base_url: str, model: str, **options: Any) -> None:
        chosen = EndpointOptions(**options)
        self._budget = Budget(chosen.max_requests, chosen.max_tokens)
        key = _key(chosen.api_key_env) if chosen.api_key_env else None
        client = Client(base_url, key, chosen.max_in_flight, chosen.timeout, _LARGEST_ANSWER)
        self._attempts = BudgetedRetries(client, self._read, self._budget, chosen.max_retries, chosen.retry_delay)
        super().__init__(client)
        self._model = model
        self._extra = dict(chosen.extra or {})
        self._lost = 0
        self._logged_spent = False
        self._counted: Counter[str] = Counter()

    @property
    def spent(self) -> bool:
        """True if the budget is spent. All later requests are lost at once."""
        return self._budget.spent

    def state_dict(self) -> dict[str, Any]:
        """Return the used part of the budget and the number of answered requests."""
        return {**self._budget.state_dict(), "answered": self._attempts.answered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Restore the used part of the budget, so that a resumed run gets no new one.

        A run that is killed loses the count of its use since the checkpoint, which can be spent again.
        """
        self._budget.load_state_dict(state)
        self._attempts.answered = int(state["answered"])
        self._counted = self._counts()

    def poll(self, timeout: float | None = 0.0) -> list[tuple[int, Reply]]:
        """Return the answers that are available, or become available within `timeout` seconds. Raises like `step`."""
        replies = super().poll(timeout)
        self._log_if_spent()
        return replies

    def metrics(self) -> dict[str, float]:
        """
        Return metrics since the last call, and log a line if any reply was lost.

        `requests` (all that were sent), `retries`, `lost` (lost replies, each of which has ended a game), `tokens`
        (including prompts), `new_tokens`, `in_flight`, and failed attempts by kind: `too_many_requests`,
        `server_errors`, `hung_up`, `timed_out`, `rubbish`, `refused`.
        """
        self._log_if_spent()
        common = super().metrics()
        counts = self._counts()
        new, self._counted = counts - self._counted, counts
        lost, self._lost = self._lost, 0
        if lost:
            failed = ", ".join(f"{new[kind]} {words}" for kind, words in FAILURES.items() if new[kind]) or "none"
            logger.warning(
                f"Replies of {self._model} that were lost, each of which has ended a game without a result: {lost}. "
                f"Failed attempts: {failed}. Last: {self._attempts.last_problem}"
            )
        numbers = {kind: float(new[kind]) for kind in ("requests", "tokens", *FAILURES)}
        return common | {"lost": float(lost)} | numbers

    def close(self) -> None:
        """Close all connections, end the thread, and log what has not been logged yet."""
        super().close()
        self.metrics()

    def _log_if_spent(self) -> None:
        if self.spent and not self._logged_spent:
            self._logged_spent = True
            logger.warning(
                f"The budget of {self._model} is spent: {self._budget}. Games against it end without a result "
                "from now on."
            )

    def _counts(self) -> Counter[str]:
        return Counter(requests=self._budget.requests, tokens=self._budget.tokens, **self._attempts.failures)

    def _body(self, request: Request) -> dict[str, Any]:
        if not request.messages or request.legal_moves:
            raise ValueError(
                "An endpoint needs messages and cannot constrain replies to legal moves, and a request has no "
                "messages or lists moves. Let an `EndpointPlayer` ask it."
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
        # Not in OpenAI's API, and an error at some endpoints, so sent only if they change anything.
        less_common = {"top_k": sampling.top_k, "min_p": sampling.min_p, "stop": list(sampling.stop)}
        body |= {name: value for name, value in less_common.items() if value}
        if sampling.repetition_penalty != 1.0:
            body["repetition_penalty"] = sampling.repetition_penalty
        return body | self._extra

    async def _answer(self, body: bytes) -> CountedReply | Exception:
        return await self._attempts.ask(self._path, body)

    def _reply(self, request: Request, answer: Any) -> Reply:
        if isinstance(answer, ServerLost):
            self._lost += 1
            return Reply((), (), "lost")
        if isinstance(answer, Exception):
            raise answer
        self._new_tokens += answer.new_tokens
        reply: Reply = answer.reply
        return reply

    def _read(self, content: bytes) -> CountedReply:
        """
        Return the reply in an answer, and its tokens if they are reported.

        Raises:
            BadAnswer: If there is none.
        """
        try:
            # The key is removed before any part of an answer is shown or stored.
            answer = json.loads(self.client.without_key(json.dumps(json.loads(content))))
        except (ValueError, RecursionError):
            raise self.bad_answer(f"with invalid JSON: {self.client.message(content)!r}", _CHECK_ENDPOINT) from None
        choice = self.only_choice(answer)
        message, reason = choice.get("message"), choice.get("finish_reason")
        text = message.get("content") if isinstance(message, dict) else None
        if text is None and reason in ("length", "content_filter"):
            text = ""  # the limit was reached within the reasoning, or the text was filtered: no move
        if not isinstance(text, str) or reason == "error":
            raise self.bad_answer(f"without a message of text: {json.dumps(choice)[:200]}", _CHECK_ENDPOINT)
        usage = answer.get("usage")
        prompt, new = (
            _count(usage.get(f"{part}_tokens") if isinstance(usage, dict) else None)
            for part in ("prompt", "completion")
        )
        finish: Literal["stop", "length"] = "length" if reason == "length" else "stop"
        # JSON may contain single surrogates, which cannot be written to a file.
        return CountedReply(Reply((), (), finish, text=text.encode(errors="replace").decode()), prompt, new)


def check_endpoint_kwargs(options: Mapping[str, Any]) -> None:
    """Raise `ValueError` if an option of [`EndpointOptions`] is unknown or wrong."""
    known = [field.name for field in fields(EndpointOptions)]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"`endpoint_kwargs` names {unknown[0]!r}; it takes {', '.join(known)}.")
    # This needs no key and sends nothing.
    EndpointEngine("http://localhost", "none", **{**options, "api_key_env": None})


def _count(value: object) -> int | None:
    """Return a number of tokens, or `None` if the value cannot be one."""
    return value if type(value) is int and 0 <= value < 10**9 else None


def _key(variable: str) -> str:
    """
    Return the key in an environment variable.

    Raises:
        ValueError: If there is none, or it is not printable ASCII. The message never shows it.
    """
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ValueError(
            f"The environment variable {variable} must hold the endpoint's key, in printable ASCII. Set it, or use "
            "`api_key_env=None` for an endpoint without keys."
        )
    return key
