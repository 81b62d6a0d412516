"""TRL's vLLM generation, extended with adapters, engine options, and checks that weights have arrived."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from trl_spiral.distributed import on_rank_zero
from trl_spiral.engines.http.vllm_server import ServerEngine
from trl_spiral.engines.vllm.colocated import lora_request
from trl_spiral.engines.vllm.lora import (
    adapter_of_zeros,
    check_lora_config,
    load_into_server,
    save_active_adapter,
    scratch_folder,
)
from trl_spiral.types import POLICY


PATIENCE = 30.0
"""Seconds for which a server may fail in the middle of a run before the run ends."""


class SpiralVLLMGeneration(VLLMGeneration):  # type: ignore[misc]  # TRL's types are not read
    """
    TRL's vLLM generation with more engine options, and with errors if weights do not arrive.

    Args:
        engine_kwargs (`dict[str, Any]`):
            More arguments of [`vllm.LLM`] in colocate mode. They override TRL's.
        patience (`float`):
            Seconds for which a server may fail before the run ends.
        adapters (`bool`, defaults to `False`):
            Whether vLLM keeps the base weights and serves the policy as one adapter among others. TRL merges the
            adapter into the weights that it syncs, where the adapter of a snapshot would be added to the policy's.
        args, kwargs:
            As in [`~trl.generation.vllm_generation.VLLMGeneration`].

    Attributes:
        policy_adapter (`Path`, *optional*):
            With `adapters`, the folder of the adapter in training as of the last sync.
        snapshots (`Mapping[str, Path | None]`):
            Other adapters that were loaded into a server last, by policy name.

    Raises:
        ValueError: If the adapter in training cannot be served next to others.
        RuntimeError: If the server does not accept it.
    """

    _renewals = count()  # of all trainers of the process, which share a folder

    def __init__(
        self, *args: Any, engine_kwargs: dict[str, Any], patience: float, adapters: bool = False, **kwargs: Any
    ) -> None:
        self.engine_kwargs = engine_kwargs
        self.patience = patience
        self.adapters = adapters
        self.policy_adapter: Path | None = None
        self.snapshots: Mapping[str, Path | None] = {}
        self.boot_id: str | None = None
        self._base_synced_to: str | None = None  # boot id of the server that has the base weights
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        if self.adapters:
            self._check_adapters()
        llm: Any = getattr(vllm_generation, "LLM", None)  # missing if vLLM is not installed, for which TRL raises
        vllm_generation.LLM = lambda **kwargs: llm(**kwargs | self.engine_kwargs)
        try:
            super()._init_vllm()
        finally:
            vllm_generation.LLM = llm
        if self.mode == "server":
            self.boot_id = on_rank_zero(self._find_boot_id)
        if self.mode == "server" and self.adapters:
            # Tried now, so that a server that cannot load adapters fails before the first roll-out.
            self._renew_adapter()
            self.serve({})

    def sync_weights(self) -> None:
        """
        Send the trainer's weights to the engine and drop everything computed from older ones.

        Every rank must call it. Connects again to a server that has restarted. With `adapters`, a server gets the base
        weights only; `serve` loads the adapters.

        Raises:
            RuntimeError: If requests are in flight, or vLLM does not drop its prefix cache.
            ConnectionError: If the server cannot be reached.
        """
        if self.mode == "colocate":
            if waiting := self.llm.llm_engine.get_num_unfinished_requests():
                raise RuntimeError(
                    f"Weights cannot change while {waiting} requests are in flight: their replies would be written by "
                    "both the old and the new ones. Finish or abort them first."
                )
            if not self.adapters or self._base_synced_to is None:
                super().sync_weights()
                self._base_synced_to = "this process"
            if self.adapters:
                self._renew_adapter()
            dropped = self.llm.reset_prefix_cache()
        else:
            main = self.accelerator.is_main_process
            # Read before the sync, so that a restart from here on is detected. All ranks need it, since all gather
            # sharded weights.
            boot = on_rank_zero(self._find_boot_id)
            if main and boot != self.boot_id:
                self.vllm_client.close_communicator()
                self.vllm_client.init_communicator(device=self.accelerator.device)
            if not self.adapters or boot != self._base_synced_to:
                super().sync_weights()
                self._base_synced_to = boot
            if self.adapters:
                self._renew_adapter()
            dropped = on_rank_zero(self._server_drops_prefix_cache)
        if not dropped:
            raise RuntimeError(
                "vLLM declined to drop its prefix cache after its weights had changed, as it does while requests are "
                "in flight. Do not use the engine for anything else during training."
            )
        if self.mode == "server":
            # No rank may send requests before the weights have arrived.
            self.accelerator.wait_for_everyone()
            self.boot_id = boot

    def serve(self, snapshots: Mapping[str, Path | None]) -> dict[str, str]:
        """
        Load the adapters of the policy and of these snapshots into a server, and unload others. Every rank must call
        it.

        Args:
            snapshots (`Mapping[str, Path | None]`):
                Folders of adapters by policy name, `None` for the base model.

        Returns:
            `dict[str, str]`: The server's names of the adapters, by policy name.

        Raises:
            RuntimeError: If the server does not accept one.
            ConnectionError: On rank 0, if the server cannot be reached.
        """
        self.snapshots = dict(snapshots)

        def load() -> dict[str, str]:
            assert self.policy_adapter is not None, "the first sync has saved one"
            self._find_boot_id()  # waits for a server that is restarting
            # Zeros for the base model: vLLM on a CPU gives rows without an adapter the adapter of others, and a server
            # does not report its device.
            folders = {
                policy: adapter_of_zeros(self.policy_adapter) if folder is None else Path(folder)
                for policy, folder in {POLICY: self.policy_adapter, **snapshots}.items()
            }
            return load_into_server(base_url(self), folders)

        return on_rank_zero(load)

    def _check_adapters(self) -> None:
        """Raise `ValueError`, before an engine is made, if the adapter in training cannot be served as one."""
        check_lora_config(self.model.peft_config[self.model.active_adapter])
        if self._dist.is_fsdp:
            raise ValueError(
                "FSDP shards the adapter in training, and here it is served from a file that each rank writes. Use "
                "DeepSpeed, or plain data parallelism, to train against adapters."
            )
        if self.enable_sleep_mode:
            raise ValueError(
                "`vllm_enable_sleep_mode` discards the weights on which adapters are served. Leave it off, and give "
                "vLLM less memory by `vllm_gpu_memory_utilization`."
            )

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what TRL yields; if adapters are served, the base weights only, without any adapter."""
        if not self.adapters:
            yield from super()._iter_named_params()
            return
        for name, parameter in self.model.named_parameters():
            if self.model.prefix not in name:  # not a parameter of PEFT
                with self._dist.gather_params([parameter]):
                    name = name.removeprefix("base_model.model.").replace(".base_layer", "")
                    yield self._fix_param_name_to_vllm(name), parameter.data

    def _renew_adapter(self) -> None:
        """Save the adapter in training to a new folder, because vLLM caches adapters by name."""
        old = self.policy_adapter
        folder = scratch_folder() / f"{POLICY}-{next(self._renewals)}"
        adapter = [parameter for name, parameter in self.model.named_parameters() if self.model.prefix in name]
        with self._dist.gather_params(adapter):
            if self.mode == "colocate":
                self.policy_adapter = save_active_adapter(self.model, folder)
            else:
                saved = on_rank_zero(lambda: save_active_adapter(self.model, folder))
                self.policy_adapter = saved if self.accelerator.is_main_process else None
        if old is not None:
            if self.mode == "colocate":
                # It was used last, so vLLM would evict it last.
                self.llm.llm_engine.remove_lora(lora_request(POLICY, old).lora_int_id)
            shutil.rmtree(old)

    def _find_boot_id(self) -> str:
        with ServerEngine(base_url(self), patience=self.patience) as engine:
            return engine.boot_id()

    def _server_drops_prefix_cache(self) -> bool:
        """Ask until the server has dropped it. It needs a moment to drop aborted requests."""
        for pause in (0.0, 0.1, 0.5, 2.0):
            time.sleep(pause)
            answer = self.vllm_client.session.post(f"{base_url(self)}/reset_prefix_cache")
            # Before vLLM 0.26 the answer was empty.
            if answer.ok and (not answer.content or answer.json().get("success")):
                return True
        return False


def base_url(generation: VLLMGeneration) -> str:
    """Return the address of the server, in server mode."""
    return (generation.server_base_url or f"http://{generation.server_host}:{generation.server_port}").rstrip("/")


@contextmanager
def own_vllm_generation(
    engine_kwargs: dict[str, Any], patience: float | None = None, adapters: bool = False
) -> Iterator[None]:
    """Inside, a new [`~trl.GRPOTrainer`] generates with `SpiralVLLMGeneration`."""
    original = grpo_trainer.VLLMGeneration
    grpo_trainer.VLLMGeneration = partial(
        SpiralVLLMGeneration, engine_kwargs=engine_kwargs, patience=patience or PATIENCE, adapters=adapters
    )
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = original
