"""
Rows decoded side by side, one token a step: who has written what, the cache that they share, and how tokens are drawn.

A batch is not a barrier: rows leave it when they are done, and another batch joins it, its cache padded to a common width.
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
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, LinearAttentionCacheLayerMixin
from transformers.generation import (
    EosTokenCriteria,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MaxLengthCriteria,
    MinPLogitsWarper,
    StopStringCriteria,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from trl_spiral.engines.local.lora_batching import SideBySide
from trl_spiral.types import Request


if TYPE_CHECKING:
    from transformers import Cache, GenerationConfig, PreTrainedModel

ROWWISE = {
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
}
"""Processors that look at a row's scores and nothing else, so that rows of any age may share them."""

OWN_CRITERIA = {EosTokenCriteria, MaxLengthCriteria}
"""Stopping criteria that a batch applies itself, row by row."""

SHARED_POSITIONS = 256
"""
Fewest token positions that must be spared for what prompts share to be read once and copied. That costs a forward pass
of one row, on one CPU core as much as some 1,000 positions of a model of 20,000 parameters or 60 of one of 25 million:
here the one loses half a millisecond at worst, and the other hardly anything of its factor of two.
"""

DONE_SHARE = 1 / 4
"""
Rows that are done are kept in the batch until they are this share of it, or others join: taking them out copies the cache
of the rest, which in a batch of 64 costs about as much as a step, and in every second step a reply ends.
"""

SPARE_COLUMNS = 64
"""Columns that a cache has left when it has to be copied to a larger one."""

FREED_SHARE = 1 / 8
"""Columns that no row needs any more are cut out once they are this share of the cache: cutting copies the rest."""


class GrowingLayer(DynamicLayer):
    """A layer's keys and values with room for more. `DynamicLayer` copies all of them for each token."""

    _room: tuple[torch.Tensor, torch.Tensor] | None = None
    _view: torch.Tensor | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends columns. Returns all, as views that stay valid until the next call."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self.get_seq_length()
        after = before + key_states.shape[-2]
        # Whoever takes rows or columns out puts other tensors in our place.
        if self._room is None or self.keys is not self._view or self._room[0].shape[-2] < after:
            rows, heads, _, size = key_states.shape
            self._room = (
                key_states.new_empty(rows, heads, after + SPARE_COLUMNS, size),
                value_states.new_empty(rows, heads, after + SPARE_COLUMNS, value_states.shape[-1]),
            )
            if before:
                self._room[0][:, :, :before] = self.keys
                self._room[1][:, :, :before] = self.values
        self._room[0][:, :, before:after] = key_states
        self._room[1][:, :, before:after] = value_states
        self.keys, self.values = (tensor[:, :, :after] for tensor in self._room)
        self._view = self.keys
        return self.keys, self.values


@dataclass(eq=False, slots=True)
class Row:
    """One request that is being answered."""

    ticket: int
    request: Request
    rng: random.Random
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    done: bool = False
    ended: bool = False  # by an end-of-turn token or a stop text, rather than cut short


@dataclass(slots=True)
class Usage:
    """
    What was computed since it was last asked for.

    Attributes:
        passes (`int`):
            Forward passes after which rows were given a token.
        drawn (`int`):
            Tokens given.
        most_rows (`int`):
            Most rows in flight at once.
        positions, padding (`int`):
            Token positions that went through the model, and how many of them were padding.
        prompt_tokens, shared_tokens (`int`):
            Tokens of the prompts, and how many of them were copied from another row's.
    """

    passes: int = 0
    drawn: int = 0
    most_rows: int = 0
    positions: int = 0
    padding: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0

    def clear(self) -> None:
        """Starts counting anew."""
        for name in self.__slots__:
            setattr(self, name, 0)

    def metrics(self) -> dict[str, float]:
        """Nothing where nothing was computed: shares of nothing are left out."""
        if not self.passes:
            return {}
        return {
            "occupancy": self.drawn / (self.passes * self.most_rows),
            "padding_share": self.padding / self.positions,
            "new_tokens": float(self.drawn),
            "shared_prompt_share": self.shared_tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
        }


