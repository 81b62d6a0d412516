"""The group over which weights travel: the trainer is rank 0, the server's workers follow."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore


HOST = "127.0.0.1"
# A peer that died before it joined, or between two tensors, is given up for lost after this long.
PATIENCE = timedelta(seconds=60)


class Group:
    """One end of a gloo group, apart from `torch.distributed`'s default group, which the trainer may need itself."""

    def __init__(self, store: TCPStore, rank: int, world_size: int) -> None:
        """Waits until all ranks are there."""
        self.gloo = ProcessGroupGloo(store, rank, world_size, PATIENCE)
        self.store = store  # The one of rank 0 serves the others for as long as it lives.

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Sends a tensor from rank 0; elsewhere, receives it in place."""
        options = BroadcastOptions()
        options.rootRank = 0
        self.gloo.broadcast([tensor], options).wait()


def open_store() -> TCPStore:
    """The trainer's end of a new group, on a free port: an old one may still hold the keys of dead peers."""
    return TCPStore(HOST, 0, is_master=True, timeout=PATIENCE, wait_for_workers=False)


def join(port: int, rank: int, world_size: int) -> Group:
    """A worker's end."""
    return Group(TCPStore(HOST, port, is_master=False, timeout=PATIENCE), rank, world_size)
