"""
The page: everything inline, nothing fetched.

What models wrote is data and never markup: it stands in the page as JSON or packed, with every `<` escaped, and its
scripts put it on the screen as text alone. Beside that, a content security policy lets nothing run but the page's own
script, by its hash, and nothing be fetched at all.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Protocol

from trl_spiral.report.charts import Chart, groups, points
from trl_spiral.report.run import Run


BLOCK = 100
"""Games that are unpacked together, when one of them is looked at."""

BANDS = (("_low", "/low"), ("_high", "/high"))
"""How the two ends of an interval are called in the log, after the metric's name."""

_SCRIPTS = ("dom.js", "charts.js", "opponents.js", "games.js", "replay.js", "main.js")


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
    script = "(() => {\n" + "\n".join(map(_asset, _SCRIPTS)) + "\n})();"
    lines = [_json(_body(game)) for game in run.games]
    blocks = [_pack("\n".join(lines[at : at + BLOCK]), plain) for at in range(0, len(lines), BLOCK)]
    return _filled(
        _asset("page.html"),
        {
            "title": html.escape(f"{run.name}: self-play report"),
            "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            "style": _asset("page.css"),
            "run": _inert(_json(_summary(run, warnings, plain))),
            "blocks": "\n".join(f'<script type="text/plain" class="games">{block}</script>' for block in blocks),
            "script": script,
        },
    )


def _asset(name: str) -> str:
    return (files("trl_spiral.report") / name).read_text(encoding="utf-8")


def _filled(template: str, values: Mapping[str, str]) -> str:
    """The template with each `{{name}}` replaced. One pass, so that nothing in a value is taken for a name."""
    head, *parts = template.split("{{")
    return head + "".join(values[name] + rest for name, _, rest in (part.partition("}}") for part in parts))


def _json(value: Any) -> str:
    return json.dumps(_without_infinities(value), separators=(",", ":"), allow_nan=False)


def _without_infinities(value: Any) -> Any:
    """Whatever is no number becomes `null`: a browser reads neither `NaN` nor `Infinity`, and would show nothing at all."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _without_infinities(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(one) for one in value]
    return value


def _inert(text: str) -> str:
    """JSON that cannot end the element that it stands in."""
    return text.replace("<", "\\u003c")


def _pack(lines: str, plain: bool) -> str:
    if plain:
        return _inert(lines)
    # Without a time of day, so that the same games are packed alike.
    return base64.b64encode(gzip.compress(lines.encode(), compresslevel=6, mtime=0)).decode()


# ---- data ----
def _summary(run: Run, warnings: Sequence[Warned], plain: bool) -> dict[str, Any]:
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
            "rates": [[_finite(rate) for rate in row] for row in matrix.rates],
            "counts": matrix.counts,
        },
        "circles": run.circles,
        "grades": [
            {
                "game": grade["game"],
                "step": grade["step"],
                "exploitability": _finite(grade["exploitability"]),
                "inAll": grade["states_in_all"],
                "states": [
                    [state["state"], state["seat"], _finite(state["reach"]), moves, state["best_response"]]
                    for state in grade["states"]
                    for moves in [{move: _finite(share) for move, share in state["moves"].items()}]
                ],
            }
            for grade in run.grades
        ],
        "gamesKept": run.games_kept,
        "block": BLOCK,
        "plain": plain,
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
            [step, _finite(y), _finite(low.get(step)), _finite(high.get(step))]
            for step, y in points(history, one.metric)
        ]
        series.append({"label": one.label, "metric": one.metric, "role": one.role, "points": curve})
    about = {"title": chart.title, "unit": chart.unit, "style": chart.style, "note": chart.note}
    return {**about, "fromZero": chart.from_zero, "series": series}


def _points(history: Sequence[Mapping[str, Any]], metric: str) -> list[list[float | None]]:
    return [[step, _finite(value)] for step, value in points(history, metric)]


def _finite(number: float | None) -> float | None:
    """JSON knows no infinity; six digits are more than a screen shows."""
    return float(f"{number:.6g}") if number is not None and math.isfinite(number) else None
