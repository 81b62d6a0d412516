"""How models did at the same tasks: mean scores with intervals, and differences on the problems that both were asked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trl_spiral.evaluation.problems.tasks import ScoredReply
from trl_spiral.intervals import LEVEL, RESAMPLES, Estimate, bootstrap_mean, clustered_wilson
from trl_spiral.text.printable import cell, inline


COMPARISON_METHODS = (
    f"{100 * LEVEL:.0f} % intervals: mean scores and differences by percentile bootstrap over problems ({RESAMPLES} "
    "resamples), with all samples of a problem together, where there are two or more; solved by Wilson's score, at the effective "
    "number of replies. Where all scores or differences are alike, a bootstrap has no width, and only the interval of solved says "
    "how little that may mean."
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
        score ([`~intervals.Estimate`]):
            Mean score of its replies. Of one problem it has no interval: its ends are `nan`.
        solved ([`~intervals.Estimate`]):
            Share of its replies that solved their problem.
        shared (`int`):
            Problems that the task's first model was asked too.
        difference ([`~intervals.Estimate`], *optional*):
            On these, the mean over problems of how much higher it scored than the first model, without an interval where there
            is one. `None` for the first model itself, and where there are no such problems.
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
                    score=_over_problems([[row.score for row in replies] for replies in problems.values()]),
                    solved=clustered_wilson([[float(row.solved) for row in replies] for replies in problems.values()]),
                    shared=len(shared),
                    difference=_over_problems(gains) if shared and model != first else None,
                )
            )
    return standings


def _over_problems(values: Sequence[Sequence[float]]) -> Estimate:
    """A mean with its interval, which one problem has none of: how much another would differ, it cannot tell."""
    found = bootstrap_mean(values)
    return found if len(values) > 1 else Estimate(found.value, math.nan, math.nan)


def asked_differently(rows: Iterable[ScoredReply]) -> list[str]:
    """
    What models were not asked alike in: a sentence for each task and setting in which its models differ.

    The seed of the replies is left out, which favours nobody.
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
                model: " and ".join(dict.fromkeys(_said(one.get(name, "not said")) for one in settings))
                for model, settings in known.items()
            }
            if name != "seed" and len(set(values.values())) > 1:
                listed = ", ".join(f"{value} for {inline(model)}" for model, value in values.items())
                sentences.append(f"At {inline(task)}, {inline(name)} is {listed}: they were not asked alike.")
    return sentences


def _said(value: object) -> str:
    return inline(value if isinstance(value, str) else json.dumps(value))


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
