"""A person at the terminal as a player."""

from __future__ import annotations

import sys
from typing import TextIO

from trl_spiral.text.printable import echo
from trl_spiral.text.replies import read_move
from trl_spiral.types import Observation, Reply, Request, Turn


_ASK_PROGRAM = "Your move, then a line with a single dot (.):\n"
_NO_PROGRAM = "A move is a ```python block with a \\boxed{} below it.\n"


class HumanPlayer:
    r"""
    Player that prints observations and reads typed moves: `[4]`, `4` or `\boxed{[4]}`.

    A program has several lines, and ends with a line that contains only a dot. At the end of the input (Ctrl-D), the
    player is lost, and the game ends without a result. Play with `in_flight=1`, or the output of several games mixes.

    Args:
        name (`str`, defaults to `"human"`):
            Name in tables and transcripts.
        max_tries (`int`, defaults to `5`):
            Attempts to type a legal move before the seat forfeits.
        lines, screen (`TextIO`, *optional*):
            Input and output. Default: the terminal.
    """

    def __init__(
        self, name: str = "human", max_tries: int = 5, lines: TextIO | None = None, screen: TextIO | None = None
    ) -> None:
        self.name = name
        self.max_tries = max_tries
        self._lines = lines or sys.stdin
        self._screen = screen or sys.stdout

    def ask(self, observation: Observation) -> Turn | Request:
        """Return the turn that the person types."""
        legal = observation.legal_actions
        news = observation.update if observation.turns else ""
        self._show(f"\n{observation.game}, seat {observation.seat}\n{news or _text(observation)}\n")
        if legal is not None:
            self._show(f"Legal moves: {' '.join(legal)}\n")
        typed = ""
        for _ in range(self.max_tries):
            self._show(_ASK_PROGRAM if observation.asks_program else "Your move: ")
            if (line := self._typed(observation.asks_program)) is None:
                self._show("\n")
                return Turn(action=None, lost=True)
            typed = line
            if (move := _read(observation, typed)) is not None:
                return Turn(action=move, text=typed)
            wrong = _NO_PROGRAM if observation.asks_program else f"{typed!r} is not a legal move.\n"
            self._show(wrong if typed else "Type a move, or Ctrl-D to leave.\n")
        self._show("That was the last try: this seat forfeits.\n")
        return Turn(action=None, text=typed)

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        """Never called: `ask` makes no requests."""
        raise AssertionError(f"{self.name} made no request")

    def _typed(self, is_program: bool) -> str | None:
        """Read a line, or the lines of a program before a single dot. Return `None` if the input ends first."""
        lines: list[str] = []
        while line := self._lines.readline():
            if not is_program:
                return line.strip()
            if line.strip() == ".":
                return "".join(lines).strip()
            lines.append(line)
        return None

    def _show(self, text: str) -> None:
        echo(text, self._screen, end="")


def _text(observation: Observation) -> str:
    return "\n\n".join(message["content"] for message in observation.messages)


def _read(observation: Observation, typed: str) -> str | None:
    """Return the legal move in a line, with or without brackets. Any move is legal if moves cannot be listed."""
    move, legal = read_move(observation, typed), observation.legal_actions
    if move is None or legal is None:
        return move
    return next((known for known in legal if move in (known, known.strip("[]"))), None)
