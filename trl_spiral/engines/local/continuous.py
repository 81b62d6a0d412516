"""
Generation by transformers' continuous-batching manager: paged attention, a thread of its own, no barrier.

Log-probabilities come right, and weights that a trainer changes in place are seen. What it cannot do is refused: a seed
per request, stop texts, filters (its log-probabilities would be those of the filtered distribution), greedy decoding.
On a CPU `TransformersEngine` is several times faster; this one is for GPUs with flash attention.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingTemperatureLogitsWarper

from trl_spiral.engines.sampling import check_for_transformers
from trl_spiral.types import POLICY, Reply, Request, Sampling


if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel
    from transformers.generation.continuous_batching import ContinuousBatchingManager

PAGE_SIZE = 32
"""Tokens a page of the cache holds: a reply of a few tokens would leave most of transformers' 256 empty."""

FIXED = {
    "allow_block_sharing": False,  # blocks of earlier prompts would outlive the weights that computed them
    "return_logprobs": True,
    "per_request_processors": True,  # each request has a temperature of its own
    "drop_unsupported_processors": False,  # they are refused instead
}
"""Fields of `ContinuousBatchingConfig` that are not open to choice."""


class ContinuousEngine:
    """
    Answers requests through one manager, which is made once and kept until `close`.

    It starts with the first request and costs seconds then, fractions of a second later. `suspend`, at the end of every
    roll-out, ends its thread and gives back what it changes in the process while it runs: the model's attention
    implementation and training mode, and the state of torch's global random generators, from which it draws. Only then
    may the weights change.

    Replies cannot be reproduced: the manager takes no seed per request, and which rows share a draw depends on its
    thread's timing. Nor does its thread see the caller's `autocast`: the model computes in the dtype of its weights.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The current policy, unwrapped.
        generation_config ([`~transformers.GenerationConfig`]):
            Says which tokens end a reply. Sampling is the requests' own.
        version (`int`):
            Version of the policy's weights, recorded in every reply. Set the attribute when they have changed.
        max_rows (`int`, defaults to `128`):
            Most sequences decoded at once.
        max_length (`int`, defaults to `1024`):
            Longest prompt and reply together, in tokens, for which each row finds room in the cache.
        max_batch_tokens (`int`, *optional*):
            Most tokens of one forward pass: what does not fit waits for the next. Defaults to 256 on a CPU, where
            attention over a packed batch costs the square of it, and to transformers' own choice elsewhere.
        options (`Mapping[str, Any]`, *optional*):
            Other fields of transformers' `ContinuousBatchingConfig`, and those above under its own names.

    Raises:
        ValueError: If the configuration names stop texts, or an option would make replies wrong.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        generation_config: GenerationConfig,
        version: int = 0,
        max_rows: int = 128,
        max_length: int = 1024,
        max_batch_tokens: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.version = version
        self._model = model
        self._attn_implementation = model.config._attn_implementation
        self._config = _config(model, generation_config)
        self._ends = (
            {self._config.eos_token_id} if isinstance(self._config.eos_token_id, int) else {*self._config.eos_token_id}
        )
        if max_batch_tokens is None and model.device.type == "cpu":
            max_batch_tokens = 256
        # transformers 5.17 calls it `block_size`, which later versions warn about.
        names = {field.name for field in fields(ContinuousBatchingConfig)}
        sizes = {
            "page_size" if "page_size" in names else "block_size": PAGE_SIZE,
            # By default it takes 90 % of the free memory, of which a trainer needs the most.
            "num_blocks": max_rows * -(-max_length // PAGE_SIZE),
            "max_batch_tokens": max_batch_tokens,
            "max_requests_per_batch": max_rows,
        }
        wrong = {name: value for name, value in (options or {}).items() if FIXED.get(name, value) != value}
        if wrong:
            raise ValueError(
                f"Continuous batching is given {wrong}, and replies are right with {FIXED} only. Drop them."
            )
        self._batching = ContinuousBatchingConfig(**{**sizes, **(options or {}), **FIXED})
        self._max_length = max_length
        self._manager: ContinuousBatchingManager | None = None
        self._borrowed: ExitStack | None = None  # what is to be given back, while the manager runs
        self._in_flight: dict[str, tuple[int, Request]] = {}
        self._asked = 0
        self._drawn = 0

    def add(self, ticket: int, request: Request) -> None:
        """
        Takes a request, and starts the manager if it does not run.

        Raises:
            ValueError: If it asks for what the manager cannot do, has no prompt as token ids, or may grow too long.
        """
        _check(request)
        length = len(request.prompt_ids) + request.sampling.max_new_tokens
        if length > self._max_length:
            raise ValueError(f"A request may grow to {length} tokens, more than `max_length` ({self._max_length}).")
        if self._borrowed is None:
            self._start()
        # A name of its own: a ticket may come again once it is aborted, and with it a late reply to the first.
        name = str(self._asked)
        self._asked += 1
        self._in_flight[name] = ticket, request
        self._manager.add_request(
            list(request.prompt_ids),
            request_id=name,
            max_new_tokens=request.sampling.max_new_tokens,
            temperature=float(request.sampling.temperature),
        )

    def step(self) -> list[tuple[int, Reply]]:
        """
        Waits until at least one request is answered, and returns all that are.

        Raises:
            RuntimeError: If the manager failed. It is closed then.
        """
        assert self._in_flight, "an engine is only asked to work while something waits"
        replies: list[tuple[int, Reply]] = []
        while (output := self._manager.get_result(timeout=0.0 if replies else 1.0)) is not None or not replies:
            if output is None and self._manager.is_running():
                continue
            error = "its thread has ended" if output is None else output.error
            if output is not None and output.request_id not in self._in_flight:
                continue  # aborted
            if error is not None:
                self.close()
                raise RuntimeError(f"transformers' continuous-batching manager failed: {error}")
            ticket, _ = self._in_flight.pop(output.request_id)
            self._drawn += len(output.generated_tokens)
            tokens, logprobs = tuple(output.generated_tokens), tuple(output.logprobs)
            reply = Reply(tokens, logprobs, "stop" if tokens[-1] in self._ends else "length", self.version)
            replies.append((ticket, reply))
        return replies

    def abort(self, tickets: Sequence[int]) -> None:
        """Forgets requests."""
        gone = set(tickets)
        for name, (ticket, _) in list(self._in_flight.items()):
            if ticket in gone:
                del self._in_flight[name]
                self._manager.cancel_request(name)

    def metrics(self) -> dict[str, float]:
        """`new_tokens` since last asked. The manager does not tell how full its batches were."""
        drawn, self._drawn = self._drawn, 0
        return {"new_tokens": float(drawn)}

    def suspend(self) -> None:
        """Ends the manager's thread, keeps its memory, and gives back what it borrowed. Requests in flight are lost."""
        self._stop(keep=True)

    def close(self) -> None:
        """Ends the manager and frees its memory; the next request makes a new one."""
        self._stop(keep=False)
        if self._manager is not None:
            self._model.destroy_cached_continuous_batching_manager()
            self._manager = None

    def _start(self) -> None:
        with ExitStack() as stack:
            cuda = [self._model.device] if self._model.device.type == "cuda" else []
            stack.enter_context(torch.random.fork_rng(devices=cuda))
            stack.callback(self._model.train, self._model.training)
            # transformers 5.17 switches it to one with which nobody else can call the model.
            stack.callback(self._model.set_attn_implementation, self._attn_implementation)
            manager = self._model.init_continuous_batching(
                generation_config=self._config, continuous_batching_config=self._batching
            )
            self._model.eval()
            if self._manager is None:
                made = manager.logit_processor.logits_processor
                unknown = [
                    type(one).__name__ for one in made if type(one) is not ContinuousBatchingTemperatureLogitsWarper
                ]
                if unknown:
                    raise ValueError(
                        f"The continuous-batching manager cannot honour {unknown}, which the generation options ask for. "
                        "Drop them, or use `TransformersEngine`."
                    )
                # Its thread is no daemon, so a script that dies with the manager running would hang in its exit.
                threading.Thread(target=_stop_after, args=(threading.main_thread(), weakref.ref(manager))).start()
            self._manager = manager
            manager.start()
            self._borrowed = stack.pop_all()

    def _stop(self, keep: bool) -> None:
        self._in_flight.clear()
        if self._borrowed is not None:
            self._manager.stop(block=True, keep_for_next_session=keep, hard_stop=True)
            while self._manager.get_result(timeout=0.0) is not None:
                pass  # what the stop cut short
            self._borrowed.close()
            self._borrowed = None


