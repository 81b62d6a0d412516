r"""`trl-spiral eval-math MODEL --set gsm8k`: grades a model on math sets, from `\boxed{}`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trl_spiral.cli.options import add_model_arguments, at_least_one, device_of, sampling_of
from trl_spiral.evaluation.problems.math_sets import MATH_SETS
from trl_spiral.text.printable import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command's arguments."""
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
    parser.add_argument("--path", help="the set's .jsonl, .json, .csv or .parquet file (default: the Hub's)")
    parser.add_argument("--limit", type=int, help="problems of each set, from its first on (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the replies (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the numbers and every reply")
    group = add_model_arguments(parser, 0.0, 2048, "longest reply")
    group.add_argument(
        "--in-flight", type=int, default=128, help="most replies written at once (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    """
    Grades the model, and prints a table.

    Raises:
        ValueError: If an argument is out of range, or the model or a set cannot be had.
        ImportError: If math-verify is not installed.
    """
    at_least_one("--in-flight", args.in_flight)
    sampling, device = sampling_of(args), device_of(args)
    from trl_spiral.callbacks.math import load_problems
    from trl_spiral.engines.build import saved_player
    from trl_spiral.evaluation.problems.math import answer_problems, math_metrics
    from trl_spiral.evaluation.problems.math_grading import check_can_grade

    check_can_grade()
    sets = load_problems(args.sets, args.path, args.limit)
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
        found[name] = {**numbers, "problems": len(problems), "replies": [seen.record() for seen in attempts]}
    if args.json:
        said = {"model": args.model, "temperature": args.temperature, "seed": args.seed, "sets": found}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
