"""`trl-spiral report`: one self-contained HTML page of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from trl_spiral.cli.command import Command
from trl_spiral.cli.options import at_least_one
from trl_spiral.files import write_text
from trl_spiral.text.printable import echo, one_line


class ReportCommand(Command):
    """Writes the report of a run."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("run", metavar="RUN", help="output folder of a training run")
        parser.add_argument(
            "--output", metavar="FILE", help="file of the page (default: report.html in the folder of the run)"
        )
        parser.add_argument(
            "--games", type=int, default=5000, metavar="N", help="most games in the page (default: %(default)s)"
        )
        parser.add_argument(
            "--plain", action="store_true", help="do not compress games, for browsers older than May 2023"
        )

    def run(self, args: argparse.Namespace) -> None:
        from trl_spiral.report import read_run, render

        at_least_one("--games", args.games)
        found = read_run(args.run, args.games)
        page = render(found, found.warnings, args.plain)
        output = Path(args.output or Path(args.run) / "report.html")
        write_text(output, page)
        size = len(page.encode()) / 1e6
        echo(one_line(f"{output}: {size:.1f} MB, {len(found.games)} of {found.games_kept} recorded games"))
