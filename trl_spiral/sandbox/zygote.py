"""
The helper process that forks one child per job.

It knows the limits and nothing else: neither what its children run nor, started with an empty environment and without
site-packages, anything of the process that started it. A job reaches the child alone, over a socket of its own that the
child inherits, so that no later child can find it in memory.
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
"""`b"F"`, to fork, along with the child's descriptors, or `b"K"`, to kill; the child's number; and its seconds by the clock."""
REPORT = struct.Struct(">QId?")
"""A child's number, its wait status, the processor seconds it took, and whether it ran out of time by the clock."""
OWNER_CHECK = 5.0  # seconds between looks at whether the owner still lives
MOST_DESCRIPTORS = 3  # of a command: the job's socket, the output, and the socket to the other child of a trial

# What programs import most, so that children have it already.
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
    deadline: float  # by the monotonic clock
    out_of_time: bool = False


class Zygote:
    """Forks, kills and waits, until whoever commands it hangs up."""

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
        """Until the control socket ends, or its owner does and has left a copy of it to another process."""
        while os.getppid() == self.parent:
            timeout = min([OWNER_CHECK, *(each.deadline - time.monotonic() for each in self.running.values())])
            ready, _, _ = select.select([self.control.fileno(), self.woken], [], [], max(timeout, 0.0))
            if self.control.fileno() in ready and not self.obey():
                break
            if self.woken in ready:
                os.read(self.woken, 4096)
            self.reap()
            self.kill_the_late()
        for pid in self.running:
            self.kill(pid)

    def obey(self) -> bool:
        """One command. `False` at the end of all commands."""
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
        """In the child: contained first, told its job after that."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Not the helper's own, whose flags (`F_SETFL`) all children would share and could leave word in for the next one.
        empty, _ = os.pipe()  # the other end is closed with all descriptors that are not kept
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
        """Waits for all children that have ended, and reports them."""
        while self.running:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            if running := self.running.pop(pid, None):
                cpu = usage.ru_utime + usage.ru_stime
                self.control.sendall(REPORT.pack(running.number, status, cpu, running.out_of_time))

    def kill_the_late(self) -> None:
        """Kills whom the clock has run out for."""
        for pid, running in self.running.items():
            if not running.out_of_time and time.monotonic() >= running.deadline:
                running.out_of_time = True
                self.kill(pid)

    def kill(self, pid: int) -> None:
        """Kills a child and its group. It has not been waited for, so that the number is still its own."""
        for kill in (os.kill, os.killpg):
            try:
                kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has ended, or has no group of its own yet
                pass


def main() -> None:
    """Serves on the socket whose descriptor the command line names."""
    import fcntl  # not on Windows, where this module is imported to say so

    inherited = int(sys.argv[1])  # a high number where the owner has much open
    control = socket.socket(fileno=fcntl.fcntl(inherited, fcntl.F_DUPFD, 3))  # a low one: `select` takes no other
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
    os.dup2(1, 2)  # /dev/null: so far errors went where the owner's go, which is not for children
    zygote.serve()
