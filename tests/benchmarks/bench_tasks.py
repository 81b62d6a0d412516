"""
Time to make a thousand puzzles, and to score hostile replies.

    python tests/benchmarks/bench_tasks.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter


sys.path.insert(0, str(Path(__file__).parents[2]))  # the project root, for `tests` and `trl_spiral`

from trl_spiral.tasks import get_task


HOSTILE = {
    "a million brackets": "[" * 10**6,
    "a million letters": "a" * 10**6,
    "nested boxes": "\\boxed{" * 10**5,
    "braces in a box": "\\boxed{" + "{" * 10**6,
    "nested thinking": "<think>" * 10**5,
    "commas and semicolons": "\\boxed{" + "a,;" * 5_000 + "}",
    "ten thousand moves": str([[1, 0, 2], [1, 2, 0]] * 5_000),
    "the maximum number of moves": "\\boxed{" + str([[1, 0, 2], [1, 2, 0]] * 680) + "}",
    "spaces": "[[1, 0, 2]," + " " * 16_000,
    "non-ASCII digits": "[[１, ０, ２]]",
    "a long number": "[[" + "1" * 16_000 + ", 0, 2]]",
    "code": "[[__import__('os').abort(), 0, 2]]",
    "control characters": "\x00\u202e\ud800" * 10**5,
}


def best_of(call, times: int = 5) -> float:
    """Return the milliseconds of the fastest of several calls."""
    taken = []
    for _ in range(times):
        start = perf_counter()
        call()
        taken.append(perf_counter() - start)
    return 1e3 * min(taken)


def main() -> None:
    print("| task | 1,000 problems, s |\n|---|---:|")
    for name in ("connections-easy", "connections-medium", "connections-hard", "connections", "hanoi"):
        print(f"| {name} | {best_of(lambda name=name: get_task(name).problems('train', 1000), 1) / 1e3:.2f} |")
    print("\n| reply | connections, ms | hanoi, ms |\n|---|---:|---:|")
    for what, response in HOSTILE.items():
        cells = []
        for task in map(get_task, ("connections", "hanoi-standard")):
            (problem,) = task.problems("train", 1)
            value = task.score(problem, response).value
            cells.append(f"{best_of(lambda: task.score(problem, response)):.2f} (value {value:g})")  # noqa: B023
        print(f"| {what} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
