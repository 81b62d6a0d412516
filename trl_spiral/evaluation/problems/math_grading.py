"""
Grade answers to math problems with math-verify, in separate processes with limits on time and memory.

math-verify's own time limit needs the main thread and a signal handler, and SymPy may spend an hour in a single
instruction. Separate processes can be ended from outside.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path


SECONDS = 1.0
"""Limit on the processor time of an answer. Correct answers in MATH-500 take up to 0.17 s."""

MAX_LANES = 8
"""Maximum number of answers that are graded in parallel, at most one per core."""

MEMORY = 512 * 2**20
"""Limit on the bytes of address space of an answer. The libraries use 70 MB of it."""

MAX_ANSWER = 512
"""Maximum number of characters. A longer answer is wrong. The longest correct one in MATH-500 has 53."""


class MathVerdict(StrEnum):
    """Grade of an answer."""

    CORRECT = "correct"
    WRONG = "wrong"
    TIMEOUT = "timeout"
    """
    Not graded within its limits of time or memory, which counts as wrong. If math-verify itself handles a lack of
    memory, it reports that the answers differ, and the grade is `WRONG`.
    """


def check_can_grade() -> None:
    """
    Check that math-verify is installed.

    Raises:
        ImportError: If it is not.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError(
            "Grading math needs math-verify, which is not installed. Install it with `pip install trl-spiral[eval]`."
        )


def grade_answers(pairs: Sequence[tuple[str, str | None]]) -> list[MathVerdict]:
    """
    Grade answers.

    Args:
        pairs (`Sequence[tuple[str, str | None]]`):
            Pairs of a correct answer and a model's answer, as LaTeX in a box; `None` if the reply has none.

    Returns:
        `list[MathVerdict]`: The grade of each pair. An answer of more than 512 characters is wrong.

    Raises:
        ImportError: If math-verify is not installed.
        RuntimeError: If the grading process fails.
    """
    check_can_grade()
    verdicts = [MathVerdict.WRONG] * len(pairs)
    asked = {
        number: (gold, answer)
        for number, (gold, answer) in enumerate(pairs)
        if answer is not None and len(answer) <= MAX_ANSWER
    }
    if not asked:
        return verdicts
    lanes = min(MAX_LANES, os.cpu_count() or 1, len(asked))
    job = {"pairs": list(asked.values()), "seconds": SECONDS, "lanes": lanes, "memory": MEMORY}
    # A separate program: a fork of a trainer may inherit a lock that is never released, and `multiprocessing` would
    # run the user's script again. It ends with this process.
    worker = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("math_grading_worker.py"))],
        input=json.dumps(job),
        capture_output=True,
        text=True,
    )
    if worker.returncode:
        reason = (worker.stderr.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"The grading process has failed (status {worker.returncode}): {reason}")
    for number, verdict in zip(asked, json.loads(worker.stdout), strict=True):
        verdicts[number] = (MathVerdict.TIMEOUT, MathVerdict.WRONG, MathVerdict.CORRECT)[verdict]
    return verdicts
