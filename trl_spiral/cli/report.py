"""`trl-spiral report`: one self-contained HTML page of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from trl_spiral.files import write_text
from trl_spiral.text.printable import echo, one_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="output folder of a training run")
    parser.add_argument(
        "--output", metavar="FILE", help="where the page goes; report.html in the run's folder by default"
    )
    parser.add_argument("--games", type=int, default=5000, metavar="N", help="most games in the page, default 5000")
    parser.add_argument("--plain", action="store_true", help="leave games unpacked, for browsers older than May 2023")


def run(args: argparse.Namespace) -> None:
    from trl_spiral.report import read_run, render

    if args.games < 1:
        raise ValueError(f"--games ({args.games}) must be at least 1: a page without games needs none kept.")
    found = read_run(args.run, args.games)
    page = render(found, found.warnings, args.plain)
    output = Path(args.output or Path(args.run) / "report.html")
    write_text(output, page)
    size = len(page.encode()) / 1e6
    echo(one_line(f"{output}: {size:.1f} MB, {len(found.games)} games of {found.games_kept} kept"))
