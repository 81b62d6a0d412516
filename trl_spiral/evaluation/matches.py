"""Matches between players, sampled: for policies that cannot be graded exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trl_spiral.games import Game
from trl_spiral.intervals import METHODS, Estimate, bootstrap_mean, clustered_wilson
from trl_spiral.players import Player
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Engine, Forfeit, Start, play, referee
from trl_spiral.text.printable import cell
from trl_spiral.types import FORFEITS, Episode, has_won


SHARES = ("win", "draw", "loss", *FORFEITS)
MEANS = ("length", "reply_tokens", "reward")
"""What is measured of every seat; see [`SeatResult`]."""


def play_matches(
    game: Game,
    player: Player,
    rival: Player,
    seat: int,
    games: int,
    engine: Engine | None = None,
    seed: int = 0,
    forfeit: Forfeit | None = None,
) -> list[Episode]:
    """
    Plays `games` games with `player` in `seat` and `rival` in every other.

    The same `seed` gives the same deals and openings in every seat, so that a comparison of seats or players is paired.

    Args:
        game ([`~games.Game`]):
            What is played.
        player, rival ([`~players.Player`]):
            Who plays.
        seat (`int`):
            Where `player` sits.
        games (`int`):
            How many games.
        engine ([`~selfplay.referee.Engine`], *optional*):
            Answers players that ask one.
        seed (`int`, defaults to `0`):
            Seed of the series.
        forfeit ([`~selfplay.referee.Forfeit`], *optional*):
            What an illegal move costs.

    Returns:
        `list[Episode]`: In the order of their counters.
    """
    starts = (_start(game, player, rival, seat, deal, seed, deal, forfeit) for deal in range(games))
    return sorted(play(map(referee, starts), engine), key=lambda episode: episode.counter)


def paired_starts(game: Game, player: Player, rival: Player, pairs: int, seed: int = 0) -> list[Start]:
    """
    Every deal once with `player` in each seat and `rival` in every other: the same games as `play_matches` seat by seat.

    Args:
        game ([`~games.Game`]):
            What is played.
        player, rival ([`~players.Player`]):
            Who plays.
        pairs (`int`):
            Deals; pairs of games, where there are two seats.
        seed (`int`, defaults to `0`):
            Seed of the deals and of all decisions.

    Returns:
        `list[Start]`: Counted deal by deal, and within a deal seat by seat.
    """
    seats = game.traits.seats
    return [
        _start(game, player, rival, seat, deal, seed, deal * seats + seat)
        for deal in range(pairs)
        for seat in range(seats)
    ]


def _start(
    game: Game,
    player: Player,
    rival: Player,
    seat: int,
    deal: int,
    seed: int,
    counter: int,
    forfeit: Forfeit | None = None,
) -> Start:
    return Start(
        game=game,
        players=tuple(player if place == seat else rival for place in range(game.traits.seats)),
        seed=derive_seed(seed, "series", deal),
        play_seed=derive_seed(seed, "series", "play", deal, seat),
        counter=counter,
        forfeit=forfeit or Forfeit(),
    )


def tally(episodes: Sequence[Episode], seat: int) -> dict[str, float]:
    """Return the shares of wins, draws, losses, own illegal replies and own cut-off replies, for one seat."""
    outcomes = [SeatResult.of(episode, seat, deal=0) for episode in episodes]
    return {field: sum(getattr(outcome, field) for outcome in outcomes) / len(outcomes) for field in SHARES}


@dataclass(frozen=True, slots=True)
class SeatResult:
    """
    What came of a game for whoever sat in one seat.

    Attributes:
        deal (`int`):
            Number of the deal, which is played from every seat.
        seat (`int`):
            Whose side is told.
        win (`bool`):
            Whether no seat got more, and some seat less.
        draw (`bool`):
            Whether all seats got the same.
        loss (`bool`):
            Neither.
        illegal (`bool`):
            Whether this seat ended the game by an illegal reply.
        truncated (`bool`):
            Whether this seat ended the game by a reply that reached the token limit.
        length (`int`):
            Turns that were taken, by all seats together.
        reply_tokens (`float`, *optional*):
            Tokens of this seat's replies, a mean; `None` where none has any: scripted players and endpoints.
        reward (`float`):
            Terminal payoff.
        broken (`bool`):
            Whether the game says nothing about how anybody played. All other fields are then to be left out.
    """

    deal: int
    seat: int
    win: bool
    draw: bool
    loss: bool
    illegal: bool
    truncated: bool
    length: int
    reply_tokens: float | None
    reward: float
    broken: bool

    @classmethod
    def of(cls, episode: Episode, seat: int, deal: int) -> SeatResult:
        """The outcome of an episode."""
        win = has_won(episode.returns, seat)
        replies = [len(turn.completion_ids) for turn in episode.trajectories[seat].turns if turn.completion_ids]
        return cls(
            deal=deal,
            seat=seat,
            win=win,
            draw=episode.is_draw,
            loss=not win and not episode.is_draw,
            **{name: episode.ending is by and episode.offender == seat for name, by in FORFEITS.items()},
            length=len(episode.order),
            reply_tokens=math.fsum(replies) / len(replies) if replies else None,
            reward=episode.returns[seat],
            broken=episode.ending.is_broken,
        )


ALL_SEATS = "all"
"""In place of a seat's number: all seats together."""