@dataclass(slots=True)
class Style:
    """What the rows of a batch have in common: the weights, how they are drawn, and where that is counted."""

    model: PreTrainedModel
    config: GenerationConfig
    temperature: float
    stop: StopStringCriteria | None
    share_prefixes: bool
    usage: Usage
    adapters: SideBySide | None = None  # where rows may be of several policies


@dataclass(eq=False, slots=True)
class _Cohort:
    """
    Rows with equally long prompts, admitted together, and the processors that `generate` made for them.

    Processors that count positions or read tokens see no padding this way, and those that keep something for each row
    see all the rows that they began with: one that is done is fed padding, as `generate` would.
    """

    processors: Any
    criteria: Any
    ids: torch.Tensor  # (rows, length), prompts included
    rows: list[Row]


class Batch:
    """
    Rows of one style. Between steps, the cache holds all columns of the mask but the last, whose token is fed next.

    Args:
        style ([`Style`]):
            What the rows have in common.
        rows (`list[Row]`):
            None of which has been given a token yet: the first step reads their prompts.

    Raises:
        ValueError: If the model has no cache from which rows can be dropped.
    """

    def __init__(self, style: Style, rows: list[Row]) -> None:
        self.rows = rows
        self._live = torch.arange(len(rows), device=style.model.device)  # where those rows stand in all tensors below
        self._style = style
        self._owners = self._places(rows)
        # A PEFT model's own signature tells nothing: it hands over whatever it is given.
        base = style.model.get_base_model() if is_peft_model(style.model) else style.model
        self._accepted = inspect.signature(base.forward).parameters
        prompts = [row.request.prompt_ids for row in rows]
        self._processors, criteria, self._cache, ends = self._prepare(rows)
        self._ends = {ends} if isinstance(ends, int) else set(ends or ())
        _check_cache(style.model, self._cache)
        if all(type(layer) is DynamicLayer for layer in self._cache.layers) and not self._cache.offloading:
            self._cache.layers = [GrowingLayer() for _ in self._cache.layers]
        rowwise = {*map(type, self._processors)} <= ROWWISE and {*map(type, criteria)} <= OWN_CRITERIA
        self._cohorts = [] if rowwise else self._make_cohorts()
        prefix = self._read_prefix(prompts)
        self._fed, mask = self._padded([prompt[prefix:] for prompt in prompts])
        self._mask = torch.cat([mask.new_ones(len(rows), prefix), mask], dim=-1)
        self._positions = (self._mask.cumsum(-1) - 1).clamp(min=0)[:, prefix:]
        style.usage.prompt_tokens += sum(map(len, prompts))
        style.usage.padding += mask.numel() - sum(map(len, prompts)) + prefix * len(rows)

    @property
    def grows(self) -> bool:
        """Whether another batch can join: each layer's cache is a plain tensor, with a column per token, at hand."""
        return all(type(layer) is GrowingLayer for layer in self._cache.layers)

    def step(self) -> list[Row]:
        """Gives every row one token. Returns those that are done, which leave the batch."""
        logits = self._forward(self._fed, self._mask, self._positions, self._owners, len(self.rows))
        self._style.usage.padding += len(self._mask) - len(self.rows)
        if len(self._mask) > len(self.rows):
            logits = logits[self._live]
        scores = self._process(logits)
        if self._style.config.do_sample:
            uniform = torch.tensor([row.rng.random() for row in self.rows], dtype=torch.float64)
            chosen = draw(scores, uniform.to(scores.device))
        else:
            chosen = scores.argmax(-1)
        logprobs = (logits / self._style.temperature).log_softmax(-1).gather(-1, chosen[:, None])[:, 0]
        for row, token, logprob in zip(self.rows, chosen.tolist(), logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.ended = token in self._ends
            row.done = row.ended or len(row.tokens) >= row.request.sampling.max_new_tokens
        self._stop_at_texts()
        self._fed = torch.full_like(self._mask[:, :1], self._style.config.pad_token_id)
        self._fed[self._live, 0] = chosen
        self._positions = self._positions[:, -1:] + 1
        self._extend_cohorts()
        done = [row for row in self.rows if row.done]
        self.drop(done)
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=-1)
        return done

    def drop(self, gone: Collection[Row]) -> None:
        """Forgets rows."""
        if not gone:
            return
        gone = set(gone)
        kept = [index for index, row in enumerate(self.rows) if row not in gone]
        self.rows = [self.rows[index] for index in kept]
        self._live = self._live[torch.tensor(kept, dtype=torch.long, device=self._live.device)]
        if len(kept) <= (1 - DONE_SHARE) * len(self._mask):
            self._compact()

    def _compact(self) -> None:
        """Takes forgotten rows out of all tensors, and the columns that only they used."""
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
            for layer in self._cache.layers:
                cached = used[used < layer.keys.shape[-2]]
                layer.keys, layer.values = layer.keys[:, :, cached], layer.values[:, :, cached]

    def join(self, other: Batch) -> None:
        """Takes in the rows of a batch of the same style, which has made at least one step."""
        self._compact()
        other._compact()
        width = max(self._mask.shape[1], other._mask.shape[1])
        for mine, theirs in zip(self._cache.layers, other._cache.layers, strict=True):
            mine.keys = torch.cat([_widened(mine.keys, width - 1), _widened(theirs.keys, width - 1)])
            mine.values = torch.cat([_widened(mine.values, width - 1), _widened(theirs.values, width - 1)])
        self._mask = torch.cat([pad(mask, (width - mask.shape[1], 0)) for mask in (self._mask, other._mask)])
        self._fed = torch.cat([self._fed, other._fed])
        self._positions = torch.cat([self._positions, other._positions])
        self._owners = torch.cat([self._owners, other._owners])
        self._cohorts += other._cohorts
        self.rows += other.rows
        self._live = torch.arange(len(self.rows), device=self._live.device)

    def _prepare(self, rows: list[Row]) -> tuple[Any, Any, Any, Any]:
        """What `generate` makes of the options for these rows: processors, criteria, an empty cache, final tokens."""

        def hand_over(model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
            ends = generation_config.eos_token_id
            return logits_processor, stopping_criteria, kwargs.get("past_key_values"), ends

        config = self._style.config
        config.max_new_tokens = max(row.request.sampling.max_new_tokens for row in rows)
        ids, mask = self._padded([row.request.prompt_ids for row in rows])
        return self._style.model.generate(
            ids, attention_mask=mask, generation_config=config, custom_generate=hand_over
        )

    def _padded(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and mask, both of shape (rows, width), left-padded."""
        width = max(map(len, prompts))
        filler = self._style.config.pad_token_id
        ids = [[filler] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        device = self._style.model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def _read_prefix(self, prompts: list[tuple[int, ...]]) -> int:
        """Reads the tokens with which all prompts begin once per policy, if that pays. Returns how many."""
        longest = min(map(len, prompts)) - 1  # of each prompt a token is left, whose logits draw the first
        first, last = min(prompts), max(prompts)  # in alphabetical order, so what these two share, all share
        prefix = next((i for i in range(longest) if first[i] != last[i]), longest)
        owners, whose = self._owners.unique(return_inverse=True)  # what one policy has read is of no use to another
        spared = prefix * (len(prompts) - len(owners))
        if not self._style.share_prefixes or not self.grows or spared < SHARED_POSITIONS:
            return 0
        ids = torch.tensor([first[:prefix]], device=self._style.model.device).expand(len(owners), -1)
        self._forward(ids, torch.ones_like(ids), torch.arange(prefix, device=ids.device).expand_as(ids), owners, 0)
        self._cache.reorder_cache(whose)
        self._style.usage.shared_tokens += spared
        return prefix

    def _places(self, rows: list[Row]) -> torch.Tensor:
        """Whose rows these are, as a number, of shape (rows,)."""
        adapters = self._style.adapters
        if adapters is None:
            return torch.zeros(len(rows), dtype=torch.long, device=self._style.model.device)
        return adapters.places([row.request.policy for row in rows])

    def _forward(
        self, fed: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, owners: torch.Tensor, drawn: int
    ) -> torch.Tensor:
        """Logits after each row's last token, float32. `drawn` is how many tokens will be drawn from them."""
        if self._style.adapters is not None:
            self._style.adapters.choose(owners, fed.shape[1])
        extra = {"logits_to_keep": 1} if "logits_to_keep" in self._accepted else {}
        if "position_ids" in self._accepted:
            extra["position_ids"] = positions
        output = self._style.model(
            input_ids=fed, attention_mask=mask, past_key_values=self._cache, use_cache=True, **extra
        )
        self._style.usage.positions += fed.numel()
        self._style.usage.drawn += drawn
        self._style.usage.passes += drawn > 0
        return output.logits[:, -1].float()

    def _make_cohorts(self) -> list[_Cohort]:
        # Where the last token is forced, the processor counts to the limit, so it must be the same for all.
        forced = self._style.config.forced_eos_token_id is not None
        alike: dict[tuple[int, int], list[Row]] = {}
        for row in self.rows:
            limit = row.request.sampling.max_new_tokens if forced else 0
            alike.setdefault((len(row.request.prompt_ids), limit), []).append(row)
        cohorts = []
        for rows in alike.values():
            processors, criteria, _, _ = self._prepare(rows)
            others = type(criteria)(one for one in criteria if type(one) not in OWN_CRITERIA)
            cohorts.append(
                _Cohort(processors, others, self._padded([row.request.prompt_ids for row in rows])[0], rows)
            )
        return cohorts

    def _process(self, logits: torch.Tensor) -> torch.Tensor:
        """Scores from which tokens are drawn, of shape (rows, vocabulary)."""
        if not self._cohorts:
            return self._processors(self._fed, logits)
        scores = torch.empty_like(logits)
        places = {row: place for place, row in enumerate(self.rows)}
        for cohort in self._cohorts:
            mine = [index for index, row in enumerate(cohort.rows) if row in places]
            theirs = [places[cohort.rows[index]] for index in mine]
            everyones = logits.new_zeros(len(cohort.rows), logits.shape[-1])
            everyones[mine] = logits[theirs]
            scores[theirs] = cohort.processors(cohort.ids, everyones)[mine]
        return scores

    def _extend_cohorts(self) -> None:
        """Appends what was drawn, and asks the criteria that no batch applies itself."""
        if not self._cohorts:
            return
        written = dict(zip(self.rows, self._fed[self._live, 0].tolist(), strict=True))
        filler = self._style.config.pad_token_id
        for cohort in self._cohorts:
            column = cohort.ids.new_tensor([[written.get(row, filler)] for row in cohort.rows])
            cohort.ids = torch.cat([cohort.ids, column], dim=-1)
            for row, stopped in zip(cohort.rows, cohort.criteria(cohort.ids, None).tolist(), strict=True):
                row.done = row.done or stopped

    def _stop_at_texts(self) -> None:
        """Ends rows that have just completed a stop text."""
        stop = self._style.stop
        if stop is None:
            return
        nothing = [2**31] * stop.maximum_token_len  # beyond any vocabulary, so it is part of no text
        tails = [[*nothing, *row.tokens][-stop.maximum_token_len :] for row in self.rows]
        for row, stopped in zip(self.rows, stop(torch.tensor(tails), None).tolist(), strict=True):
            row.ended = row.ended or stopped
            row.done = row.done or stopped


def _check_cache(model: PreTrainedModel, cache: Cache | None) -> None:
    layers = cache.layers if cache is not None else []
    if not layers or not all(isinstance(x, (CacheLayerMixin, LinearAttentionCacheLayerMixin)) for x in layers):
        raise ValueError(
            f"{type(model).__name__} gives `generate` no cache from which finished rows can be dropped (it has "
            f"{type(cache).__name__}). Set `use_cache=True`, or let vLLM generate."
        )


def _widened(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Keys or values of shape (rows, heads, columns, size) with columns of zeros on the left, which the mask hides."""
    return pad(tensor, (0, 0, width - tensor.shape[-2], 0))


def draw(scores: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
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
