"""Engines over the model of any trainer of TRL's, and over a second copy of it where opponents need one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from accelerate.utils import is_peft_model
from transformers import GenerationConfig
from trl.models.utils import unwrap_model_for_generation

from trl_spiral._trl.settings import most_in_flight, sampling_of, tokenizer_of
from trl_spiral.engines.local.continuous import ContinuousEngine
from trl_spiral.engines.local.lora_batching import SideBySide, live_adapter, obstacle, read_adapters
from trl_spiral.engines.local.memory import rows_that_fit
from trl_spiral.engines.local.second_copy import FrozenCopy
from trl_spiral.engines.local.transformers import TransformersEngine, generation_config
from trl_spiral.engines.router import Router
from trl_spiral.engines.snapshots import check_base
from trl_spiral.engines.swapping import PhasedEngine
from trl_spiral.selfplay.referee import Engine
from trl_spiral.types import POLICY


if TYPE_CHECKING:
    from trl import GRPOTrainer


PROMPT_ROOM = 2048
"""Tokens that a prompt may have where memory is planned before any was seen."""

_second_copies: WeakKeyDictionary[Any, FrozenCopy] = WeakKeyDictionary()

_shelves: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
"""Adapters that were read from their folders for the latest roll-out."""

_continuous_engines: WeakKeyDictionary[Any, ContinuousEngine] = WeakKeyDictionary()


@contextmanager
def transformers_engine(trainer: GRPOTrainer, snapshots: Mapping[str, Path | None]) -> Iterator[Engine]:
    """
    The engine over the trainer's own model, and where opponents cannot share a batch with it, over a second copy.

    The model is unwrapped, ZeRO-3 shards are gathered once around the whole roll-out, and dropout is off.
    """
    training = trainer.model.training
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            # A trainer that does not sample names none of these.
            gather_deepspeed3_params=getattr(trainer.args, "ds3_gather_for_generation", True),
            generation_kwargs=getattr(trainer, "generation_kwargs", None),
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model,
        trainer.accelerator.autocast(),
    ):
        model.eval()
        try:
            if snapshots:
                with _engine_of_several(trainer, model, snapshots) as engine:
                    yield engine
            else:
                with _policy_engine(trainer, model, _rows_that_fit(trainer, model)) as engine:
                    yield engine
        finally:
            model.train(training)


@contextmanager
def _engine_of_several(trainer: GRPOTrainer, model: Any, snapshots: Mapping[str, Path | None]) -> Iterator[Engine]:
    """Adapters side by side in one batch where they can be, and otherwise snapshots in turn beside the policy."""
    continuous = _batches_continuously(trainer)
    if None in snapshots.values() and is_peft_model(model):
        check_base(model.peft_config[model.active_adapter])
    adapters = None
    if is_peft_model(model) and obstacle(model) is None:
        adapters = read_adapters(snapshots, _shelves.setdefault(trainer, {}))
    if adapters is not None and not continuous:
        side_by_side = SideBySide(model, {POLICY: live_adapter(model), **adapters})
        yield _plain_engine(trainer, model, _rows_that_fit(trainer, model), side_by_side)
        return
    second = _second_copy(trainer, model)
    rows = _rows_that_fit(trainer, model, engines=2)
    opponents: Engine
    if adapters is not None:
        # The continuous-batching manager has the policy's own model to itself.
        opponents = _plain_engine(trainer, second.model, rows, SideBySide(second.model, adapters))
    else:
        opponents = PhasedEngine(
            _plain_engine(trainer, second.model, rows),
            load=lambda name: second.load(snapshots[name]),
            policies=snapshots,
            # Nobody, though somebody's weights are there: a resumed run finds nobody's, and must take the same turns.
            resident=None,
        )
    with _policy_engine(trainer, model, rows) as policy:
        yield Router({POLICY: policy}, default=opponents)


def _rows_that_fit(trainer: GRPOTrainer, model: Any, engines: int = 1) -> int:
    tokens = engines * (sampling_of(trainer).max_new_tokens + PROMPT_ROOM)
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
    """The trainer's own or, where it does not sample, what any trainer of TRL's would sample with."""
    config: GenerationConfig | None = getattr(trainer, "generation_config", None)
    if config is not None:
        return config
    return generation_config(model, tokenizer_of(trainer))


def _batches_continuously(trainer: Any) -> bool:
    """Whether the trainer generates by transformers' continuous batching."""
    return bool(getattr(trainer, "use_transformers_continuous_batching", False))


@contextmanager
def _policy_engine(trainer: GRPOTrainer, model: Any, rows: int) -> Iterator[Engine]:
    """The engine of the weights in training alone."""
    if not _batches_continuously(trainer):
        yield _plain_engine(trainer, model, rows)
        return
    # The one that the trainer has had from its first roll-out on: making it costs seconds.
    engine = _continuous_engines.get(trainer)
    if engine is None:
        engine = _continuous_engines[trainer] = ContinuousEngine(
            model,
            trainer.generation_config,
            max_rows=rows,
            max_length=trainer.max_completion_length + PROMPT_ROOM,
            options=trainer.args.transformers_continuous_batching_config,
        )
    engine.version = trainer.state.global_step
    try:
        yield engine
    finally:
        engine.suspend()


def _second_copy(trainer: GRPOTrainer, model: Any) -> FrozenCopy:
    """The one that the trainer has had since it first met an opponent."""
    if trainer not in _second_copies:
        if getattr(trainer.args, "cast_lm_head_to_fp32", False):
            raise ValueError(
                "`cast_lm_head_to_fp32` ties the last layer to the model in training, and opponents that cannot share a "
                "batch with the policy need a copy of it. Leave it off, train plain LoRA, or let vLLM generate."
            )
        if (engine := _continuous_engines.get(trainer)) is not None:
            engine.close()  # it hangs on the model, threads and all, and nobody can copy those
        _second_copies[trainer] = FrozenCopy(model)
    return _second_copies[trainer]
