"""Ranks that play at the same time: exchange of results, and failures that stop all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from trl_spiral.selfplay.referee import WeightsLost
from trl_spiral.text.printable import get_logger


logger = get_logger(__name__)

T = TypeVar("T")

MAX_RESTORES = 3
"""Most times that an engine may lose its weights in one wave of games before the run stops."""


class Ranks:
    """
    The ranks of a run. This class is for a run of one rank; [`~distributed.AllRanks`] connects several.

    Every rank must call each method at the same time.
    """

    def gather(self, items: list[T]) -> list[T]:
        """Return the items of all ranks, in the order of ranks."""
        return items

    def agree(self, work: Callable[[], T], restore: Callable[[], None] | None = None) -> T:
        """
        Do the work of each rank, and return this rank's result. If the work of one rank fails, all ranks raise.

        Args:
            work (`Callable[[], T]`):
                Work of this rank. It must be repeatable if `restore` is given.
            restore (`Callable[[], None]`, *optional*):
                Gives engines their weights again. If the work of any rank raises [`~selfplay.referee.WeightsLost`],
                every rank calls `restore`, and the ranks that failed repeat their work.

        Raises:
            RuntimeError: If another rank has failed, or an engine loses its weights `MAX_RESTORES + 1` times. A rank
                that fails itself raises its own error.
        """
        done: list[T] = []
        for _ in range(MAX_RESTORES + 1):
            failure: Exception | None = None
            if not done:
                try:
                    done = [work()]
                except Exception as error:
                    failure = error
            fatal = failure is not None and (restore is None or not isinstance(failure, WeightsLost))
            known = self.gather([(failure is not None, f"{type(failure).__name__}: {failure}" if fatal else "")])
            if fatal:
                assert failure is not None
                raise failure
            for rank, (_, reason) in enumerate(known):
                if reason:
                    raise RuntimeError(f"Rank {rank} has failed, and this rank stops with it: {reason}")
            if restore is None or not any(lost for lost, _ in known):
                return done[0]
            if failure is not None:
                logger.warning("%s The weights are sent again, and the unfinished games are played again.", failure)
            restore()
        raise RuntimeError(f"The engine lost its weights {MAX_RESTORES + 1} times in one batch. Look at its log.")
