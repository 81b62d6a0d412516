"""`trl-spiral tournament A B C --game G --output DIR`: round robin, ratings, win matrix and Nash averaging."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trl_spiral.cli.command import Command
from trl_spiral.cli.options import (
    CONTESTANT,
    add_contestant_arguments,
    at_least_one,
    open_contestants,
    playable_games,
    write_json,
)
from trl_spiral.evaluation.nash import nash_average
from trl_spiral.evaluation.tournament import round_robin
from trl_spiral.extras import require_extra
from trl_spiral.opponents import Played
from trl_spiral.opponents.plots import draw_win_rates
from trl_spiral.opponents.ratings import Ratings
from trl_spiral.opponents.transitivity import cycles, decompose
from trl_spiral.text.printable import cell, echo, inline
from trl_spiral.types import Episode


TABLE = "tournament.json"
PICTURE = "win_rates.png"


class TournamentCommand(Command):
    """Plays a round robin, prints ratings and win rates, and writes them to files."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "players", nargs="+", metavar="PLAYER", help=f"{CONTESTANT}; the folder of a pool names all its snapshots"
        )
        parser.add_argument(
            "--game", action="append", required=True, metavar="GAME", help="game to play; may be repeated"
        )
        parser.add_argument(
            "--pairs",
            type=int,
            default=20,
            help="deals for every two players, each played from every seat (default: %(default)s)",
        )
        parser.add_argument("--seed", type=int, default=0, help="seed of deals and decisions (default: %(default)s)")
        parser.add_argument(
            "--output", type=Path, required=True, metavar="DIR", help=f"folder for {TABLE} and {PICTURE}"
        )
        add_contestant_arguments(parser, temperature=0.25)

    def run(self, args: argparse.Namespace) -> None:
        at_least_one("--pairs", args.pairs)
        require_extra("scipy", "Nash averaging")  # before any game is played
        games = playable_games(args.game)
        with closing(open_contestants(args, args.players, games)) as contestants:
            players = list(contestants.players.values())
            names = list(contestants.players)
            episodes = round_robin(games, players, args.pairs, contestants.engine(), args.seed, contestants.in_flight)
        standing = standings(episodes, names)
        echo(standing_table(standing))
        played = {"games": [game.name for game in games], "pairs": args.pairs, "seed": args.seed}
        write_json(args.output / TABLE, {**played, **standing})
        if find_spec("matplotlib") is not None:
            ratings = rate(episodes)
            draw_win_rates(
                ratings.matrix(names), args.output / PICTURE, {name: ratings.rating(name) for name in names}
            )


def rate(episodes: Sequence[Episode]) -> Ratings:
    """Return ratings from all completed episodes, for players that do not learn."""
    ratings = Ratings(decay=1.0, drift=0.0)
    whole = [episode for episode in episodes if not episode.ending.is_broken]
    ratings.update([Played(e.players, e.returns, e.counter) for e in whole], policy_moved=False)
    return ratings


def standings(episodes: Sequence[Episode], names: Sequence[str]) -> dict[str, Any]:
    """
    Return ratings, Nash averages and win rates as plain values, the strongest player first.

    Raises:
        ValueError: If no game between two players was completed.
    """
    ratings = rate(episodes)
    order = sorted(names, key=lambda name: -ratings.rating(name).mu)
    matrix = ratings.matrix(order)
    size = range(len(order))
    for i in size:
        for j in size:
            if i < j and not matrix.counts[i][j]:
                raise ValueError(
                    f"No game between {order[i]} and {order[j]} was completed, so they cannot be compared. Look at "
                    "the warnings above, and play again."
                )
    # Win rate minus loss rate; a draw counts as half of each.
    nash = nash_average([[0.0 if i == j else 2 * matrix.rates[i][j] - 1 for j in size] for i in size])
    share = decompose(matrix).cyclic_share
    return {
        "players": [
            {
                "name": name,
                "rating": asdict(ratings.rating(name)),
                "games": round(math.fsum(matrix.counts[place])),
                "nash_mass": nash.masses[place],
                "nash_skill": nash.skills[place],
            }
            for place, name in enumerate(order)
        ],
        "win_rates": [[None if i == j else asdict(ratings.win_rate(order[i], order[j])) for j in size] for i in size],
        "cyclic_share": None if math.isnan(share) else share,
        "cycles": [list(cycle) for cycle in cycles(matrix)],
        "broken_games": sum(episode.ending.is_broken for episode in episodes),
    }


def standing_table(standing: dict[str, Any]) -> str:
    """Return Markdown with ratings and Nash averages, win rates, and cycles of three players."""
    players = standing["players"]
    lines = ["| player | rating | 95 % | Nash mass | Nash skill | games |", "|---|---:|---:|---:|---:|---:|"]
    for player in players:
        rating = player["rating"]
        lines.append(
            f"| {cell(player['name'])} | {rating['mu']:.0f} | {rating['low']:.0f} to {rating['high']:.0f} | "
            f"{player['nash_mass']:.2f} | {player['nash_skill']:+.2f} | {player['games']} |"
        )
    names = [cell(player["name"]) for player in players]
    lines += ["", f"| % won, draws as half | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for name, row in zip(names, standing["win_rates"], strict=True):
        cells = ["–" if rate is None else f"{100 * rate['rate']:.0f} ({rate['games']})" for rate in row]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    found = [" beats ".join(map(inline, (*cycle, cycle[0]))) for cycle in standing["cycles"]]
    broken = standing["broken_games"]
    return "\n".join(
        [*lines, *([""] if found else []), *found, *([f"\n{broken} games were not completed."] if broken else [])]
    )
