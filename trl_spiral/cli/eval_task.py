"""`trl-spiral eval-task MODEL --task hanoi --out scores.parquet`: grades of a model on a task, with every reply."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, get_args

from trl_spiral.cli.command import Command
from trl_spiral.cli.options import IN_FLIGHT, add_model_arguments, at_least_one, read_device, read_sampling
from trl_spiral.tasks import get_task, task_names
from trl_spiral.tasks.base import Split
from trl_spiral.text.printable import echo, one_line


class EvalTaskCommand(Command):
    """Grades a model on a task, writes every reply to a file, and prints a table."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", help="folder or Hub id of a model, or of a LoRA adapter")
        parser.add_argument(
            "--task", required=True, help=f"{', '.join(task_names())}, or a task of your own (--import)"
        )
        parser.add_argument(
            "--split",
            choices=get_args(Split),
            default="validation",
            help="split of the problems (default: %(default)s)",
        )
        parser.add_argument(
            "--number",
            type=int,
            default=200,
            help="number of problems, the same for every model; duplicates are used once (default: %(default)s)",
        )
        parser.add_argument("--samples", type=int, default=1, help="replies to each problem (default: %(default)s)")
        parser.add_argument("--seed", type=int, default=0, help="seed of the replies (default: %(default)s)")
        parser.add_argument("--name", help="name of the model in the file (default: MODEL)")
        parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="Parquet file for every reply")
        group = add_model_arguments(parser, 0.0, 2048, "token limit of a reply")
        group.add_argument(
            "--chat-template-kwargs",
            type=_object,
            default={},
            metavar="JSON",
            help="arguments of the chat template, as in training, such as '{\"enable_thinking\": false}'",
        )
        group.add_argument("--in-flight", **IN_FLIGHT)

    def run(self, args: argparse.Namespace) -> None:
        """
        Grade the model, write the file, and print a table.

        Raises:
            ValueError: If an argument is out of range, the task is unknown, has no problems or cannot be scored, or
            the
                model cannot be loaded.
        """
        _check(args)
        task = get_task(args.task)
        sampling, device = read_sampling(args), read_device(args)
        try:
            problems = task.problems(args.split, args.number)
        except Exception as error:  # a user's task may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"The task {task.name!r} cannot make problems ({reason}).") from error
        from trl_spiral.engines.build import saved_player
        from trl_spiral.evaluation.problems.comparison import compare_scores, comparison_table
        from trl_spiral.evaluation.problems.tasks import answer_task, check_task, write_scores

        check_task(task, problems)
        player, engine = saved_player(args.model, sampling, args.prompt_style, device, args.chat_template_kwargs)
        name = one_line(args.name or args.model)
        settings = {"split": args.split, "chat_template_kwargs": args.chat_template_kwargs}
        rows = answer_task(task, problems, player, engine, args.samples, args.seed, args.in_flight, name, settings)
        write_scores(args.out, rows)
        echo(comparison_table(compare_scores(rows)))
        truncated = sum(row.truncated for row in rows)
        echo(f"\n{one_line(str(args.out))}: {len(rows)} replies, {truncated} of them truncated")


def _check(args: argparse.Namespace) -> None:
    """Raise `ValueError` if arguments are out of range or contradict each other."""
    from trl_spiral.evaluation.problems.code import check_samples

    at_least_one("--number", args.number)
    at_least_one("--in-flight", args.in_flight)
    check_samples(args.samples, args.temperature)
    if args.chat_template_kwargs and args.prompt_style != "chat":
        raise ValueError(
            f"`--chat-template-kwargs` has no effect with `--prompt-style {args.prompt_style}`, which uses no chat "
            "template. Leave one of them out."
        )
    if reserved := sorted({"conversation", "tokenize", "add_generation_prompt"} & {*args.chat_template_kwargs}):
        raise ValueError(
            f"`--chat-template-kwargs` must not set {reserved[0]!r}, which is no argument of the template. Leave it "
            "out."
        )
    if args.out.is_dir():
        raise ValueError(
            f"`--out` ({args.out}) is a folder. Name a file in it, such as {args.out / 'scores.parquet'}."
        )


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object, such as '{{\"enable_thinking\": false}}'")
    return value
