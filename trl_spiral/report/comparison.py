"""The page that compares models at tasks: their mean scores, and every kept reply, step by step."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from trl_spiral.evaluation.problems.comparison import COMPARISON_METHODS, Standing, asked_differently
from trl_spiral.evaluation.problems.tasks import ScoredReply
from trl_spiral.intervals import Estimate
from trl_spiral.report.shell import assemble, finite
from trl_spiral.tasks import Task, get_task, task_names
from trl_spiral.text.printable import reported


T = TypeVar("T")

MOST_REPLIES = 5000
"""Replies that a page holds unless it is told otherwise, about; of more, all those to an even sample of the problems."""

MOST_FRAMES = 300
"""Steps of a reply that a page holds: five disks are moved in 31, and whoever shuttles one may do so a thousand times."""

_SCRIPTS = ("dom.js", "browse.js", "compare.js")


def render_comparison(
    standings: Sequence[Standing], rows: Sequence[ScoredReply], most_replies: int = MOST_REPLIES, plain: bool = False
) -> str:
    """
    The whole page.

    Args:
        standings (`Sequence[Standing]`):
            How each model did at each task.
        rows (`Sequence[ScoredReply]`):
            What that comes from. Replies of tasks that are not registered are shown without steps.
        most_replies (`int`, defaults to `MOST_REPLIES`):
            About how many are shown.
        plain (`bool`, defaults to `False`):
            Whether they are left unpacked, for browsers older than May 2023.

    Returns:
        `str`: HTML. The same rows give the same page.

    Raises:
        ValueError: If a task cannot step through what is said to be a reply to one of its problems.
    """
    shown = choose_replies(rows, most_replies)
    tasks = list(dict.fromkeys(one.task for one in standings))
    counts = {
        "models": len({row.model for row in rows}),
        "tasks": len(tasks),
        "problems": len({(row.task, row.problem) for row in rows}),
        "replies": len(rows),
    }
    summary = {
        "name": ", ".join(tasks),
        "counts": counts,
        "methods": COMPARISON_METHODS,
        "askedDifferently": asked_differently(rows),
        "standings": [_standing(one) for one in standings],
        "replies": [
            [row.model, row.task, row.problem, row.sample, finite(row.score), row.solved, row.truncated]
            for row in shown
        ],
    }
    return assemble(
        title=f"{summary['name']}: comparison of models",
        many="replies",
        scripts=_SCRIPTS,
        summary=summary,
        records=map(_body, shown),
        plain=plain,
    )


def choose_replies(rows: Sequence[ScoredReply], most: int) -> list[ScoredReply]:
    """All replies to a problem together; where there are more than `most`, those to an even sample of the problems."""
    by_problem: dict[tuple[str, str], list[ScoredReply]] = {}
    for row in rows:
        by_problem.setdefault((row.task, row.problem), []).append(row)
    # Tasks in the order in which they appear, each with its problems in theirs.
    tasks = list(dict.fromkeys(row.task for row in rows))
    problems = [replies for task in tasks for (name, _), replies in by_problem.items() if name == task]
    number = len(problems) if len(rows) <= most else max(1, most * len(problems) // len(rows))
    return [row for k in range(number) for row in problems[k * len(problems) // number]]


def steps_of(row: ScoredReply) -> list[str]:
    """
    The frames of a reply, at most `MOST_FRAMES`; none if its task is not registered.

    Raises:
        ValueError: If the task cannot make sense of the row.
    """
    frames = _of_task(row, lambda task: task.steps(row.asked(), row.response)) or []
    if len(frames) <= MOST_FRAMES:
        return frames
    left_out = len(frames) - MOST_FRAMES + 1
    return [*frames[: MOST_FRAMES - 2], f"{left_out:,} steps are left out here.", frames[-1]]


def _solution(row: ScoredReply) -> str:
    return _of_task(row, lambda task: task.solution(row.asked())) or ""


def _of_task(row: ScoredReply, draw: Callable[[Task], T]) -> T | None:
    """What its task makes of a row, if that is registered."""
    if row.task not in task_names():
        return None
    try:
        return draw(get_task(row.task))
    except Exception as error:  # whatever a user's task comes upon in data that are not its own
        raise ValueError(
            f"The task {row.task!r} cannot step through problem {row.problem!r} ({type(error).__name__}: "
            f"{reported(error)}). See whether "
            "the file was written by another version of it."
        ) from error


def _standing(one: Standing) -> dict[str, Any]:
    return {
        "task": one.task,
        "model": one.model,
        "problems": one.problems,
        "replies": one.replies,
        "score": _estimate(one.score),
        "solved": _estimate(one.solved),
        "shared": one.shared,
        "difference": one.difference and _estimate(one.difference),
    }


def _estimate(estimate: Estimate) -> list[float | None]:
    return [finite(number) for number in (estimate.value, estimate.low, estimate.high)]


def _body(row: ScoredReply) -> dict[str, Any]:
    """What is looked at beside the list's entry."""
    detail: Mapping[str, Any] = json.loads(row.detail)
    return {
        "prompt": [[message["role"], message["content"]] for message in row.asked().messages],
        "frames": steps_of(row),
        "solution": _solution(row),
        "response": row.response,
        "detail": [[name.replace("_", " ").capitalize(), _said(value)] for name, value in detail.items()],
        "tokens": row.tokens,
    }


def _said(value: Any) -> str:
    """A plain value as text."""
    if isinstance(value, list):
        return ", ".join(map(_said, value)) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return (value or "none") if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