@dataclass(frozen=True, slots=True)
class MatchReport:
    """
    How a player fared in a game against an opponent, seat by seat.

    Intervals are 95 %: Wilson's for shares, percentile bootstrap for means. Over all seats, the games of one deal are
    taken together, since they share its luck; see [`~intervals`].

    Attributes:
        game, player, opponent (`str`):
            Names.
        seats (`Mapping[str, Mapping[str, Estimate]]`):
            By seat (`"0"`, `"1"`, …, and `"all"`): `win`, `draw`, `loss`, own `illegal` and own
            `truncated` (cut-off) replies, `length` in turns, `reply_tokens` per reply (where replies have tokens), and
            `reward`.
        games, broken (`Mapping[str, int]`):
            By seat: games that count, and games that broke (a player lost, an environment failed) and count nowhere.
    """

    game: str
    player: str
    opponent: str
    seats: Mapping[str, Mapping[str, Estimate]]
    games: Mapping[str, int]
    broken: Mapping[str, int]

    @classmethod
    def of(cls, game: Game, player: str, opponent: str, outcomes: Iterable[SeatResult], seed: int = 0) -> MatchReport:
        """
        Adds up outcomes, which may come in any order.

        Args:
            game ([`~games.Game`]):
                What was played.
            player, opponent (`str`):
                Names.
            outcomes (`Iterable[SeatResult]`):
                From the player's side.
            seed (`int`, defaults to `0`):
                Seed of the bootstrap.
        """
        known = sorted(outcomes, key=lambda outcome: (outcome.deal, outcome.seat))
        numbers, games, broken = {}, {}, {}
        for seat in (*map(str, range(game.traits.seats)), ALL_SEATS):
            theirs = [outcome for outcome in known if seat in (str(outcome.seat), ALL_SEATS)]
            whole = [outcome for outcome in theirs if not outcome.broken]
            games[seat], broken[seat] = len(whole), len(theirs) - len(whole)
            estimates = {field: clustered_wilson(_by_deal(whole, field)) for field in SHARES}
            for field in MEANS:
                if field != "reply_tokens" or any(outcome.reply_tokens is not None for outcome in whole):
                    estimates[field] = bootstrap_mean(_by_deal(whole, field), seed)
            numbers[seat] = estimates
        return cls(game.name, player, opponent, numbers, games, broken)

    def metrics(self) -> dict[str, float]:
        """
        Flat numbers, for a log, under SPIRAL's names: `eval/{game}-{opponent}/pid-{seat}/{win, draw, …}`.

        Beside each is its interval (`_low`, `_high`), and under `all` in place of `pid-{seat}` the mean over all seats.
        What was not measured is left out.
        """
        metrics: dict[str, float] = {}
        for seat, estimates in self.seats.items():
            prefix = _prefix(self.game, self.opponent, seat)
            for field, estimate in estimates.items():
                if not math.isnan(estimate.value):
                    metrics[f"{prefix}/{field}"] = estimate.value
                    metrics |= {f"{prefix}/{field}_low": estimate.low, f"{prefix}/{field}_high": estimate.high}
            metrics[f"{prefix}/games"] = float(self.games[seat])
            metrics[f"{prefix}/broken"] = float(self.broken[seat])
        return metrics

    @classmethod
    def from_metrics(cls, game: Game, player: str, opponent: str, metrics: Mapping[str, float]) -> MatchReport:
        """The report that gave these `metrics`, among others."""
        numbers, games, broken = {}, {}, {}
        for seat in (*map(str, range(game.traits.seats)), ALL_SEATS):
            prefix = _prefix(game.name, opponent, seat)
            numbers[seat] = {
                field: Estimate(*(metrics[f"{prefix}/{field}{end}"] for end in ("", "_low", "_high")))
                for field in (*SHARES, *MEANS)
                if f"{prefix}/{field}" in metrics
            }
            games[seat], broken[seat] = int(metrics[f"{prefix}/games"]), int(metrics[f"{prefix}/broken"])
        return cls(game.name, player, opponent, numbers, games, broken)

    def table(self) -> str:
        """Markdown: a row for each seat and one for all."""
        return match_table([(self.player, self)])

    def to_json(self) -> dict[str, object]:
        """Plain values, for a file; `null` for what was not measured."""
        return {
            "game": self.game,
            "player": self.player,
            "opponent": self.opponent,
            "seats": {
                seat: {
                    "games": self.games[seat],
                    "broken": self.broken[seat],
                    **{
                        field: None if math.isnan(found.value) else [found.value, found.low, found.high]
                        for field, found in estimates.items()
                    },
                }
                for seat, estimates in self.seats.items()
            },
        }


