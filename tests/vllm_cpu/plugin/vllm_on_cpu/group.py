"""Process group for weight transfer: rank 0 is the trainer, the other ranks are the workers of the server."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore


HOST = "127.0.0.1"
# Timeout for a peer that died before it joined or between two tensors.
PATIENCE = timedelta(seconds=60)


class Group:
    """One end of a gloo group. It is not the default group of `torch.distributed`, which the trainer may need."""

    def __init__(self, store: TCPStore, rank: int, world_size: int) -> None:
        """Wait until all ranks have joined."""
        self.gloo = ProcessGroupGloo(store, rank, world_size, PATIENCE)
        self.store = store  # the store of rank 0 is the server of the others, and must stay alive

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a tensor on rank 0, and receive it in place on other ranks."""
        options = BroadcastOptions()
        options.rootRank = 0
        self.gloo.broadcast([tensor], options).wait()


def open_store() -> TCPStore:
    """Open the store of a new group on a free port. An old store may still contain the keys of dead peers."""
    return TCPStore(HOST, 0, is_master=True, timeout=PATIENCE, wait_for_workers=False)


def join(port: int, rank: int, world_size: int) -> Group:
    """Join a group as a worker."""
    return Group(TCPStore(HOST, port, is_master=False, timeout=PATIENCE), rank, world_size)
