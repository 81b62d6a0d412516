"""
Grade answers: a program that `math_grading.py` runs in a separate process. It imports nothing of the package.

A few forks, the lanes, parse and compare the answers. Each lane takes every n-th answer. The kernel ends a lane that
exceeds its time, and a new fork continues after the answer that it stopped at.
"""

from __future__ import annotations

import gc
import json
import logging
import mmap
import os
import re
import resource
import signal
import sys
import time
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify


UNFINISHED, WRONG, CORRECT = range(3)

_BOXED = [LatexExtractionConfig(boxed_match_priority=0)]
_E_NOTATION = re.compile(r"(?<=\d)[eE]([+-]?\d+)")  # Minerva's 2.45e6, which math-verify reads as a product
_POLL = 0.01  # seconds


def main() -> None:
    """Read `{"pairs": [[gold, answer], …], …}` from stdin, and write the grade of each pair to stdout."""
    job = json.load(sys.stdin)
    warm_up()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere the limit is refused or has no effect
        resource.setrlimit(resource.RLIMIT_AS, (job["memory"], job["memory"]))
    json.dump(grade_pairs(job["pairs"], job["seconds"], job["lanes"]), sys.stdout)


def grade_pairs(pairs: list[list[str]], seconds: float, lanes: int) -> list[int]:
    """Return `UNFINISHED`, `WRONG` or `CORRECT` for each pair."""
    verdicts = mmap.mmap(-1, len(pairs))  # shared with the lanes, and zero
    asker = os.getppid()
    running = {_fork(pairs, range(lane, len(pairs), lanes), seconds, verdicts): lane for lane in range(lanes)}
    begun = list(range(lanes))  # first answer of each lane's current fork
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            if os.getppid() != asker:
                for lane in running:
                    os.kill(lane, signal.SIGKILL)
                sys.exit("The parent process is gone.")
            time.sleep(_POLL)
            continue
        lane = running.pop(pid)
        # Empty if the lane failed after its last answer.
        left = (number for number in range(begun[lane], len(pairs), lanes) if not verdicts[number])
        if status and (hung := next(left, None)) is not None:
            begun[lane] = hung + lanes
            running[_fork(pairs, range(begun[lane], len(pairs), lanes), seconds, verdicts)] = lane
    return list(verdicts[:])


def equal(gold: str, answer: str) -> bool:
    """Return whether math-verify considers two answers, as LaTeX in a box, equal."""
    # Its own time limits need a signal handler, which Python calls only between two bytecode instructions.
    same: bool = verify(_read(gold), _read(answer), timeout_seconds=None)
    return same


def warm_up() -> None:
    """Fill caches and load SymPy's lazy modules, once for all forks."""
    logging.disable(logging.CRITICAL)  # math-verify warns that it has no time limit
    if not equal("x^2-1", "(x+1)(x-1)"):
        raise RuntimeError("math-verify does not find that x²-1 = (x+1)(x-1). Reinstall it.")
    gc.freeze()  # so that a collection in a fork copies no pages


def _read(answer: str) -> list[Any]:
    text = _E_NOTATION.sub(r" \\times 10^{\1}", answer)
    read: list[Any] = parse(f"\\boxed{{{text}}}", _BOXED, parsing_timeout=None)
    return read


def _fork(pairs: list[list[str]], numbers: range, seconds: float, verdicts: mmap.mmap) -> int:
    """Fork a lane that grades these pairs in order, and return its process id."""
    ours = os.getpid()
    if pid := os.fork():
        return pid
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    for number in numbers:
        if os.getppid() != ours:
            break
        # Processor time, so that a busy machine does not fail correct answers.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            verdict = CORRECT if equal(*pairs[number]) else WRONG
        except MemoryError:  # ends the lane, as a timeout does; math-verify turns most of them into "not equal"
            sys.exit("An answer needs too much memory.")
        except Exception:  # for example, if it is too deeply nested
            verdict = WRONG
        signal.setitimer(signal.ITIMER_PROF, 0)
        verdicts[number] = verdict
    sys.exit()


if __name__ == "__main__":
    main()
