"""The sandbox of this machine, without Docker, root or network: a fork and some system calls for each program."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

from trl_spiral.sandbox.base import Job, JobResult, Limits, ProgramEnding, Trial, TrialResult
from trl_spiral.sandbox.helper import Child, Helper, HelperLost
from trl_spiral.sandbox.kernel import check


MOST_SEEDS = 4  # hash seeds, and so helper processes, of a worker
GRACE = 30.0  # seconds beyond the wall limit after which a helper process counts as lost
TESTS_WAIT = 0.5  # seconds that tests may take longer than their program, so that the program's limit applies
NAMES = {ProgramEnding.TIMEOUT: "Timeout", ProgramEnding.OUTPUT_LIMIT: "OutputLimit", ProgramEnding.KILLED: "Killed"}


class LocalSandbox:
    """
    Runs programs in contained processes of this machine.

    Args:
        limits ([`Limits`], *optional*):
            Limits of each program.
        workers (`int`, *optional*):
            Number of parallel programs; by default one for each core available to this process, divided by the ranks
            of this machine (`LOCAL_WORLD_SIZE`).
        allow_degraded (`bool`, defaults to `False`):
            Whether to run without the features that the kernel lacks.

    Attributes:
        limits ([`Limits`]):
            Limits of each program.
        workers (`int`):
            Number of parallel programs.

    Raises:
        CannotContain: If the kernel lacks a feature and that is not allowed.
        ValueError: If `workers` is not positive, or a path of the limits does not exist.
    """

    def __init__(self, limits: Limits | None = None, workers: int | None = None, allow_degraded: bool = False) -> None:
        self.limits = limits or Limits()
        check(self.limits, allow_degraded)
        for path in (*self.limits.readable, *self.limits.writable):
            if not os.path.exists(path):
                raise ValueError(f"`{path}` does not exist: create it before programs use it.")
        if workers is None:
            ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1) or 1
            workers = max(1, len(os.sched_getaffinity(0)) // ranks)
        if workers < 1:
            raise ValueError(f"`workers` ({workers}) must be at least 1: programs run in workers.")
        self.workers = workers
        prefix = self._prefix()
        self._workers = [Worker(self.limits, prefix) for _ in range(workers)]
        self._lock = threading.Lock()
        self._closed = False
        weakref.finalize(self, _close, self._workers)

    def _prefix(self) -> Sequence[str]:
        """Return the command prefix of helper processes, each for one item. Without a prefix they are reused."""
        return ()

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """
        Run programs, as many in parallel as there are workers.

        Returns:
            `list[JobResult]`: In the order of the jobs.

        Raises:
            RuntimeError: If the sandbox is closed, or a helper process was lost twice with the same job.
        """
        return [results[0] for results in self._work(jobs)]

    def judge(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """
        Run programs against their tests, as many in parallel as there are workers.

        Returns:
            `list[TrialResult]`: In the order of the trials.

        Raises:
            RuntimeError: If the sandbox is closed, or a helper process was lost twice with the same trial.
        """
        return [_trial_result(*results) for results in self._work(trials)]

    def close(self) -> None:
        """End every process of the sandbox. Closing twice is allowed; a closed sandbox runs nothing."""
        with self._lock:
            self._closed = True
            _close(self._workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self, items: Sequence[Job] | Sequence[Trial]) -> list[list[JobResult]]:
        with self._lock:
            if self._closed:
                raise RuntimeError("This sandbox is closed. Open a new one.")
            results: list[list[JobResult]] = [[] for _ in items]
            waiting: deque[tuple[int, Job | Trial]] = deque(enumerate(items))
            lost: set[int] = set()
            with selectors.DefaultSelector() as selector:
                try:
                    while waiting or any(worker.busy for worker in self._workers):
                        for worker in self._workers:
                            if waiting and not worker.busy:
                                index, item = waiting.popleft()
                                worker.start(index, item, selector)
                        for key, events in selector.select(timeout=1.0):
                            key.data(key.fd, events)
                        for worker in filter(Worker.is_done, self._workers):
                            index = worker.index
                            try:
                                results[index] = worker.finish()
                            except HelperLost:
                                if index in lost:
                                    raise
                                lost.add(index)
                                waiting.appendleft((index, items[index]))
                finally:
                    for worker in self._workers:
                        if worker.busy:  # after an exception; `KeyboardInterrupt` is one
                            worker.close()
            return results


class Worker:
    """
    Runs one job or trial at a time.

    Args:
        limits ([`Limits`]):
            Limits of each program.
        prefix (`Sequence[str]`):
            Command prefix of helper processes, each for one item. If it is empty, they are reused.
    """

    def __init__(self, limits: Limits, prefix: Sequence[str]) -> None:
        self.limits = limits
        self.prefix = prefix
        self.helpers: dict[int, Helper] = {}  # by hash seed; the most recently used is last
        self.children: list[Child] = []
        self.busy = False
        self.owner = os.getpid()

    def start(self, index: int, item: Job | Trial, selector: selectors.BaseSelector) -> None:
        """Fork the children of an item. Their events arrive through the selector."""
        if self.owner != os.getpid():
            self.close()
            self.owner = os.getpid()
        self.helper = self._helper(item.hash_seed if isinstance(item, Job) else 0)  # raises if it cannot start
        self.busy, self.index, self.selector = True, index, selector
        self.lost: HelperLost | None = None
        self.deadline = time.monotonic() + self.limits.wall_seconds + GRACE
        selector.register(self.helper.control, selectors.EVENT_READ, self._on_report)
        try:
            self._fork(item)
        except HelperLost as error:
            self.lost = error

    def _helper(self, seed: int) -> Helper:
        helper = self.helpers.pop(seed) if seed in self.helpers else Helper(self.limits, seed, self.prefix)
        self.helpers[seed] = helper  # moved to the end
        if len(self.helpers) > MOST_SEEDS:
            self.helpers.pop(next(iter(self.helpers))).close()
        return helper

    def _fork(self, item: Job | Trial) -> None:
        if isinstance(item, Job):
            self._add(Child(("run", item.code, item.calls), self.limits, len(item.calls)))
            self.helper.fork(self.children[0], self.limits.wall_seconds)
            return
        self._add(Child(("program", item.code, item.entry_points, item.in_place), self.limits))
        self._add(Child(("tests", item.tests, item.entry_points, item.in_place), self.limits, prints=False))
        ends = socket.socketpair()
        with ends[0], ends[1]:
            self.helper.fork(self.children[0], self.limits.wall_seconds, ends[0].fileno())
            self.helper.fork(self.children[1], self.limits.wall_seconds + TESTS_WAIT, ends[1].fileno())

    def _add(self, child: Child) -> None:
        self.children.append(child)
        child.write()  # before the fork, so that waiting for the job costs no time
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.unsent else 0)
        self.selector.register(child.socket, events, partial(self._on_socket, child))
        if child.pipe >= 0:
            self.selector.register(child.pipe, selectors.EVENT_READ, partial(self._on_pipe, child))

    def _on_report(self, fd: int, events: int) -> None:
        try:
            self.helper.read_reports()
        except HelperLost as error:
            self.lost = error

    def _on_socket(self, child: Child, fd: int, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            child.write()
            if not child.unsent:
                self.selector.modify(fd, selectors.EVENT_READ, partial(self._on_socket, child))
        if events & selectors.EVENT_READ and not child.read_socket():
            self._stop_reading(child, fd)

    def _on_pipe(self, child: Child, fd: int, events: int) -> None:
        if not child.read_pipe():
            self._stop_reading(child, fd)

    def _stop_reading(self, child: Child, fd: int) -> None:
        self.selector.unregister(fd)
        if child.broken:
            try:
                self.helper.kill(child)
            except HelperLost as error:
                self.lost = error

    def is_done(self) -> bool:
        """Return whether all children have ended or the helper is lost."""
        if not self.busy:
            return False
        if time.monotonic() > self.deadline:
            self.lost = HelperLost("The helper process of the sandbox does not respond.")
        return self.lost is not None or all(child.status is not None for child in self.children)

    def finish(self) -> list[JobResult]:
        """
        Return the results of all children and close them.

        Raises:
            HelperLost: If the sandbox itself failed. The next item gets a new helper process.
        """
        try:
            if self.lost is not None:
                raise self.lost
            for child in self.children:
                child.drain()
            results = [child.result() for child in self.children]
        except HelperLost:
            self.close()
            raise
        self._end()
        if self.prefix:  # each item gets a new process
            self.close()
        return results

    def _end(self) -> None:
        fds = {self.helper.control.fileno()}
        for child in self.children:
            fds |= {child.socket.fileno(), child.pipe}
        for fd in fds & set(self.selector.get_map()):
            self.selector.unregister(fd)
        for child in self.children:
            child.close()
        self.children = []
        self.busy = False

    def close(self) -> None:
        """End its helper processes and the current item."""
        if self.busy:
            self._end()
        for helper in self.helpers.values():
            if self.owner == os.getpid():  # a fork of the trainer inherits this object but not its processes
                helper.close()
        self.helpers.clear()


def _close(workers: list[Worker]) -> None:
    for worker in workers:
        worker.close()


def _trial_result(program: JobResult, tests: JobResult) -> TrialResult:
    """Combine the results of a program and of its tests."""
    failed = next((each for each in (program, tests) if each.ending.failed), None)
    error = None if failed is None else NAMES.get(failed.ending, failed.error)
    return TrialResult(failed is None, error, program.ending, program.output)
