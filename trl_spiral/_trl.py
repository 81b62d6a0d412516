"""
Everything of TRL and transformers that is private or experimental, touched in this module alone.

`tests/test_trl_seams.py` compares the names below with what is installed, so that a new release fails one clear test
rather than a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from trl.models.utils import unwrap_model_for_generation

from trl_spiral.engines import TransformersEngine
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

TRAINER_ATTRIBUTES = ("_tr_loss", "_globalstep_last_logged", "_total_loss_scalar")
"""Attributes of `transformers.Trainer` that are restored: the loss that has not been logged yet."""

OVERRIDDEN = {
    "_generate_and_score_completions": ("self", "inputs"),
    "_save_checkpoint": ("self", "model", "trial"),
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


@contextmanager
def transformers_engine(trainer: GRPOTrainer) -> Iterator[TransformersEngine]:
    """
    The engine over the trainer's own model, for as long as the context lasts.

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
        try:
            yield TransformersEngine(model, trainer.generation_config, version=trainer.state.global_step)
        finally:
            model.train(training)


def sampling_of(trainer: GRPOTrainer) -> Sampling:
    """How the trainer samples, `generation_kwargs` included."""
    config = trainer.generation_config
    return Sampling(
        temperature=config.temperature if config.do_sample else 0.0,
        top_p=config.top_p if config.top_p is not None else 1.0,
        top_k=config.top_k or 0,
        min_p=config.min_p,
        repetition_penalty=config.repetition_penalty or 1.0,
        max_new_tokens=config.max_new_tokens,
    )


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
