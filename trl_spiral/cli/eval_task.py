"""`trl-spiral eval-task MODEL --task hanoi --out scores.parquet`: grades a model at a task, and keeps every reply."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, get_args

from trl_spiral.cli.options import add_model_arguments, at_least_one, device_of, sampling_of
from trl_spiral.tasks import get_task, task_names
from trl_spiral.tasks.base import Split
from trl_spiral.text.printable import echo, one_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command's arguments."""
    parser.add_argument("model", help="folder or Hub id of a model, or of a LoRA adapter")
    parser.add_argument("--task", required=True, help=f"{', '.join(task_names())}, or one of your own by --import")
    parser.add_argument(
        "--split", choices=get_args(Split), default="validation", help="of its problems (default: %(default)s)"
    )
    parser.add_argument(
        "--number",
        type=int,
        default=200,
        help="problems, the same for every model; one that comes twice is asked once (default: %(default)s)",
    )
    parser.add_argument("--samples", type=int, default=1, help="replies to each problem (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the replies (default: %(default)s)")
    parser.add_argument("--name", help="what the model is called in the file (default: MODEL)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where every reply goes, as Parquet")
    group = add_model_arguments(parser, 0.0, 2048, "longest reply")
    group.add_argument(
        "--chat-template-kwargs",
        type=_object,
        default={},
        metavar="JSON",
        help="passed on to the chat template, as in training, such as '{\"enable_thinking\": false}'",
    )
    group.add_argument(
        "--in-flight", type=int, default=128, help="most replies written at once (default: %(default)s)"
    )


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object, such as '{{\"enable_thinking\": false}}'")
    return value


def run(args: argparse.Namespace) -> None:
    """
    Grades the model, writes the file, and prints a table.

    Raises:
        ValueError: If an argument is out of range, there is no such task, it has no problems or cannot be scored, or the model cannot
            be had.
    """
    if args.number < 1:
        raise ValueError(f"`--number` ({args.number}) must be at least 1: nothing would be asked.")
    at_least_one("--in-flight", args.in_flight)
    from trl_spiral.evaluation.problems.code import check_samples

    check_samples(args.samples, args.temperature)
    if args.chat_template_kwargs and args.prompt_style != "chat":
        raise ValueError(
            f"`--chat-template-kwargs` has no effect with `--prompt-style {args.prompt_style}`, which uses no chat template. Leave one "
            "of them out."
        )
    if taken := sorted({"conversation", "tokenize", "add_generation_prompt"} & {*args.chat_template_kwargs}):
        raise ValueError(
            f"`--chat-template-kwargs` must not set {taken[0]!r}, which is not the template's. Leave it out."
        )
    task = get_task(args.task)
    if args.out.is_dir():
        raise ValueError(
            f"`--out` ({args.out}) is a folder. Name a file in it, such as {args.out / 'scores.parquet'}."
        )
    sampling, device = sampling_of(args), device_of(args)
    try:
        problems = task.problems(args.split, args.number)
    except Exception as error:  # whatever a user's task comes upon
        raise ValueError(f"The task {task.name!r} cannot make problems ({type(error).__name__}: {error}).") from error
    from trl_spiral.engines.build import saved_player
    from trl_spiral.evaluation.problems.comparison import compare_scores, comparison_table
    from trl_spiral.evaluation.problems.tasks import answer_task, check_task, write_scores

    check_task(task, problems)
    player, engine = saved_player(args.model, sampling, args.prompt_style, device, args.chat_template_kwargs)
    name, settings = (
        one_line(args.name or args.model),
        {"split": args.split, "chat_template_kwargs": args.chat_template_kwargs},
    )
    rows = answer_task(task, problems, player, engine, args.samples, args.seed, args.in_flight, name, settings)
    write_scores(args.out, rows)
    echo(comparison_table(compare_scores(rows)))
    echo(f"\n{one_line(str(args.out))}: {len(rows)} replies, {sum(row.truncated for row in rows)} of them cut off")
