"""
Generation by a vLLM server that takes token ids, and what it shares with any other model behind an address.

Every request goes out by itself as soon as it is asked, so the server sees all of them at once and batches as it likes.
Sending one twice is safe: it carries its seed, and only one answer is taken.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from trl_spiral.engines.http.client import BadAnswer, Transport
from trl_spiral.engines.http.retrying import PatientTransport
from trl_spiral.engines.policies import SWITCHES
from trl_spiral.engines.vllm.sampling import legal_reply, sampling_fields
from trl_spiral.selfplay.referee import WeightsLost
from trl_spiral.types import POLICY, Reply, Request


# vLLM writes an infinite log-probability as this. https://github.com/vllm-project/vllm/blob/v0.31.0/vllm/entrypoints/openai/completion/serving.py#L701
_MINUS_INFINITY = -9999.0
_ROUNDING = 1e-4  # a log-probability of 0, taken in a narrow float type, may come out this much above it


class HTTPEngine(ABC):
    """The verbs of an engine, over a [`Transport`]."""

    _path: str

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._requests: dict[int, Request] = {}
        self._asked = self._retries = self._new_tokens = self._takes = self._under_way = 0

    def add(self, ticket: int, request: Request) -> None:
        """
        Sends a request.

        Raises:
            ValueError: If the server cannot answer it.
        """
        body = self._body(request)
        self._requests[ticket] = request
        self._asked += 1
        self._transport.post(ticket, self._path, body)

    def step(self) -> list[tuple[int, Reply]]:
        """
        Waits until at least one request is answered.

        Raises:
            BadAnswer: If the server refuses a request or answers it wrongly.
            ServerLost: If it does not answer.
            WeightsLost: If it was started again, and which weights answer matters.
        """
        return self.poll(timeout=None)

    def poll(self, timeout: float | None = 0.0) -> list[tuple[int, Reply]]:
        """What is answered already, or within `timeout` seconds. Raises like `step`."""
        under_way = len(self._transport)
        answers = self._transport.take(timeout)
        if answers:
            self._takes += 1
            self._under_way += under_way
        return [(ticket, self._reply(self._requests.pop(ticket), answer)) for ticket, answer in answers]

    def abort(self, tickets: Sequence[int]) -> None:
        """Forgets requests and tells the server so."""
        for ticket in tickets:
            self._requests.pop(ticket, None)
        self._transport.cancel(tickets)

    def metrics(self) -> dict[str, float]:
        """
        Since last asked: `requests`, `retries`, `new_tokens` and `in_flight` (mean requests under way whenever answers
        were taken).
        """
        retries = self._transport.retries
        metrics = {
            "requests": float(self._asked),
            "retries": float(retries - self._retries),
            "new_tokens": float(self._new_tokens),
            "in_flight": self._under_way / max(self._takes, 1),
        }
        self._retries = retries
        self._asked = self._new_tokens = self._takes = self._under_way = 0
        return metrics

    def close(self) -> None:
        """Hang up and end the thread."""
        self._requests.clear()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def _body(self, request: Request) -> dict[str, Any]:
        """What to post for a request."""

    @abstractmethod
    def _reply(self, request: Request, answer: Any) -> Reply:
        """The reply that an answer holds: JSON, or an exception."""

    def bad_answer(self, problem: str, way_out: str) -> BadAnswer:
        """The error that a wrong answer amounts to."""
        return BadAnswer(f"{self._transport.base_url}{self._path} answered {problem}. {way_out}")

    def only_choice(self, answer: Any) -> dict[str, Any]:
        """
        The one choice of an answer.

        Raises:
            BadAnswer: If there is not exactly one, or whatever came in its place.
        """
        if isinstance(answer, Exception):
            raise answer
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self.bad_answer(
                f"without exactly one choice: {json.dumps(answer)[:200]}",
                "It must be OpenAI-compatible; and leave `n` and `stream` out of the extra fields.",
            )
        choice: dict[str, Any] = choices[0]
        return choice


class ServerEngine(HTTPEngine):
    """
    Answers requests through a vLLM server, `vllm serve`, token ids in and token ids out.

    Args:
        base_url (`str`):
            Where the server is, without `/v1`.
        model (`str`, *optional*):
            Name of the model, or of an adapter, on the server; the first one that it lists by default.
        version (`int`, defaults to `0`):
            Version of the weights that the server holds, recorded in every reply. May be set anew while nothing is under
            way.
        extra (`Mapping[str, Any]`, *optional*):
            More fields of every request's body, which override ours: TRL's `generation_kwargs`.
        boot (`str`, *optional*):
            What `boot_id()` told when the weights were sent. From then on, whoever else answers at this address raises
            `WeightsLost`; may be set anew once it has the weights. Without it, nobody looks.
        policy (`str`, defaults to `POLICY`):
            Whose weights the server holds. Requests to another policy are refused.
        adapters (`Mapping[str, str]`, *optional*):
            What the server calls the adapters that it holds, by policy name; that of `policy` is asked in place of
            `model`. May be set anew while nothing is under way.
        max_in_flight (`int`, defaults to `256`):
            Most requests that the server gets at once.
        patience (`float`, defaults to `30.0`):
            Seconds without any success, from a first failure on, after which the server is given up.
        timeout (`float`, defaults to `600.0`):
            Longest wait, in seconds, for one reply, from connecting to its last byte.
    """

    _path = "/v1/completions"

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        version: int = 0,
        extra: Mapping[str, Any] | None = None,
        boot: str | None = None,
        policy: str = POLICY,
        adapters: Mapping[str, str] | None = None,
        max_in_flight: int = 256,
        patience: float = 30.0,
        timeout: float = 600.0,
    ) -> None:
        self._line = PatientTransport(base_url, max_in_flight, patience, timeout)
        super().__init__(self._line)
        self.version = version
        self.boot = boot
        self._checked_dials = 0
        self._model = model
        self._extra = dict(extra or {})
        self._policy = policy
        self.adapters = dict(adapters or {})

    def metrics(self) -> dict[str, float]:
        """As of any engine behind an address; for several policies, also `weight_switches`: none, being side by side."""
        switches = {SWITCHES: 0.0} if {self._policy, *self.adapters} != {self._policy} else {}
        return super().metrics() | switches

    def boot_id(self) -> str:
        """
        Something that differs from one start of the server to the next.

        It is the time at which the server's process started, from `/metrics`; where that is missing, as it is with several
        API processes, the name of the instance from `/server_info`.

        Raises:
            BadAnswer: If the server tells neither.
            ServerLost: If it does not answer.
        """
        try:
            for line in self._line.get("/metrics").decode().splitlines():
                if line.startswith("process_start_time_seconds"):
                    return line.rsplit(maxsplit=1)[-1]
        except BadAnswer:
            pass
        try:
            info = json.loads(self._line.get("/server_info?config_format=json"))
            if instance := info["vllm_config"]["instance_id"]:
                return str(instance)
        except (BadAnswer, ValueError, KeyError, TypeError):
            pass
        raise BadAnswer(
            f"The server at {self._transport.base_url} tells neither when it started (`/metrics`) nor the name of its "
            "instance (`/server_info`), so a new start would go unnoticed. Start vLLM with `VLLM_SERVER_DEV_MODE=1` "
            "and with its statistics on."
        )

    def _check_boot(self) -> None:
        """Called with answers in hand, before any is given out."""
        dials = self._transport.dials
        if self.boot is None or dials == self._checked_dials:
            return
        # Asked after the answers have come: a server that is still the same then was so all the time.
        if (found := self.boot_id()) != self.boot:
            raise WeightsLost(
                f"The server at {self._transport.base_url} was started again (boot {found}, expected {self.boot}), so "
                "it no longer holds the weights that it was sent. Send them again."
            )
        self._checked_dials = dials

    def _body(self, request: Request) -> dict[str, Any]:
        if request.policy != self._policy and request.policy not in self.adapters:
            held = ", ".join(map(repr, sorted({self._policy, *self.adapters})))
            raise ValueError(
                f"A request names the policy {request.policy!r}, and the server at {self._transport.base_url} holds "
                f"{held}. Route it to another engine."
            )
        if not request.prompt_ids:
            raise ValueError(
                "A request has an empty prompt, and a vLLM server is asked by token ids. Check the player."
            )
        model = self.adapters.get(request.policy)
        if model is None:
            model = self._model = self._model or self._first_model()
        body = {
            "model": model,
            "prompt": list(request.prompt_ids),
            **sampling_fields(request.sampling),
            "seed": request.seed % 2**63,
            "logprobs": 0,  # the sampled token's alone
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,  # spares the server turning each into text
        }
        if request.legal_moves:
            body["structured_outputs"] = {"regex": legal_reply(request.legal_moves)}
        return body | self._extra

    def _first_model(self) -> str:
        try:
            name = json.loads(self._line.get("/v1/models"))["data"][0]["id"]
        except (ValueError, KeyError, TypeError, IndexError):
            name = None
        if not isinstance(name, str):
            raise BadAnswer(f"{self._transport.base_url}/v1/models lists no model. Look whether it is a vLLM server.")
        return name

    def _reply(self, request: Request, answer: Any) -> Reply:
        self._check_boot()
        choice = self.only_choice(answer)
        ids, entries = choice.get("token_ids"), choice.get("logprobs")
        logprobs = entries.get("token_logprobs") if isinstance(entries, dict) else None
        if not isinstance(ids, list) or not ids or not all(type(token) is int and token >= 0 for token in ids):
            raise self.bad_answer(
                f"with `token_ids` that are not one or more token ids: {str(ids)[:200]}",
                "Use vLLM 0.31 or a later one.",
            )
        if not isinstance(logprobs, list) or len(logprobs) != len(ids):
            count = len(logprobs) if isinstance(logprobs, list) else "no"
            raise self.bad_answer(
                f"with {len(ids)} tokens and {count} log-probabilities",
                "There must be one for each; leave `logprobs` and `echo` out of the extra fields.",
            )
        for logprob in logprobs:
            number = isinstance(logprob, float | int) and math.isfinite(logprob)
            if not number or not _MINUS_INFINITY < logprob <= _ROUNDING:
                raise self.bad_answer(
                    f"with the log-probability {logprob}",
                    "Those of sampled tokens are finite and at most 0; start it with `--logprobs-mode "
                    "processed_logprobs`.",
                )
        echoed = choice.get("prompt_token_ids")
        if echoed is not None and tuple(echoed) != request.prompt_ids:
            raise self.bad_answer(
                f"another prompt, of {len(echoed)} tokens, than the one of {len(request.prompt_ids)} that was sent",
                "Take whatever rewrites prompts out of between, and `truncate_prompt_tokens` out of the extra fields.",
            )
        reason = choice.get("finish_reason")
        if reason not in ("stop", "length"):
            raise self.bad_answer(
                f"with the finish reason {reason!r}", 'Only "stop" and "length" end a reply; see its log.'
            )
        self._new_tokens += len(ids)
        version = self.version if request.policy == self._policy else 0
        return Reply(tuple(ids), tuple(map(float, logprobs)), reason, version)
