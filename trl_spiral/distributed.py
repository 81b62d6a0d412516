"""Ranks that play at the same time: none is left waiting for one that has failed, and none drifts apart unseen."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from trl_spiral.lock import FolderLock, lock_folder
from trl_spiral.selfplay.referee import WeightsLost
from trl_spiral.text.printable import get_logger
from trl_spiral.types import Episode


logger = get_logger(__name__)

T = TypeVar("T")

MAX_RESTORES = 3
"""How often an engine may lose its weights in one wave before the run gives up: a server that keeps crashing."""


def together(play: Callable[[], T], begin_again: Callable[[], None], restore: Callable[[], None] | None) -> T:
    """
    Plays a wave on every rank, or raises on every rank.

    A rank whose engine loses its weights on the way plays its wave again, once they are restored.

    Args:
        play (`Callable[[], T]`):
            Plays this rank's wave, or does other work of which `None` is not the result.
        begin_again (`Callable[[], None]`):
            Forgets what a wave that was broken off has counted.
        restore (`Callable[[], None]`, *optional*):
            Gives an engine its weights again. Every rank calls it at the same time.

    Raises:
        RuntimeError: If another rank has failed, or an engine loses its weights over and over.
    """
    wave: T | None = None
    for _ in range(MAX_RESTORES + 1):
        failure: Exception | None = None
        if wave is None:
            try:
                wave = play()
            except Exception as error:
                begin_again()
                failure = error
        fatal = failure is not None and (restore is None or not isinstance(failure, WeightsLost))
        known = gather_object([(failure is not None, f"{type(failure).__name__}: {failure}" if fatal else "")])
        if fatal:
            assert failure is not None
            raise failure
        for rank, (_, reason) in enumerate(known):
            if reason:
                raise RuntimeError(f"Rank {rank} has failed, and this rank stops with it: {reason}")
        if restore is not None and any(lost for lost, _ in known):
            if failure is not None:
                logger.warning("%s They are sent again, and what was under way is played again.", failure)
            restore()
        elif wave is not None:
            return wave
    raise RuntimeError(f"The engine lost its weights {MAX_RESTORES + 1} times in one batch. Look at its log.")


def lock_together(folder: str | os.PathLike[str], is_main_process: bool) -> FolderLock | None:
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
    return together(lambda: (lock_folder(folder) if is_main_process else None,), lambda: None, None)[0]


def check_lock_step(wave: Sequence[Episode], group: int) -> None:
    """Raises `RuntimeError`, on every rank, if ranks of one group have not played the very same."""
    played = repr([(episode.counter, episode.moves, episode.trajectories) for episode in wave])
    checksums: dict[int, set[str]] = {}
    for other, checksum in gather_object([(group, hashlib.blake2b(played.encode(), digest_size=8).hexdigest())]):
        checksums.setdefault(other, set()).add(checksum)
    for other, seen in checksums.items():
        if len(seen) > 1:
            raise RuntimeError(
                f"The ranks of group {other} share one engine and have played different games (checksums "
                f"{', '.join(sorted(seen))}): they were not asked the same. Report this, with the settings."
            )


def on_rank_zero(work: Callable[[], T]) -> T:
    """
    Do work on rank 0 and return its result on every rank. Every rank must call it.

    Raises:
        RuntimeError: On every other rank, if the work failed; rank 0 raises its error.
    """
    result: T | None = None
    failure: Exception | None = None
    if PartialState().is_main_process:
        try:
            result = work()
        except Exception as error:
            failure = error
    sent = [(result, f"{type(failure).__name__}: {failure}" if failure else "")]
    broadcast_object_list(sent, from_process=0)
    if failure is not None:
        raise failure
    result, reason = sent[0]
    if reason:
        raise RuntimeError(f"Rank 0 has failed, and this rank stops with it: {reason}")
    return cast(T, result)
