"""Charts of the report: which metrics share a chart, and under which heading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal


Unit = Literal["share", "tokens", "nats", "points", "turns", ""]
Style = Literal["lines", "shares"]


@dataclass(frozen=True)
class Series:
    """
    One curve.

    Attributes:
        label (`str`):
            Label in the legend.
        metric (`str`):
            Name in the log. If `{metric}_low` and `{metric}_high`, or `{metric}/low` and `{metric}/high`, are logged
            too, they are its band.
        role (`str`, *optional*):
            `"win"`, `"draw"` or `"loss"`, which have fixed colours.
    """

    label: str
    metric: str
    role: str = ""


@dataclass(frozen=True)
class Chart:
    """
    Curves that share an axis.

    Attributes:
        title (`str`):
            Title of the chart.
        series (`list[Series]`):
            The curves.
        unit (`str`):
            Unit of the vertical axis; `"share"` is drawn in percent, from 0 to 100.
        style (`str`):
            `"lines"`, or `"shares"` for a stacked chart.
        note (`str`):
            One sentence on how to read the chart.
        from_zero (`bool`):
            Whether the vertical axis starts at zero, because zero has a meaning or noise would be magnified.
    """

    title: str
    series: Sequence[Series]
    unit: Unit = ""
    style: Style = "lines"
    note: str = ""
    from_zero: bool = False


@dataclass(frozen=True)
class Group:
    """
    Charts under one heading.

    Attributes:
        anchor (`str`):
            Anchor in the address of the page.
        title (`str`):
            The heading.
        charts (`list[Chart]`):
            Charts of the group.
        empty (`str`):
            Text if there is no chart. Without it, the heading is left out.
    """

    anchor: str
    title: str
    charts: Sequence[Chart]
    empty: str = ""


def groups(history: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Return all groups, each with the charts for which the log contains at least one number."""
    names = {name for entry in history for name, value in entry.items() if isinstance(value, int | float)}
    made = [
        Group(
            "games-end",
            "How games end",
            [*_overall(), *_seats(names)],
            "No games were logged. Train with SpiralTrainer.",
        ),
        Group(
            "matches",
            "Fixed opponents",
            _matches(names),
            "No matches were logged. Add a MatchCallback to the trainer, or run trl-spiral eval.",
        ),
        Group("tictactoe", "Tic-tac-toe", _tictactoe(names)),
        Group(
            "exploitability",
            "Exploitability",
            _exploitability(names),
            "No exploitability was logged. Add an ExploitabilityCallback, for games that are small enough to solve.",
        ),
        Group("replies", "Replies", _replies(names), "No replies were logged. Train with SpiralTrainer."),
        Group(
            "optimization",
            "Optimization",
            _optimization(),
            "No loss was logged. Lower logging_steps, or train longer.",
        ),
    ]
    return [replace(group, charts=[chart for one in group.charts if (chart := _logged(one, names))]) for group in made]


def points(history: Iterable[Mapping[str, Any]], metric: str) -> list[tuple[int, float]]:
    """Return the values of a metric by step. If a step was logged twice, as after a resume, the last value counts."""
    found = {
        int(entry.get("step", 0)): float(entry[metric])
        for entry in history
        if isinstance(entry.get(metric), int | float)
    }
    return sorted(found.items())


def _logged(chart: Chart, names: set[str]) -> Chart | None:
    series = [one for one in chart.series if one.metric in names]
    return replace(chart, series=series) if series else None


def _found(pattern: str, names: set[str]) -> list[tuple[str, ...]]:
    """Return the groups of a pattern in every name that matches it."""
    return sorted({match.groups() for name in names if (match := re.fullmatch(pattern, name))})


def _overall() -> list[Chart]:
    return [
        Chart("Reward", [Series("mean return", "reward")], note="Against itself, a zero-sum game averages zero."),
        Chart(
            "Draws",
            [Series("draws", "selfplay/draw_rate")],
            "share",
            note="Of all games. At 100 % there is nothing to learn.",
        ),
        Chart("Turns per game", [Series("mean", "selfplay/turns_per_game")], "turns", from_zero=True),
        Chart(
            "Rating of the policy", [Series("policy", "pool/rating/policy")], "points", note="With its 95 % interval."
        ),
    ]


