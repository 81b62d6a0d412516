"""
Generation with transformers, on any device: `generate` over all that waits, with our own decoding step.

`generate` prepares the cache, the logits processors and the stopping criteria, so every generation option of
transformers takes effect; the step below draws each row's tokens from that row's own seed, so a reply does not depend on
what is decoded beside it (up to rounding of batched arithmetic), records log-probabilities, and stops paying for rows
that are done.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from trl_spiral.types import POLICY, Reply, Request, Sampling


if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel


class TransformersEngine:
    """
    Answers requests by padded batches.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The current policy, unwrapped. Its padding token must be set in `generation_config`.
        generation_config ([`~transformers.GenerationConfig`]):
            Base of every request; the request's own [`~types.Sampling`] overrides it.
        version (`int`):
            Version of the policy's weights, recorded in every reply.
        snapshots (`Mapping[str, PreTrainedModel]`, *optional*):
            Other models by policy name.
        max_rows (`int`, defaults to `512`):
            Most sequences decoded at once.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        generation_config: GenerationConfig,
        version: int = 0,
        snapshots: Mapping[str, PreTrainedModel] | None = None,
        max_rows: int = 512,
    ) -> None:
        self._models = {POLICY: model, **(snapshots or {})}
        self._base_config = generation_config
        self._configs: dict[Sampling, GenerationConfig] = {}
        self._version = version
        self._max_rows = max_rows
        self._waiting: dict[int, Request] = {}

    def add(self, ticket: int, request: Request) -> None:
        """
        Takes a request.

        Raises:
            ValueError: If it names a policy whose weights this engine does not hold, or if its prompt is empty.
        """
        if request.policy not in self._models:
            raise ValueError(
                f"A request names the policy {request.policy!r}, and this engine holds {sorted(self._models)}. Pass its "
                "weights as a snapshot."
            )
        if not request.prompt_ids:
            raise ValueError("A request has an empty prompt. Check the prompt style.")
        self._waiting[ticket] = request

    def abort(self, tickets: Sequence[int]) -> None:
        """Forgets requests."""
        for ticket in tickets:
            self._waiting.pop(ticket, None)

    def metrics(self) -> dict[str, float]:
        """Nothing yet."""
        return {}

    def step(self) -> list[tuple[int, Reply]]:
        """Answers the oldest requests that share weights and sampling, as many as fit in one batch."""
        first = next(iter(self._waiting.values()))
        tickets = [
            ticket
            for ticket, request in self._waiting.items()
            if request.policy == first.policy and request.sampling == first.sampling
        ][: self._max_rows]
        requests = [self._waiting.pop(ticket) for ticket in tickets]
        return list(zip(tickets, self._answer(requests), strict=True))

    @torch.no_grad()
    def _answer(self, requests: list[Request]) -> list[Reply]:
        model = self._models[requests[0].policy]
        sampling = requests[0].sampling
        config = self._config(sampling)
        width = max(len(request.prompt_ids) for request in requests)
        pad = config.pad_token_id
        ids = [[pad] * (width - len(request.prompt_ids)) + list(request.prompt_ids) for request in requests]
        mask = [[0] * (width - len(request.prompt_ids)) + [1] * len(request.prompt_ids) for request in requests]
        record = _Record([random.Random(request.seed) for request in requests], sampling.temperature)
        model.generate(
            torch.tensor(ids, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            generation_config=config,
            custom_generate=_decode,
            record=record,
        )
        policy_version = self._version if requests[0].policy == POLICY else 0
        eos = config.eos_token_id
        ends = {eos} if isinstance(eos, int) else set(eos or ())
        return [
            Reply(
                completion_ids=tuple(tokens),
                logprobs=tuple(logprobs),
                finish_reason="length"
                if len(tokens) >= sampling.max_new_tokens and tokens[-1] not in ends
                else "stop",
                version=policy_version,
            )
            for tokens, logprobs in zip(record.tokens, record.logprobs, strict=True)
        ]

    def _config(self, sampling: Sampling) -> GenerationConfig:
        if sampling not in self._configs:
            config = copy.deepcopy(self._base_config)
            config.update(
                do_sample=sampling.temperature > 0,
                temperature=sampling.temperature or 1.0,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                repetition_penalty=sampling.repetition_penalty,
                max_new_tokens=sampling.max_new_tokens,
                return_dict_in_generate=False,
            )
            self._configs[sampling] = config
        return self._configs[sampling]


class _Record:
    """What a batch has sampled so far, and each row's source of randomness."""

    def __init__(self, rngs: list[random.Random], temperature: float) -> None:
        self.rngs = rngs
        self.temperature = temperature
        self.tokens: list[list[int]] = [[] for _ in rngs]
        self.logprobs: list[list[float]] = [[] for _ in rngs]


def _decode(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    record: _Record,
    **model_kwargs: Any,
) -> torch.Tensor:
    """Decoding loop for `generate(custom_generate=...)`. `input_ids` has shape (rows, width), left-padded."""
    mask, cache = model_kwargs["attention_mask"], model_kwargs["past_key_values"]
    if mask is None:  # `generate` drops a mask of ones: all prompts are equally long
        mask = torch.ones_like(input_ids)
    accepted = inspect.signature(model.forward).parameters
    extra = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
    rows = list(range(len(input_ids)))
    fed, positions = input_ids, (mask.cumsum(-1) - 1).clamp(min=0)
    while True:
        if "position_ids" in accepted:
            extra["position_ids"] = positions
        output = model(input_ids=fed, attention_mask=mask, past_key_values=cache, use_cache=True, **extra)
        logits = output.logits[:, -1].float()
        scores = logits_processor(input_ids, logits)
        if generation_config.do_sample:
            uniform = torch.tensor([record.rngs[row].random() for row in rows], dtype=torch.float64)
            chosen = _draw(scores, uniform.to(scores.device))
        else:
            chosen = scores.argmax(-1)
        logprobs = (logits / (record.temperature or 1.0)).log_softmax(-1).gather(-1, chosen[:, None])[:, 0]
        for row, token, logprob in zip(rows, chosen.tolist(), logprobs.tolist(), strict=True):
            record.tokens[row].append(token)
            record.logprobs[row].append(logprob)
        input_ids = torch.cat([input_ids, chosen[:, None]], dim=-1)
        going = ~stopping_criteria(input_ids, None)
        left = going.sum().item()
        if left == 0:
            return input_ids
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=-1)
        fed, positions = chosen[:, None], positions[:, -1:] + 1
        if left < len(rows):
            # A finished row costs a full share of every later step; dropping it costs one copy of the cache.
            kept = going.nonzero()[:, 0]
            rows = [rows[index] for index in kept.tolist()]
            input_ids, mask, fed, positions = input_ids[kept], mask[kept], fed[kept], positions[kept]
            cache.batch_select_indices(kept)


def _draw(scores: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """
    Samples one token a row by inverting the cumulative distribution.

    Args:
        scores (`torch.Tensor` of shape (rows, vocabulary)):
            Processed logits; filtered tokens are -inf.
        uniform (`torch.Tensor` of shape (rows,)):
            One number in [0, 1) per row, float64.

    Returns:
        `torch.Tensor` of shape (rows,): Token ids, none of probability zero.
    """
    # float64: in float32, the rounding of a cumulative sum over 150,000 tokens would swallow rare ones.
    cumulative = scores.double().softmax(-1).cumsum(-1)
    return torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0].clamp(
        max=scores.shape[-1] - 1
    )
