"""
Generation by a vLLM server, with token ids in both directions.

The server gets every request at once and forms batches itself. A retry is safe: a request carries its seed, and only
one answer is used.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import httpx2

from trl_spiral.engines.http.client import BadAnswer, Client, ServerLost
from trl_spiral.engines.http.engine import HTTPEngine
from trl_spiral.engines.policies import SWITCHES
from trl_spiral.engines.vllm.sampling import legal_reply, sampling_fields
from trl_spiral.selfplay.referee import WeightsLost
from trl_spiral.types import POLICY, Reply, Request


# Too many requests, an error inside the server, and errors of a proxy whose server is not up.
_TEMPORARY = {429, 500, 502, 503, 504}
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 2.0  # seconds before a retry; doubled from retry to retry
# vLLM's value for minus infinity.
# https://github.com/vllm-project/vllm/blob/v0.31.0/vllm/entrypoints/openai/completion/serving.py#L701
_MINUS_INFINITY = -9999.0
_ROUNDING = 1e-4  # a log-probability of 0, computed in a narrow float type, may be this much above it


class ServerEngine(HTTPEngine):
    """
    Answers requests through a vLLM server, `vllm serve`.

    A failed connection, a timeout and the statuses 429, 500, 502, 503 and 504 are retried: after 0.2 s, then 0.4 s,
    and so on up to every 2 s. The server is lost when a request has failed for `patience` seconds, and no other was
    answered meanwhile. Until it answers again, later requests are tried once.

    Args:
        base_url (`str`):
            Address of the server, without `/v1`.
        model (`str`, *optional*):
            Name of the model, or of an adapter, on the server. Defaults to the first one that the server lists.
        version (`int`, defaults to `0`):
            Version of the weights on the server, recorded in every reply.
        extra (`Mapping[str, Any]`, *optional*):
            More fields of every request's body, such as TRL's `generation_kwargs`. They override ours.
        max_in_flight (`int`, defaults to `256`):
            Most requests at the server at once.
        patience (`float`, defaults to `30.0`):
            Seconds without any success, from the first failure on, after which the server is lost.
        timeout (`float`, defaults to `600.0`):
            Longest wait in seconds for one reply, from connecting to its last byte.

    Attributes:
        version (`int`):
            May be changed while no request is in flight, like all attributes.
        boot (`str`, *optional*):
            `boot_id()` when the weights were sent. An answer from any other start of the server raises `WeightsLost`.
            By default, restarts are not detected.
        adapters (`dict[str, str]`):
            The server's names of its models and adapters, by policy name. An entry for `POLICY` replaces `model`.
            Other policies are refused.
    """

    _path = "/v1/completions"

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        version: int = 0,
        extra: Mapping[str, Any] | None = None,
        max_in_flight: int = 256,
        patience: float = 30.0,
        timeout: float = 600.0,
    ) -> None:
        super().__init__(Client(base_url, max_in_flight=max_in_flight, timeout=timeout))
        self.version = version
        self.boot: str | None = None
        self.adapters: dict[str, str] = {}
        self._model = model
        self._extra = dict(extra or {})
        self._patience = patience
        self._lost = False
        self._last_answer = -math.inf  # on the monotonic clock
        self._checked_connections = 0

    def metrics(self) -> dict[str, float]:
        """Return the metrics of any engine over HTTP, and with several policies `weight_switches`: 0 for adapters."""
        return super().metrics() | ({SWITCHES: 0.0} if self.adapters.keys() - {POLICY} else {})

    def boot_id(self) -> str:
        """
        Return a text that differs between two starts of the server.

        It is the start time of the server's process, from `/metrics`. If that is missing, as with several API
        processes, it is the name of the instance, from `/server_info`.

        Raises:
            BadAnswer: If the server reports neither.
            ServerLost: If it does not answer.
        """
        with suppress(BadAnswer):
            for line in self._get("/metrics").decode().splitlines():
                if line.startswith("process_start_time_seconds"):
                    return line.rsplit(maxsplit=1)[-1]
        with suppress(BadAnswer, ValueError, KeyError, TypeError):
            info = json.loads(self._get("/server_info?config_format=json"))
            if instance := info["vllm_config"]["instance_id"]:
                return str(instance)
        raise BadAnswer(
            f"The server at {self.client.base_url} reports neither its start time (`/metrics`) nor the name of its "
            "instance (`/server_info`), so a restart would not be detected. Start vLLM with `VLLM_SERVER_DEV_MODE=1` "
            "and with its statistics on."
        )

    def _get(self, path: str) -> bytes:
        return self.client.submit(lambda: self._fetch(path)).result()

    def _check_boot(self) -> None:
        """Raise `WeightsLost` if the server has restarted. Called before any of the answers taken is used."""
        connections = self.client.connections
        if self.boot is None or connections == self._checked_connections:
            return
        # Asked after the answers have arrived: if the server is still the same now, it was the same before.
        if (found := self.boot_id()) != self.boot:
            raise WeightsLost(
                f"The server at {self.client.base_url} has restarted (boot {found}, expected {self.boot}), so it no "
                "longer holds the weights that were sent. Send them again."
            )
        self._checked_connections = connections

    def _body(self, request: Request) -> dict[str, Any]:
        if request.policy != POLICY and request.policy not in self.adapters:
            held = ", ".join(map(repr, sorted({POLICY, *self.adapters})))
            raise ValueError(
                f"A request names the policy {request.policy!r}, and the server at {self.client.base_url} holds "
                f"{held}. Route it to another engine."
            )
        if not request.prompt_ids:
            raise ValueError("A request has an empty prompt, and a vLLM server needs token ids. Check the player.")
        model = self.adapters.get(request.policy)
        if model is None:
            model = self._model = self._model or self._first_model()
        body = {
            "model": model,
            "prompt": list(request.prompt_ids),
            **sampling_fields(request.sampling),
            "seed": request.seed % 2**63,
            "logprobs": 0,  # of the sampled token only
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,  # saves the server from decoding each token
        }
        if request.legal_moves:
            body["structured_outputs"] = {"regex": legal_reply(request.legal_moves)}
        return body | self._extra

    def _first_model(self) -> str:
        with suppress(ValueError, KeyError, TypeError, IndexError):
            if isinstance(name := json.loads(self._get("/v1/models"))["data"][0]["id"], str):
                return name
        raise BadAnswer(f"{self.client.base_url}/v1/models lists no model. Look whether it is a vLLM server.")

    async def _answer(self, body: bytes) -> Any:
        async with self.client.slots:
            content = await self._fetch(self._path, body)
        try:
            return json.loads(content)
        except ValueError:
            raise BadAnswer(
                f"{self.client.base_url}{self._path} answered with invalid JSON: {self.client.message(content)!r}. "
                "Look whether the address is that of an OpenAI-compatible server."
            ) from None

    async def _fetch(self, path: str, body: bytes | None = None) -> bytes:
        """Return the content at a path, with retries until patience ends."""
        client, delay, failing_since = self.client, _FIRST_DELAY, math.inf
        while True:
            try:
                status, content, _ = await client.exchange(path, body)
                problem = f"HTTP {status}: {client.message(content)}"
            except (OSError, httpx2.HTTPError) as error:
                status, content, problem = None, b"", client.reason(error)
            now = time.monotonic()
            if status is not None and status not in _TEMPORARY:
                self._lost, self._last_answer = False, now
                break
            failing_since = min(failing_since, now)
            if self._lost or now - max(failing_since, self._last_answer) >= self._patience:
                self._lost = True
                raise ServerLost(
                    f"The server at {client.base_url} has answered nothing for {self._patience:g} seconds (last: "
                    f"{problem}). Look whether it runs and start it again, or be more patient."
                )
            client.retries += 1
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)
        if status != 200:
            raise BadAnswer(f"{client.base_url}{path} refused a request with {problem}")
        return content

    def _reply(self, request: Request, answer: Any) -> Reply:
        self._check_boot()
        if isinstance(answer, Exception):
            raise answer
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
                "Remove any proxy that rewrites prompts, and leave `truncate_prompt_tokens` out of the extra fields.",
            )
        reason = choice.get("finish_reason")
        if reason not in ("stop", "length"):
            raise self.bad_answer(
                f"with the finish reason {reason!r}", 'Only "stop" and "length" end a reply; see its log.'
            )
        self._new_tokens += len(ids)
        version = self.version if request.policy == POLICY else 0
        return Reply(tuple(ids), tuple(map(float, logprobs)), reason, version)
