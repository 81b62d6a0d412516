"""Replies from any OpenAI-compatible endpoint, messages in and text out."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Literal

from trl_spiral.engines.http import HTTPEngine
from trl_spiral.engines.transport import ServerLost, Transport
from trl_spiral.types import Reply, Request


logger = logging.getLogger(__name__)


class EndpointEngine(HTTPEngine):
    """
    Answers requests through any OpenAI-compatible endpoint, messages in and text out. For opponents: without token ids,
    nothing can be learned from its replies.

    An endpoint that is gone answers `"lost"`, which ends the game without a result. One that refuses a request (a wrong
    key, an unknown model) raises.

    Args:
        base_url (`str`):
            What `/chat/completions` is added to, for example `https://api.openai.com/v1`.
        model (`str`):
            Name of the model.
        api_key_env (`str`, *optional*, defaults to `"OPENAI_API_KEY"`):
            Environment variable that holds the key; `None` for an endpoint that wants none.
        extra (`Mapping[str, Any]`, *optional*):
            More fields of every request's body, which override ours.
        max_in_flight (`int`, defaults to `32`):
            Most requests that the endpoint gets at once.
        patience (`float`, defaults to `30.0`):
            Seconds without any success, from a first failure on, after which the endpoint counts as gone.
        timeout (`float`, defaults to `600.0`):
            Longest wait, in seconds, for one reply.

    Raises:
        ValueError: If the environment holds no such key.
    """

    _path = "/chat/completions"

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key_env: str | None = "OPENAI_API_KEY",
        extra: Mapping[str, Any] | None = None,
        max_in_flight: int = 32,
        patience: float = 30.0,
        timeout: float = 600.0,
    ) -> None:
        key = _key(api_key_env) if api_key_env is not None else None
        super().__init__(Transport(base_url, key, max_in_flight, patience, timeout))
        self._model = model
        self._extra = dict(extra or {})
        self._warned = False

    def _body(self, request: Request) -> dict[str, Any]:
        if not request.messages or request.legal_moves:
            raise ValueError(
                "An endpoint is asked by messages and cannot be held to legal moves, and a request has no messages or "
                "lists moves. Let an `EndpointPlayer` ask it."
            )
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [dict(message) for message in request.messages],
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
            if not self._warned:
                logger.warning("%s Games against %s end without a result until then.", answer, self._model)
                self._warned = True
            return Reply((), (), "lost")
        choice = self.only_choice(answer)
        self._warned = False
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not isinstance(text, str | None):
            raise self.bad_answer("without a message of text", "Look whether it is an OpenAI-compatible endpoint.")
        usage = answer.get("usage")
        self._new_tokens += (usage.get("completion_tokens") or 0) if isinstance(usage, dict) else 0
        finish: Literal["stop", "length"] = "length" if choice.get("finish_reason") == "length" else "stop"
        return Reply((), (), finish, text=text or "")


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
