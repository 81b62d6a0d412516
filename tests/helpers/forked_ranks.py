"""
Two gloo ranks as forks of the test's process: the same environment as `accelerate launch`, without new interpreters.

Starting two interpreters that import torch, transformers and TRL takes longer than most of what tests do on two ranks.
`test_accelerate_configs.py` uses the real launcher.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.helpers import forks


_GRACE = 30.0  # seconds, as torchrun gives


def run_on_ranks(
    main: Callable[..., object], *arguments: object, ranks: int = 2, timeout: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """
    Run `main(*arguments)` on every rank.

    As under torchrun, the first rank that fails ends the others, and the result's `stderr` names its signal.

    Raises:
        subprocess.TimeoutExpired: If a rank is still running after `timeout` seconds.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"{stream}_{rank}") for rank in range(ranks) for stream in ("out", "err")]
        pids = [fork(rank, ranks, port, Path(folder), main, arguments) for rank in range(ranks)]
        endings = wait(pids, timeout)
        out, err = ("".join(log.read_text(errors="replace") for log in logs[first::2]) for first in (0, 1))
    killed = [-ending for ending in endings if ending < 0]
    err += "".join(f"Signal {number} ({signal.Signals(number).name}) ended a rank.\n" for number in killed)
    return subprocess.CompletedProcess([main.__module__, *map(str, arguments)], int(any(endings)), out, err)


def fork(rank: int, ranks: int, port: int, folder: Path, main: Callable[..., object], arguments: tuple) -> int:
    """Start a rank, whose output goes to files in `folder`. Return its process id."""
    with (folder / f"out_{rank}").open("wb") as out, (folder / f"err_{rank}").open("wb") as err:

        def start() -> None:
            _become(rank, ranks, port)
            main(*map(str, arguments))

        return forks.fork(start, out, err)


def _become(rank: int, ranks: int, port: int) -> None:
    """Reset the distributed state of the parent, and set up that of a rank."""
    import numpy as np
    import torch

    forks.forget_states()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "ACCELERATE_MIXED_PRECISION": "no",
        "ACCELERATE_DYNAMO_BACKEND": "NO",
    }


def wait(pids: list[int], timeout: float) -> list[int]:
    """Return the exit codes, negative for signals. Once a rank has failed, the others have `_GRACE` seconds to end."""
    endings: dict[int, int] = {}
    deadline = time.monotonic() + timeout
    failed = timed_out = False
    while len(endings) < len(pids):
        for pid in set(pids) - set(endings):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                endings[pid] = os.waitstatus_to_exitcode(status)
        if any(endings.values()) and not failed:
            failed, deadline = True, min(deadline, time.monotonic() + _GRACE)
        if time.monotonic() > deadline:
            timed_out = not failed
            for pid in set(pids) - set(endings):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                endings[pid] = 1
        time.sleep(0.02)
    if timed_out:
        raise subprocess.TimeoutExpired("ranks", timeout)
    return [endings[pid] for pid in pids]
