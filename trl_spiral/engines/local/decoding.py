"""
Decoding of rows in one batch, one token per step: the tokens of each row, and the cache that they share.

A batch is not a barrier: finished rows leave it, and another batch joins it once their caches are padded to one width.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import is_peft_model
from torch.nn.functional import pad
from transformers.generation import StopStringCriteria

from trl_spiral.engines.local.cache import append_rows, check_cache, is_growing, keep_columns, make_growing
from trl_spiral.engines.local.drawing import check_options, draw_tokens
from trl_spiral.engines.local.lora_batching import SideBySide
from trl_spiral.types import Request


if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

SHARED_POSITIONS = 256
"""
Fewest token positions to save for which the common prefix of all prompts is read once and copied. That costs a forward
pass of one row: on one CPU core as much as about 1,000 positions of a model of 20,000 parameters, or 60 of one of 25
million. With 256 the small model loses half a millisecond at worst, and the large one keeps its gain of a factor of
two.
"""

DONE_SHARE = 1 / 4
"""
Finished rows stay in the batch until they are this share of it, or others join. Removing them copies the cache of the
rest, which in a batch of 64 costs about as much as a step, and a reply ends in every second step.
"""

FREED_SHARE = 1 / 8
"""Columns that no row needs are removed once they are this share of the cache, because removing copies the rest."""


@dataclass(eq=False, slots=True)
class DecodingRow:
    """A request in a batch, with the tokens drawn for it so far."""

    ticket: int
    request: Request
    rng: random.Random
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    done: bool = False
    ended: bool = False  # by an end-of-turn token or a stop string, not by the limit


@dataclass(slots=True)
class Usage:
    """
    Counters of the work done since the last `clear`.

    Attributes:
        passes (`int`):
            Forward passes after which tokens were drawn.
        drawn (`int`):
            Tokens drawn.
        most_rows (`int`):
            Most rows in flight at once.
        positions, padding (`int`):
            Token positions computed by the model, and how many of them were padding.
        prompt_tokens, shared_tokens (`int`):
            Tokens of the prompts, and how many of them were copied from another row.
    """

    passes: int = 0
    drawn: int = 0
    most_rows: int = 0
    positions: int = 0
    padding: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0

    def clear(self) -> None:
        """Set all counters to 0."""
        for name in self.__slots__:
            setattr(self, name, 0)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of these counters; none if nothing was computed."""
        if not self.passes:
            return {}
        return {
            "occupancy": self.drawn / (self.passes * self.most_rows),
            "padding_share": self.padding / self.positions,
            "new_tokens": float(self.drawn),
            "shared_prompt_share": self.shared_tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
        }


@dataclass(slots=True)
class BatchSettings:
    """The weights and the sampling that all rows of a batch share, and the counters of its work."""

    model: PreTrainedModel
    config: GenerationConfig
    temperature: float
    stop: StopStringCriteria | None
    share_prefixes: bool
    usage: Usage
    adapters: SideBySide | None = None  # if rows may be of several policies


