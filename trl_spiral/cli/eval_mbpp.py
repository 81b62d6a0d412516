"""`trl-spiral eval-mbpp MODEL`: grades of a model on MBPP or HumanEval, by running its programs in a sandbox."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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
from trl_spiral.evaluation.problems.code_sets import CODE_SETS, MBPP_SPLITS
from trl_spiral.evaluation.problems.code_settings import ENVIRONMENT, ONLY_MBPP, texts_from_environment
from trl_spiral.text.printable import echo


class EvalMbppCommand(Command):
    """Grades a model on MBPP or HumanEval, and prints a table."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", help="folder or Hub id of a model, or of a LoRA adapter")
        parser.add_argument(
            "--set", dest="problem_set", choices=CODE_SETS, default="mbpp", help="(default: %(default)s)"
        )
        parser.add_argument(
            "--path", help="the set's .json, .jsonl, .jsonl.gz or .parquet file (default: MBPP, from the Hub)"
        )
        parser.add_argument("--split", choices=list(MBPP_SPLITS), help="of MBPP (default: test, tasks 11 to 510)")
        parser.add_argument("--limit", type=int, help="number of problems, from the first one (default: all)")
        parser.add_argument("--samples", type=int, default=1, help="programs for each problem (default: %(default)s)")
        parser.add_argument(
            "--k", type=_numbers, metavar="1,5,10", help="values of k for pass@k (default: 1, 5, 10, … to --samples)"
        )
        parser.add_argument("--seed", type=int, default=0, help="seed of the replies (default: %(default)s)")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers and every program to a file")
        group = add_model_arguments(parser, 0.0, 512, "token limit of a reply")
        group.add_argument("--in-flight", **IN_FLIGHT)
        shared = {name: variable for name, (variable, _) in ENVIRONMENT.items() if name != "every"}
        parser.epilog = f"Arguments that are not given are read from the environment: {', '.join(shared.values())}."
        # As text, which argparse parses like an argument. `run` reads the path, which depends on the set.
        texts = texts_from_environment()
        parser.set_defaults(**{name: text for name, text in texts.items() if name in shared and name not in ONLY_MBPP})

    def run(self, args: argparse.Namespace) -> None:
        """
        Grade the model, and print a table.

        Raises:
            ValueError: If an argument is out of range, or the model or the problems cannot be loaded.
            CannotContain: If programs cannot be run.
        """
        at_least_one("--in-flight", args.in_flight)
        sampling, device = read_sampling(args), read_device(args)
        from trl_spiral.callbacks.problem_sets import load_code_problems
        from trl_spiral.engines.build import saved_player
        from trl_spiral.evaluation.problems.code import (
            EVALUATION_LIMITS,
            check_samples,
            check_sandbox,
            choose_ks,
            code_metrics,
            judge_programs,
            records,
            write_programs,
        )
        from trl_spiral.sandbox import LocalSandbox

        check_samples(args.samples, args.temperature)
        ks = choose_ks(args.samples, args.k)
        texts = texts_from_environment(args.problem_set)
        path, split = args.path or texts.get("path"), args.split or texts.get("split")
        problems = load_code_problems(args.problem_set, path, split, args.limit)
        numbered = dict(enumerate(problems))
        with LocalSandbox(EVALUATION_LIMITS) as sandbox:
            check_sandbox(sandbox)
            player, engine = saved_player(args.model, sampling, args.prompt_style, device)
            attempts = write_programs(numbered, player, engine, args.samples, args.seed, args.in_flight)
            attempts = judge_programs(numbered, attempts, sandbox)
        numbers = code_metrics(attempts, ks)
        echo(f"{args.model} at temperature {args.temperature:g}, {args.samples} per problem; 95 % intervals\n")
        echo(_table(args.problem_set, len(problems), ks, numbers))
        if args.json:
            settings = {"temperature": args.temperature, "samples": args.samples, "seed": args.seed}
            written = {"model": args.model, "set": args.problem_set, **settings, "summary": numbers}
            written["problems"] = records(problems, attempts)
            write_json(args.json, written)


def _table(problem_set: str, problems: int, ks: Sequence[int], numbers: dict[str, float]) -> str:
    lines = [
        "| set | problems | passed | k | pass@k | interval | truncated | timeouts | reply length |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for k in ks:
        rate, low, high = (numbers[f"pass@{k}{end}"] for end in ("", "_low", "_high"))
        lines.append(
            f"| {problem_set} | {problems} | {numbers['problems_passed']:.0f} | {k} | {rate:.1%} | {low:.1%} to "
            f"{high:.1%} | {numbers['truncated']:.1%} | {numbers['timeouts']:.0f} | {numbers['reply_length']:.0f} |"
        )
    return "\n".join(lines)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]
