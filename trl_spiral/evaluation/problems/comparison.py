"""Comparison of models at the same tasks: mean scores and paired differences, with intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trl_spiral.evaluation.problems.tasks import ScoredReply
from trl_spiral.intervals import LEVEL, RESAMPLES, Estimate, bootstrap_mean, clustered_wilson
from trl_spiral.text.printable import cell, inline


COMPARISON_METHODS = (
    f"{100 * LEVEL:.0f} % intervals: mean scores and differences by percentile bootstrap over two or more problems "
    f"({RESAMPLES} resamples), with all samples of a problem together; solved by Wilson's score, at the effective "
    "number of replies. If all scores or differences are equal, a bootstrap interval has no width. Only the interval "
    "of solved then shows the uncertainty."
)
"""Description of the intervals of [`compare_scores`], for the readers of its tables."""


@dataclass(frozen=True, slots=True)
class Standing:
    """
    Results of one model at one task.

    Attributes:
        task, model (`str`):
            Names of the task and the model.
        problems (`int`):
            Number of different problems.
        replies (`int`):
            Number of replies: all samples of all problems.
        score ([`~intervals.Estimate`]):
            Mean score of the replies. With one problem there is no interval: its ends are `nan`.
        solved ([`~intervals.Estimate`]):
            Share of the replies that solved their problem.
        shared (`int`):
            Number of problems that the task's first model has replies to, too.
        difference ([`~intervals.Estimate`], *optional*):
            Mean over the shared problems of the score minus the first model's. With one shared problem there is no
            interval. `None` for the first model itself, and if no problem is shared.
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
    Return the results of each model at each task.

    Args:
        rows (`Iterable[ScoredReply]`):
            Replies. The result has the order in which tasks and models first appear. The others are compared with the
            first model of the task.

    Raises:
        ValueError: If a sample appears twice, for example because a file is named twice.
    """
    # By task, model and problem.
    found: dict[str, dict[str, dict[str, list[ScoredReply]]]] = {}
    seen: set[tuple[str, str, str, int]] = set()
    for row in rows:
        key = (row.task, row.model, row.problem, row.sample)
        if key in seen:
            raise ValueError(
                f"Sample {row.sample} of {row.model!r} at problem {row.problem!r} is there twice. Name each file "
                "once, and distinguish models of the same name by `trl-spiral eval-task --name`."
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
                    score=_over_problems([[row.score for row in replies] for replies in problems.values()]),
                    solved=clustered_wilson([[float(row.solved) for row in replies] for replies in problems.values()]),
                    shared=len(shared),
                    difference=_over_problems(gains) if shared and model != first else None,
                )
            )
    return standings


def _over_problems(values: Sequence[Sequence[float]]) -> Estimate:
    """Return a mean with its interval. A single problem has none, because it does not show the spread."""
    found = bootstrap_mean(values)
    return found if len(values) > 1 else Estimate(found.value, math.nan, math.nan)


def asked_differently(rows: Iterable[ScoredReply]) -> list[str]:
    """
    Return a sentence for each task and setting in which its models were asked differently.

    The seed of the replies is left out. It favours no model.
    """
    asked: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        texts = asked.setdefault(row.task, {}).setdefault(row.model, [])
        if row.settings not in texts:
            texts.append(row.settings)
    sentences = []
    for task, models in asked.items():
        known = {model: [json.loads(text) for text in texts] for model, texts in models.items()}
        for name in dict.fromkeys(name for settings in known.values() for one in settings for name in one):
            values = {
                model: " and ".join(dict.fromkeys(_said(one.get(name, "not recorded")) for one in settings))
                for model, settings in known.items()
            }
            if name != "seed" and len(set(values.values())) > 1:
                listed = ", ".join(f"{value} for {inline(model)}" for model, value in values.items())
                sentences.append(f"At {inline(task)}, {inline(name)} is {listed}: the models were asked differently.")
    return sentences


def _said(value: object) -> str:
    return inline(value if isinstance(value, str) else json.dumps(value))


def _mean(replies: Sequence[ScoredReply]) -> float:
    return math.fsum(row.score for row in replies) / len(replies)


def comparison_table(standings: Sequence[Standing]) -> str:
    """Return a Markdown table of all tasks and models, with a description of its intervals."""
    lines = [
        "| task | model | problems | replies | mean score | interval | solved | interval | to the first | interval "
        "| shared |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    firsts: Mapping[str, str] = {one.task: one.model for one in reversed(standings)}
    for one in standings:
        gain = one.difference
        if gain is not None:
            against = f"{gain.value:+.3f} | {_ends(gain, '+.3f')} | {one.shared}"
        else:
            against = "| | " if one.model == firsts[one.task] else "| | 0"
        lines.append(
            f"| {cell(one.task)} | {cell(one.model)} | {one.problems} | {one.replies} | {one.score.value:.3f} | "
            f"{_ends(one.score, '.3f')} | {one.solved.value:.1%} | {one.solved.low:.1%} to "
            f"{one.solved.high:.1%} | {against} |"
        )
    return "\n".join([*lines, "", COMPARISON_METHODS])


def _ends(estimate: Estimate, form: str) -> str:
    if math.isnan(estimate.low):
        return "–"
    return f"{estimate.low:{form}} to {estimate.high:{form}}"
