"""Work of several processes: all of them succeed, or all of them raise."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from accelerate import PartialState
from accelerate.utils import gather_object

from trl_spiral.lock import FolderLock, lock_folder
from trl_spiral.selfplay.ranks import Ranks


T = TypeVar("T")


class AllRanks(Ranks):
    """All processes that accelerate has started."""

    def gather(self, items: list[T]) -> list[T]:
        gathered: list[T] = gather_object(items)
        return gathered


def agree(work: Callable[[], T], restore: Callable[[], None] | None = None) -> T:
    """
    Do the work of each rank, and return this rank's result. If the work of one rank fails, all ranks raise.

    Every rank must call it. Arguments and errors are those of [`~selfplay.ranks.Ranks.agree`].
    """
    return AllRanks().agree(work, restore)


def on_rank_zero(work: Callable[[], T]) -> T:
    """
    Do work on rank 0, and return its result on every rank. Every rank must call it.

    Raises:
        RuntimeError: On every other rank, if the work failed. Rank 0 raises its error.
    """
    ranks = AllRanks()
    mine = ranks.agree(lambda: [work()] if PartialState().is_main_process else [])
    return ranks.gather(mine)[0]


class Stateful(Protocol):
    """An object whose state can be sent to other ranks."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


def change_on_rank_zero(target: Stateful, work: Callable[[], object]) -> None:
    """
    Do work on rank 0 that changes an object, and give every rank its new state. Every rank must call it.

    Args:
        target (`Stateful`):
            This rank's copy of the object, such as an [`~opponents.OpponentPool`].
        work (`Callable[[], object]`):
            The change.
    """

    def change() -> dict[str, Any]:
        work()
        return target.state_dict()

    target.load_state_dict(on_rank_zero(change))


def lock_on_rank_zero(folder: str | os.PathLike[str], is_main_process: bool) -> FolderLock | None:
    """
    Lock a folder on rank 0. Every rank must call it.

    Args:
        folder (`str` or `os.PathLike`):
            The folder.
        is_main_process (`bool`):
            Whether this is rank 0.

    Returns:
        `FolderLock`, *optional*: The lock on rank 0, which holds while it is referenced.

    Raises:
        ValueError: On rank 0, if another process holds the lock.
        RuntimeError: On the other ranks, in the same case.
    """
    return agree(lambda: lock_folder(folder) if is_main_process else None)
