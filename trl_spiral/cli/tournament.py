"""`trl-spiral tournament A B C --game G --output DIR`: round robin, ratings, win matrix and Nash averaging."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trl_spiral.cli.options import CONTESTANT, add_contestant_arguments, at_least_one, open_contestants, read_games
from trl_spiral.evaluation.nash import nash_average
from trl_spiral.evaluation.tournament import round_robin
from trl_spiral.opponents import Played
from trl_spiral.opponents.plots import draw_win_rates
from trl_spiral.opponents.ratings import Ratings
from trl_spiral.opponents.transitivity import cycles, decompose
from trl_spiral.text.printable import cell, echo, inline
from trl_spiral.types import Episode


TABLE = "tournament.json"
PICTURE = "win_rates.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "players", nargs="+", metavar="PLAYER", help=f"{CONTESTANT}; a pool's folder stands for all its snapshots"
    )
    parser.add_argument(
        "--game", action="append", required=True, metavar="GAME", help="what is played; may be repeated"
    )
    parser.add_argument(
        "--pairs", type=int, default=20, help="deals for every two players, each from every seat (default: 20)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the deals and of all decisions (default: 0)")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help=f"gets {TABLE} and {PICTURE}")
    add_contestant_arguments(parser, temperature=0.25)


def run(args: argparse.Namespace) -> None:
    """Plays, prints who is how strong and who beats whom, and writes it down."""
    at_least_one("--pairs", args.pairs)
    if find_spec("scipy") is None:  # said now rather than when all has been played
        raise ValueError("Nash averaging needs SciPy, which is missing: `pip install trl-spiral[eval]`.")
    games = read_games(args.game)
    with closing(open_contestants(args, args.players, games)) as met:
        players = list(met.players.values())
        episodes = round_robin(games, players, args.pairs, met.engine(), args.seed, met.in_flight)
    standing = standings(episodes, list(met.players))
    echo(standing_table(standing))
    args.output.mkdir(parents=True, exist_ok=True)
    written = {"games": [game.name for game in games], "pairs": args.pairs, "seed": args.seed, **standing}
    (args.output / TABLE).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    if find_spec("matplotlib") is not None:
        ratings = rate(episodes)
        names = list(met.players)
        draw_win_rates(ratings.matrix(names), args.output / PICTURE, {name: ratings.rating(name) for name in names})


def rate(episodes: Sequence[Episode]) -> Ratings:
    """Ratings after all games that did not break, among players none of whom learns."""
    ratings = Ratings(decay=1.0, drift=0.0)
    whole = [episode for episode in episodes if not episode.ending.is_broken]
    ratings.update([Played(e.players, e.returns, e.counter) for e in whole], policy_moved=False)
    return ratings


def standings(episodes: Sequence[Episode], names: Sequence[str]) -> dict[str, Any]:
    """
    Who is how strong: plain values, the strongest first.

    Raises:
        ValueError: If two players have no game between them that did not break.
    """
    ratings = rate(episodes)
    order = sorted(names, key=lambda name: -ratings.rating(name).mu)
    matrix = ratings.matrix(order)
    size = range(len(order))
    for i in size:
        for j in size:
            if i < j and not matrix.counts[i][j]:
                raise ValueError(
                    f"All games between {order[i]} and {order[j]} broke, so nobody knows who is stronger."
                )
    # Win rate less loss rate, draws being half of each.
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
        "cycles": [list(circle) for circle in cycles(matrix)],
        "broken_games": sum(episode.ending.is_broken for episode in episodes),
    }


def standing_table(standing: dict[str, Any]) -> str:
    """Markdown: ratings and Nash averages, then who beats whom, then circles of three."""
    players = standing["players"]
    lines = ["| player | rating | 95 % | Nash mass | Nash skill | games |", "|---|---:|---:|---:|---:|---:|"]
    for player in players:
        rating = player["rating"]
        lines.append(
            f"| {cell(player['name'])} | {rating['mu']:.0f} | {rating['low']:.0f} to {rating['high']:.0f} | "
            f"{player['nash_mass']:.2f} | {player['nash_skill']:+.2f} | {player['games']} |"
        )
    names = [cell(player["name"]) for player in players]
    lines += ["", f"| % won, a draw being half | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for name, row in zip(names, standing["win_rates"], strict=True):
        cells = ["–" if met is None else f"{100 * met['rate']:.0f} ({met['games']})" for met in row]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    circles = [" beats ".join(map(inline, (*circle, circle[0]))) for circle in standing["cycles"]]
    broken = standing["broken_games"]
    return "\n".join([*lines, *([""] if circles else []), *circles, *([f"\n{broken} games broke."] if broken else [])])
