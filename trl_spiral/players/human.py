"""A seat filled by a person at the terminal."""

from __future__ import annotations

import sys
from typing import TextIO

from trl_spiral.text.printable import echo
from trl_spiral.text.replies import read_move
from trl_spiral.types import Observation, Reply, Request, Turn


_ASK_PROGRAM = "Your move, and a line with a dot (.) alone below it:\n"
_NO_PROGRAM = "That holds no ```python block with a \\boxed{} below it.\n"


class HumanPlayer:
    r"""
    Shows a person what its seat sees, and reads the moves that they type: `[4]`, `4` or `\boxed{[4]}`. A program is typed
    over several lines, and ends with a line that is a dot alone.

    Whoever ends the input (Ctrl-D) has left, and the game ends without a result. Play with `in_flight=1`, or several games
    talk at once.

    Args:
        name (`str`, defaults to `"human"`):
            For tables and transcripts.
        max_tries (`int`, defaults to `5`):
            How often a person may type something illegal before the seat forfeits.
        lines, screen (`TextIO`, *optional*):
            Where moves are read and what is shown is written; the terminal by default.
    """

    def __init__(
        self, name: str = "human", max_tries: int = 5, lines: TextIO | None = None, screen: TextIO | None = None
    ) -> None:
        self.name = name
        self.max_tries = max_tries
        self._lines = lines or sys.stdin
        self._screen = screen or sys.stdout

    def ask(self, observation: Observation) -> Turn | Request:
        """The turn that a person takes."""
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
            wrong = _NO_PROGRAM if observation.asks_program else f"{typed!r} is none of the legal moves.\n"
            self._show(wrong if typed else "Type a move, or Ctrl-D to leave.\n")
        self._show("That was the last try: this seat forfeits.\n")
        return Turn(action=None, text=typed)

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        """Never called: a person asks nothing of an engine."""
        raise AssertionError(f"{self.name} asked for no reply")

    def _typed(self, is_program: bool) -> str | None:
        """What a person types, a line or those before a lone dot; `None` if the input ends first."""
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
    """The legal move that is meant, brackets or not; where moves cannot be listed, whatever was typed."""
    move, legal = read_move(observation, typed), observation.legal_actions
    if move is None or legal is None:
        return move
    return next((known for known in legal if move in (known, known.strip("[]"))), None)
