"""Engines over the model of a TRL trainer, and over a second copy of it if opponents need one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from accelerate.utils import is_peft_model
from transformers import GenerationConfig
from trl.models.utils import unwrap_model_for_generation

from trl_spiral._trl.settings import most_in_flight, tokenizer_of, trainer_sampling
from trl_spiral.engines.adapters import check_base
from trl_spiral.engines.local.lora_batching import SideBySide, live_adapter, obstacle, read_adapters
from trl_spiral.engines.local.memory import rows_that_fit
from trl_spiral.engines.local.second_copy import FrozenCopy
from trl_spiral.engines.local.transformers import TransformersEngine, generation_config
from trl_spiral.engines.policies import Router, SwappingEngine
from trl_spiral.selfplay.referee import Engine
from trl_spiral.types import POLICY


if TYPE_CHECKING:
    from trl import GRPOTrainer


PROMPT_ROOM = 2048
"""Length of a prompt, in tokens, for which memory is planned before any prompt is known."""

_second_copies: WeakKeyDictionary[Any, FrozenCopy] = WeakKeyDictionary()

_shelves: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
"""Adapters that were read from their folders for the latest roll-out, by trainer."""


@contextmanager
def transformers_engine(trainer: GRPOTrainer, snapshots: Mapping[str, Path | None]) -> Iterator[Engine]:
    """
    Open the engine over the trainer's own model, and over a second copy for opponents that cannot share its batches.

    The model is unwrapped, ZeRO-3 shards are gathered once for the whole roll-out, and dropout is off.
    """
    training = trainer.model.training
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            # A trainer that does not sample has none of these options.
            gather_deepspeed3_params=getattr(trainer.args, "ds3_gather_for_generation", True),
            generation_kwargs=getattr(trainer, "generation_kwargs", None),
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model,
        trainer.accelerator.autocast(),
    ):
        model.eval()
        try:
            if snapshots:
                yield _engine_of_several(trainer, model, snapshots)
            else:
                yield _plain_engine(trainer, model, _rows_that_fit(trainer, model))
        finally:
            model.train(training)


def _engine_of_several(trainer: GRPOTrainer, model: Any, snapshots: Mapping[str, Path | None]) -> Engine:
    """Return an engine of all policies: adapters in one batch if possible, or else snapshots that take turns."""
    if None in snapshots.values() and is_peft_model(model):
        check_base(model.peft_config[model.active_adapter])
    if is_peft_model(model) and obstacle(model) is None:
        adapters = read_adapters(snapshots, _shelves.setdefault(trainer, {}))
        side_by_side = SideBySide(model, {POLICY: live_adapter(model), **adapters})
        return _plain_engine(trainer, model, _rows_that_fit(trainer, model), side_by_side)
    second = _second_copy(trainer, model)
    rows = _rows_that_fit(trainer, model, engines=2)
    opponents = SwappingEngine(
        _plain_engine(trainer, second.model, rows),
        load=lambda name: second.load(snapshots[name]),
        policies=snapshots,
        # The copy may hold weights already. A resumed run has none, and must take the same turns.
        resident=None,
    )
    return Router({POLICY: _plain_engine(trainer, model, rows)}, default=opponents)


def _rows_that_fit(trainer: GRPOTrainer, model: Any, engines: int = 1) -> int:
    tokens = engines * (trainer_sampling(trainer).max_new_tokens + PROMPT_ROOM)
    return rows_that_fit(model, tokens, most_in_flight(trainer))


def _plain_engine(
    trainer: GRPOTrainer, model: Any, rows: int, adapters: SideBySide | None = None
) -> TransformersEngine:
    return TransformersEngine(
        model,
        _generation_config_of(trainer, model),
        trainer.state.global_step,
        adapters=adapters,
        max_rows=rows,
        tokenizer=tokenizer_of(trainer),
    )


def _generation_config_of(trainer: Any, model: Any) -> GenerationConfig:
    """Return the trainer's own configuration, or TRL's defaults for a trainer that does not sample."""
    config: GenerationConfig | None = getattr(trainer, "generation_config", None)
    if config is not None:
        return config
    return generation_config(model, tokenizer_of(trainer))


def _second_copy(trainer: GRPOTrainer, model: Any) -> FrozenCopy:
    """Return the trainer's second copy, made for its first opponent."""
    if trainer not in _second_copies:
        if getattr(trainer.args, "cast_lm_head_to_fp32", False):
            raise ValueError(
                "`cast_lm_head_to_fp32` ties the last layer to the model in training, and opponents that cannot share "
                "a batch with the policy need a copy of it. Leave it off, train plain LoRA, or let vLLM generate."
            )
        _second_copies[trainer] = FrozenCopy(model)
    return _second_copies[trainer]
