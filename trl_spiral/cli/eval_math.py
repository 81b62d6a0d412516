r"""`trl-spiral eval-math MODEL --set gsm8k`: grades of a model on math sets, from `\boxed{}`."""

from __future__ import annotations

import argparse
from pathlib import Path

from trl_spiral.cli.command import Command
from trl_spiral.cli.options import (
    IN_FLIGHT,
    add_model_arguments,
    at_least_one,
    read_device,
    read_sampling,
    write_json,
)
from trl_spiral.evaluation.problems.math_sets import MATH_SETS
from trl_spiral.text.printable import echo


class EvalMathCommand(Command):
    """Grades a model on math sets, and prints a table."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", help="folder or Hub id of a model, or of a LoRA adapter")
        parser.add_argument(
            "--set",
            dest="sets",
            action="append",
            required=True,
            choices=list(MATH_SETS),
            metavar="SET",
            help=f"{', '.join(MATH_SETS)}; may be repeated",
        )
        parser.add_argument("--path", help="the set's .jsonl, .json, .csv or .parquet file (default: from the Hub)")
        parser.add_argument("--limit", type=int, help="problems of each set, from the first one (default: all)")
        parser.add_argument("--seed", type=int, default=0, help="seed of the replies (default: %(default)s)")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers and every reply to a file")
        group = add_model_arguments(parser, 0.0, 2048, "token limit of a reply")
        group.add_argument("--in-flight", **IN_FLIGHT)

    def run(self, args: argparse.Namespace) -> None:
        """
        Grade the model, and print a table.

        Raises:
            ValueError: If an argument is out of range, or the model or a set cannot be loaded.
            ImportError: If math-verify is not installed.
        """
        at_least_one("--in-flight", args.in_flight)
        sampling, device = read_sampling(args), read_device(args)
        from trl_spiral.callbacks.problem_sets import load_math_problems
        from trl_spiral.engines.build import saved_player
        from trl_spiral.evaluation.problems.math import answer_problems, math_metrics
        from trl_spiral.evaluation.problems.math_grading import check_can_grade

        check_can_grade()
        sets = load_math_problems(args.sets, args.path, args.limit)
        player, engine = saved_player(args.model, sampling, args.prompt_style, device)
        found = {}
        echo(f"{args.model} at temperature {args.temperature:g}, graded by math-verify; 95 % Wilson intervals\n")
        echo("| set | problems | accuracy | interval | truncated | unboxed | timeouts | reply length |")
        echo("|---|---:|---:|---:|---:|---:|---:|---:|")
        for name, problems in sets.items():
            attempts = answer_problems(dict(enumerate(problems)), player, engine, args.seed, name, args.in_flight)
            numbers = math_metrics(attempts)
            echo(
                "| {name} | {problems} | {accuracy:.1%} | {accuracy_low:.1%} to {accuracy_high:.1%} | {truncated:.1%} "
                "| {unboxed:.1%} | {timeouts:.0f} | {reply_length:.0f} |".format(
                    name=name, problems=len(problems), **numbers
                ),
            )
            found[name] = {**numbers, "problems": len(problems), "replies": [one.record() for one in attempts]}
        if args.json:
            written = {"model": args.model, "temperature": args.temperature, "seed": args.seed, "sets": found}
            write_json(args.json, written)
