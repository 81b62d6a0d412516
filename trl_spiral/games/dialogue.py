"""What our own engines share: seats are told what happens line by line, and only canonical moves are ever told."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from trl_spiral.games.base import Game, Match
from trl_spiral.types import Ending, Observation


_MAX_ACTION = 512


class ToldMatch(Match):
    """
    A match that keeps, for each seat, the lines that it may read.

    Whatever a subclass adds must be kept in values that never change (numbers, texts, tuples), so that a copy of the match
    is no more than a copy of its references: a game tree is then walked at a few microseconds a position.

    Args:
        game ([`~games.Game`]):
            Its rules.
        rules (`Sequence[str]`):
            What each seat reads first.
        first (`int`, defaults to `0`):
            The seat that moves first.

    Attributes:
        seat (`int`):
            The seat to move, which `play` names; the last one to have moved once the match has ended.
    """

    def __init__(self, game: Game, rules: Sequence[str], first: int = 0) -> None:
        self.game = game
        self.seat = first
        self._returns = (0.0,) * game.traits.seats
        self._lines: tuple[tuple[str, ...], ...] = tuple((text,) for text in rules)
        self._since = (0,) * game.traits.seats

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    @property
    def to_move(self) -> int | None:
        return None if self.ending is not None else self.seat

    @property
    def returns(self) -> tuple[float, ...]:
        return self._returns

    def lines(self, seat: int) -> tuple[str, ...]:
        """All that `seat` has been told, the rules first; without the legal moves, which `observe` adds."""
        return self._lines[seat]

    def observe(self, seat: int) -> Observation:
        legal = self.legal_actions() if seat == self.to_move else None
        asked = (self.asked(legal),) if legal else ()
        lines = self._lines[seat]
        return Observation(
            game=self.game.name,
            seat=seat,
            messages=({"role": "user", "content": "\n".join(lines + asked)},),
            update="\n".join(lines[self._since[seat] :] + asked),
            legal_actions=legal,
        )

    def asked(self, legal: tuple[str, ...]) -> str:
        """The line that names the legal moves to the seat that is asked for one."""
        return f"Your legal moves: {', '.join(map(repr, legal))}"

    def apply(self, action: str) -> str | None:
        if self.ending is not None:
            raise ValueError(f"This match of {self.game.name} has ended ({self.ending}). Start a new one.")
        seat = self.seat
        # Most moves come as they are listed, and need not be read.
        if (move := action) not in (self.legal_actions() or ()):
            read = self.game.canonical(action)
            if read is None or not self.allows(read):
                self.ending, self.offender, self.detail = Ending.ILLEGAL_MOVE, seat, read or "no readable move"
                return None
            move = read
        self.tell(f"Player {seat}: {move}")
        self._since = tuple(
            len(lines) if other == seat else since
            for other, (lines, since) in enumerate(zip(self._lines, self._since, strict=True))
        )
        self.play(seat, move)
        return move

    @abstractmethod
    def play(self, seat: int, move: str) -> None:
        """Plays a legal move, which everybody has been told of: names the next seat, or finishes the match."""

    def allows(self, move: str) -> bool:
        """Whether a canonical move is legal now."""
        return move in (self.legal_actions() or ())

    def tell(self, line: str, seat: int | None = None) -> None:
        """A line that `seat` reads, or all seats where none is named."""
        self._lines = tuple(
            (*lines, line) if seat is None or seat == other else lines for other, lines in enumerate(self._lines)
        )

    def finish(self, returns: Sequence[float]) -> None:
        """Ends the match by its rules, with what each seat gets."""
        self._returns = tuple(map(float, returns))
        self.ending = Ending.FINISHED


def bare_move(action: str) -> str:
    """
    A move as a player may write it, without its brackets and spare room, in lower case.

    Empty, which is no move of any game, if it is longer than any move, or holds letters or digits of another script
    (`int` and `str.lower` would take some of them for ours).
    """
    move = action.strip() if len(action) <= _MAX_ACTION else ""
    if move.startswith("[") and move.endswith("]"):
        move = move[1:-1]
    return " ".join(move.lower().split()) if move.isascii() else ""
