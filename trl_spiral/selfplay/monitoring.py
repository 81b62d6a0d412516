"""
Detection of collapse in the log of a run: one sentence for each problem, with the remedy.

Self-play collapses without a sign in the loss. In tic-tac-toe with plain policy gradients, both seats settle on lines
that the first player wins: draws vanish, and one seat wins nearly every game. Warnings depend on the log alone, so a
resumed run, a report and a test see the same ones.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


# The thresholds come from runs of `recipes/spiral_ttt.py`, and from two runs of its player that collapsed because of a
# high learning rate without random openings. Healthy runs, over 320 steps: illegal moves at most 0.01 above their
# lowest, the gap between the seats' wins at most 0.21 and falling, draws rising, entropy down to 16% of its first
# value. Collapsed runs, within 25 batches: illegal moves up by 0.4 and more; or no draws, a gap of 0.9 to 1, and
# entropy at 4% to 9%.
RISE = 0.15
"""Least rise of illegal or truncated endings above their lowest share of the games."""

SKEW = 0.6
"""Least gap between the seats' shares of wins: twice the 0.585 - 0.288 of random tic-tac-toe."""

SKEW_RISE = 0.25
"""Least growth of that gap, so that games which favor one seat by their rules give no warning at the start."""

FEWER_DRAWS = 4.0
"""Least ratio of the highest share of draws to the present one."""

LESS_ENTROPY = 20.0
"""Least ratio of the first entropy to the present one: three times that of a healthy run."""

SHORTER_REPLIES = 3.0
"""Least ratio of the first reply length to the present one. Chosen, not measured."""

WINDOW = 3
"""Number of log entries whose median counts, since a single one may be an outlier."""

ERRORS = 3.0
"""Least difference between two shares of games, in standard errors."""

MIXED = 0.1
"""
Largest change of a game's share in a mixture before comparisons over all games restart. A smaller change makes replies
three times shorter only if those of one game are more than twenty times as long as another's.
"""

OVER = 0.5
"""A problem is over, and may be reported again, at half the badness of a warning."""


@dataclass(frozen=True, slots=True)
class CollapseWarning:
    """
    A warning of one problem.

    Attributes:
        step (`int`):
            Optimizer step of the log entry that shows it.
        metric (`str`):
            Name of the metric.
        sentence (`str`):
            The problem and the remedy.
    """

    step: int
    metric: str
    sentence: str


@dataclass(frozen=True, slots=True)
class _Rule:
    """
    When a metric shows a problem.

    Attributes:
        against (`str`):
            The value to compare with: the `"first"`, `"lowest"` or `"highest"` so far.
        badness (`Callable[[float, float], float]`):
            Function of (present value, value to compare with): from 1 on, there is a warning.
        sentence (`str`):
            The warning, with `{now}` and `{then}`.
    """

    against: Literal["first", "lowest", "highest"]
    badness: Callable[[float, float], float]
    sentence: str


def _times_less(now: float, then: float) -> float:
    return then / now if now > 0.0 else math.inf


_ILLEGAL = _Rule(
    "lowest",
    lambda now, then: (now - then) / RISE,
    "{now:.0%} of the games end by an illegal move, after {then:.0%} at best: the policy forgets the rules, so lower "
    "`learning_rate`, or keep it closer to its start by `beta`.",
)
_TRUNCATED = _Rule(
    "lowest",
    lambda now, then: (now - then) / RISE,
    "{now:.0%} of the games end by a reply that was cut off, after {then:.0%} at best: raise `max_completion_length` "
    "if replies make sense to their end, else lower `learning_rate`.",
)
_SKEW = _Rule(
    "lowest",
    lambda now, then: min(now / SKEW, (now - then) / SKEW_RISE),
    "One seat's share of wins at {game} is {now:.0%} above another's, after {then:.0%} at best: unless the rules give "
    "it the game, both have settled on one line, so start from random positions by `opening_moves`, or meet earlier "
    "selves by `opponents='self:0.8,pool:0.2'`.",
)
_DRAWS = _Rule(
    "highest",
    lambda now, then: _times_less(now, then) / FEWER_DRAWS,
    "{now:.0%} of the finished games are drawn, after {then:.0%} at best: both seats agree on who wins, so start from "
    "random positions by `opening_moves`, or lower `learning_rate`.",
)
_ENTROPY = _Rule(
    "first",
    lambda now, then: _times_less(now, then) / LESS_ENTROPY,
    "Entropy is down to {now:.3f} nats a token, from {then:.3f}: nothing new is tried any more, so raise "
    "`entropy_coef` or `temperature`, or lower `learning_rate`.",
)
_LENGTH = _Rule(
    "first",
    lambda now, then: _times_less(now, then) / SHORTER_REPLIES,
    "Replies are down to {now:.0f} tokens, from {then:.0f}: the policy reasons less and less, so lower "
    "`learning_rate`, or hold it closer to where it started by `beta`.",
)


