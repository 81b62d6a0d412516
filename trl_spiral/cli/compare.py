"""`trl-spiral compare scores*.parquet --html page.html`: comparison of models on tasks."""

from __future__ import annotations

import argparse
from pathlib import Path

from trl_spiral.cli.command import Command
from trl_spiral.cli.options import at_least_one
from trl_spiral.files import write_text
from trl_spiral.report.comparison import MOST_REPLIES
from trl_spiral.text.printable import echo, one_line


class CompareCommand(Command):
    """Prints a table of models and tasks, and writes a page with the replies."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "scores",
            nargs="+",
            metavar="FILE",
            help="files of trl-spiral eval-task; the first model of each task is the baseline",
        )
        parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the table and the replies")
        parser.add_argument(
            "--replies",
            type=int,
            default=MOST_REPLIES,
            metavar="N",
            help="approximate number of replies in the page (default: %(default)s)",
        )
        parser.add_argument(
            "--plain", action="store_true", help="do not compress replies, for browsers older than May 2023"
        )

    def run(self, args: argparse.Namespace) -> None:
        """
        Print the table, and write the page.

        Raises:
            ValueError: If a file is damaged, two contain the same replies, or a task cannot display a reply.
        """
        from trl_spiral.evaluation.problems.comparison import asked_differently, compare_scores, comparison_table
        from trl_spiral.evaluation.problems.tasks import read_scores
        from trl_spiral.report.comparison import render_comparison
        from trl_spiral.tasks import task_names

        at_least_one("--replies", args.replies)
        rows = [row for path in args.scores for row in read_scores(path)]
        if not rows:
            raise ValueError(f"{', '.join(args.scores)} contain no replies: there is nothing to compare.")
        standings = compare_scores(rows)
        echo("\n".join([comparison_table(standings), *asked_differently(rows)]))
        if args.html is None:
            return
        page = render_comparison(standings, rows, args.replies, args.plain)
        args.html.parent.mkdir(parents=True, exist_ok=True)
        write_text(args.html, page)
        echo(f"\n{one_line(str(args.html))}: {len(page.encode()) / 1e6:.1f} MB")
        for task in sorted({row.task for row in rows} - set(task_names())):
            echo(f"The page shows no steps of {task!r}, which is not registered. Name its module with --import.")
