"""
The helper process, which forks one child for each job.

It contains the limits, but no jobs. It starts with an empty environment and without site-packages, so it contains
nothing of the process that started it. Only the child receives its job, over a socket that it inherits, so no later
child finds the job in memory.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from importlib import import_module

from trl_spiral.sandbox import child, library
from trl_spiral.sandbox.base import Limits
from trl_spiral.sandbox.kernel import Container
from trl_spiral.sandbox.libc import leave
from trl_spiral.sandbox.values import decode, receive


COMMAND = struct.Struct(">cQd")
"""`b"F"` to fork (with the child's descriptors) or `b"K"` to kill; number of the child; its wall-clock seconds."""
REPORT = struct.Struct(">QId?")
"""Number of a child, its wait status, its processor seconds, and whether it reached its wall-clock limit."""
OWNER_CHECK = 5.0  # seconds between checks that the owner is alive
MOST_DESCRIPTORS = 3  # of a command: socket of the job, output, and socket to the other child of a trial

# Modules that programs import most often, loaded once for all children.
COMMON = (
    "collections",
    "copy",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "re",
    "string",
    "typing",
)


@dataclass
class Running:
    """A child that has not been waited for."""

    number: int
    deadline: float  # of the monotonic clock
    out_of_time: bool = False


class Zygote:
    """Forks, kills and waits for children until the control socket is closed."""

    def __init__(self, control: socket.socket, limits: Limits) -> None:
        self.control = control
        self.limits = limits
        self.container = Container(limits)
        self.running: dict[int, Running] = {}
        self.parent = os.getppid()
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        self.woken = woken
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Run until the control socket is closed, or until its owner ends and another process has a copy of it."""
        while os.getppid() == self.parent:
            timeout = min([OWNER_CHECK, *(each.deadline - time.monotonic() for each in self.running.values())])
            ready, _, _ = select.select([self.control.fileno(), self.woken], [], [], max(timeout, 0.0))
            if self.control.fileno() in ready and not self.obey():
                break
            if self.woken in ready:
                os.read(self.woken, 4096)
            self.reap()
            self.kill_overdue()
        for pid in self.running:
            self.kill(pid)

    def obey(self) -> bool:
        """Execute one command. Return `False` if the control socket is closed."""
        data, descriptors, _, _ = socket.recv_fds(self.control, COMMAND.size, MOST_DESCRIPTORS)
        if not data:
            return False
        order, number, seconds = COMMAND.unpack(data)
        if order == b"K":
            for pid, running in self.running.items():
                if running.number == number:
                    self.kill(pid)
            return True
        pid = os.fork()
        if pid == 0:
            try:
                self.become_a_child(*descriptors)
            finally:
                leave(1)
        for each in descriptors:
            os.close(each)
        self.running[pid] = Running(number, time.monotonic() + seconds)
        return True

    def become_a_child(self, job: int, output: int, peer: int | None = None) -> None:
        """In the child: contain the process, then run its job."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Not the helper's stdin: all children would share its flags (`F_SETFL`) and could pass messages in them.
        empty, _ = os.pipe()  # the other end is closed with all other descriptors
        os.dup2(empty, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            self.container.enter(keep=[job] if peer is None else [job, peer])
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
            leave(1)
        child.serve(job, peer, self.limits.output_bytes)
        leave(0)

    def reap(self) -> None:
        """Wait for all children that have ended and report them."""
        while self.running:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            if running := self.running.pop(pid, None):
                cpu = usage.ru_utime + usage.ru_stime
                self.control.sendall(REPORT.pack(running.number, status, cpu, running.out_of_time))

    def kill_overdue(self) -> None:
        """Kill children that have reached their wall-clock limit."""
        for pid, running in self.running.items():
            if not running.out_of_time and time.monotonic() >= running.deadline:
                running.out_of_time = True
                self.kill(pid)

    def kill(self, pid: int) -> None:
        """Kill a child and its group. It has not been waited for, so no other process has its number."""
        for kill in (os.kill, os.killpg):
            try:
                kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has ended, or has no group yet
                pass


def main() -> None:
    """Serve on the socket whose descriptor is in the command line."""
    import fcntl  # Windows lacks it, but imports this module for the error message

    inherited = int(sys.argv[1])  # a high number if the owner has many open files
    control = socket.socket(fileno=fcntl.fcntl(inherited, fcntl.F_DUPFD, 3))  # a low one: `select` accepts no other
    os.close(inherited)
    sys.argv[1:] = sys.orig_argv[:] = []
    fields = decode(receive(control.fileno(), 1 << 20))
    limits = Limits(**fields)
    os.environ.clear()
    os.chdir("/")
    library.install()
    for name in COMMON:
        import_module(name)
    zygote = Zygote(control, limits)
    sys.path += [path for path in limits.readable if os.path.isdir(path)]
    gc.collect()
    gc.freeze()
    os.dup2(1, 2)  # /dev/null: until here errors went to the stderr of the owner
    zygote.serve()
