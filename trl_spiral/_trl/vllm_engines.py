"""Engines over the vLLM of a TRL trainer: colocated, or a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_spiral._trl.settings import most_in_flight, vllm_options
from trl_spiral._trl.vllm_generation import PATIENCE, SpiralVLLMGeneration, base_url
from trl_spiral.engines.http.vllm_server import ServerEngine
from trl_spiral.engines.policies import SwappingEngine
from trl_spiral.engines.vllm.colocated import VLLMEngine, load_weights
from trl_spiral.engines.vllm.lora import check_adapter, is_adapter
from trl_spiral.selfplay.referee import Engine
from trl_spiral.types import POLICY


if TYPE_CHECKING:
    from trl import GRPOTrainer


WHOLE_WEIGHTS_BEHIND_A_SERVER = (
    "A vLLM server holds one set of whole weights, so it cannot answer for snapshots of them. Train LoRA, generate "
    'with `vllm_mode="colocate"`, or serve the opponent by a server of its own, as an endpoint.'
)


def check_snapshots(trainer: GRPOTrainer, snapshots: Mapping[str, Path | None]) -> None:
    """Raise `ValueError` if the trainer's vLLM cannot serve one of the snapshots."""
    generation = trainer.vllm_generation
    adapters = getattr(generation, "adapters", False)  # a plain trainer's has no such attribute
    for name, folder in snapshots.items():
        if adapters and folder is not None and not is_adapter(folder):
            raise ValueError(
                f"The snapshot {name!r} in {folder} holds whole weights, and this run trains an adapter, next to "
                "which vLLM serves only adapters. Take it out of the pool, or serve it as an endpoint."
            )
        if adapters and folder is not None:
            check_adapter(folder)
        if not adapters and (folder is None or is_adapter(folder)):
            raise ValueError(
                f"The snapshot {name!r} is an adapter, or the base model without one, and this trainer sends vLLM "
                "whole weights with an adapter merged into them, on which it would be wrong. Use `SpiralTrainer` with "
                "LoRA and a pool from the start, or pass a folder of whole weights."
            )
    if snapshots and not adapters and trainer.vllm_mode == "server":
        raise ValueError(WHOLE_WEIGHTS_BEHIND_A_SERVER)
    if snapshots and not adapters and (generation._dist.is_zero3 or generation._dist.is_fsdp):
        raise ValueError(
            "Sharded weights must be gathered by all ranks at once, and each rank swaps in opponents' weights when "
            "its own games need them. Train LoRA against snapshots, or do not shard (ZeRO-2 at most)."
        )


@contextmanager
def colocated_engine(trainer: GRPOTrainer, snapshots: Mapping[str, Path | None]) -> Iterator[Engine]:
    """Open the colocated vLLM. It is awake inside the context."""
    generation = trainer.vllm_generation
    if generation.enable_sleep_mode:
        if generation._llm_weights_sleeping:
            generation.sync_weights()
        generation.llm.wake_up(tags=["kv_cache"])
    options = vllm_options(trainer)
    try:
        if getattr(generation, "adapters", False):
            adapters = {POLICY: generation.policy_adapter, **snapshots}
            yield VLLMEngine(generation.llm, trainer._last_loaded_step, options, adapters)
        elif snapshots:
            yield from _swapping_engine(trainer, snapshots, options)
        else:
            yield VLLMEngine(generation.llm, trainer._last_loaded_step, options)
    finally:
        if generation.enable_sleep_mode:
            # As in TRL, the weights are discarded, and sent again before the next roll-out.
            generation.llm.sleep(level=2)
            generation._llm_weights_sleeping = True


def _swapping_engine(
    trainer: GRPOTrainer, snapshots: Mapping[str, Path | None], options: dict[str, Any]
) -> Iterator[SwappingEngine]:
    """
    Open the colocated vLLM with whole weights that are swapped, and restore the policy's weights at the end.

    `weight_switches` does not count that last swap, since the engine's metrics are read before.
    """
    generation, step = trainer.vllm_generation, trainer._last_loaded_step

    def load(policy: str) -> None:
        # To TRL, the weights were never synced. If the roll-out fails, the next one syncs them.
        trainer._last_loaded_step = -1
        if policy == POLICY:
            # No collective, because the weights are not sharded. Other ranks swap at other times.
            generation.sync_weights()
            trainer._last_loaded_step = step
        else:
            folder = snapshots[policy]
            assert folder is not None, "checked before"
            load_weights(generation.llm, folder)

    engine = VLLMEngine(generation.llm, step, options)
    swapping = SwappingEngine(engine, load, {POLICY, *snapshots}, resident=POLICY)
    yield swapping
    if swapping.resident != POLICY:
        load(POLICY)


@contextmanager
def server_engine(trainer: GRPOTrainer, snapshots: Mapping[str, Path | None]) -> Iterator[ServerEngine]:
    """Open connections of this rank to the vLLM server."""
    generation = trainer.vllm_generation
    if not isinstance(generation, SpiralVLLMGeneration):
        # In a plain trainer only the first rank has synced, and the start of the server is not recorded.
        trainer.accelerator.wait_for_everyone()
    with ServerEngine(
        base_url(generation),
        version=trainer._last_loaded_step,
        extra=vllm_options(trainer),
        max_in_flight=most_in_flight(trainer),
        patience=getattr(generation, "patience", PATIENCE),
    ) as engine:
        engine.boot = getattr(generation, "boot_id", None)
        if getattr(generation, "adapters", False):
            engine.adapters = generation.serve(snapshots)
        yield engine
