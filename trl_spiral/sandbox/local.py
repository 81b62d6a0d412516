"""The sandbox of this machine: no Docker, no root, no network; a fork and some system calls per program."""

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


MOST_SEEDS = 4  # hash seeds for which a worker keeps a helper process
GRACE = 30.0  # seconds beyond the wall limit after which a helper process counts as lost
TESTS_WAIT = 0.5  # seconds that tests may take beyond their program, so that it is the program's limit that is met
NAMES = {ProgramEnding.TIMEOUT: "Timeout", ProgramEnding.OUTPUT_LIMIT: "OutputLimit", ProgramEnding.KILLED: "Killed"}


class LocalSandbox:
    """
    Runs programs in contained processes of this machine.

    Args:
        limits ([`Limits`], *optional*):
            What each program may use.
        workers (`int`, *optional*):
            Programs at once; by default one for each core that this process may use, shared with the other ranks of this
            machine (`LOCAL_WORLD_SIZE`).
        allow_degraded (`bool`, defaults to `False`):
            Whether to do without what this machine's kernel lacks.

    Attributes:
        limits ([`Limits`]):
            What each program may use.
        workers (`int`):
            Programs at once.

    Raises:
        CannotContain: If the kernel lacks something, and that is not allowed.
        ValueError: If `workers` is not positive, or a path of the limits does not exist.
    """

    def __init__(self, limits: Limits | None = None, workers: int | None = None, allow_degraded: bool = False) -> None:
        self.limits = limits or Limits()
        check(self.limits, allow_degraded)
        for path in (*self.limits.readable, *self.limits.writable):
            if not os.path.exists(path):
                raise ValueError(f"`{path}` does not exist: make it before programs are to use it.")
        if workers is None:
            ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1) or 1
            workers = max(1, len(os.sched_getaffinity(0)) // ranks)
        if workers < 1:
            raise ValueError(f"`workers` ({workers}) must be at least 1: somebody has to run the programs.")
        self.workers = workers
        prefix = self._prefix()
        self._workers = [Worker(self.limits, prefix) for _ in range(workers)]
        self._lock = threading.Lock()
        self._closed = False
        weakref.finalize(self, _close, self._workers)

    def _prefix(self) -> Sequence[str]:
        """Command that starts helper processes, each for one job or trial. Without one, they are used again and again."""
        return ()

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """
        Runs programs, as many at once as there are workers.

        Returns:
            `list[JobResult]`: In the order of the jobs.

        Raises:
            RuntimeError: If the sandbox is closed, or a helper process was lost twice over the same job.
        """
        return [outcomes[0] for outcomes in self._work(jobs)]

    def judge(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """
        Puts programs to their tests, as many at once as there are workers.

        Returns:
            `list[TrialResult]`: In the order of the trials.

        Raises:
            RuntimeError: If the sandbox is closed, or a helper process was lost twice over the same trial.
        """
        return [verdict(*outcomes) for outcomes in self._work(trials)]

    def close(self) -> None:
        """Ends every process of the sandbox. It may be closed twice, and runs nothing afterwards."""
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
                raise RuntimeError("This sandbox is closed. Open another.")
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
    Does one job or trial at a time.

    Args:
        limits ([`Limits`]):
            What each program may use.
        prefix (`Sequence[str]`):
            Command that starts helper processes, each for one item only; none if empty.
    """

    def __init__(self, limits: Limits, prefix: Sequence[str]) -> None:
        self.limits = limits
        self.prefix = prefix
        self.helpers: dict[int, Helper] = {}  # by hash seed, the one used last at the end
        self.children: list[Child] = []
        self.busy = False
        self.owner = os.getpid()

    def start(self, index: int, item: Job | Trial, selector: selectors.BaseSelector) -> None:
        """Forks the children of an item. What becomes of them is heard through the selector."""
        if self.owner != os.getpid():
            self.close()
            self.owner = os.getpid()
        self.helper = self._helper(item.hash_seed if isinstance(item, Job) else 0)  # which may fail to start
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
        self.helpers[seed] = helper  # at the end again
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
        child.write()  # before it is forked: its time is not spent on waiting for its job
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.unsent else 0)
        self.selector.register(child.socket, events, partial(self._on_socket, child))
        if child.pipe >= 0:
            self.selector.register(child.pipe, selectors.EVENT_READ, partial(self._on_pipe, child))

    def _on_report(self, fd: int, events: int) -> None:
        try:
            self.helper.hear()
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
        """Whether all children have ended, or nothing can be heard of them any more."""
        if not self.busy:
            return False
        if time.monotonic() > self.deadline:
            self.lost = HelperLost("The helper process of the sandbox does not answer.")
        return self.lost is not None or all(child.status is not None for child in self.children)

    def finish(self) -> list[JobResult]:
        """
        The outcomes of all children, and an end to them.

        Raises:
            HelperLost: If something of the sandbox's own failed; the next item gets a new helper process.
        """
        try:
            if self.lost is not None:
                raise self.lost
            for child in self.children:
                child.drain()
            outcomes = [child.outcome() for child in self.children]
        except HelperLost:
            self.close()
            raise
        self._end()
        if self.prefix:  # it stands for a new wall around each item
            self.close()
        return outcomes

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
        """Ends its helper processes, and what it was doing."""
        if self.busy:
            self._end()
        for helper in self.helpers.values():
            if self.owner == os.getpid():  # a fork of the trainer inherits this object, but not its processes
                helper.close()
        self.helpers.clear()


def _close(workers: list[Worker]) -> None:
    for worker in workers:
        worker.close()


def verdict(program: JobResult, tests: JobResult) -> TrialResult:
    """What the outcomes of a program and of its tests come to."""
    failed = next((each for each in (program, tests) if each.ending.failed), None)
    error = None if failed is None else NAMES.get(failed.ending, failed.error)
    return TrialResult(failed is None, error, program.ending, program.output)
