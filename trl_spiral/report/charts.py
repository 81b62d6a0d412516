"""Which logged metrics are drawn together, and under what heading."""

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
            What the legend says.
        metric (`str`):
            Name in the log. Where `{metric}_low` and `{metric}_high`, or `{metric}/low` and `{metric}/high`, were logged too,
            they are its band.
        role (`str`, *optional*):
            `"win"`, `"draw"` or `"loss"`, which have colours of their own.
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
            What is shown.
        series (`list[Series]`):
            The curves.
        unit (`str`):
            Of the vertical axis; `"share"` is drawn in percent, from 0 to 100.
        style (`str`):
            `"lines"`, or `"shares"` of a whole, stacked.
        note (`str`):
            How to read it, in one sentence.
        from_zero (`bool`):
            Whether the vertical axis begins at zero: where zero means something, or the rest would magnify noise.
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
            Its name in the page's address.
        title (`str`):
            The heading.
        charts (`list[Chart]`):
            What stands under it.
        otherwise (`str`):
            What to do if nothing does; without it, the heading is left out.
    """

    anchor: str
    title: str
    charts: Sequence[Chart]
    otherwise: str = ""


def groups(history: Sequence[Mapping[str, Any]]) -> list[Group]:
    """All headings, each with the charts for which the log holds at least one number."""
    names = {name for entry in history for name, value in entry.items() if isinstance(value, int | float)}
    made = [
        Group(
            "games-end",
            "How games end",
            [*_overall(), *_seats(names)],
            "No game was logged. Train with SpiralTrainer.",
        ),
        Group(
            "matches",
            "Fixed opponents",
            _matches(names),
            "No match was logged. Add a MatchCallback to the trainer, or run trl-spiral eval.",
        ),
        Group("tictactoe", "Tic-tac-toe", _tictactoe(names)),
        Group(
            "exploitability",
            "Exploitability",
            _exploitability(names),
            "No exploitability was logged. Add an ExploitabilityCallback, for games small enough to be solved.",
        ),
        Group("replies", "Replies", _replies(names), "No reply was logged. Train with SpiralTrainer."),
        Group(
            "optimisation",
            "Optimisation",
            _optimisation(),
            "No loss was logged. Lower logging_steps, or train longer.",
        ),
    ]
    return [replace(group, charts=[chart for one in group.charts if (chart := _logged(one, names))]) for group in made]


def points(history: Iterable[Mapping[str, Any]], metric: str) -> list[tuple[int, float]]:
    """A metric's numbers by step. Where a step was logged more than once, as by a resumed run, the last counts."""
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
    """What the groups of a pattern stand for, in every name that is wholly like it."""
    return sorted({match.groups() for name in names if (match := re.fullmatch(pattern, name))})


def _overall() -> list[Chart]:
    return [
        Chart("Reward", [Series("mean return", "reward")], note="Against itself, a zero-sum game averages zero."),
        Chart(
            "Draws",
            [Series("draws", "selfplay/draw_rate")],
            "share",
            note="Of all games; 100 % means nothing to learn from.",
        ),
        Chart("Turns a game", [Series("mean", "selfplay/turns_per_game")], "turns", from_zero=True),
        Chart(
            "Rating of the policy", [Series("policy", "pool/rating/policy")], "points", note="With its 95 % interval."
        ),
    ]


def _seats(names: set[str]) -> list[Chart]:
    """Each game and seat: wins, draws and losses in self-play, of a whole."""
    found = _found(r"selfplay/(.+)/seat(\d+)/win", names)
    return [_outcome(f"{game}, seat {seat}", f"selfplay/{game}/seat{seat}") for game, seat in found]


def _outcome(title: str, prefix: str) -> Chart:
    roles = {"win": "wins", "draw": "draws", "loss": "losses"}
    return Chart(title, [Series(label, f"{prefix}/{role}", role) for role, label in roles.items()], "share", "shares")


def _matches(names: set[str]) -> list[Chart]:
    """`eval/{game}-{opponent}/pid-{seat}/…`, the names that SPIRAL gives them."""
    kinds: list[tuple[str, str, Unit]] = [
        ("win", "wins", "share"),
        ("loss", "losses", "share"),
        ("reward", "mean reward", ""),
        ("illegal", "illegal moves", "share"),
        ("truncated", "replies cut off", "share"),
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
    for prefix, when in (("", "at the grading temperature"), ("train_temperature/", "as it trains")):
        curves = [
            Series(f"by {rival.replace('_', ' ')}", f"tictactoe/{prefix}{rival}/non_loss")
            for (rival,) in _found(f"tictactoe/{prefix}([^/]+)/non_loss", names)
        ]
        charts.append(Chart(f"Unbeaten, {when}", curves, "share", note="Wins and draws; the mean of both seats."))
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
        note = "Half of NashConv, in the game’s own returns: 0 is perfect play."
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
            note="Of all games, how many ended so.",
        ),
        Chart("Illegal moves by seat", per_seat, "share"),
        Chart("Length of a reply", [Series("mean", "selfplay/reply_length")], "tokens", from_zero=True),
        Chart("Entropy of replies", [Series("entropy", "selfplay/entropy")], "nats", note="Per token, as sampled."),
    ]


def _optimisation() -> list[Chart]:
    return [
        Chart("Loss", [Series("loss", "loss")]),
        Chart("Gradient norm", [Series("norm", "grad_norm")]),
        Chart("KL to the reference", [Series("KL", "kl")], "nats"),
        Chart("Entropy in the loss", [Series("entropy", "entropy")], "nats"),
        Chart("Learning rate", [Series("rate", "learning_rate")]),
        Chart("Clipped ratios", [Series("clipped", "clip_ratio/region_mean")], "share"),
        Chart("Sampled tokens not trained on", [Series("unused", "selfplay/unused_share")], "share"),
    ]
