"""
Two gloo ranks as forks of the test's process: the same environment as `accelerate launch`, without new interpreters.

Starting two interpreters that import torch, transformers and TRL takes longer than most of what tests do on two ranks.
`test_two_ranks.py` and `test_accelerate_configs.py` use the real launcher.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path


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
    if pid := os.fork():
        return pid
    code = 1
    try:
        for stream, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(folder / f"{stream}_{rank}", os.O_WRONLY | os.O_CREAT, 0o600), number)
        # pytest has replaced these by captures of its own.
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        _become(rank, ranks, port)
        main(*map(str, arguments))
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become(rank: int, ranks: int, port: int) -> None:
    """Forget the parent's world, and take a rank's place in a new one."""
    import numpy as np
    import torch
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.set_num_threads(1)  # a fork has none of the parent's OpenMP threads, and would wait for them
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