class DecodingBatch:
    """
    Rows with the same settings. Between steps, the cache holds all columns of the mask but the last, which is fed
    next.

    Args:
        settings ([`BatchSettings`]):
            Weights and sampling.
        rows (`list[DecodingRow]`):
            Rows without any token yet. The first step reads their prompts.

    Raises:
        ValueError: If rows cannot be dropped from the model's cache, or an option depends on other tokens of a reply.
    """

    def __init__(self, settings: BatchSettings, rows: list[DecodingRow]) -> None:
        self.rows = rows
        self._live = torch.arange(len(rows), device=settings.model.device)  # index of each row in the tensors below
        self._settings = settings
        self._owners = self._places(rows)
        # The signature of a PEFT model is that of any model: it passes on all arguments.
        base = settings.model.get_base_model() if is_peft_model(settings.model) else settings.model
        self._accepted = inspect.signature(base.forward).parameters
        prompts = [row.request.prompt_ids for row in rows]
        self._processors, criteria, self._cache, ends = self._prepare(prompts)
        check_options([*self._processors, *criteria])
        self._ends = {ends} if isinstance(ends, int) else set(ends or ())
        check_cache(settings.model, self._cache)
        make_growing(self._cache)
        prefix = self._read_prefix(prompts)
        self._fed, mask = self._padded([prompt[prefix:] for prompt in prompts])
        self._mask = torch.cat([mask.new_ones(len(rows), prefix), mask], dim=-1)
        self._positions = (self._mask.cumsum(-1) - 1).clamp(min=0)[:, prefix:]
        settings.usage.prompt_tokens += sum(map(len, prompts))
        settings.usage.padding += mask.numel() - sum(map(len, prompts)) + prefix * len(rows)

    @property
    def grows(self) -> bool:
        """True if another batch can join."""
        return is_growing(self._cache)

    def step(self) -> list[DecodingRow]:
        """Draw one token for every row. Returns the rows that are done, which leave the batch."""
        logits = self._forward(self._fed, self._mask, self._positions, self._owners, len(self.rows))
        self._settings.usage.padding += len(self._mask) - len(self.rows)
        if len(self._mask) > len(self.rows):
            logits = logits[self._live]
        scores = self._processors(self._fed, logits)
        if self._settings.config.do_sample:
            uniform = torch.tensor([row.rng.random() for row in self.rows], dtype=torch.float64)
            chosen = draw_tokens(scores, uniform.to(scores.device))
        else:
            chosen = scores.argmax(-1)
        logprobs = (logits / self._settings.temperature).log_softmax(-1).gather(-1, chosen[:, None])[:, 0]
        for row, token, logprob in zip(self.rows, chosen.tolist(), logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.ended = token in self._ends
            row.done = row.ended or len(row.tokens) >= row.request.sampling.max_new_tokens
        self._end_at_stop_strings()
        self._fed = torch.full_like(self._mask[:, :1], self._settings.config.pad_token_id)
        self._fed[self._live, 0] = chosen
        self._positions = self._positions[:, -1:] + 1
        done = [row for row in self.rows if row.done]
        self.drop(done)
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=-1)
        return done

    def drop(self, gone: Collection[DecodingRow]) -> None:
        """Drop rows."""
        if not gone:
            return
        gone = set(gone)
        kept = [index for index, row in enumerate(self.rows) if row not in gone]
        self.rows = [self.rows[index] for index in kept]
        self._live = self._live[torch.tensor(kept, dtype=torch.long, device=self._live.device)]
        if len(kept) <= (1 - DONE_SHARE) * len(self._mask):
            self._compact()

    def _compact(self) -> None:
        """Remove dropped rows from all tensors, and the columns that only they used."""
        if len(self._live) == len(self._mask):
            return
        self._mask, self._fed = self._mask[self._live], self._fed[self._live]
        self._positions, self._owners = self._positions[self._live], self._owners[self._live]
        if self.rows:
            self._cache.reorder_cache(self._live)
        self._live = torch.arange(len(self.rows), device=self._live.device)
        if not self.rows:
            return
        used = self._mask.any(0).nonzero()[:, 0]
        if self.grows and len(used) <= (1 - FREED_SHARE) * self._mask.shape[1]:
            self._mask = self._mask[:, used]
            keep_columns(self._cache, used)

    def join(self, other: DecodingBatch) -> None:
        """Take over the rows of a batch of the same settings that has made at least one step."""
        self._compact()
        other._compact()
        width = max(self._mask.shape[1], other._mask.shape[1])
        append_rows(self._cache, other._cache, width - 1)
        self._mask = torch.cat([pad(mask, (width - mask.shape[1], 0)) for mask in (self._mask, other._mask)])
        self._fed = torch.cat([self._fed, other._fed])
        self._positions = torch.cat([self._positions, other._positions])
        self._owners = torch.cat([self._owners, other._owners])
        self.rows += other.rows
        self._live = torch.arange(len(self.rows), device=self._live.device)

    def _prepare(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Any, Any, Any]:
        """Let `generate` make the logits processors, the stopping criteria, an empty cache and the final tokens."""

        def hand_over(model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
            ends = generation_config.eos_token_id
            return logits_processor, stopping_criteria, kwargs.get("past_key_values"), ends

        config = self._settings.config
        config.max_new_tokens = max(row.request.sampling.max_new_tokens for row in self.rows)
        ids, mask = self._padded(prompts)
        return self._settings.model.generate(
            ids, attention_mask=mask, generation_config=config, custom_generate=hand_over
        )

    def _padded(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token ids and mask, left-padded, both of shape (rows, width)."""
        width = max(map(len, prompts))
        filler = self._settings.config.pad_token_id
        ids = [[filler] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        device = self._settings.model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def _read_prefix(self, prompts: list[tuple[int, ...]]) -> int:
        """Read the common prefix of all prompts once per policy, if that saves time. Returns its length."""
        longest = min(map(len, prompts)) - 1  # one token of each prompt is left, whose logits draw the first token
        first, last = min(prompts), max(prompts)  # in alphabetical order, so all share what these two share
        prefix = next((i for i in range(longest) if first[i] != last[i]), longest)
        owners, whose = self._owners.unique(return_inverse=True)  # policies cannot share keys and values
        spared = prefix * (len(prompts) - len(owners))
        if not self._settings.share_prefixes or not self.grows or spared < SHARED_POSITIONS:
            return 0
        ids = torch.tensor([first[:prefix]], device=self._settings.model.device).expand(len(owners), -1)
        self._forward(ids, torch.ones_like(ids), torch.arange(prefix, device=ids.device).expand_as(ids), owners, 0)
        self._cache.reorder_cache(whose)
        self._settings.usage.shared_tokens += spared
        return prefix

    def _places(self, rows: list[DecodingRow]) -> torch.Tensor:
        """Return the number of each row's policy, of shape (rows,)."""
        adapters = self._settings.adapters
        if adapters is None:
            return torch.zeros(len(rows), dtype=torch.long, device=self._settings.model.device)
        return adapters.places([row.request.policy for row in rows])

    def _forward(
        self, fed: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, owners: torch.Tensor, drawn: int
    ) -> torch.Tensor:
        """Return float32 logits after the last token of each row. `drawn` counts the tokens that they will draw."""
        settings = self._settings
        if settings.adapters is not None:
            settings.adapters.choose(owners, fed.shape[1])
        extra = {"logits_to_keep": 1} if "logits_to_keep" in self._accepted else {}
        if "position_ids" in self._accepted:
            extra["position_ids"] = positions
        output = settings.model(
            input_ids=fed, attention_mask=mask, past_key_values=self._cache, use_cache=True, **extra
        )
        settings.usage.positions += fed.numel()
        settings.usage.drawn += drawn
        settings.usage.passes += drawn > 0
        return output.logits[:, -1].float()

    def _end_at_stop_strings(self) -> None:
        """End rows that have just completed a stop string."""
        stop = self._settings.stop
        if stop is None:
            return
        nothing = [2**31] * stop.maximum_token_len  # beyond any vocabulary, so it is part of no text
        tails = [[*nothing, *row.tokens][-stop.maximum_token_len :] for row in self.rows]
        for row, stopped in zip(self.rows, stop(torch.tensor(tails), None).tolist(), strict=True):
            row.ended = row.ended or stopped
            row.done = row.done or stopped
