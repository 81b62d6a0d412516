"""`trl-spiral compare scores*.parquet --html page.html`: models side by side at tasks, in numbers and reply by reply."""

from __future__ import annotations

import argparse
from pathlib import Path

from trl_spiral.files import write_text
from trl_spiral.report.comparison import MOST_REPLIES
from trl_spiral.text.printable import echo, one_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "scores",
        nargs="+",
        metavar="FILE",
        help="what trl-spiral eval-task wrote; each task's first model is the one that others are compared with",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="where a page of all of it goes, replies included")
    parser.add_argument(
        "--replies",
        type=int,
        default=MOST_REPLIES,
        metavar="N",
        help="about how many replies the page holds (default: %(default)s)",
    )
    parser.add_argument(
        "--plain", action="store_true", help="leave replies unpacked, for browsers older than May 2023"
    )


def run(args: argparse.Namespace) -> None:
    """
    Prints the table, and writes the page.

    Raises:
        ValueError: If a file is not what it should be, two hold the same, or a task cannot step through a reply.
    """
    from trl_spiral.cli.options import at_least_one
    from trl_spiral.evaluation.problems.comparison import asked_differently, compare_scores, comparison_table
    from trl_spiral.evaluation.problems.tasks import read_scores
    from trl_spiral.report.comparison import render_comparison
    from trl_spiral.tasks import task_names

    at_least_one("--replies", args.replies)
    rows = [row for path in args.scores for row in read_scores(path)]
    if not rows:
        raise ValueError(f"There is no reply in {', '.join(args.scores)}: nothing can be compared.")
    standings = compare_scores(rows)
    echo("\n".join([comparison_table(standings), *asked_differently(rows)]))
    if args.html is None:
        return
    page = render_comparison(standings, rows, args.replies, args.plain)
    args.html.parent.mkdir(parents=True, exist_ok=True)
    write_text(args.html, page)
    echo(f"\n{one_line(str(args.html))}: {len(page.encode()) / 1e6:.1f} MB")
    for task in sorted({row.task for row in rows} - set(task_names())):
        echo(
            f"No task called {task!r} is registered, so its replies have no steps there. Name its module by --import."
        )
