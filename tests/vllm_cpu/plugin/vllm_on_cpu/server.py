"""Weight-transfer engine of the server. Each worker of vLLM creates one for `--weight-transfer-config`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from vllm_on_cpu.group import Group, join


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """Body of `/init_weight_transfer_engine`."""

    port: int
    world_size: int


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """Body of `/update_weights`: the tensors of the broadcast in order, one entry per tensor in each list."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooEngine(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):
    """Receives tensors one by one, and loads each into the current parameters."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo
    group: Group | None = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Join the trainer's group, and leave an earlier one."""
        workers = self.parallel_config
        rank = workers.data_parallel_index * workers.world_size + workers.rank
        self.group = join(init_info.port, rank + 1, init_info.world_size)

    def start_weight_update(self) -> None:
        """Do nothing: parameters change in place."""

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Receive and load the announced tensors."""
        self.model.load_weights(self._tensors(update_info))

    def finish_weight_update(self) -> None:
        """Do nothing: no weights are packed."""

    def shutdown(self) -> None:
        """Leave the group."""
        self.group = None

    def _tensors(self, update_info: GlooUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
        assert self.group is not None, "vLLM opens the group before it receives weights"
        announced = zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True)
        for name, dtype, shape in announced:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast(tensor)
            yield name, tensor
