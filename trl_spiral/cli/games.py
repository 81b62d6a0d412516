"""`trl-spiral games [TEXT]`: all games that can be played, by name."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from trl_spiral.cli.command import Command
from trl_spiral.text.printable import echo, one_line


_PIPED_WIDTH = 170  # characters: the longest lines, if the output is not a terminal


class GamesCommand(Command):
    """Lists the games. It plays none, and loads neither TextArena nor torch."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("text", nargs="?", default="", help="list only games with this text in name, kind or note")
        parser.add_argument("--json", action="store_true", help="write a list of objects instead of a table")

    def run(self, args: argparse.Namespace) -> None:
        from trl_spiral.games.textarena import list_games

        games = list_games(args.text)
        if not games:
            raise ValueError(
                f"No game's name, kind or note contains {args.text!r}. `trl-spiral games` lists all games."
            )
        if args.json:
            echo(json.dumps([asdict(game) for game in games], indent=1))
            return

        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
        table = Table("game", "seats", "kind", "legal moves", "note", box=None)
        for game in games:
            cells = (game.name, str(game.seats), game.kind, game.legal_moves, game.note)
            table.add_row(*(Text(one_line(text)) for text in cells))
        console.print(table)
        console.print(f"{len(games)} games.")
