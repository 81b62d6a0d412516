"""
Everything of TRL and transformers that is private or experimental, touched in this module alone.

`tests/test_trl_seams.py` compares the names below with what is installed, so that a new release fails one clear test
rather than a run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from accelerate.utils import broadcast_object_list
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.models.utils import unwrap_model_for_generation
from trl.trainer import grpo_trainer

from trl_spiral.engines.continuous import ContinuousEngine
from trl_spiral.engines.http import ServerEngine
from trl_spiral.engines.memory import rows_that_fit
from trl_spiral.engines.transformers import TransformersEngine
from trl_spiral.engines.vllm import VLLMEngine
from trl_spiral.rollout import Engine
from trl_spiral.types import Sampling


if TYPE_CHECKING:
    from trl import GRPOTrainer


TRL_ATTRIBUTES = (
    "_step",
    "_buffered_inputs",
    "_metrics",
    "_logs",
    "generation_config",
    "generation_kwargs",
    "_tokenizer",
    "entropy_coef",
    "_last_world_entropy",
)
"""Attributes of `GRPOTrainer` that are read or restored."""

VLLM_ATTRIBUTES = ("vllm_generation", "_last_loaded_step")
"""The same, where vLLM generates."""

VLLM_GENERATION_ATTRIBUTES = ("mode", "llm", "vllm_client", "enable_sleep_mode", "_llm_weights_sleeping")
"""Attributes of TRL's `VLLMGeneration` that are read or set."""

TRAINER_ATTRIBUTES = ("_tr_loss", "_globalstep_last_logged", "_total_loss_scalar")
"""Attributes of `transformers.Trainer` that are restored: the loss that has not been logged yet."""

