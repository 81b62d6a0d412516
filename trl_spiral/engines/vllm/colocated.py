"""
Generation with a vLLM engine in this process, driven request by request.

vLLM's own `generate` takes a list of prompts and returns when all of them are done, so every turn of a hundred games
would wait for the longest reply. Here requests enter as games send them, and replies leave as they are finished.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_spiral.engines.adapters import fingerprint
from trl_spiral.engines.policies import SWITCHES
from trl_spiral.engines.vllm.lora import adapter_of_zeros
from trl_spiral.engines.vllm.sampling import legal_reply, sampling_fields
from trl_spiral.types import POLICY, Reply, Request, Sampling


if TYPE_CHECKING:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest


class VLLMEngine:
    """
    Answers requests through a [`vllm.LLM`] of this process.

    Log-probabilities are those that vLLM reports. With `logprobs_mode="processed_logprobs"`, as TRL sets it, they
    refer to the sampled distribution: after temperature, top-k, top-p, min-p and any constraint to legal moves.

    Args:
        llm ([`vllm.LLM`]):
            The engine. Its prefix cache must have been dropped since its weights last changed.
        version (`int`, defaults to `0`):
            Version of the policy's weights, recorded in every reply.
        options (`Mapping[str, Any]`, *optional*):
            More parameters of [`vllm.SamplingParams`], for every request. A request's own sampling overrides them.
        adapters (`Mapping[str, str | Path | None]`, *optional*):
            Folders of LoRA adapters by policy name; `None` for the engine's own weights without an adapter (the
            default of `POLICY`). All share batches. vLLM decodes `max_loras` adapters at once. Requests of further
            adapters wait for a free slot, into which vLLM reads the adapter again.
    """

    _ids = count()

    def __init__(
        self,
        llm: LLM,
        version: int = 0,
        options: Mapping[str, Any] | None = None,
        adapters: Mapping[str, str | Path | None] | None = None,
    ) -> None:
        self._llm = llm
        self._engine = llm.llm_engine
        self._version = version
        self._options = dict(options or {})
        if isinstance(structure := self._options.get("structured_outputs"), dict):
            self._options["structured_outputs"] = _structured_outputs(**structure)
        self._adapters = _lora_requests({POLICY: None, **(adapters or {})})
        self._tickets: dict[str, int] = {}
        self._requests: dict[int, tuple[str, Request]] = {}
        self._params: dict[Sampling, SamplingParams] = {}
        self._steps = self._running = self._new_tokens = self._prompt_tokens = self._cached_tokens = 0

    def add(self, ticket: int, request: Request) -> None:
        """
        Accept a request.

        Raises:
            ValueError: If this engine does not hold the weights of its policy, or its prompt is empty or leaves no
            room
                for a reply.
        """
        if request.policy not in self._adapters:
            raise ValueError(
                f"A request names the policy {request.policy!r}, and this engine holds {sorted(self._adapters)}. Pass "
                "its adapter."
            )
        longest = self._engine.model_config.max_model_len
        if not 0 < len(request.prompt_ids) < longest:
            raise ValueError(
                f"A prompt of {len(request.prompt_ids)} tokens must have at least one and leave room for a reply in "
                f"the engine's {longest}. Raise `vllm_max_model_length`, or shorten the game's observations."
            )
        # vLLM never forgets a request id while the engine exists, and tickets may be used again.
        name = f"{next(self._ids)}"
        self._tickets[name] = ticket
        self._requests[ticket] = name, request
        self._engine.add_request(
            name,
            {"prompt_token_ids": list(request.prompt_ids)},
            self._sampling_params(request),
            lora_request=self._adapters[request.policy],
        )

    def step(self) -> list[tuple[int, Reply]]:
        """Decode until at least one request is finished."""
        finished: list[tuple[int, Reply]] = []
        while not finished:
            self._steps += 1
            self._running += self._engine.get_num_unfinished_requests()
            for output in self._engine.step():
                ticket = self._tickets.get(output.request_id)
                if ticket is not None and output.finished:
                    finished.append((ticket, self._reply(ticket, output)))
        return finished

    def abort(self, tickets: Sequence[int]) -> None:
        """Drop requests."""
        names = [self._forget(ticket)[0] for ticket in tickets if ticket in self._requests]
        if names:
            self._engine.abort_request(names)

    def metrics(self) -> dict[str, float]:
        """
        Return metrics of the work since the last call.

        `new_tokens`, `running` (mean requests in the engine per decoding step) and `cached_prompt_share` (share of
        prompt tokens found in the prefix cache). With several policies also `weight_switches`, which is 0 for
        adapters.
        """
        metrics = {
            "new_tokens": float(self._new_tokens),
            "running": self._running / max(self._steps, 1),
            "cached_prompt_share": self._cached_tokens / max(self._prompt_tokens, 1),
        }
        if len(self._adapters) > 1:
            metrics[SWITCHES] = 0.0
        self._steps = self._running = self._new_tokens = self._prompt_tokens = self._cached_tokens = 0
        return metrics

    def _forget(self, ticket: int) -> tuple[str, Request]:
        name, request = self._requests.pop(ticket)
        del self._tickets[name]
        return name, request

    def _reply(self, ticket: int, output: Any) -> Reply:
        request = self._forget(ticket)[1]
        completion = output.outputs[0]
        tokens = tuple(completion.token_ids)
        entries = completion.logprobs or []
        if len(entries) != len(tokens) or not tokens or completion.finish_reason not in ("stop", "length"):
            raise RuntimeError(
                f"vLLM answered with {len(tokens)} tokens and {len(entries)} log-probabilities (finish reason "
                f"{completion.finish_reason!r}). It must return at least one token, one log-probability for "
                "each, and the finish reason `stop` or `length`. See vLLM's log."
            )
        self._new_tokens += len(tokens)
        self._prompt_tokens += len(request.prompt_ids)
        self._cached_tokens += output.num_cached_tokens or 0
        return Reply(
            completion_ids=tokens,
            logprobs=tuple(entry[token].logprob for entry, token in zip(entries, tokens, strict=True)),
            finish_reason="length" if completion.finish_reason == "length" else "stop",
            version=self._version if request.policy == POLICY else 0,
        )

    def _sampling_params(self, request: Request) -> SamplingParams:
        """Return vLLM's parameters for a request: a copy, because each request has its own seed."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        if sampling not in self._params:
            self._params[sampling] = SamplingParams(
                **{
                    **self._options,
                    **sampling_fields(sampling),
                    "logprobs": 0,
                    # The player decodes the reply. vLLM does so only to find stop strings.
                    "detokenize": bool(sampling.stop),
                    "output_kind": RequestOutputKind.FINAL_ONLY,
                    "skip_clone": True,  # each request gets its own copy here
                }
            )
        params = copy.copy(self._params[sampling])
        params.seed = request.seed % 2**63
        if request.legal_moves:
            params.structured_outputs = _structured_outputs(regex=legal_reply(request.legal_moves))
        return params


