"""
The kernel's limits on a process that contains itself, and the features of this kernel.

Written on ctypes. `pyseccomp` needs a C library (libseccomp) that clusters and slim images lack; `landlock` is a
pre-release without scopes. Both live in site-packages, which the helper process does not load, and we need only a page
of constants of each.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import signal
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trl_spiral.sandbox import landlock, seccomp
from trl_spiral.sandbox.base import CannotContain, Limits
from trl_spiral.sandbox.libc import leave, prctl, system_call


# include/uapi/linux/prctl.h, capability.h, time.h
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_CAPABILITY_VERSION_3 = 0x20080522
_CLOCK_PROCESS_CPUTIME_ID = 2
# capset, timer_create, timer_settime
_NUMBERS = {"x86_64": (126, 222, 223), "aarch64": (91, 107, 110)}

MOST_DESCRIPTORS = 64
STACK = 8 << 20  # bytes; a recursion that overflows the C stack ends here and not at the memory limit


@dataclass(frozen=True, slots=True)
class Layer:
    """
    One feature of the kernel that contains programs.

    Attributes:
        name (`str`):
            Its name.
        found (`str`, *optional*):
            Its version, or `"yes"`; `None` if this kernel lacks it.
        needed (`bool`):
            Whether programs are refused without it.
        cost (`str`):
            Consequence of its absence.
    """

    name: str
    found: str | None
    needed: bool
    cost: str


def features() -> tuple[Layer, ...]:
    """Return the features of this machine's kernel that contain programs."""
    linux = sys.platform == "linux"
    abi = landlock.version() if linux else 0
    filters = linux and seccomp.is_there()
    return (
        Layer("Linux", platform.release() if linux else None, True, "no program is run on this machine"),
        Layer(
            "seccomp",
            "yes" if filters else None,
            True,
            "a program can fork, run other programs, connect to the network and kill your processes",
        ),
        Layer("Landlock", f"version {abi}" if abi else None, True, "a program can read every file that you can read"),
        Layer(
            f"Landlock's right to truncate (version {landlock.TRUNCATE_SINCE})",
            "yes" if abi >= landlock.TRUNCATE_SINCE else None,
            False,
            "`Limits(writable=…)` is refused, as a program could empty every file that you can write to",
        ),
        Layer(
            f"Landlock's network rules (version {landlock.NETWORK_SINCE})",
            "yes" if abi >= landlock.NETWORK_SINCE else None,
            False,
            "nothing if seccomp is there, which allows no such socket: a second wall",
        ),
        Layer(
            f"Landlock's scopes (version {landlock.SCOPES_SINCE})",
            "yes" if abi >= landlock.SCOPES_SINCE else None,
            False,
            "nothing if seccomp is there, which allows no signals to others: a second wall",
        ),
    )


def check(limits: Limits, allow_degraded: bool) -> None:
    """
    Check that the kernel of this machine can contain programs.

    Raises:
        CannotContain: If a feature is missing and that is not allowed.
    """
    lacking = [layer for layer in features() if layer.needed and layer.found is None]
    if sys.platform != "linux":
        raise CannotContain(
            f"`LocalSandbox` needs Linux with seccomp and Landlock, and this is {platform.system()}. Train on a "
            "Linux machine, or pass a `Sandbox` of your own."
        )
    if lacking and not allow_degraded:
        raise CannotContain(
            f"This kernel lacks {' and '.join(layer.name for layer in lacking)}, and "
            f"{' and '.join(layer.cost for layer in lacking)}. Use `BubblewrapSandbox`, or "
            "accept that with `allow_degraded=True`; `trl-spiral doctor` shows all."
        )
    if limits.writable and 0 < landlock.version() < landlock.TRUNCATE_SINCE and not allow_degraded:
        raise CannotContain(
            f"`writable` needs version {landlock.TRUNCATE_SINCE} of Landlock, and this kernel has version "
            f"{landlock.version()}: a program could empty every file that you can write to. Leave it out, use "
            "`BubblewrapSandbox`, or accept that with `allow_degraded=True`."
        )