OVERRIDDEN = {
    "_generate_and_score_completions": ("self", "inputs"),
    "_save_checkpoint": ("self", "model", "trial"),
    "_compute_loss": ("self", "model", "inputs"),
    "_get_per_token_logps_and_entropies": (
        *("self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
        *("compute_entropy", "compute_aux_loss", "pixel_values", "image_grid_thw", "num_images"),
        *("pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes", "token_type_ids"),
        *("mm_token_type_ids", "image_position_ids"),
    ),
    "_save_rng_state": ("self", "output_dir"),
    "_load_rng_state": ("self", "checkpoint"),
    "log": ("self", "logs", "start_time"),
    "create_model_card": ("self", "model_name", "dataset_name", "tags"),
}
"""Methods that `SpiralTrainer` overrides, with their parameters."""


class SpiralVLLMGeneration(VLLMGeneration):  # type: ignore[misc]  # TRL's types are not read
    """
    TRL's vLLM generation, with what TRL does not say to a colocated engine, and weights that are synced or refused.

    Args:
        engine_kwargs (`dict[str, Any]`):
            More arguments of [`vllm.LLM`] in colocate mode; they override TRL's.
        patience (`float`):
            Seconds for which a server may fail before it is given up.
        args, kwargs:
            As in [`~trl.generation.vllm_generation.VLLMGeneration`].
    """

    def __init__(self, *args: Any, engine_kwargs: dict[str, Any], patience: float, **kwargs: Any) -> None:
        self.engine_kwargs = engine_kwargs
        self.patience = patience
        self.boot_id: str | None = None
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        llm: Any = getattr(vllm_generation, "LLM", None)  # TRL has none where vLLM is not installed, and says so
        vllm_generation.LLM = lambda **kwargs: llm(**kwargs | self.engine_kwargs)
        try:
            super()._init_vllm()
        finally:
            vllm_generation.LLM = llm
        if self.mode == "server" and self.accelerator.is_main_process:
            self.boot_id = self._find_boot_id()

    def sync_weights(self) -> None:
        """
        Gives the engine the trainer's weights and sees to it that nothing computed from older ones is left.

        Every rank must call it. A server that was started again since the last time is connected to again.

        Raises:
            RuntimeError: If requests are in flight, or vLLM does not drop its prefix cache.
            ConnectionError: If the server cannot be reached.
        """
        if self.mode == "colocate":
            if waiting := self.llm.llm_engine.get_num_unfinished_requests():
                raise RuntimeError(
                    f"Weights cannot change while {waiting} requests are in flight: their replies would be written by "
                    "both. Finish or abort them first."
                )
            super().sync_weights()
            dropped = self.llm.reset_prefix_cache()
        else:
            main = self.accelerator.is_main_process
            # Noted before: a server that is started again from here on will be found to be another.
            boot = self._find_boot_id() if main else None
            if main and boot != self.boot_id:
                self.vllm_client.close_communicator()
                self.vllm_client.init_communicator(device=self.accelerator.device)
            super().sync_weights()
            dropped = not main or self._server_drops_prefix_cache()
        if not dropped:
            raise RuntimeError(
                "vLLM declined to drop its prefix cache after its weights had changed, as it does while requests are in "
                "flight. Let nobody else use the engine during training."
            )
        if self.mode == "server":
            # All ranks wait here, so that none asks before the weights are there.
            known = [boot]
            broadcast_object_list(known, from_process=0)
            self.boot_id = known[0]

    def _find_boot_id(self) -> str:
        with ServerEngine(base_url(self), patience=self.patience) as engine:
            return engine.boot_id()

    def _server_drops_prefix_cache(self) -> bool:
        """Asks until the server has dropped it: requests that were aborted take it a moment to forget."""
        for pause in (0.0, 0.1, 0.5, 2.0):
            time.sleep(pause)
            answer = self.vllm_client.session.post(f"{base_url(self)}/reset_prefix_cache")
            # Before vLLM 0.26 the answer was empty.
            if answer.ok and (not answer.content or answer.json().get("success")):
                return True
        return False


def base_url(generation: VLLMGeneration) -> str:
    """Where the server is, in server mode."""
    return (generation.server_base_url or f"http://{generation.server_host}:{generation.server_port}").rstrip("/")


PATIENCE = 30.0
"""Seconds for which a server may fail under a plain trainer, whose configuration does not say."""


@contextmanager
def own_vllm_generation(engine_kwargs: dict[str, Any], patience: float) -> Iterator[None]:
    """Within it, a [`~trl.GRPOTrainer`] that is made generates by `SpiralVLLMGeneration`."""
    theirs = grpo_trainer.VLLMGeneration
    grpo_trainer.VLLMGeneration = partial(SpiralVLLMGeneration, engine_kwargs=engine_kwargs, patience=patience)
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = theirs


@contextmanager
def open_engine(trainer: GRPOTrainer, snapshots: Mapping[str, Path | None] | None = None) -> Iterator[Engine]:
    """
    The engine that the trainer's arguments name, with the trainer's weights, for as long as the context lasts.

    Every rank must enter it, whether it plays or not: weights may have to be gathered or synced.

    Args:
        trainer ([`~trl.GRPOTrainer`]):
            Whose weights answer as `POLICY`.
        snapshots (`Mapping[str, Path | None]`, *optional*):
            Folders of other policies, by policy name: LoRA adapters or whole weights. `None` for the base model of a LoRA
            run, without any adapter.
    """
    if not trainer.use_vllm:
        opened = _transformers_engine(trainer)
    else:
        if trainer._last_loaded_step != trainer.state.global_step:
            # TRL has done so before a roll-out, and has not before a callback.
            trainer.vllm_generation.sync_weights()
            trainer._last_loaded_step = trainer.state.global_step
        opened = _server_engine(trainer) if trainer.vllm_mode == "server" else _colocated_engine(trainer)
    with opened as engine:
        yield engine


def restore_weights(trainer: GRPOTrainer, engine: Engine) -> None:
    """Gives a server that was started again the trainer's weights. Every rank must call it."""
    assert isinstance(engine, ServerEngine), "no other engine loses its weights"
    trainer.vllm_generation.sync_weights()
    engine.boot = trainer.vllm_generation.boot_id


def ranks_per_engine(trainer: GRPOTrainer) -> int:
    """How many ranks share one engine, all of which must ask it the same: vLLM's tensor parallelism."""
    return trainer.vllm_tensor_parallel_size if trainer.use_vllm and trainer.vllm_mode == "colocate" else 1


def is_first_to_play(trainer: GRPOTrainer) -> bool:
    """Whether this rank belongs to the first engine: the one that plays where one is enough."""
    first: bool = trainer.accelerator.process_index < ranks_per_engine(trainer)
    return first


@contextmanager
def _colocated_engine(trainer: GRPOTrainer) -> Iterator[VLLMEngine]:
    """The colocated vLLM, awake."""
    generation = trainer.vllm_generation
    if generation.enable_sleep_mode:
        if generation._llm_weights_sleeping:
            generation.sync_weights()
        generation.llm.wake_up(tags=["kv_cache"])
    try:
        yield VLLMEngine(generation.llm, version=trainer._last_loaded_step, options=_vllm_options(trainer))
    finally:
        if generation.enable_sleep_mode:
            # As TRL does: the weights are discarded, and pushed again before the next roll-out.
            generation.llm.sleep(level=2)
            generation._llm_weights_sleeping = True


@contextmanager
def _server_engine(trainer: GRPOTrainer) -> Iterator[ServerEngine]:
    """The vLLM server, through connections of this rank's own."""
    generation = trainer.vllm_generation
    if not isinstance(generation, SpiralVLLMGeneration):
        # A plain trainer's: its first rank alone has synced, and nobody has noted which boot of the server.
        trainer.accelerator.wait_for_everyone()
    with ServerEngine(
        base_url(generation),
        version=trainer._last_loaded_step,
        extra=_vllm_options(trainer),
        boot=getattr(generation, "boot_id", None),
        max_in_flight=_most_in_flight(trainer),
        patience=getattr(generation, "patience", PATIENCE),
    ) as engine:
        yield engine


def _most_in_flight(trainer: GRPOTrainer) -> int:
    # A plain trainer's configuration does not say.
    return getattr(trainer.args, "games_in_flight", None) or MOST_IN_FLIGHT


_SAMPLING_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "stop": "stop",
    "stop_strings": "stop",
}
"""What `generation_kwargs` may say of a reply, by transformers' and by vLLM's name, and our name of it."""