def _structured_outputs(**kwargs: Any) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    return StructuredOutputsParams(**kwargs)


def _lora_requests(adapters: Mapping[str, str | Path | None]) -> dict[str, LoRARequest | None]:
    """Return vLLM's descriptions of adapters, by policy name."""
    folders = [folder for folder in adapters.values() if folder is not None]
    none = lora_request("zeros", adapter_of_zeros(folders[0])) if folders and _is_on_cpu() else None
    return {name: none if folder is None else lora_request(name, folder) for name, folder in adapters.items()}


def _is_on_cpu() -> bool:
    """Return whether rows without an adapter need one of zeros, because vLLM 0.31 may give them the last slot's."""
    from vllm.platforms import current_platform

    on_cpu: bool = current_platform.is_cpu()
    return on_cpu


def lora_request(policy: str, folder: str | Path) -> LoRARequest:
    """Return vLLM's description of an adapter. Equal folders get equal numbers and names, by which vLLM caches."""
    return _lora_request(f"{policy}-{fingerprint(folder)}", str(folder))


@cache
def _lora_request(name: str, folder: str) -> LoRARequest:
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, next(_lora_numbers), folder)


_lora_numbers = count(1)


def load_weights(llm: LLM, folder: str | Path) -> None:
    """
    Load whole weights into a vLLM engine of this process, and drop what was computed with the old ones.

    Args:
        llm ([`vllm.LLM`]):
            The engine, without requests in flight.
        folder (`str` or `Path`):
            Folder that `save_pretrained` wrote.

    Raises:
        ValueError: If the names or shapes of the weights differ from the model's.
        RuntimeError: If vLLM does not drop its prefix cache.
    """
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    problem = ""
    try:
        loaded = model.load_weights(_tensors(folder))
        if missing := {name for name, _ in model.named_parameters()} - loaded:
            problem = f"`{min(missing)}` is missing"
    except (KeyError, ValueError, RuntimeError, AssertionError) as error:  # each of vLLM's loaders raises another
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise ValueError(
            f"The weights in {folder} do not fit the model that vLLM runs ({problem}). Take the snapshot out of the "
            "pool."
        )
    if not llm.reset_prefix_cache():
        raise RuntimeError(
            "vLLM declined to drop its prefix cache after its weights had changed, as it does while requests are in "
            "flight. Do not use the engine for anything else during training."
        )


def _tensors(folder: str | Path) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a folder one at a time, by name."""
    from safetensors import safe_open

    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                yield name, opened.get_tensor(name)
