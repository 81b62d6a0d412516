"""The page of a run: its curves, its opponents, and its games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trl_spiral.report.charts import Chart, groups, points
from trl_spiral.report.run import Run
from trl_spiral.report.shell import assemble, finite


BANDS = (("_low", "/low"), ("_high", "/high"))
"""How the two ends of an interval are called in the log, after the metric's name."""

_SCRIPTS = ("dom.js", "charts.js", "opponents.js", "browse.js", "games.js", "main.js")


class Warned(Protocol):
    """A sign of trouble in a run's log."""

    @property
    def step(self) -> int:
        """Optimizer step at which it shows."""

    @property
    def metric(self) -> str:
        """Name of the metric in which it shows."""

    @property
    def sentence(self) -> str:
        """What is wrong and what to do about it."""


def render(run: Run, warnings: Sequence[Warned] = (), plain: bool = False) -> str:
    """
    The whole page.

    Args:
        run ([`Run`]):
            What it shows.
        warnings (`Sequence[Warned]`):
            Signs of trouble, marked in the curves of their metrics.
        plain (`bool`, defaults to `False`):
            Whether games are left unpacked, several times as large: for browsers older than May 2023, which cannot unpack.

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
def _summary(run: Run, warnings: Sequence[Warned]) -> dict[str, Any]:
    """All but the games' texts: what is there when the page opens."""
    charted = groups(run.history)
    curves = {series.metric for group in charted for chart in group.charts for series in chart.series}
    shown = {"step", "epoch"} | {name + end for name in curves for end in ("", *sum(BANDS, ()))}
    logged = {name for entry in run.history for name, value in entry.items() if isinstance(value, int | float)}
    matrix = run.matrix
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
                "otherwise": group.otherwise,
                "charts": [_chart(chart, run.history) for chart in group.charts],
            }
            for group in charted
        ],
        "others": {name: _points(run.history, name) for name in sorted(logged - shown)},
        "ladder": [
            {"name": name, "mu": rating.mu, "low": rating.low, "high": rating.high}
            for name, rating in run.ratings.items()
        ],
        "matrix": matrix
        and {
            "names": matrix.names,
            "rates": [[finite(rate) for rate in row] for row in matrix.rates],
            "counts": matrix.counts,
        },
        "circles": run.circles,
        "grades": [
            {
                "game": grade["game"],
                "step": grade["step"],
                "exploitability": finite(grade["exploitability"]),
                "inAll": grade["states_in_all"],
                "states": [
                    [state["state"], state["seat"], finite(state["reach"]), moves, state["best_response"]]
                    for state in grade["states"]
                    for moves in [{move: finite(share) for move, share in state["moves"].items()}]
                ],
            }
            for grade in run.grades
        ],
        "gamesKept": run.games_kept,
        "games": [
            [
                game["game"],
                game["number"],
                game["step"],
                game["kind"],
                game["players"],
                game["ending"],
                game["returns"],
                turns,
            ]
            for game in run.games
            for turns in [len(game["turns"])]
        ],
    }


def _body(game: Mapping[str, Any]) -> dict[str, Any]:
    """What a replay needs beside the list's entry."""
    kept = {name: game[name] for name in ("opening", "turns", "end", "offender", "detail")}
    return {**kept, "seed": str(game["seed"])}  # of 64 bits, of which a browser's numbers hold 53


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
