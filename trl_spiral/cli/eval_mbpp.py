"""`trl-spiral eval-mbpp MODEL`: grades a model at MBPP or HumanEval, by running its programs in a sandbox."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trl_spiral.cli.options import add_model_arguments, at_least_one, device_of, sampling_of
from trl_spiral.evaluation.problems.code_sets import CODE_SETS, MBPP_SPLITS
from trl_spiral.evaluation.problems.code_settings import ENVIRONMENT, ONLY_MBPP, texts_from_environment
from trl_spiral.text.printable import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command's arguments."""
    parser.add_argument("model", help="folder or Hub id of a model, or of a LoRA adapter")
    parser.add_argument("--set", dest="problem_set", choices=CODE_SETS, default="mbpp", help="(default: %(default)s)")
    parser.add_argument("--path", help="the set's .json, .jsonl, .jsonl.gz or .parquet file (default: the Hub's MBPP)")
    parser.add_argument("--split", choices=list(MBPP_SPLITS), help="of MBPP (default: test, tasks 11 to 510)")
    parser.add_argument("--limit", type=int, help="problems, from the first on (default: all)")
    parser.add_argument("--samples", type=int, default=1, help="programs for each problem (default: %(default)s)")
    parser.add_argument("--k", type=_numbers, metavar="1,5,10", help="for which pass@k is told (default: usual ones)")
    parser.add_argument("--seed", type=int, default=0, help="of the replies (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the numbers and every program")
    group = add_model_arguments(parser, 0.0, 512, "longest reply")
    group.add_argument(
        "--in-flight", type=int, default=128, help="most replies written at once (default: %(default)s)"
    )
    shared = {name: variable for name, (variable, _) in ENVIRONMENT.items() if name != "every"}
    parser.epilog = f"Without an argument, the environment is asked: {', '.join(shared.values())}."
    # As text, which argparse reads as it reads an argument. Of which set a path is, `run` will know.
    said = texts_from_environment()
    parser.set_defaults(**{name: text for name, text in said.items() if name in shared and name not in ONLY_MBPP})


def run(args: argparse.Namespace) -> None:
    """
    Grades the model, and prints a table.

    Raises:
        ValueError: If an argument is out of range, the model or the problems cannot be had, or programs cannot be run.
    """
    at_least_one("--in-flight", args.in_flight)
    sampling, device = sampling_of(args), device_of(args)
    from trl_spiral.callbacks.mbpp import load_code_problems
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
    said = texts_from_environment(args.problem_set)
    path, split = args.path or said.get("path"), args.split or said.get("split")
    problems = load_code_problems(args.problem_set, path, split, args.limit)
    numbered = dict(enumerate(problems))
    with LocalSandbox(EVALUATION_LIMITS) as sandbox:
        check_sandbox(sandbox)
        player, engine = saved_player(args.model, sampling, args.prompt_style, device)
        attempts = write_programs(numbered, player, engine, args.samples, args.seed, args.in_flight)
        attempts = judge_programs(numbered, attempts, sandbox)
    numbers = code_metrics(attempts, ks)
    echo(f"{args.model} at temperature {args.temperature:g}, {args.samples} a problem; 95 % intervals\n")
    echo("| set | problems | passed | k | pass@k | interval | truncated | timeouts | reply length |")
    echo("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for k in ks:
        rate, low, high = (numbers[f"pass@{k}{end}"] for end in ("", "_low", "_high"))
        echo(
            f"| {args.problem_set} | {len(problems)} | {numbers['problems_passed']:.0f} | {k} | {rate:.1%} | {low:.1%} to "
            f"{high:.1%} | {numbers['truncated']:.1%} | {numbers['timeouts']:.0f} | {numbers['reply_length']:.0f} |"
        )
    if args.json:
        settings = {"temperature": args.temperature, "samples": args.samples, "seed": args.seed}
        told = {"model": args.model, "set": args.problem_set, **settings, "summary": numbers}
        told["problems"] = records(problems, attempts)
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]
