"""
Generation with transformers, on any device: one decoding loop that rows enter and leave.

`generate` prepares the cache, the logits processors and the stopping criteria; the loop is ours (`decoding.py`). Each
row is drawn from its own seed, so a reply does not depend on the other rows of its batch, up to rounding of batched
arithmetic. The engine records log-probabilities, and returns a reply as soon as it is done, while other rows go on.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from transformers import GenerationConfig
from transformers.generation import StopStringCriteria

from trl_spiral.engines.local.decoding import BatchSettings, DecodingBatch, DecodingRow, Usage
from trl_spiral.engines.local.lora_batching import SideBySide
from trl_spiral.engines.policies import SWITCHES
from trl_spiral.types import POLICY, Reply, Request, Sampling


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ADMISSION_SHARE = 1 / 4
"""
Requests wait until they are this share of the rows in flight. Admitting them costs a pass over their prompts, during
which the rows in flight stand still, and a copy of the cache. Waiting leaves the batch narrower than it could be.
"""


@dataclass(slots=True)
class _Group:
    """Requests with the same sampling, which share a batch."""

    settings: BatchSettings
    waiting: dict[int, DecodingRow] = field(default_factory=dict)
    batch: DecodingBatch | None = None

    @property
    def in_flight(self) -> int:
        return len(self.batch.rows) if self.batch else 0

    def admit(self, room: int) -> list[DecodingRow]:
        """Admit waiting rows to the batch, if enough of them wait. Returns those that are done after one token."""
        number = min(len(self.waiting), room)
        if number == 0 or number < ADMISSION_SHARE * self.in_flight:
            return []
        if self.in_flight and self.batch and not self.batch.grows:
            return []
        tickets = list(self.waiting)[:number]
        arrivals = DecodingBatch(self.settings, [self.waiting.pop(ticket) for ticket in tickets])
        done = arrivals.step()
        if not self.in_flight:
            self.batch = arrivals
        elif self.batch and arrivals.rows:
            self.batch.join(arrivals)
        return done


class TransformersEngine:
    """
    Answers requests with one decoding loop, whose rows come and go.

    A step decodes until at least one row is done. Requests with the same sampling are decoded together, whatever their
    token limits and adapters. Each such group has its own batch, and groups take turns. If the model's cache is not
    one column per token (sliding windows, recurrent layers, static or quantized caches), a batch is decoded to its end
    before the next.

    Generation options that depend on other tokens of a reply, such as a repetition penalty, are refused at the first
    step.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The current policy, unwrapped. Its padding token must be set in `generation_config`.
        generation_config ([`~transformers.GenerationConfig`]):
            Base of every request. The request's own [`~types.Sampling`] overrides it, and adds to its `stop_strings`.
        version (`int`):
            Version of the policy's weights, recorded in every reply.
        adapters ([`~engines.local.lora_batching.SideBySide`], *optional*):
            Policies of this model, including `POLICY` if requests name it. By default, the model itself answers
            `POLICY`.
        max_rows (`int`, defaults to `512`):
            Most sequences decoded at once, all groups together.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            Needed for stop strings only.
        share_prefixes (`bool`, defaults to `True`):
            Whether to compute the common prefix of the prompts of a batch once, if it is long enough to save time.

    Raises:
        ValueError: If the base configuration has stop strings and there is no tokenizer.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        generation_config: GenerationConfig,
        version: int = 0,
        adapters: SideBySide | None = None,
        max_rows: int = 512,
        tokenizer: PreTrainedTokenizerBase | None = None,
        share_prefixes: bool = True,
    ) -> None:
        self._model = model
        self._adapters = adapters
        self._policies = [POLICY] if adapters is None else adapters.policies
        self._base_config = generation_config
        self._version = version
        self._max_rows = max_rows
        self._tokenizer = tokenizer
        self._share_prefixes = share_prefixes
        self._usage = Usage()
        self._settings: dict[Sampling, BatchSettings] = {}
        self._groups: dict[Sampling, _Group] = {}
        strings = generation_config.stop_strings or ()
        self._stop_strings = (strings,) if isinstance(strings, str) else tuple(strings)
        self._check_stop_strings(self._stop_strings)

    def add(self, ticket: int, request: Request) -> None:
        """
        Accept a request.

        Raises:
            ValueError: If this engine does not hold the weights of its policy, it has no prompt as token ids, it is
                constrained to legal moves, or it has stop strings and there is no tokenizer.
        """
        if request.policy not in self._policies:
            raise ValueError(
                f"A request names the policy {request.policy!r}, and this engine holds {sorted(self._policies)}. "
                "Pass its weights as a snapshot."
            )
        if not request.prompt_ids:
            raise ValueError("A request has an empty prompt. Check the prompt style.")
        if request.legal_moves:
            raise ValueError(
                f"A request is constrained to {len(request.legal_moves)} legal moves, and transformers cannot do "
                "that. Let vLLM generate, or leave the moves free."
            )
        self._check_stop_strings(request.sampling.stop)
        # Replies of different lengths may share a batch, so the limit is not part of the key.
        key = replace(request.sampling, max_new_tokens=1)
        if key not in self._groups:
            self._groups[key] = _Group(self._settings_of(key))
        self._groups[key].waiting[ticket] = DecodingRow(ticket, request, random.Random(request.seed))

    def abort(self, tickets: Sequence[int]) -> None:
        """Drop requests, waiting or in flight."""
        gone = set(tickets)
        for group in self._groups.values():
            for ticket in gone & group.waiting.keys():
                del group.waiting[ticket]
            if group.batch:
                group.batch.drop([row for row in group.batch.rows if row.ticket in gone])

    def metrics(self) -> dict[str, float]:
        """
        Return metrics of the work since the last call; none if nothing was computed.

        Returns:
            `dict[str, float]`: `occupancy`: rows that get a token in a forward pass, on average, as a share of the
            most rows in flight at once. It is below 1 because replies end and prompts are read. `padding_share`: share
            of the computed token positions that were padding. `new_tokens`: tokens sampled. `shared_prompt_share`:
            share of the prompt tokens that were copied from another row. `weight_switches`: 0, and only with adapters,
            even if nothing was computed.
        """
        metrics = self._usage.metrics()
        self._usage.clear()
        return metrics if self._adapters is None else {**metrics, SWITCHES: 0.0}

    @torch.no_grad()
    def step(self) -> list[tuple[int, Reply]]:
        """
        Decode the next batch, from where it stood, until at least one request is answered.

        Raises:
            ValueError: If the model's cache, or a generation option, cannot be used in a batch whose rows come and go.
        """
        in_flight = sum(group.in_flight for group in self._groups.values())
        room = self._max_rows - in_flight
        ready = (key for key, group in self._groups.items() if group.in_flight or (group.waiting and room))
        key = next(ready, None)
        assert key is not None, "an engine is stepped only while a request waits"
        group = self._groups.pop(key)
        waiting = len(group.waiting)
        with nullcontext() if self._adapters is None else self._adapters.installed():
            done = group.admit(room)
            self._usage.most_rows = max(self._usage.most_rows, in_flight + waiting - len(group.waiting))
            while not done:
                done = group.batch.step()
        if group.in_flight or group.waiting:
            self._groups[key] = group  # at the end of the queue
        return [(row.ticket, self._reply(row)) for row in done]

    def _reply(self, row: DecodingRow) -> Reply:
        return Reply(
            completion_ids=tuple(row.tokens),
            logprobs=tuple(row.logprobs),
            finish_reason="stop" if row.ended else "length",
            version=self._version if row.request.policy == POLICY else 0,
        )

    def _check_stop_strings(self, strings: Sequence[str]) -> None:
        if strings and self._tokenizer is None:
            raise ValueError(
                f"Replies are to stop at {list(strings)}, and this engine has no tokenizer. Pass `tokenizer`."
            )

    def _settings_of(self, sampling: Sampling) -> BatchSettings:
        if sampling not in self._settings:
            config = copy.deepcopy(self._base_config)
            config.update(
                do_sample=sampling.temperature > 0,
                temperature=sampling.temperature or 1.0,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                repetition_penalty=sampling.repetition_penalty,
                return_dict_in_generate=False,
                stop_strings=None,
            )
            strings = [*self._stop_strings, *sampling.stop]
            self._settings[sampling] = BatchSettings(
                model=self._model,
                config=config,
                temperature=sampling.temperature or 1.0,
                # Made once: `generate` would read the whole vocabulary for every batch.
                stop=StopStringCriteria(self._tokenizer, strings) if strings else None,
                share_prefixes=self._share_prefixes,
                usage=self._usage,
                adapters=self._adapters,
            )
        return self._settings[sampling]


def generation_config(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    """Return TRL's defaults for generation. A reply ends at the tokenizer's end token or any of the model's own."""
    ends = model.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else list(ends or ())
    return GenerationConfig(
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=list(dict.fromkeys([tokenizer.eos_token_id, *ends])),
        disable_compile=True,
    )
