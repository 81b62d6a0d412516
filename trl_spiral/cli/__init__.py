"""
The command line, `trl-spiral COMMAND …`.

Each command is a module of this package with two functions, `add_arguments(parser)` and `run(args)`, and is imported only
when it is called.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from trl_spiral import __version__
from trl_spiral.sandbox import CannotContain
from trl_spiral.text.printable import echo, reported


COMMANDS = {
    "games": "list the games: seats, kind, moves, and why one cannot run here",
    "eval": "play a model against any player, in every seat, with intervals",
    "tournament": "round robin among models, snapshots and scripted players",
    "play": "play against a model at the terminal",
    "report": "one self-contained HTML page of a run",
    "eval-math": "grade a model on math sets, from \\boxed{}",
    "eval-mbpp": "grade a model at MBPP or HumanEval, by running its programs",
    "eval-task": "grade a model at a task, and keep every reply",
    "compare": "models side by side at tasks, in numbers and reply by reply",
    "serve-sandbox": "run programs for trainers on other machines",
    "doctor": "show what this machine has and lacks, for training and for running programs",
}
"""Help of each command, by name. A dash in a name is an underscore in its module's."""


def main(argv: Sequence[str] | None = None) -> int:
    """
    Runs one command.

    Args:
        argv (`Sequence[str]`, *optional*):
            Arguments; the process's own by default.

    Returns:
        `int`: Exit status: 0, or 2 after input that a command refused in one sentence on stderr.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser("trl-spiral", description="Self-play for language models on TRL.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    chosen = argv[0] if argv and argv[0] in COMMANDS else None
    for name, summary in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if name == chosen:
            module = import_module(f"trl_spiral.cli.{name.replace('-', '_')}")
            module.add_arguments(subparser)
        subparser.add_argument(
            "--import",
            dest="modules",
            action="append",
            default=[],
            metavar="MODULE",
            help="import a module first, which registers games or tasks of your own; may be repeated",
        )
    args = parser.parse_args(argv)
    try:
        _import(args.modules)
        module.run(args)
    except BrokenPipeError:  # `trl-spiral games | head`
        sys.stderr.close()
    except (ValueError, OSError, ImportError, CannotContain) as error:
        echo(f"trl-spiral {args.command}: {reported(error)}", sys.stderr)
        return 2
    return 0


def _import(modules: Sequence[str]) -> None:
    if modules:
        sys.path.insert(0, "")  # a module that lies in the working folder, as `python -m` would find it
    for name in modules:
        try:
            import_module(name)
        except Exception as error:
            raise ValueError(f"`--import` ({name}) failed: {_why(name, error)}") from error


def _why(name: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        if f"{name}.".startswith(f"{error.name}."):
            return f"{error}. Name a module that Python finds."
        return f"it imports {error.name}, which is missing. Install that."
    return f"{type(error).__name__}: {error}"
