"""A seat filled by a person at the terminal."""

from __future__ import annotations

import sys
from typing import TextIO

from trl_spiral.prompts import extract_move
from trl_spiral.types import Observation, Reply, Request, Turn


class HumanPlayer:
    r"""
    Shows a person what its seat sees, and reads the moves that they type: `[4]`, `4` or `\boxed{[4]}`.

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
            self._show("Your move: ")
            if not (typed := self._lines.readline()):
                self._show("\n")
                return Turn(action=None, lost=True)
            typed = typed.strip()
            if (move := _read(typed, legal)) is not None:
                return Turn(action=move, text=typed)
            self._show(f"{typed!r} is none of the legal moves.\n" if typed else "Type a move, or Ctrl-D to leave.\n")
        self._show("That was the last try: this seat forfeits.\n")
        return Turn(action=None, text=typed)

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        """Never called: a person asks nothing of an engine."""
        raise AssertionError(f"{self.name} asked for no reply")

    def _show(self, text: str) -> None:
        show(text, self._screen)


def show(text: str, screen: TextIO) -> None:
    """Writes what a model may have written in part, and which must not get at the terminal: no control sequences."""
    screen.write("".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text))
    screen.flush()


def _text(observation: Observation) -> str:
    return "\n\n".join(message["content"] for message in observation.messages)


def _read(typed: str, legal: tuple[str, ...] | None) -> str | None:
    """The legal move that is meant, brackets or not; where moves cannot be listed, whatever was typed."""
    move = extract_move(typed)
    if move is None or legal is None:
        return move
    return next((known for known in legal if move in (known, known.strip("[]"))), None)