@dataclass(frozen=True, slots=True)
class _Reading:
    """
    One value of a metric. `games` is the number of games if the value is a share of them, else `None`.

    A value over all games has their `mixture`, each game's share.
    """

    metric: str
    rule: _Rule
    value: float
    games: float | None = None
    game: str = ""
    mixture: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Watch:
    """State of one metric. `then` is the value to compare with, and `mixture` belongs to it."""

    recent: deque[_Reading] = field(default_factory=lambda: deque(maxlen=WINDOW))
    then: tuple[float, float | None] | None = None
    mixture: Mapping[str, float] = field(default_factory=dict)
    trouble: bool = False


class CollapseMonitor:
    """
    Reads a run's log entry by entry, and reports each problem once, and again only if it was over in between.

    Attributes:
        warnings (`list[CollapseWarning]`):
            All warnings so far.
    """

    def __init__(self) -> None:
        self.warnings: list[CollapseWarning] = []
        self._watches: dict[str, _Watch] = {}

    def observe(self, step: int, entry: Mapping[str, Any]) -> list[CollapseWarning]:
        """
        Read one entry. Entries without metrics of self-play are ignored.

        Args:
            step (`int`):
                Optimizer step.
            entry (`Mapping[str, Any]`):
                Logged values, by name.

        Returns:
            `list[CollapseWarning]`: The new warnings.
        """
        new = [
            CollapseWarning(step, reading.metric, sentence)
            for reading in _readings(entry)
            if (sentence := self._judge(reading)) is not None
        ]
        self.warnings += new
        return new

    def _judge(self, reading: _Reading) -> str | None:
        """Return the warning, if one is due."""
        watch = self._watches.setdefault(reading.metric, _Watch())
        watch.recent.append(reading)
        mixture: Mapping[str, float] = _mean_mixture(watch.recent)
        if watch.then is not None and _moved(watch.mixture, mixture):
            # Other games have other lengths, entropies and rules, so earlier values are not comparable.
            watch = self._watches[reading.metric] = _Watch(deque([reading], WINDOW))
            mixture = reading.mixture
        now, games = _middle(watch.recent)
        if watch.then is None:
            watch.then, watch.mixture = (now, games), mixture
        then, games_then = watch.then
        badness = reading.rule.badness(now, then)
        if badness < OVER:
            watch.trouble = False
        raised = (
            badness >= 1.0 and not watch.trouble and abs(now - then) > _chance(now, games) + _chance(then, games_then)
        )
        if raised:
            watch.trouble = True
        if (reading.rule.against == "lowest" and now < then) or (reading.rule.against == "highest" and now > then):
            watch.then, watch.mixture = (now, games), mixture
        return reading.rule.sentence.format(now=now, then=then, game=reading.game) if raised else None


def warnings_in(log_history: Sequence[Mapping[str, Any]]) -> list[CollapseWarning]:
    """
    Return all warnings of a run, from its log.

    Args:
        log_history (`Sequence[Mapping[str, Any]]`):
            A trainer's `state.log_history`, or that of a `trainer_state.json`.
    """
    monitor = CollapseMonitor()
    for entry in log_history:
        monitor.observe(int(entry.get("step", 0)), entry)
    return monitor.warnings


