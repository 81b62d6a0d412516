"""The engine of any trainer of TRL's, whatever generates: opened with the trainer's weights, and which ranks share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trl_spiral._trl.transformers_engines import transformers_engine
from trl_spiral._trl.vllm_engines import check_snapshots, colocated_engine, server_engine
from trl_spiral.engines.http.vllm_server import ServerEngine
from trl_spiral.selfplay.referee import Engine


if TYPE_CHECKING:
    from trl import GRPOTrainer


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
    if not getattr(trainer, "use_vllm", False):  # an `SFTTrainer` has no such thing
        opened = transformers_engine(trainer, snapshots or {})
    else:
        check_snapshots(trainer, snapshots or {})
        if trainer._last_loaded_step != trainer.state.global_step:
            # TRL has done so before a roll-out, and has not before a callback.
            trainer.vllm_generation.sync_weights()
            trainer._last_loaded_step = trainer.state.global_step
        opened = (server_engine if trainer.vllm_mode == "server" else colocated_engine)(trainer, snapshots or {})
    with opened as engine:
        yield engine


def restore_weights(trainer: GRPOTrainer, engine: Engine) -> None:
    """Gives a server that was started again the trainer's weights, and its adapters. Every rank must call it."""
    assert isinstance(engine, ServerEngine), "no other engine loses its weights"
    generation = trainer.vllm_generation
    generation.sync_weights()
    engine.boot = generation.boot_id
    if generation.adapters:
        engine.adapters = generation.serve(generation.snapshots)


def ranks_per_engine(trainer: GRPOTrainer) -> int:
    """How many ranks share one engine, all of which must ask it the same: vLLM's tensor parallelism."""
    shared = getattr(trainer, "use_vllm", False) and trainer.vllm_mode == "colocate"
    return trainer.vllm_tensor_parallel_size if shared else 1


def is_first_to_play(trainer: GRPOTrainer) -> bool:
    """Whether this rank belongs to the first engine: the one that plays where one is enough."""
    first: bool = trainer.accelerator.process_index < ranks_per_engine(trainer)
    return first
