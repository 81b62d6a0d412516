"""`trl-spiral eval MODEL --game G --against random minimax`: a model against any player, in every seat, with intervals."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path

from trl_spiral.cli.options import (
    CONTESTANT,
    add_contestant_arguments,
    at_least_one,
    check_is_one,
    open_contestants,
    read_games,
)
from trl_spiral.evaluation.matches import evaluate_matches, match_table
from trl_spiral.intervals import METHODS
from trl_spiral.text.printable import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("model", help=f"whom to grade: {CONTESTANT}")
    parser.add_argument(
        "--game", action="append", required=True, metavar="GAME", help="what is played; may be repeated"
    )
    parser.add_argument(
        "--against",
        nargs="+",
        default=["random"],
        metavar="PLAYER",
        help="opponents, named as MODEL is (default: random)",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=100,
        help="deals against each opponent, each played from every seat (default: 100)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the deals and of all decisions (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the numbers")
    add_contestant_arguments(parser, temperature=0.25)


def run(args: argparse.Namespace) -> None:
    """Plays, and prints the table."""
    at_least_one("--pairs", args.pairs)
    check_is_one("MODEL", args.model)
    games = read_games(args.game)
    # A model against itself is one contestant in all seats.
    rivals = dict.fromkeys(args.against)
    with closing(open_contestants(args, [args.model, *(name for name in rivals if name != args.model)], games)) as met:
        model, *others = met.players.values()
        opponents = [model, *others] if args.model in rivals else others
        reports = [
            evaluate_matches(game, model, opponent, args.pairs, met.engine(), args.seed, met.in_flight)[0]
            for game in games
            for opponent in opponents
        ]
    echo(match_table([(report.player, report) for report in reports]))
    if args.json:
        written = {
            "model": args.model,
            "pairs": args.pairs,
            "seed": args.seed,
            "temperature": args.temperature,
            "intervals": METHODS,
            "matches": [report.to_json() for report in reports],
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