_SEATS = re.compile(r"selfplay/(?P<game>.+)/seat\d+/(?P<what>win|illegal|policy)")


def _readings(entry: Mapping[str, Any]) -> Iterator[_Reading]:
    """Yield the values of an entry that can show a collapse."""
    wins: dict[str, list[float]] = {}
    illegal: dict[str, float] = {}
    one_sided: set[str] = set()
    for name, value in entry.items():
        if seat := _SEATS.fullmatch(name):
            game = seat["game"]
            if seat["what"] == "win":
                wins.setdefault(game, []).append(float(value))
            elif seat["what"] == "policy":
                one_sided |= {game} if value == 0.0 else set()
            else:
                illegal[game] = illegal.get(game, 0.0) + float(value)
    games = entry.get("selfplay/games")
    # Older logs do not contain the number of games of each kind.
    played = {game: entry.get(f"selfplay/{game}/games", games and games / len(wins)) for game in wins}
    total = sum(number or 0.0 for number in played.values())
    mixture = {game: number / total for game, number in played.items() if number}

    def read(metric: str, rule: _Rule, games: float | None = None) -> Iterator[_Reading]:
        value = entry.get(metric)
        if isinstance(value, int | float) and math.isfinite(value):
            yield _Reading(metric, rule, float(value), games, mixture=mixture)

    yield from read("selfplay/illegal_rate", _ILLEGAL, games)
    yield from read("selfplay/truncated_rate", _TRUNCATED, games)
    yield from read("selfplay/entropy", _ENTROPY)
    yield from read("selfplay/reply_length", _LENGTH)
    for game, shares in wins.items():
        if game in one_sided:  # the policy always has the same seat, and should win more than its opponent
            continue
        # The difference of two shares has up to twice the standard error of one, as a share of a quarter of the games
        # has.
        quarter = played[game] and played[game] / 4
        yield _Reading(f"selfplay/{game}/skew", _SKEW, max(shares) - min(shares), quarter, game)
    # A forfeit is never a draw, so draws are a share of the finished games. In a mixture each game is judged alone,
    # since the mixture may change. Truncated replies are not logged per game.
    if len(wins) > 1:
        drawn = [(f"selfplay/{game}/seat0/draw", played[game], 1.0 - illegal.get(game, 0.0)) for game in wins]
        mixture = {}
    else:
        forfeited = sum(float(entry.get(f"selfplay/{kind}_rate", 0.0)) for kind in ("illegal", "truncated"))
        drawn = [("selfplay/draw_rate", games, 1.0 - forfeited)]
    for metric, number, finished in drawn:
        for reading in read(metric, _DRAWS) if finished > 0.0 else ():
            share, counted = min(1.0, reading.value / finished), number and number * finished
            yield _Reading(metric, _DRAWS, share, counted, mixture=mixture)


def _mean_mixture(readings: Sequence[_Reading]) -> dict[str, float]:
    """Return the mean share of each game."""
    games = {game for reading in readings for game in reading.mixture}
    return {game: statistics.fmean(reading.mixture.get(game, 0.0) for reading in readings) for game in games}


def _moved(then: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Return whether a mixture has changed."""
    return any(abs(now.get(game, 0.0) - then.get(game, 0.0)) > MIXED for game in {*then, *now})


def _middle(readings: Sequence[_Reading]) -> tuple[float, float | None]:
    """Return the median, and the number of games if the values are shares of games."""
    value = statistics.median(reading.value for reading in readings)
    counted = [reading.games for reading in readings if reading.games is not None]
    # The one with the fewest games may be the median.
    return value, len(counted) * min(counted) if counted else None


def _chance(share: float, games: float | None) -> float:
    """Return the sampling error of a share of games; 0 for other values."""
    if games is None:
        return 0.0
    # Laplace's rule of succession: few games without a draw do not mean that there never is one.
    likely = (share * games + 1.0) / (games + 2.0)
    return ERRORS * math.sqrt(likely * (1.0 - likely) / max(games, 1.0))
