"""The engine of a TRL trainer, opened with the trainer's weights, and the ranks that share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trl_spiral._trl.settings import check_batching
from trl_spiral._trl.transformers_engines import transformers_engine
from trl_spiral._trl.vllm_engines import check_snapshots, colocated_engine, server_engine
from trl_spiral.engines.http.vllm_server import ServerEngine
from trl_spiral.selfplay.referee import Engine


if TYPE_CHECKING:
    from trl import GRPOTrainer


@contextmanager
def open_engine(trainer: GRPOTrainer, snapshots: Mapping[str, Path | None] | None = None) -> Iterator[Engine]:
    """
    Open the engine that the trainer's arguments select, with the trainer's weights.

    Every rank must enter the context, even if it plays no game: weights may have to be gathered or synced.

    Args:
        trainer ([`~trl.GRPOTrainer`]):
            Its weights answer as `POLICY`.
        snapshots (`Mapping[str, Path | None]`, *optional*):
            Folders of other policies, by policy name: LoRA adapters or whole weights. `None` stands for the base model
            of a LoRA run, without any adapter.

    Raises:
        ValueError: If the trainer generates by continuous batching, or its engine cannot serve a snapshot.
    """
    check_batching(trainer.args)
    if not getattr(trainer, "use_vllm", False):  # an `SFTTrainer` has no such attribute
        opened = transformers_engine(trainer, snapshots or {})
    else:
        check_snapshots(trainer, snapshots or {})
        if trainer._last_loaded_step != trainer.state.global_step:
            # TRL syncs before a roll-out, but not before a callback.
            trainer.vllm_generation.sync_weights()
            trainer._last_loaded_step = trainer.state.global_step
        opened = (server_engine if trainer.vllm_mode == "server" else colocated_engine)(trainer, snapshots or {})
    with opened as engine:
        yield engine


def restore_weights(trainer: GRPOTrainer, engine: Engine) -> None:
    """Send the trainer's weights and adapters to a server that has restarted. Every rank must call it."""
    assert isinstance(engine, ServerEngine), "no other engine loses its weights"
    generation = trainer.vllm_generation
    generation.sync_weights()
    engine.boot = generation.boot_id
    if generation.adapters:
        engine.adapters = generation.serve(generation.snapshots)


def ranks_per_engine(trainer: GRPOTrainer) -> int:
    """Return the number of ranks that share one engine and must send it the same requests (tensor parallelism)."""
    shared = getattr(trainer, "use_vllm", False) and trainer.vllm_mode == "colocate"
    return trainer.vllm_tensor_parallel_size if shared else 1


def is_first_to_play(trainer: GRPOTrainer) -> bool:
    """Return whether this rank belongs to the first engine, which plays when one engine is enough."""
    first: bool = trainer.accelerator.process_index < ranks_per_engine(trainer)
    return first
