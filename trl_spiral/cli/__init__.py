"""The command line, `trl-spiral COMMAND …`. Each command is a module of this package; see [`~cli.command.Command`]."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from trl_spiral import __version__
from trl_spiral.cli.command import Command
from trl_spiral.extras import explain_missing
from trl_spiral.sandbox import CannotContain
from trl_spiral.text.printable import echo, reported


COMMANDS = {
    "games": "list the games: seats, kind, legal moves, notes",
    "eval": "evaluate a model against any players, in every seat, with intervals",
    "tournament": "play a round robin among models, snapshots and scripted players",
    "play": "play against a model in the terminal",
    "report": "write one self-contained HTML page of a run",
    "eval-math": "grade a model on math sets, from \\boxed{}",
    "eval-mbpp": "grade a model on MBPP or HumanEval, by running its programs",
    "eval-task": "grade a model on a task, and keep every reply",
    "compare": "compare models on tasks, in numbers and reply by reply",
    "doctor": "show what this machine has for training and for running programs",
}
"""Help of each command by name."""


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command.

    Args:
        argv (`Sequence[str]`, *optional*):
            Arguments. Default: those of the process.

    Returns:
        `int`: Exit status: 0, or 2 if the command refused its input with one sentence on stderr.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser("trl-spiral", description="Self-play for language models on TRL.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    command: Command | None = None
    for name, summary in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if argv[:1] == [name]:
            command = _load(name)
            command.add_arguments(subparser)
        subparser.add_argument(
            "--import",
            dest="modules",
            action="append",
            default=[],
            metavar="MODULE",
            help="import a module that registers games or tasks of your own; may be repeated",
        )
    args = parser.parse_args(argv)
    assert command is not None, "argparse has refused other names"
    try:
        _import(args.modules)
        command.run(args)
    except BrokenPipeError:  # `trl-spiral games | head`
        sys.stderr.close()
    except (ValueError, OSError, ImportError, CannotContain) as error:
        echo(f"trl-spiral {args.command}: {explain_missing(error) or reported(error)}", sys.stderr)
        return 2
    return 0


def _load(name: str) -> Command:
    """Import the module of a command."""
    module = import_module(f"trl_spiral.cli.{name.replace('-', '_')}")
    made: Command = getattr(module, f"{name.title().replace('-', '')}Command")()
    return made


def _import(modules: Sequence[str]) -> None:
    if modules:
        sys.path.insert(0, "")  # the working directory, as in `python -m`
    for name in modules:
        try:
            import_module(name)
        except Exception as error:
            raise ValueError(f"`--import` ({name}) failed: {_reason(name, error)}") from error


def _reason(name: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        if f"{name}.".startswith(f"{error.name}."):
            return f"{error}. Name a module on Python's path."
        return f"it imports {error.name}, which is not installed. Install it."
    return f"{type(error).__name__}: {error}"
