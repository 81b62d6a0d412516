"""
Generation with transformers, on any device: one decoding loop that rows enter and leave.

`generate` prepares the cache, the logits processors and the stopping criteria, so every generation option of
transformers takes effect; the loop is ours (`decoding.py`). It draws each row's tokens from that row's own seed, so a
reply does not depend on what is decoded beside it (up to rounding of batched arithmetic), records log-probabilities, and
hands over a reply as soon as it is done, while the others go on.
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

from trl_spiral.engines.local.decoding import Batch, Row, Style, Usage
from trl_spiral.engines.local.lora_batching import SideBySide
from trl_spiral.engines.sampling import check_for_transformers
from trl_spiral.engines.swapping import SWITCHES
from trl_spiral.types import POLICY, Reply, Request, Sampling


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ADMISSION_SHARE = 1 / 4
"""
Requests wait until they are this share of the rows in flight. Letting some in costs a pass over their prompts, during
which the rows in flight stand still, and a copy of the cache; keeping them waiting leaves the batch narrower than it
could be.
"""


@dataclass(slots=True)
class _Group:
    """Requests whose replies are drawn in the same way."""

    style: Style
    waiting: dict[int, Row] = field(default_factory=dict)
    batch: Batch | None = None

    @property
    def in_flight(self) -> int:
        return len(self.batch.rows) if self.batch else 0

    def admit(self, room: int) -> list[Row]:
        """Lets waiting rows in, where that pays. Returns those for whom one token was enough."""
        number = min(len(self.waiting), room)
        if number == 0 or number < ADMISSION_SHARE * self.in_flight:
            return []
        if self.in_flight and self.batch and not self.batch.grows:
            return []
        tickets = list(self.waiting)[:number]
        arrivals = Batch(self.style, [self.waiting.pop(ticket) for ticket in tickets])
        done = arrivals.step()
        if not self.in_flight:
            self.batch = arrivals
        elif self.batch and arrivals.rows:
            self.batch.join(arrivals)
        return done


class TransformersEngine:
    """
    Answers requests with one decoding loop, whose rows come and go.

    A step decodes until at least one row is done. Requests that share their sampling are decoded together, however long
    their replies may grow and whichever adapter they ask for; each such group has a batch of its own, and groups take
    turns. Rows of models whose cache is not one column per token (sliding windows, recurrent layers, static or quantized
    caches) are decoded to the last before others are let in.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The current policy, unwrapped. Its padding token must be set in `generation_config`.
        generation_config ([`~transformers.GenerationConfig`]):
            Base of every request; the request's own [`~types.Sampling`] overrides it, and adds to its `stop_strings`.
        version (`int`):
            Version of the policy's weights, recorded in every reply.
        adapters ([`~engines.local.lora_batching.SideBySide`], *optional*):
            Policies of this model, `POLICY` among them if it is asked for. Without, the model as it is answers `POLICY`.
        max_rows (`int`, defaults to `512`):
            Most sequences decoded at once, all groups together.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            Needed for stop texts only.
        share_prefixes (`bool`, defaults to `True`):
            Whether what all prompts of a batch begin with is computed once, where that is enough to pay.

    Raises:
        ValueError: If the base configuration has stop texts and there is no tokenizer to read them.
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
        self._styles: dict[Sampling, Style] = {}
        self._groups: dict[Sampling, _Group] = {}
        texts = generation_config.stop_strings or ()
        self._stop_texts = (texts,) if isinstance(texts, str) else tuple(texts)
        self._check_stop_texts(self._stop_texts)

    def add(self, ticket: int, request: Request) -> None:
        """
        Takes a request.

        Raises:
            ValueError: If it names a policy whose weights this engine does not hold, has no prompt as token ids, is
                constrained to legal moves, or names stop texts without a tokenizer to read them.
        """
        if request.policy not in self._policies:
            raise ValueError(
                f"A request names the policy {request.policy!r}, and this engine holds {sorted(self._policies)}. Pass its "
                "weights as a snapshot."
            )
        check_for_transformers(request)
        self._check_stop_texts(request.sampling.stop)
        # Replies of different lengths may share a batch, so the limit is no part of the key.
        key = replace(request.sampling, max_new_tokens=1)
        if key not in self._groups:
            self._groups[key] = _Group(self._style(key))
        self._groups[key].waiting[ticket] = Row(ticket, request, random.Random(request.seed))

    def abort(self, tickets: Sequence[int]) -> None:
        """Forgets requests, waiting or in flight."""
        gone = set(tickets)
        for group in self._groups.values():
            for ticket in gone & group.waiting.keys():
                del group.waiting[ticket]
            if group.batch:
                group.batch.drop([row for row in group.batch.rows if row.ticket in gone])

    def metrics(self) -> dict[str, float]:
        """
        How well the engine was used since it was last asked; nothing if it was not.

        Returns:
            `dict[str, float]`: `occupancy`: rows that a forward pass gives a token, on average over all passes, as a
            share of the most rows in flight at once; below one, because replies end and others are being read.
            `padding_share`: share of the token positions computed that were padding. `new_tokens`: tokens sampled.
            `shared_prompt_share`: share of the prompts' tokens that were copied from another row instead of computed.
            `weight_switches`, where there are adapters: zero, and told even where nothing was computed.
        """
        metrics = self._usage.metrics()
        self._usage.clear()
        return metrics if self._adapters is None else {**metrics, SWITCHES: 0.0}

    @torch.no_grad()
    def step(self) -> list[tuple[int, Reply]]:
        """Decodes until at least one request is answered; the batch whose turn it is goes on from where it stood."""
        in_flight = sum(group.in_flight for group in self._groups.values())
        room = self._max_rows - in_flight
        ready = (key for key, group in self._groups.items() if group.in_flight or (group.waiting and room))
        key = next(ready, None)
        assert key is not None, "an engine is only asked to work while something waits"
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

    def _reply(self, row: Row) -> Reply:
        return Reply(
            completion_ids=tuple(row.tokens),
            logprobs=tuple(row.logprobs),
            finish_reason="stop" if row.ended else "length",
            version=self._version if row.request.policy == POLICY else 0,
        )

    def _check_stop_texts(self, texts: Sequence[str]) -> None:
        if texts and self._tokenizer is None:
            raise ValueError(
                f"Replies are to stop at {list(texts)}, and this engine has no tokenizer. Pass `tokenizer`."
            )

    def _style(self, sampling: Sampling) -> Style:
        if sampling not in self._styles:
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
            texts = [*self._stop_texts, *sampling.stop]
            self._styles[sampling] = Style(
                model=self._model,
                config=config,
                temperature=sampling.temperature or 1.0,
                # Made once: `generate` would read the whole vocabulary anew for every batch.
                stop=StopStringCriteria(self._tokenizer, texts) if texts else None,
                share_prefixes=self._share_prefixes,
                usage=self._usage,
                adapters=self._adapters,
            )
        return self._styles[sampling]


def generation_config(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    """What TRL generates with where nobody says more: the tokenizer's end ends a reply, and so do all of the model's own."""
    ends = model.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else list(ends or ())
    return GenerationConfig(
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=list(dict.fromkeys([tokenizer.eos_token_id, *ends])),
        disable_compile=True,
    )