def _seats(names: set[str]) -> list[Chart]:
    """Return a chart of wins, draws and losses in self-play for each game and seat."""
    found = _found(r"selfplay/(.+)/seat(\d+)/win", names)
    return [_outcome(f"{game}, seat {seat}", f"selfplay/{game}/seat{seat}") for game, seat in found]


def _outcome(title: str, prefix: str) -> Chart:
    roles = {"win": "wins", "draw": "draws", "loss": "losses"}
    return Chart(title, [Series(label, f"{prefix}/{role}", role) for role, label in roles.items()], "share", "shares")


def _matches(names: set[str]) -> list[Chart]:
    """Return charts of `eval/{game}-{opponent}/pid-{seat}/…`, which are SPIRAL's names."""
    kinds: list[tuple[str, str, Unit]] = [
        ("win", "wins", "share"),
        ("loss", "losses", "share"),
        ("reward", "mean reward", ""),
        ("illegal", "illegal moves", "share"),
        ("truncated", "truncated replies", "share"),
    ]
    found = _found(r"eval/(.+)/pid-(\d+)/win", names)
    return [
        Chart(
            f"{pair}: {title}",
            [Series(f"seat {seat}", f"eval/{pair}/pid-{seat}/{kind}") for one, seat in found if one == pair],
            unit,
            note="With 95 % intervals." if kind == "win" else "",
        )
        for pair in sorted({pair for pair, _ in found})
        for kind, title, unit in kinds
    ]


def _tictactoe(names: set[str]) -> list[Chart]:
    charts = []
    for prefix, when in (("", "at the grading temperature"), ("train_temperature/", "at the training temperature")):
        curves = [
            Series(f"by {rival.replace('_', ' ')}", f"tictactoe/{prefix}{rival}/non_loss")
            for (rival,) in _found(f"tictactoe/{prefix}([^/]+)/non_loss", names)
        ]
        charts.append(
            Chart(f"Unbeaten, {when}", curves, "share", note="Share of wins and draws, averaged over both seats.")
        )
    for (rival,) in _found(r"tictactoe/([^/]+)/seat0/win", names):
        for seat, place in ((0, "first"), (1, "second")):
            title = f"Against {rival.replace('_', ' ')}, as {place} player"
            charts.append(_outcome(title, f"tictactoe/{rival}/seat{seat}"))
    return charts


def _exploitability(names: set[str]) -> list[Chart]:
    charts = []
    for (game,) in _found(r"exploitability/(.+)/exploitability", names):
        curves = [
            Series("policy", f"exploitability/{game}/exploitability"),
            Series("average of all grades so far", f"exploitability/{game}/average_exploitability"),
        ]
        note = "Half of NashConv, in returns of the game: 0 is perfect play."
        charts.append(Chart(game, curves, note=note, from_zero=True))
        illegal = [Series("illegal", f"exploitability/{game}/illegal")]
        charts.append(Chart(f"{game}: illegal replies", illegal, "share"))
    return charts


def _replies(names: set[str]) -> list[Chart]:
    per_seat = [
        Series(f"{game}, seat {seat}", f"selfplay/{game}/seat{seat}/illegal")
        for game, seat in _found(r"selfplay/(.+)/seat(\d+)/illegal", names)
    ]
    return [
        Chart(
            "Illegal and truncated replies",
            [
                Series("illegal", "selfplay/illegal_rate"),
                Series("truncated", "selfplay/truncated_rate"),
                Series("broken games", "selfplay/broken_rate"),
            ],
            "share",
            note="Share of all games.",
        ),
        Chart("Illegal moves by seat", per_seat, "share"),
        Chart("Length of a reply", [Series("mean", "selfplay/reply_length")], "tokens", from_zero=True),
        Chart("Entropy of replies", [Series("entropy", "selfplay/entropy")], "nats", note="Per token, as sampled."),
    ]


def _optimization() -> list[Chart]:
    return [
        Chart("Loss", [Series("loss", "loss")]),
        Chart("Gradient norm", [Series("norm", "grad_norm")]),
        Chart("KL to the reference", [Series("KL", "kl")], "nats"),
        Chart("Entropy in the loss", [Series("entropy", "entropy")], "nats"),
        Chart("Learning rate", [Series("rate", "learning_rate")]),
        Chart("Clipped ratios", [Series("clipped", "clip_ratio/region_mean")], "share"),
        Chart("Sampled tokens not trained on", [Series("unused", "selfplay/unused_share")], "share"),
    ]
