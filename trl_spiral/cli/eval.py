"""`trl-spiral eval MODEL --game G --against random minimax`: matches of a model against any players."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from trl_spiral.cli.command import Command
from trl_spiral.cli.options import (
    CONTESTANT,
    add_contestant_arguments,
    at_least_one,
    check_names_one,
    open_contestants,
    playable_games,
    write_json,
)
from trl_spiral.evaluation.matches import evaluate_matches, match_table
from trl_spiral.intervals import METHODS
from trl_spiral.text.printable import echo


class EvalCommand(Command):
    """Plays matches, and prints a table with intervals."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", help=f"player to evaluate: {CONTESTANT}")
        parser.add_argument(
            "--game", action="append", required=True, metavar="GAME", help="game to play; may be repeated"
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
            help="deals against each opponent, each played from every seat (default: %(default)s)",
        )
        parser.add_argument("--seed", type=int, default=0, help="seed of deals and decisions (default: %(default)s)")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to a file")
        add_contestant_arguments(parser, temperature=0.25)

    def run(self, args: argparse.Namespace) -> None:
        at_least_one("--pairs", args.pairs)
        check_names_one("MODEL", args.model)
        games = playable_games(args.game)
        # A model against itself is one contestant in all seats.
        rivals = dict.fromkeys(args.against)
        names = [args.model, *(name for name in rivals if name != args.model)]
        with closing(open_contestants(args, names, games)) as contestants:
            model, *others = contestants.players.values()
            opponents = [model, *others] if args.model in rivals else others
            reports = [
                evaluate_matches(
                    game, model, opponent, args.pairs, contestants.engine(), args.seed, contestants.in_flight
                )[0]
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
            write_json(args.json, written)
