"""The page of a run: its curves, its opponents, and its games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trl_spiral.opponents.transitivity import Matrix
from trl_spiral.report.charts import Chart, Group, groups, points
from trl_spiral.report.run import Run
from trl_spiral.report.shell import assemble, finite


BANDS = (("_low", "/low"), ("_high", "/high"))
"""Suffixes of the two ends of an interval in the log."""

_SCRIPTS = ("dom.js", "charts.js", "opponents.js", "browse.js", "games.js", "main.js")


class ReportWarning(Protocol):
    """A warning in the log of a run."""

    @property
    def step(self) -> int:
        """Optimizer step of the warning."""

    @property
    def metric(self) -> str:
        """Metric that the warning is about."""

    @property
    def sentence(self) -> str:
        """The problem and the remedy."""


def render(run: Run, warnings: Sequence[ReportWarning] = (), plain: bool = False) -> str:
    """
    Return the report of a run.

    Args:
        run ([`Run`]):
            Run to show.
        warnings (`Sequence[ReportWarning]`):
            Warnings to list, and to mark in the curves of their metrics.
        plain (`bool`, defaults to `False`):
            Whether games are not compressed, for browsers older than May 2023. The page is then several times larger.

    Returns:
        `str`: HTML. The same run gives the same page.
    """
    return assemble(
        title=f"{run.name}: self-play report",
        many="games",
        scripts=_SCRIPTS,
        summary=_summary(run, warnings),
        records=map(_body, run.games),
        plain=plain,
    )


# ---- data ----
def _summary(run: Run, warnings: Sequence[ReportWarning]) -> dict[str, Any]:
    """Return everything except the texts of games: the data that is loaded when the page opens."""
    charted = groups(run.history)
    return {
        "name": run.name,
        "step": run.step,
        "maxSteps": run.max_steps,
        "description": run.description,
        "warnings": [{"step": one.step, "metric": one.metric, "sentence": one.sentence} for one in warnings],
        "groups": [
            {
                "title": group.title,
                "anchor": group.anchor,
                "empty": group.empty,
                "charts": [_chart(chart, run.history) for chart in group.charts],
            }
            for group in charted
        ],
        "others": _other_metrics(charted, run.history),
        "ladder": [
            {"name": name, "mu": rating.mu, "low": rating.low, "high": rating.high}
            for name, rating in run.ratings.items()
        ],
        "matrix": run.matrix and _matrix(run.matrix),
        "cycles": run.cycles,
        "grades": [_grade(grade) for grade in run.grades],
        "gamesKept": run.games_kept,
        "games": [
            [
                *(game[name] for name in ("game", "number", "step", "kind", "players", "ending", "returns")),
                len(game["turns"]),
            ]
            for game in run.games
        ],
    }


def _other_metrics(charted: Sequence[Group], history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the curves of all metrics that no chart shows."""
    curves = {series.metric for group in charted for chart in group.charts for series in chart.series}
    shown = {"step", "epoch"} | {name + end for name in curves for end in ("", *sum(BANDS, ()))}
    logged = {name for entry in history for name, value in entry.items() if isinstance(value, int | float)}
    return {name: _points(history, name) for name in sorted(logged - shown)}


def _matrix(matrix: Matrix) -> dict[str, Any]:
    rates = [[finite(rate) for rate in row] for row in matrix.rates]
    return {"names": matrix.names, "rates": rates, "counts": matrix.counts}


def _grade(grade: Mapping[str, Any]) -> dict[str, Any]:
    states = []
    for state in grade["states"]:
        moves = {move: finite(share) for move, share in state["moves"].items()}
        states.append([state["state"], state["seat"], finite(state["reach"]), moves, state["best_response"]])
    return {
        "game": grade["game"],
        "step": grade["step"],
        "exploitability": finite(grade["exploitability"]),
        "total": grade["number_of_states"],
        "states": states,
    }


def _body(game: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a replay that is not in the list of games."""
    kept = {name: game[name] for name in ("opening", "turns", "end", "offender", "detail")}
    return {**kept, "seed": str(game["seed"])}  # 64 bits, which numbers in JavaScript cannot represent


def _chart(chart: Chart, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    series = []
    for one in chart.series:
        low, high = (
            dict(points(history, one.metric + end) or points(history, one.metric + other)) for end, other in BANDS
        )
        curve = [
            [step, finite(y), finite(low.get(step)), finite(high.get(step))] for step, y in points(history, one.metric)
        ]
        series.append({"label": one.label, "metric": one.metric, "role": one.role, "points": curve})
    about = {"title": chart.title, "unit": chart.unit, "style": chart.style, "note": chart.note}
    return {**about, "fromZero": chart.from_zero, "series": series}


def _points(history: Sequence[Mapping[str, Any]], metric: str) -> list[list[float | None]]:
    return [[step, finite(value)] for step, value in points(history, metric)]
