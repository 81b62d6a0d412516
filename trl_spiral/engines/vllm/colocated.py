"""
Generation with a vLLM engine in this process, driven request by request.

vLLM's own `generate` takes a list of prompts and returns when the last of them is done, which makes every turn of a
hundred games wait for the longest reply. Here requests go in as games ask, and come out as they are finished.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_spiral.engines.sampling import legal_reply, sampling_fields
from trl_spiral.engines.snapshots import fingerprint
from trl_spiral.engines.swapping import SWITCHES
from trl_spiral.engines.vllm.lora import adapter_of_zeros
from trl_spiral.types import POLICY, Reply, Request, Sampling


if TYPE_CHECKING:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest


class VLLMEngine:
    """
    Answers requests through a [`vllm.LLM`] of this process.

    Log-probabilities are those that vLLM reports. With `logprobs_mode="processed_logprobs"`, as TRL sets it, they are of the
    distribution that was sampled from: temperature applied, and filtered by top-k, top-p, min-p and a constraint to
    legal moves where there are any.

    Args:
        llm ([`vllm.LLM`]):
            The engine. Its prefix cache must have been dropped since its weights last changed.
        version (`int`, defaults to `0`):
            Version of the policy's weights, recorded in every reply.
        options (`Mapping[str, Any]`, *optional*):
            More parameters of [`vllm.SamplingParams`], for every request. A request's own sampling overrides them.
        adapters (`Mapping[str, str | Path | None]`, *optional*):
            Folders of LoRA adapters by policy name, and `None` for the engine's own weights without any, as `POLICY` has
            where it is not named. All share batches. vLLM decodes `max_loras` of them at once: the requests of any more
            wait until a slot is free, and what is waited for is read from its folder again.
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
        Takes a request.

        Raises:
            ValueError: If it names a policy whose weights this engine does not hold, or its prompt is empty or leaves no
                room for a reply.
        """
        if request.policy not in self._adapters:
            raise ValueError(
                f"A request names the policy {request.policy!r}, and this engine holds {sorted(self._adapters)}. Pass its "
                "adapter."
            )
        longest = self._engine.model_config.max_model_len
        if not 0 < len(request.prompt_ids) < longest:
            raise ValueError(
                f"A prompt of {len(request.prompt_ids)} tokens must have at least one and leave room for a reply in the "
                f"engine's {longest}. Raise `vllm_max_model_length`, or let the game show less."
            )
        # vLLM keeps request ids for as long as the engine lives, so a ticket alone would not do.
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
        """Decodes until at least one request is finished."""
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
        """Forgets requests."""
        names = [self._forget(ticket)[0] for ticket in tickets if ticket in self._requests]
        if names:
            self._engine.abort_request(names)

    def metrics(self) -> dict[str, float]:
        """
        Since last asked: `new_tokens`, `running` (mean requests in the engine per decoding step) and `cached_prompt_share`
        (share of prompt tokens that the prefix cache spared). Where there are several policies, also `weight_switches`:
        none, since they are side by side.
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
                f"{completion.finish_reason!r}). There must be one for each token, at least one token, and an end of its "
                "own: vLLM's log says what went wrong."
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
        """vLLM's form of a request's sampling: a copy, since each request has a seed of its own."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        if sampling not in self._params:
            self._params[sampling] = SamplingParams(
                **{
                    **self._options,
                    **sampling_fields(sampling),
                    "logprobs": 0,
                    # Text is made from a reply's tokens once, by whoever reads it, unless vLLM must look for stop texts.
                    "detokenize": bool(sampling.stop),
                    "output_kind": RequestOutputKind.FINAL_ONLY,
                    "skip_clone": True,  # each request gets a copy of its own, so vLLM need not make another
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
    """Adapters as vLLM takes them, by policy name."""
    folders = [folder for folder in adapters.values() if folder is not None]
    none = lora_request("zeros", adapter_of_zeros(folders[0])) if folders and _is_on_cpu() else None
    return {name: none if folder is None else lora_request(name, folder) for name, folder in adapters.items()}


def _is_on_cpu() -> bool:
    """Whether rows without an adapter need one of zeros: vLLM 0.31 gives them that of the last slot, once all are taken."""
    from vllm.platforms import current_platform

    on_cpu: bool = current_platform.is_cpu()
    return on_cpu


def lora_request(policy: str, folder: str | Path) -> LoRARequest:
    """One adapter, always under the same number and name: vLLM keeps what it once loaded, or computed, under them."""
    return _lora_request(f"{policy}-{fingerprint(folder)}", str(folder))


@cache
def _lora_request(name: str, folder: str) -> LoRARequest:
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, next(_lora_numbers), folder)


_lora_numbers = count(1)


def load_weights(llm: LLM, folder: str | Path) -> None:
    """
    Puts whole weights in place of those that a vLLM of this process holds, and drops what was computed with them.

    Args:
        llm ([`vllm.LLM`]):
            The engine, without requests in flight.
        folder (`str` or `Path`):
            What `save_pretrained` wrote.

    Raises:
        ValueError: If the weights are not those of such a model, each and every one.
        RuntimeError: If vLLM does not drop its prefix cache.
    """
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    problem = ""
    try:
        loaded = model.load_weights(_tensors(folder))
        if missing := {name for name, _ in model.named_parameters()} - loaded:
            problem = f"`{min(missing)}` is missing"
    except (KeyError, ValueError, RuntimeError, AssertionError) as error:  # what vLLM's loaders raise, each its own
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise ValueError(
            f"The weights in {folder} do not fit the model that vLLM runs ({problem}). Take the snapshot out of the pool."
        )
    if not llm.reset_prefix_cache():
        raise RuntimeError(
            "vLLM declined to drop its prefix cache after its weights had changed, as it does while requests are in "
            "flight. Let nobody else use the engine during training."
        )


def _tensors(folder: str | Path) -> Iterator[tuple[str, Any]]:
    """One by one, by name."""
    from safetensors import safe_open

    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                yield name, opened.get_tensor(name)
