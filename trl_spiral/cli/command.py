"""Base class of the commands of `trl-spiral`."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod


class Command(ABC):
    """
    One command of `trl-spiral`.

    The command `eval-math` is the class `EvalMathCommand` of the module `eval_math`, which is imported only when the
    command is used. Heavy imports such as torch belong in `run`, so that `--help` is fast.
    """

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command to its parser."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> None:
        """
        Run the command.

        Raises:
            ValueError, OSError, ImportError, CannotContain: If the command refuses its input. The command line prints
                the message and exits with status 2.
        """
