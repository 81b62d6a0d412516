"""TRL's client of a vLLM server, with gloo in place of NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import trl.generation.vllm_generation
from trl.generation.vllm_client import VLLMClient

from vllm_on_cpu.group import Group, open_store


def use_gloo() -> None:
    """Send weights over gloo from all later trainers of this process with `vllm_mode="server"`."""
    trl.generation.vllm_generation.VLLMClient = GlooVLLMClient


class GlooVLLMClient(VLLMClient):
    """Overrides the three methods of TRL 1.16 that use NCCL. The endpoints are the same."""

    def init_communicator(self, device: Any = None) -> None:
        """Open a group with the server's workers. A second call opens one with those of a restarted server."""
        self.close_communicator()
        world_size = self.get_world_size() + 1
        store = open_store()
        # The server replies after its workers have joined, and they wait for this rank.
        with ThreadPoolExecutor(max_workers=1) as executor:
            answer = executor.submit(
                self._post,
                f"{self.base_url}/init_weight_transfer_engine",
                json={"init_info": {"port": store.port, "world_size": world_size}},
            )
            self.communicator = Group(store, 0, world_size)
            answer.result()

    def update_named_params(
        self, metadata: list[tuple[str, str, list[int]]], named_params: Iterator[tuple[str, torch.Tensor]]
    ) -> None:
        """Announce the tensors, and send them in the same order."""
        names, dtype_names, shapes = (list(column) for column in zip(*metadata, strict=True))
        update_info = {"names": names, "dtype_names": dtype_names, "shapes": shapes}
        if not self._updating_weights:
            self._start_weight_update()
        with ThreadPoolExecutor(max_workers=1) as executor:
            answer = executor.submit(self._post, f"{self.base_url}/update_weights", json={"update_info": update_info})
            for _, tensor in named_params:
                self.communicator.broadcast(tensor.detach().cpu().contiguous())
            answer.result()
        if not self._updating_weights:
            self._finish_weight_update()

    def close_communicator(self) -> None:
        """Leave the group."""
        self.communicator = None
