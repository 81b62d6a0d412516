"""TRL's vLLM generation, replaced: what the vLLM engines need of it and TRL does not give."""

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
    save_adapter,
    scratch_folder,
)
from trl_spiral.types import POLICY


PATIENCE = 30.0
"""Seconds for which a server may fail in the middle of a run before the run ends."""


class SpiralVLLMGeneration(VLLMGeneration):  # type: ignore[misc]  # TRL's types are not read
    """
    TRL's vLLM generation, with what TRL does not say to a colocated engine, and weights that are synced or refused.

    Args:
        engine_kwargs (`dict[str, Any]`):
            More arguments of [`vllm.LLM`] in colocate mode; they override TRL's.
        patience (`float`):
            Seconds for which a server may fail before it is given up.
        adapters (`bool`, defaults to `False`):
            Whether vLLM keeps the base weights and serves the policy as one adapter among others. TRL merges it into the
            weights that it syncs, on which a snapshot's adapter would be policy and snapshot in one.
        args, kwargs:
            As in [`~trl.generation.vllm_generation.VLLMGeneration`].

    Attributes:
        policy_adapter (`Path`, *optional*):
            With `adapters`, the folder of the adapter in training as of the last sync.
        snapshots (`Mapping[str, Path | None]`):
            Other adapters that a server was given last, by policy name.

    Raises:
        ValueError: If the adapter in training cannot be served beside others.
        RuntimeError: If the server does not take it.
    """

    _renewals = count()  # over all trainers of the process, which share a folder

    def __init__(
        self, *args: Any, engine_kwargs: dict[str, Any], patience: float, adapters: bool = False, **kwargs: Any
    ) -> None:
        self.engine_kwargs = engine_kwargs
        self.patience = patience
        self.adapters = adapters
        self.policy_adapter: Path | None = None
        self.snapshots: Mapping[str, Path | None] = {}
        self.boot_id: str | None = None
        self._base_synced_to: str | None = None  # the boot that holds the base weights
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        if self.adapters:
            self._check_adapters()
        llm: Any = getattr(vllm_generation, "LLM", None)  # TRL has none where vLLM is not installed, and says so
        vllm_generation.LLM = lambda **kwargs: llm(**kwargs | self.engine_kwargs)
        try:
            super()._init_vllm()
        finally:
            vllm_generation.LLM = llm
        if self.mode == "server":
            self.boot_id = on_rank_zero(self._find_boot_id)
        if self.mode == "server" and self.adapters:
            # Tried now, so that a server that takes no adapters is found before the first roll-out.
            self._renew_adapter()
            self.serve({})

    def sync_weights(self) -> None:
        """
        Gives the engine the trainer's weights and sees to it that nothing computed from older ones is left.

        Every rank must call it. A server that was started again since the last time is connected to again. With
        `adapters`, a server is given the base weights and no adapter yet: see `serve`.

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
            if not self.adapters or self._base_synced_to is None:
                super().sync_weights()
                self._base_synced_to = "this process"
            if self.adapters:
                self._renew_adapter()
            dropped = self.llm.reset_prefix_cache()
        else:
            main = self.accelerator.is_main_process
            # Noted before: a server that is started again from here on will be found to be another. All ranks are told,
            # since all gather what is sharded.
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
                "vLLM declined to drop its prefix cache after its weights had changed, as it does while requests are in "
                "flight. Let nobody else use the engine during training."
            )
        if self.mode == "server":
            # So that no rank asks before the weights are there.
            self.accelerator.wait_for_everyone()
            self.boot_id = boot

    def serve(self, snapshots: Mapping[str, Path | None]) -> dict[str, str]:
        """
        Gives a server the policy's adapter, these snapshots', and no others. Every rank must call it.

        Args:
            snapshots (`Mapping[str, Path | None]`):
                Folders of adapters by policy name, `None` for the base model.

        Returns:
            `dict[str, str]`: What the server calls each, by policy name.

        Raises:
            RuntimeError: If the server does not take one.
            ConnectionError: On rank 0, if the server cannot be reached.
        """
        self.snapshots = dict(snapshots)

        def load() -> dict[str, str]:
            assert self.policy_adapter is not None, "there is one from the start"
            self._find_boot_id()  # which waits for a server that is on its way back
            # Zeros for the base model: a vLLM on a CPU gives rows without an adapter that of another, and a server does
            # not say what it runs on.
            folders = {
                policy: adapter_of_zeros(self.policy_adapter) if folder is None else Path(folder)
                for policy, folder in {POLICY: self.policy_adapter, **snapshots}.items()
            }
            return load_into_server(base_url(self), folders)

        return on_rank_zero(load)

    def _check_adapters(self) -> None:
        """Raises `ValueError`, before an engine is made, where the adapter in training cannot be served as one."""
        check_lora_config(self.model.peft_config[self.model.active_adapter])
        if self._dist.is_fsdp:
            raise ValueError(
                "FSDP shards the adapter in training, and here it is served from a file that each rank writes. Use "
                "DeepSpeed, or plain data parallelism, to train against adapters."
            )
        if self.enable_sleep_mode:
            raise ValueError(
                "`vllm_enable_sleep_mode` throws away the weights on which adapters are served. Leave it off, and give "
                "vLLM less memory by `vllm_gpu_memory_utilization`."
            )

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As TRL's, but of the base weights alone, as they are without any adapter, where adapters are served."""
        if not self.adapters:
            yield from super()._iter_named_params()
            return
        for name, parameter in self.model.named_parameters():
            if self.model.prefix not in name:  # that of PEFT's own parameters
                with self._dist.gather_params([parameter]):
                    name = name.removeprefix("base_model.model.").replace(".base_layer", "")
                    yield self._fix_param_name_to_vllm(name), parameter.data

    def _renew_adapter(self) -> None:
        """Writes the adapter in training to a new folder: under the name of an old one, vLLM would find the old one."""
        old = self.policy_adapter
        folder = scratch_folder() / f"{POLICY}-{next(self._renewals)}"
        adapter = [parameter for name, parameter in self.model.named_parameters() if self.model.prefix in name]
        with self._dist.gather_params(adapter):
            if self.mode == "colocate":
                self.policy_adapter = save_adapter(self.model, folder)
            else:
                saved = on_rank_zero(lambda: save_adapter(self.model, folder))
                self.policy_adapter = saved if self.accelerator.is_main_process else None
        if old is not None:
            if self.mode == "colocate":
                # It is the last that was used, and would be the last to make room for others.
                self.llm.llm_engine.remove_lora(lora_request(POLICY, old).lora_int_id)
            shutil.rmtree(old)

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


@contextmanager
def own_vllm_generation(
    engine_kwargs: dict[str, Any], patience: float | None = None, adapters: bool = False
) -> Iterator[None]:
    """Within it, a [`~trl.GRPOTrainer`] that is made generates by `SpiralVLLMGeneration`."""
    theirs = grpo_trainer.VLLMGeneration
    grpo_trainer.VLLMGeneration = partial(
        SpiralVLLMGeneration, engine_kwargs=engine_kwargs, patience=patience or PATIENCE, adapters=adapters
    )
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = theirs
