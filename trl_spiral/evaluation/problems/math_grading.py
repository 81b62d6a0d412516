r"""
Grades answers to math problems with math-verify, so that no answer can hang or kill whoever asks.

math-verify's own time limit needs the main thread and a signal handler, and SymPy may spend an hour in a single
instruction. So answers are compared in processes of their own, which are ended from outside.
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
"""Processor time that an answer may take. Right answers in MATH-500 take up to 0.17 s."""

MAX_LANES = 8
"""Most answers that are graded side by side, as far as there are cores."""

MEMORY = 512 * 2**20
"""Bytes of address space for an answer. The libraries take 70 MB of them."""

MAX_ANSWER = 512
"""Characters beyond which an answer is wrong, unread. The longest right one in MATH-500 has 53."""

_BOX = "\\boxed{"
_MAX_REPLY = 65_536


class MathVerdict(StrEnum):
    """What became of an answer."""

    CORRECT = "correct"
    WRONG = "wrong"
    TIMEOUT = "timeout"
    """
    Not graded within its time or its memory, which counts as wrong. Where math-verify itself runs out of memory while it
    compares, it says that two answers differ, and so `WRONG` is all that is known.
    """


def boxed_answer(reply: str) -> str | None:
    r"""
    What stands in the last `\boxed{}` of a reply, outside unfinished thinking; braces may be nested, and `\{` is none.

    Args:
        reply (`str`):
            The whole reply, of which the last 65,536 characters before unfinished thinking are looked at.

    Returns:
        `str` or `None`: The answer, stripped. `None` if there is no box, or the last one is empty or never closed.
    """
    unfinished = reply.find("<think>", reply.rfind("</think>") + 1)
    text = (reply[:unfinished] if unfinished >= 0 else reply)[-_MAX_REPLY:]
    start = text.rfind(_BOX)
    if start < 0:
        return None
    depth = 0
    inner = position = start + len(_BOX)
    while position < len(text):
        if text[position] == "\\":
            position += 1  # whatever is escaped is no brace
        elif text[position] == "{":
            depth += 1
        elif text[position] == "}":
            if depth == 0:
                return text[inner:position].strip() or None
            depth -= 1
        position += 1
    return None


def check_can_grade() -> None:
    """
    Raises:
        ImportError: If math-verify is not installed.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError(
            "Grading math needs math-verify, which is not installed. Install it with `pip install trl-spiral[eval]`."
        )


def grade_answers(pairs: Sequence[tuple[str, str | None]]) -> list[MathVerdict]:
    """
    Grades answers.

    Args:
        pairs (`Sequence[tuple[str, str | None]]`):
            The right answer and the one that was given, each as it stands in its box; `None` for a reply without one.

    Returns:
        `list[MathVerdict]`: One for each pair. An answer of more than 512 characters is wrong.

    Raises:
        ImportError: If math-verify is not installed.
        RuntimeError: If the process that grades cannot work.
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
    # A program of its own, started by path: a fork of a trainer may inherit a lock that nobody will ever open, and
    # `multiprocessing` would run the user's script again. It ends when we do.
    worker = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("math_grading_worker.py"))],
        input=json.dumps(job),
        capture_output=True,
        text=True,
    )
    if worker.returncode:
        reason = (worker.stderr.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"The process that grades answers has failed (status {worker.returncode}): {reason}")
    for number, verdict in zip(asked, json.loads(worker.stdout), strict=True):
        verdicts[number] = (MathVerdict.TIMEOUT, MathVerdict.WRONG, MathVerdict.CORRECT)[verdict]
    return verdicts
