"""Matches between players, for policies without an exact evaluation."""

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
"""Fields of [`SeatResult`] that a report contains, as shares and as means."""


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
    Play `games` episodes with `player` in `seat` and `rival` in all other seats.

    The same `seed` gives the same deals and openings in each seat, so that comparisons of seats or players are paired.

    Args:
        game ([`~games.Game`]):
            Game to play.
        player, rival ([`~players.Player`]):
            The players.
        seat (`int`):
            Seat of `player`.
        games (`int`):
            Number of episodes.
        engine ([`~selfplay.referee.Engine`], *optional*):
            Engine of players that need one.
        seed (`int`, defaults to `0`):
            Seed of deals and decisions.
        forfeit ([`~selfplay.referee.Forfeit`], *optional*):
            Payoffs of a forfeit.

    Returns:
        `list[Episode]`: In the order of their counters.
    """
    starts = (_start(game, player, rival, seat, deal, seed, deal, forfeit) for deal in range(games))
    return sorted(play(map(referee, starts), engine), key=lambda episode: episode.counter)


def paired_starts(game: Game, player: Player, rival: Player, pairs: int, seed: int = 0) -> list[Start]:
    """
    Make the starts of a paired series: each deal of `play_matches` once with `player` in each seat.

    Args:
        game, player, rival, seed:
            As for `play_matches`.
        pairs (`int`):
            Number of deals: of pairs of episodes, if the game has two seats.

    Returns:
        `list[Start]`: Counted by deal, then by seat.
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
    """Return one seat's shares of wins, draws, losses, and forfeits by illegal and by truncated replies."""
    results = [SeatResult.of(episode, seat, deal=0) for episode in episodes]
    return {field: sum(getattr(result, field) for result in results) / len(results) for field in SHARES}


@dataclass(frozen=True, slots=True)
class SeatResult:
    """
    Result of one seat in an episode.

    Attributes:
        deal, seat (`int`):
            Number of the deal, which is played from each seat, and the seat.
        win, draw, loss (`bool`):
            One of them is true; see [`~types.has_won`] and [`~types.is_drawn`].
        illegal, truncated (`bool`):
            Whether this seat ended the game by an illegal reply, or by one that reached the token limit.
        length (`int`):
            Turns of all seats.
        reply_tokens (`float`, *optional*):
            Mean tokens of this seat's replies; `None` for scripted players and endpoints.
        reward (`float`):
            Terminal payoff.
        broken (`bool`):
            Whether the game has no result (see [`~types.Ending`]). All other fields are then meaningless.
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
        """Return the result of a seat."""
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
"""Key of the results over all seats."""


@dataclass(frozen=True, slots=True)
class MatchReport:
    """
    Results of a player against an opponent in one game, by seat, with 95 % intervals.

    Shares have Wilson intervals, means have percentile bootstrap intervals. Over all seats, the episodes of a deal are
    one cluster, since they share its luck; see [`~intervals`].

    Attributes:
        game, player, opponent (`str`):
            Names.
        seats (`Mapping[str, Mapping[str, Estimate]]`):
            Estimates by seat (`"0"`, `"1"`, …, and `"all"`) and by field of [`SeatResult`]. `reply_tokens` is missing
            if replies have no tokens.
        games, broken (`Mapping[str, int]`):
            By seat: episodes that count, and broken ones, which do not.
    """

    game: str
    player: str
    opponent: str
    seats: Mapping[str, Mapping[str, Estimate]]
    games: Mapping[str, int]
    broken: Mapping[str, int]

    @classmethod
    def of(cls, game: Game, player: str, opponent: str, results: Iterable[SeatResult], seed: int = 0) -> MatchReport:
        """
        Compute the estimates.

        Args:
            game ([`~games.Game`]), player (`str`), opponent (`str`):
                The game, and names for tables and metrics.
            results (`Iterable[SeatResult]`):
                Results of the player, in any order.
            seed (`int`, defaults to `0`):
                Seed of the bootstrap.
        """
        known = sorted(results, key=lambda result: (result.deal, result.seat))
        numbers, games, broken = {}, {}, {}
        for seat in (*map(str, range(game.traits.seats)), ALL_SEATS):
            chosen = [result for result in known if seat in (str(result.seat), ALL_SEATS)]
            whole = [result for result in chosen if not result.broken]
            games[seat], broken[seat] = len(whole), len(chosen) - len(whole)
            estimates = {field: clustered_wilson(_by_deal(whole, field)) for field in SHARES}
            for field in MEANS:
                if field != "reply_tokens" or any(result.reply_tokens is not None for result in whole):
                    estimates[field] = bootstrap_mean(_by_deal(whole, field), seed)
            numbers[seat] = estimates
        return cls(game.name, player, opponent, numbers, games, broken)

    def metrics(self) -> dict[str, float]:
        """
        Return metrics under SPIRAL's names: `eval/{game}-{opponent}/pid-{seat}/{win, draw, …}`.

        Each has an interval (`_low`, `_high`). `all` in place of `pid-{seat}` is the mean over all seats. Estimates
        without a value are left out.
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
        """Restore a report from its `metrics`, which may contain others."""
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
        """Format the report as a Markdown table, with one row per seat and one for all seats."""
        return match_table([(self.player, self)])

    def to_json(self) -> dict[str, object]:
        """Return plain values for a file. Estimates without a value are `null`."""
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


def _by_deal(results: Sequence[SeatResult], field: str) -> list[list[float]]:
    """Return a field's values in one list per deal."""
    deals: dict[int, list[float]] = {}
    for result in results:
        if (value := getattr(result, field)) is not None:
            deals.setdefault(result.deal, []).append(float(value))
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
    Play a paired series: each deal from each seat.

    Args:
        game, player, rival, pairs, engine, seed:
            As for `paired_starts` and `play_matches`.
        in_flight (`int`, defaults to `256`):
            Maximum number of concurrent episodes.

    Returns:
        `tuple[MatchReport, list[Episode]]`: The report, and the episodes in the order of their counters.
    """
    starts = paired_starts(game, player, rival, pairs, seed)
    episodes = sorted(play(map(referee, starts), engine, in_flight), key=lambda episode: episode.counter)
    results = map(seat_result, episodes)
    return MatchReport.of(game, player.name, rival.name, results, seed), episodes


def seat_result(episode: Episode) -> SeatResult:
    """Return the result of the player in an episode of `paired_starts`."""
    deal, seat = divmod(episode.counter, len(episode.players))
    return SeatResult.of(episode, seat, deal)


def match_table(reports: Sequence[tuple[str, MatchReport]]) -> str:
    """
    Format reports as a Markdown table with one row per report and seat. Shares are in percent, intervals in brackets.

    Args:
        reports (`Sequence[tuple[str, MatchReport]]`):
            Each with the label for the first column.
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