def _vllm_options(trainer: GRPOTrainer) -> dict[str, Any]:
    """What `generation_kwargs` says beyond our own `Sampling`, for vLLM."""
    options = {
        name: value for name, value in (trainer.args.generation_kwargs or {}).items() if name not in _SAMPLING_NAMES
    }
    if trainer.args.vllm_structured_outputs_regex is not None:
        options["structured_outputs"] = {"regex": trainer.args.vllm_structured_outputs_regex}
    return {"stop_token_ids": list(trainer.eos_token_ids), **options}


@contextmanager
def _transformers_engine(trainer: GRPOTrainer) -> Iterator[Engine]:
    """
    The engine over the trainer's own model.

    The model is unwrapped, ZeRO-3 shards are gathered once around the whole roll-out, and dropout is off.
    """
    training = trainer.model.training
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            generation_kwargs=trainer.generation_kwargs,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model,
        trainer.accelerator.autocast(),
    ):
        model.eval()
        rows = rows_that_fit(model, trainer.max_completion_length + PROMPT_ROOM, _most_in_flight(trainer))
        version = trainer.state.global_step
        try:
            if trainer.use_transformers_continuous_batching:
                yield from _continuous_engine(trainer, model, rows, version)
            else:
                yield TransformersEngine(
                    model, trainer.generation_config, version, max_rows=rows, tokenizer=trainer._tokenizer
                )
        finally:
            model.train(training)


def _continuous_engine(trainer: GRPOTrainer, model: Any, rows: int, version: int) -> Iterator[ContinuousEngine]:
    """The one that the trainer has had from its first roll-out on: making it costs seconds."""
    engine = _continuous_engines.get(trainer)
    if engine is None:
        engine = _continuous_engines[trainer] = ContinuousEngine(
            model,
            trainer.generation_config,
            max_rows=rows,
            max_length=trainer.max_completion_length + PROMPT_ROOM,
            options=trainer.args.transformers_continuous_batching_config,
        )
    engine.version = version
    try:
        yield engine
    finally:
        engine.suspend()


_continuous_engines: WeakKeyDictionary[Any, ContinuousEngine] = WeakKeyDictionary()

MOST_IN_FLIGHT = 512
"""Most games under way at once, where nobody says how many."""

