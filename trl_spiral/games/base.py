"""Interface of games and matches, and the registry of games by name."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trl_spiral.types import Ending, Observation


@dataclass(frozen=True, slots=True)
class Traits:
    """
    Properties of a game. A conformance test checks them for every registered game.

    Attributes:
        seats (`int`, defaults to `2`):
            Number of seats. A game of one seat is a puzzle: its return is 1 if it is solved, and less otherwise.
        zero_sum (`bool`, defaults to `True`):
            Whether the returns of a finished game sum to zero.
        stochastic (`bool`, defaults to `False`):
            Whether the game has chance events: dice, deals or hidden choices of the environment.
        perfect_information (`bool`, defaults to `True`):
            Whether every seat observes the whole state.
        free_text (`bool`, defaults to `False`):
            Whether moves contain text and cannot be listed.
        lowest (`float`, defaults to `-1.0`):
            Lowest return of a seat by the rules. A forfeit costs at least as much.
    """

    seats: int = 2
    zero_sum: bool = True
    stochastic: bool = False
    perfect_information: bool = True
    free_text: bool = False
    lowest: float = -1.0


class Match(ABC):
    """
    One match of a game, from the first move to the outcome.

    An illegal move is data, not an exception: `apply` ends the match with `Ending.ILLEGAL_MOVE`, and the referee
    assigns its cost. An ended match does not change.
    """

    ending: Ending | None = None
    """Why the match ended; `None` before its end."""
    offender: int | None = None
    """Seat that ended the match by an illegal move."""
    detail: str = ""
    """Human-readable reason or error."""

    @property
    @abstractmethod
    def to_move(self) -> int | None:
        """Seat to move; `None` once the match has ended."""

    @abstractmethod
    def observe(self, seat: int) -> Observation:
        """Return the current observation of `seat`."""

    @abstractmethod
    def legal_actions(self) -> tuple[str, ...] | None:
        """Return the canonical legal moves of the seat to move, or `None` if they cannot be listed."""

    @abstractmethod
    def apply(self, action: str) -> str | None:
        """
        Play `action` for the seat to move.

        Returns:
            `str` or `None`: The move in canonical form, or `None` if it was illegal.
        """

    @property
    @abstractmethod
    def returns(self) -> tuple[float, ...]:
        """Payoff per seat by the rules; zeros before the end of the match."""

    def forfeited(self, offender: int, returns: tuple[float, ...]) -> tuple[float, ...]:
        """Return the payoff per seat after a forfeit of `offender`; `returns` is the referee's default."""
        del offender
        return returns


class Game(ABC):
    """The rules of a game: starts matches and parses moves."""

    name: str
    traits: Traits

    def check(self) -> None:  # noqa: B027, most games can be played anywhere
        """
        Check that the game can be played on this machine, before any expensive work.

        Raises:
            RuntimeError: If it cannot.
        """

    @abstractmethod
    def start(self, seed: int) -> Match:
        """Start a match. Equal seeds and moves give equal matches, independent of concurrent matches."""

    @abstractmethod
    def canonical(self, action: str) -> str | None:
        """Return the canonical form of a move, or `None` if it cannot be parsed."""

    @property
    def atoms(self) -> str:
        """Regular expression for the parts of texts that a tokenizer should not merge: cells, cards, moves."""
        return r"\[[^\[\]\n]{1,16}\]"


class Dealt(Game):
    """
    A game whose only chance event is one deal before the first move, so that it can be solved by enumeration.

    `copy.deepcopy` of a match works at any move. The game tree is searched with it.
    """

    @abstractmethod
    def deals(self) -> tuple[Any, ...]:
        """Return all deals, which are equally likely."""

    @abstractmethod
    def deal(self, deal: Any) -> Match:
        """Start a match from one of `deals()`."""

    @abstractmethod
    def information_state(self, observation: Observation) -> str:
        """
        Return the information state of the seat to move: equal for positions that the seat cannot distinguish.

        The format is OpenSpiel's for games that OpenSpiel has.
        """


_REGISTRY: dict[str, Callable[[], Game]] = {}
_GAMES: dict[str, Game] = {}
_UNSUPPORTED: dict[str, str] = {}


def register_game(name: str, factory: Callable[[], Game]) -> None:
    """
    Register a game under `name`.

    Args:
        name (`str`):
            Name of the game in configurations and commands.
        factory (`Callable[[], Game]`):
            Makes the game. Called once, when the game is first used, so that registering is cheap.

    Raises:
        ValueError: If the name is taken.
    """
    if name in _REGISTRY:
        raise ValueError(f"A game called {name!r} is registered already. Choose another name.")
    _REGISTRY[name] = factory


def register_unsupported(name: str, reason: str) -> None:
    """Register the reason, a clause for the message of [`check_game`], why a known game cannot be played."""
    _UNSUPPORTED[name] = reason


def get_game(name: str) -> Game:
    """
    Return the registered game called `name`.

    Raises:
        ValueError: If there is none. See [`check_game`].
    """
    check_game(name)
    if name not in _GAMES:
        _GAMES[name] = _REGISTRY[name]()
    return _GAMES[name]


def check_game(name: str) -> None:
    """
    Check that a game called `name` is registered, without loading it.

    Raises:
        ValueError: If there is none. The message gives the reason for a known game that cannot be played, and the
            closest names of playable games otherwise.
    """
    if name in _REGISTRY:
        return
    if name in _UNSUPPORTED:
        raise ValueError(
            f"{name!r} cannot be played: {_UNSUPPORTED[name]}. `trl-spiral games` lists the games that can."
        )
    folded = {known.casefold(): known for known in _REGISTRY}
    close = [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)]
    hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else "`trl-spiral games` lists them all."
    raise ValueError(f"There is no game called {name!r}. {hint}")


def game_names() -> list[str]:
    """Return the names of all registered games, sorted."""
    return sorted(_REGISTRY)