class Container:
    """
    The containment of a child. The helper process builds it once, which drops the helper's own privileges, and each
    child enters it.

    Args:
        limits ([`Limits`]):
            Limits of a program.
    """

    def __init__(self, limits: Limits) -> None:
        import resource  # Windows lacks it, but imports this module for the error message

        self.limits = limits
        self.helper = os.getpid()
        self.rules = landlock.build_rules(limits.readable, limits.writable) if landlock.version() else None
        self.filter = seccomp.build_filter(bool(limits.writable), limits.threads) if seccomp.is_there() else None
        # If memory runs out, the kernel must end a program and not the trainer, which uses more of it.
        with suppress(OSError):  # for example if /proc is mounted read-only
            Path("/proc/self/oom_score_adj").write_text("1000")
        _drop_capabilities()
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        prctl(_PR_SET_DUMPABLE, 0)
        memory = limits.memory_mb << 20
        wanted = {
            resource.RLIMIT_AS: memory,
            resource.RLIMIT_CPU: math.ceil(
                limits.cpu_seconds
            ),  # soft and hard: SIGXCPU could be ignored, SIGKILL cannot
            resource.RLIMIT_FSIZE: memory if limits.writable else 0,
            resource.RLIMIT_NOFILE: MOST_DESCRIPTORS,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_STACK: STACK,
            resource.RLIMIT_MSGQUEUE: 0,
            resource.RLIMIT_MEMLOCK: 0,
        }
        if not limits.threads:
            wanted[resource.RLIMIT_NPROC] = 0  # without effect for root, which seccomp stops
        # Existing limits, for example of a batch system, cannot be raised.
        hard = {which: resource.getrlimit(which)[1] for which in wanted}
        self.resources = {
            which: most if hard[which] == resource.RLIM_INFINITY else min(most, hard[which])
            for which, most in wanted.items()
        }

    def enter(self, keep: list[int]) -> None:
        """Contain the calling process irrevocably. Close all descriptors but the standard ones and `keep`."""
        import resource

        os.setsid()
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.helper:  # the helper ended before the option was set
            leave(1)
        for which, most in self.resources.items():
            resource.setrlimit(which, (most, most))
        if self.rules is not None:
            landlock.apply_rules(self.rules)
        _close_all_but(keep)
        _kill_after(self.limits.cpu_seconds)
        if self.filter is not None:
            seccomp.install_filter(self.filter)


def _drop_capabilities() -> None:
    for capability in range(64):
        try:
            prctl(_PR_CAPBSET_DROP, capability)
        except OSError:  # no more capabilities, or no right to drop them: then there are none
            break
    if numbers := _NUMBERS.get(platform.machine()):
        header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
        system_call(numbers[0], ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))


def _close_all_but(keep: list[int]) -> None:
    last = 2
    for each in sorted(keep):
        os.closerange(last + 1, each)
        last = each
    os.closerange(last + 1, MOST_DESCRIPTORS)


def _kill_after(seconds: float) -> None:
    """Have the kernel kill this process after some processor time. The resource limit counts whole seconds only."""
    if numbers := _NUMBERS.get(platform.machine()):
        timer = ctypes.create_string_buffer(4)
        event = struct.pack("=Qii48x", 0, signal.SIGKILL, 0)  # struct sigevent
        system_call(numbers[1], _CLOCK_PROCESS_CPUTIME_ID, ctypes.c_char_p(event), timer)
        fraction, whole = math.modf(seconds)
        times = struct.pack("=qqqq", 0, 0, int(whole), int(fraction * 1e9))  # struct itimerspec: does not repeat
        system_call(numbers[2], int.from_bytes(timer.raw, sys.byteorder), 0, ctypes.c_char_p(times), None)