PROMPT_ROOM = 2048
"""Tokens that a prompt may have where memory is planned before any was seen."""


def sampling_of(trainer: GRPOTrainer, evaluation: bool = False) -> Sampling:
    """How the trainer samples: its arguments, over them `generation_kwargs`, and in evaluation `eval_sampling`."""
    args = trainer.args
    said: dict[str, Any] = {
        "temperature": trainer.temperature,
        "top_p": trainer.top_p,
        "top_k": trainer.top_k,
        "min_p": trainer.min_p,
        "repetition_penalty": trainer.repetition_penalty,
        "max_new_tokens": trainer.max_completion_length,
    }
    options = args.generation_kwargs or {}
    said |= {_SAMPLING_NAMES[name]: value for name, value in options.items() if name in _SAMPLING_NAMES}
    if options.get("do_sample") is False:
        said["temperature"] = 0.0
    if isinstance(stop := said.get("stop", ()), str):
        stop = (stop,)
    said["stop"] = tuple(stop or ())
    sampling = Sampling(**said)
    # A plain trainer's configuration has no sampling of its own for evaluation.
    return replace(sampling, **(getattr(args, "eval_sampling", None) or {})) if evaluation else sampling


def cycle_state(trainer: GRPOTrainer) -> dict[str, Any]:
    """Where the trainer is in its generation cycle and logging window, which no checkpoint of TRL's own holds."""
    logs = trainer._logs
    return {
        "step": trainer._step,
        "buffered_inputs": trainer._buffered_inputs,
        "metrics": {name: list(values) for name, values in trainer._metrics["train"].items()},
        "logs": {
            **{name: list(logs[name]) for name in ("prompt", "completion", "advantages")},
            "rewards": {name: list(values) for name, values in logs["rewards"].items()},
            "extra": {name: list(values) for name, values in logs["extra"].items()},
        },
        "loss": trainer._tr_loss.item(),
        "last_logged": trainer._globalstep_last_logged,
        "total_loss": trainer._total_loss_scalar,
        # TRL writes these after the checkpoint is whole, and takes a file that is missing for a new start.
        "entropy": [trainer.entropy_coef, trainer._last_world_entropy],
    }


def restore_cycle(trainer: GRPOTrainer, state: dict[str, Any]) -> None:
    """Puts back what `cycle_state` gave."""
    device = trainer.accelerator.device
    trainer._step = state["step"]
    buffered = state["buffered_inputs"]
    if buffered is not None:
        buffered = [
            {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
            for batch in buffered
        ]
    trainer._buffered_inputs = buffered
    trainer._metrics["train"].clear()
    trainer._metrics["train"].update({name: list(values) for name, values in state["metrics"].items()})
    for name in ("prompt", "completion", "advantages"):
        trainer._logs[name].clear()
        trainer._logs[name].extend(state["logs"][name])
    for group in ("rewards", "extra"):
        trainer._logs[group].clear()
        for name, values in state["logs"][group].items():
            trainer._logs[group][name].extend(values)
    trainer._tr_loss.fill_(state["loss"])
    trainer._globalstep_last_logged = state["last_logged"]
    trainer._total_loss_scalar = state["total_loss"]
    trainer.entropy_coef, trainer._last_world_entropy = state["entropy"]


def replace_log(trainer: GRPOTrainer, column: str, values: list[Any]) -> None:
    """Replaces the newest entries of a column of TRL's completions table, one per row of the latest batch."""
    entries = trainer._logs[column]
    for _ in range(min(len(values), len(entries))):
        entries.pop()
    entries.extend(values)


def appending_chat_template(tokenizer: Any) -> str | None:
    """
    A chat template that only ever appends, for conversations trained in one row; `None` if the tokenizer's own does.

    TRL knows such variants of common templates. Where it knows none, the tokenizer's own is used, and
    [`~prompts.PromptRenderer`] refuses it if it rewrites earlier replies.
    """
    from trl.chat_template_utils import get_training_chat_template, is_chat_template_prefix_preserving

    if tokenizer.chat_template is None or is_chat_template_prefix_preserving(tokenizer):
        return None
    try:
        template: str | None = get_training_chat_template(tokenizer)
    except ValueError:
        return None
    return template