def _stop_after(main: threading.Thread, reference: weakref.ref[ContinuousBatchingManager]) -> None:
    main.join()  # at exit, Python waits for the other threads once it is done with this one
    manager = reference()
    if manager is not None and manager.is_running():
        manager.stop(hard_stop=True)


def _config(model: PreTrainedModel, base: GenerationConfig) -> GenerationConfig:
    if base.stop_strings:
        raise ValueError(
            f"The continuous-batching manager knows no stop texts, and the generation options name {base.stop_strings}. "
            "Drop them, or use `TransformersEngine`."
        )
    config = copy.deepcopy(base)
    ends = base.eos_token_id if base.eos_token_id is not None else model.generation_config.eos_token_id
    config.update(
        do_sample=True,
        temperature=0.5,  # never used: at 1.0 the manager would make no processor that takes each request's own
        top_p=1.0,
        top_k=0,
        min_p=None,
        repetition_penalty=1.0,
        num_return_sequences=1,
        eos_token_id=-1 if ends is None else ends,
    )
    return config


def _check(request: Request) -> None:
    if request.policy != POLICY:
        raise ValueError(
            f"A request names the policy {request.policy!r}, and this engine holds the current one only. Give snapshots "
            "an engine of their own."
        )
    check_for_transformers(request)
    sampling = request.sampling
    plain = Sampling(temperature=sampling.temperature, max_new_tokens=sampling.max_new_tokens)
    if replace(sampling, min_p=sampling.min_p or None) != plain or sampling.temperature <= 0:
        raise ValueError(
            f"The continuous-batching manager samples at a temperature above zero and nothing else, and a request asks "
            f"for {sampling}. Use `TransformersEngine`."
        )