def _prefix(game: str, opponent: str, seat: str) -> str:
    return f"eval/{game}-{opponent}/{seat if seat == ALL_SEATS else f'pid-{seat}'}"


def _by_deal(outcomes: Sequence[SeatResult], field: str) -> list[list[float]]:
    """A field's values, those of one deal together."""
    deals: dict[int, list[float]] = {}
    for outcome in outcomes:
        if (value := getattr(outcome, field)) is not None:
            deals.setdefault(outcome.deal, []).append(float(value))
    return list(deals.values())


def evaluate_matches(
    game: Game,
    player: Player,
    rival: Player,
    pairs: int,
    engine: Engine | None = None,
    seed: int = 0,
    in_flight: int = 256,
) -> tuple[MatchReport, list[Episode]]:
    """
    Plays a player against a rival, every deal from every seat.

    Args:
        game, player, rival, pairs, seed:
            As for `paired_starts`.
        engine ([`~selfplay.referee.Engine`], *optional*):
            Answers players that ask one.
        in_flight (`int`, defaults to `256`):
            Most games under way at once.

    Returns:
        `tuple[MatchReport, list[Episode]]`: What came of it, and the episodes in the order of their counters.
    """
    starts = paired_starts(game, player, rival, pairs, seed)
    episodes = sorted(play(map(referee, starts), engine, in_flight), key=lambda episode: episode.counter)
    outcomes = [seat_result(episode) for episode in episodes]
    return MatchReport.of(game, player.name, rival.name, outcomes, seed), episodes


def seat_result(episode: Episode) -> SeatResult:
    """The outcome of one of the games of `paired_starts`, from its player's side."""
    deal, seat = divmod(episode.counter, len(episode.players))
    return SeatResult.of(episode, seat, deal)


def match_table(reports: Sequence[tuple[str, MatchReport]]) -> str:
    """
    Markdown: a row for each report and seat, shares in percent, intervals in brackets, and how they were got.

    Args:
        reports (`Sequence[tuple[str, MatchReport]]`):
            Each with what its first column is to say: the player, or when it played.
    """
    lines = [
        "| player | game | against | seat | games | win % | draw % | loss % | illegal % | cut off % | turns | "
        "reply tokens | reward |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for label, report in reports:
        for seat, estimates in report.seats.items():
            cells = [*map(cell, (label, report.game, report.opponent)), seat, _games(report, seat)]
            cells += [_estimate(estimates.get(field), 100.0) for field in SHARES]
            cells += [_estimate(estimates.get(field)) for field in MEANS[:-1]]
            cells += [_estimate(estimates.get("reward"), sign="+", digits=2)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", METHODS])


def _games(report: MatchReport, seat: str) -> str:
    broken = report.broken[seat]
    return f"{report.games[seat]}{f' ({broken} broken)' if broken else ''}"


def _estimate(found: Estimate | None, scale: float = 1.0, sign: str = "", digits: int = 1) -> str:
    if found is None or math.isnan(found.value):
        return "–"
    value, low, high = (f"{scale * number:{sign}.{digits}f}" for number in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"
