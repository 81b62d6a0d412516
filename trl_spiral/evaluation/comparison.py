"""How models did at the same tasks: mean scores with intervals, and differences on the problems that both were asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trl_spiral.evaluation.intervals import LEVEL, RESAMPLES, Estimate, bootstrap_mean, clustered_wilson
from trl_spiral.evaluation.scores import ScoredReply


COMPARISON_METHODS = (
    f"{100 * LEVEL:.0f} % intervals: mean scores and differences by percentile bootstrap over problems ({RESAMPLES} "
    "resamples), with all samples of a problem together; solved by Wilson's score. Where all of a model's scores are alike, a "
    "bootstrap has no width, and only the interval of solved says how little that may mean."
)
"""How [`compare_scores`] gets its intervals, in a sentence or two for whoever reads them."""


@dataclass(frozen=True, slots=True)
class Standing:
    """
    How a model did at a task.

    Attributes:
        task, model (`str`):
            Their names.
        problems (`int`):
            Different problems that it was asked.
        replies (`int`):
            All samples of all problems.
        score ([`~evaluation.intervals.Estimate`]):
            Mean score of its replies.
        solved ([`~evaluation.intervals.Estimate`]):
            Share of its replies that solved their problem.
        shared (`int`):
            Problems that the task's first model was asked too.
        difference ([`~evaluation.intervals.Estimate`], *optional*):
            On these, the mean over problems of how much higher it scored than the first model. `None` for the first model
            itself, and where there are no such problems.
    """

    task: str
    model: str
    problems: int
    replies: int
    score: Estimate
    solved: Estimate
    shared: int
    difference: Estimate | None


def compare_scores(rows: Iterable[ScoredReply]) -> list[Standing]:
    """
    How each model did at each task.

    Args:
        rows (`Iterable[ScoredReply]`):
            The order in which tasks and models first appear is that of the result; each task's first model is the one that
            the others are compared with.

    Raises:
        ValueError: If a sample of a model's replies to a problem is there twice, as when a file is named twice.
    """
    # By task, model and problem.
    found: dict[str, dict[str, dict[str, list[ScoredReply]]]] = {}
    seen: set[tuple[str, str, str, int]] = set()
    for row in rows:
        key = (row.task, row.model, row.problem, row.sample)
        if key in seen:
            raise ValueError(
                f"Sample {row.sample} of {row.model!r} at problem {row.problem!r} is there twice. Name each file once, and "
                "tell models of one name apart by `trl-spiral eval-task --name`."
            )
        seen.add(key)
        found.setdefault(row.task, {}).setdefault(row.model, {}).setdefault(row.problem, []).append(row)
    standings = []
    for task, models in found.items():
        first, *_ = models
        for model, problems in models.items():
            shared = [problem for problem in problems if problem in models[first]]
            gains = [[_mean(problems[problem]) - _mean(models[first][problem])] for problem in shared]
            standings.append(
                Standing(
                    task=task,
                    model=model,
                    problems=len(problems),
                    replies=sum(map(len, problems.values())),
                    score=bootstrap_mean([[row.score for row in replies] for replies in problems.values()]),
                    solved=clustered_wilson([[float(row.solved) for row in replies] for replies in problems.values()]),
                    shared=len(shared),
                    difference=bootstrap_mean(gains) if shared and model != first else None,
                )
            )
    return standings


def _mean(replies: Sequence[ScoredReply]) -> float:
    return math.fsum(row.score for row in replies) / len(replies)


def comparison_table(standings: Sequence[Standing]) -> str:
    """A Markdown table of all tasks and models, and below it how to read it."""
    lines = [
        "| task | model | problems | replies | mean score | interval | solved | interval | to the first | interval | shared |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    firsts: Mapping[str, str] = {one.task: one.model for one in reversed(standings)}
    for one in standings:
        gain = one.difference
        if gain is not None:
            against = f"{gain.value:+.3f} | {gain.low:+.3f} to {gain.high:+.3f} | {one.shared}"
        else:
            against = "| | " if one.model == firsts[one.task] else "| | 0"
        lines.append(
            f"| {_cell(one.task)} | {_cell(one.model)} | {one.problems} | {one.replies} | {one.score.value:.3f} | "
            f"{one.score.low:.3f} to {one.score.high:.3f} | {one.solved.value:.1%} | {one.solved.low:.1%} to "
            f"{one.solved.high:.1%} | {against} |"
        )
    return "\n".join([*lines, "", COMPARISON_METHODS])


def _cell(text: str) -> str:
    """Of a name, what a table in a terminal can hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in text).replace("|", "\\|")
