"""Base class of the package's own games: each seat reads its own list of messages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from trl_spiral.games.base import Game, Match
from trl_spiral.text.replies import MAX_MOVE
from trl_spiral.types import Ending, Observation


class DialogueMatch(Match):
    """
    A match that stores the messages of each seat.

    A legal move is sent to all seats in its canonical form. An illegal move ends the match and is sent to no seat.

    Attributes of subclasses must be immutable values (numbers, strings, tuples). A deep copy then copies references
    only, so that a game tree is searched in a few microseconds per position.

    Args:
        game ([`~games.Game`]):
            The rules.
        rules (`Sequence[str]`):
            First message of each seat.
        first (`int`, defaults to `0`):
            Seat that moves first.

    Attributes:
        seat (`int`):
            Seat to move, set by `play`. After the end of the match, the seat that moved last.
    """

    def __init__(self, game: Game, rules: Sequence[str], first: int = 0) -> None:
        self.game = game
        self.seat = first
        self._returns = (0.0,) * game.traits.seats
        self._messages: tuple[tuple[str, ...], ...] = tuple((text,) for text in rules)
        self._first_new = (0,) * game.traits.seats  # index of the first message after the seat's last move

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

    def messages(self, seat: int) -> tuple[str, ...]:
        """Return all messages of `seat`, the rules first. `observe` adds the legal moves."""
        return self._messages[seat]

    def observe(self, seat: int) -> Observation:
        legal = self.legal_actions() if seat == self.to_move else None
        prompt = (self.legal_moves_message(legal),) if legal else ()
        messages = self._messages[seat]
        return Observation(
            game=self.game.name,
            seat=seat,
            messages=({"role": "user", "content": "\n".join(messages + prompt)},),
            update="\n".join(messages[self._first_new[seat] :] + prompt),
            legal_actions=legal,
        )

    def legal_moves_message(self, legal: tuple[str, ...]) -> str:
        """Return the last line of an observation, which lists the legal moves."""
        return f"Your legal moves: {', '.join(map(repr, legal))}"

    def apply(self, action: str) -> str | None:
        if self.ending is not None:
            raise ValueError(f"This match of {self.game.name} has ended ({self.ending}). Start a new one.")
        seat = self.seat
        # Most moves are written as listed and need no parsing.
        if (move := action) not in (self.legal_actions() or ()):
            parsed = self.game.canonical(action)
            if parsed is None or not self.is_legal(parsed):
                self.ending, self.offender, self.detail = Ending.ILLEGAL_MOVE, seat, parsed or "no readable move"
                return None
            move = parsed
        self.send(f"Player {seat}: {move}")
        self._first_new = tuple(
            len(messages) if other == seat else first
            for other, (messages, first) in enumerate(zip(self._messages, self._first_new, strict=True))
        )
        self.play(seat, move)
        return move

    @abstractmethod
    def play(self, seat: int, move: str) -> None:
        """Play a legal move, which all seats have received: set the next seat, or finish the match."""

    def is_legal(self, move: str) -> bool:
        """Return whether a canonical move is legal now."""
        return move in (self.legal_actions() or ())

    def send(self, message: str, seat: int | None = None) -> None:
        """Send a message to `seat`, or to all seats by default."""
        self._messages = tuple(
            (*messages, message) if seat is None or seat == other else messages
            for other, messages in enumerate(self._messages)
        )

    def finish(self, returns: Sequence[float]) -> None:
        """End the match by its rules, with the return of each seat."""
        self._returns = tuple(map(float, returns))
        self.ending = Ending.FINISHED


def normalize_move(action: str) -> str:
    """
    Return a move in lower case, without its brackets and extra whitespace.

    The result is empty, which is no legal move, if the text is longer than any move or contains non-ASCII characters:
    `int` and `str.lower` accept some of them.
    """
    move = action.strip() if len(action) <= MAX_MOVE else ""
    if move.startswith("[") and move.endswith("]"):
        move = move[1:-1]
    return " ".join(move.lower().split()) if move.isascii() else ""
