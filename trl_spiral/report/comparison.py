"""The page that compares models on tasks: mean scores, and every recorded reply, step by step."""

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
"""Approximate default number of replies in a page. If there are more, the page has an even sample of the problems."""

MOST_FRAMES = 300
"""Steps of a reply in a page. Five disks are moved in 31 steps, but a reply may move one back and forth forever."""

_SCRIPTS = ("dom.js", "browse.js", "compare.js")


def render_comparison(
    standings: Sequence[Standing], rows: Sequence[ScoredReply], most_replies: int = MOST_REPLIES, plain: bool = False
) -> str:
    """
    Return the comparison of models.

    Args:
        standings (`Sequence[Standing]`):
            Scores of each model on each task.
        rows (`Sequence[ScoredReply]`):
            The scored replies. Replies to tasks that are not registered are shown without steps.
        most_replies (`int`, defaults to `MOST_REPLIES`):
            Approximate number of replies to show.
        plain (`bool`, defaults to `False`):
            Whether replies are not compressed, for browsers older than May 2023.

    Returns:
        `str`: HTML. The same rows give the same page.

    Raises:
        ValueError: If a task cannot display the steps of a reply.
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
    """Return all replies problem by problem, or those to an even sample of the problems if they exceed `most`."""
    by_problem: dict[tuple[str, str], list[ScoredReply]] = {}
    for row in rows:
        by_problem.setdefault((row.task, row.problem), []).append(row)
    # Tasks and problems in the order in which they appear.
    tasks = list(dict.fromkeys(row.task for row in rows))
    problems = [replies for task in tasks for (name, _), replies in by_problem.items() if name == task]
    number = len(problems) if len(rows) <= most else max(1, most * len(problems) // len(rows))
    return [row for k in range(number) for row in problems[k * len(problems) // number]]


def steps_of(row: ScoredReply) -> list[str]:
    """
    Return the steps of a reply as text, at most `MOST_FRAMES`; none if its task is not registered.

    Raises:
        ValueError: If the task cannot read the row.
    """
    frames = _of_task(row, lambda task: task.steps(row.asked(), row.response)) or []
    if len(frames) <= MOST_FRAMES:
        return frames
    left_out = len(frames) - MOST_FRAMES + 1
    return [*frames[: MOST_FRAMES - 2], f"{left_out:,} steps are omitted here.", frames[-1]]


def _solution(row: ScoredReply) -> str:
    return _of_task(row, lambda task: task.solution(row.asked())) or ""


def _of_task(row: ScoredReply, draw: Callable[[Task], T]) -> T | None:
    """Return the result of `draw` for the task of a row; `None` if the task is not registered."""
    if row.task not in task_names():
        return None
    try:
        return draw(get_task(row.task))
    except Exception as error:  # a user's task may raise anything
        raise ValueError(
            f"The task {row.task!r} cannot display problem {row.problem!r} ({type(error).__name__}: "
            f"{reported(error)}). Check whether another version of the task wrote the file."
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
    """Return the data of a reply that is not in the list of replies."""
    detail: Mapping[str, Any] = json.loads(row.detail)
    return {
        "prompt": [[message["role"], message["content"]] for message in row.asked().messages],
        "frames": steps_of(row),
        "solution": _solution(row),
        "response": row.response,
        "detail": [[name.replace("_", " ").capitalize(), _as_text(value)] for name, value in detail.items()],
        "tokens": row.tokens,
    }


def _as_text(value: Any) -> str:
    """Return a plain value as text."""
    if isinstance(value, list):
        return ", ".join(map(_as_text, value)) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return (value or "none") if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
