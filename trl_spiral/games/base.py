"""What a game is: rules, seats, and what may be assumed of it."""

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
    What may be assumed of a game. A conformance test holds every registered game to its traits.

    Attributes:
        seats (`int`, defaults to `2`):
            Number of seats. A game of one seat is a puzzle: it returns 1 where it is solved, and less where it is not.
        zero_sum (`bool`, defaults to `True`):
            Whether the returns of a finished game add up to zero.
        stochastic (`bool`, defaults to `False`):
            Whether dice, deals or hidden choices of the environment matter.
        perfect_information (`bool`, defaults to `True`):
            Whether every seat sees the whole state.
        free_text (`bool`, defaults to `False`):
            Whether moves carry text that cannot be listed.
        lowest (`float`, defaults to `-1.0`):
            The worst return that the rules can give a seat. A forfeit costs no less.
    """

    seats: int = 2
    zero_sum: bool = True
    stochastic: bool = False
    perfect_information: bool = True
    free_text: bool = False
    lowest: float = -1.0


class Match(ABC):
    """
    One playing of a game, from the first move to the outcome.

    An illegal move is data, not an exception: `apply` ends the match with `Ending.ILLEGAL_MOVE` and leaves what that
    costs to the referee. Once ended, a match stays as it is.
    """

    ending: Ending | None = None
    """Why the match ended; `None` while it goes on."""
    offender: int | None = None
    """The seat that ended it by an illegal move."""
    detail: str = ""
    """For people: the environment's reason, or the error."""

    @property
    @abstractmethod
    def to_move(self) -> int | None:
        """Seat to move; `None` once the match has ended."""

    @abstractmethod
    def observe(self, seat: int) -> Observation:
        """What `seat` sees now."""

    @abstractmethod
    def legal_actions(self) -> tuple[str, ...] | None:
        """Canonical legal moves of the seat to move, or `None` where they cannot be listed."""

    @abstractmethod
    def apply(self, action: str) -> str | None:
        """
        Plays `action` for the seat to move.

        Returns:
            `str` or `None`: The move in canonical form, or `None` if it was illegal.
        """

    @property
    @abstractmethod
    def returns(self) -> tuple[float, ...]:
        """Payoff per seat, as the rules give it; zeros while the match goes on."""

    def forfeited(self, offender: int, returns: tuple[float, ...]) -> tuple[float, ...]:
        """Payoff per seat where a reply of `offender` held no legal move, which by the referee's lights is `returns`."""
        del offender
        return returns


class Game(ABC):
    """Rules by name: makes matches, and knows what its moves look like."""

    name: str
    traits: Traits

    def check(self) -> None:  # noqa: B027, most games can be played anywhere
        """
        To be called before anything expensive.

        Raises:
            RuntimeError: If it cannot be played on this machine.
        """

    @abstractmethod
    def start(self, seed: int) -> Match:
        """A fresh match. Same seed, same moves: same match, whatever else runs beside it."""

    @abstractmethod
    def canonical(self, action: str) -> str | None:
        """The canonical form of a move as a player may write it, or `None` if it cannot be read as one."""

    @property
    def atoms(self) -> str:
        """Regular expression for the parts of its texts that a tokenizer should never merge: cells, cards, moves."""
        return r"\[[^\[\]\n]{1,16}\]"


class Dealt(Game):
    """
    A game whose chance is one deal, made before the first move: every deal can be played, so it can be solved.

    Its matches can be copied by `copy.deepcopy` at any move, which is how a game tree is walked.
    """

    @abstractmethod
    def deals(self) -> tuple[Any, ...]:
        """Every deal, each as likely as any other."""

    @abstractmethod
    def deal(self, deal: Any) -> Match:
        """A match that starts from one of `deals()`."""

    @abstractmethod
    def information_state(self, observation: Observation) -> str:
        """
        All that the seat which is asked knows, as a short text: the same for positions that it cannot tell apart.

        Written as OpenSpiel writes it where OpenSpiel knows the game.
        """


_REGISTRY: dict[str, Callable[[], Game]] = {}
_GAMES: dict[str, Game] = {}


def register_game(name: str, factory: Callable[[], Game]) -> None:
    """
    Adds a game under `name`.

    Args:
        name (`str`):
            Name by which configurations and players call it.
        factory (`Callable[[], Game]`):
            Called once, when the game is first asked for, so that registering costs nothing.

    Raises:
        ValueError: If the name is taken.
    """
    if name in _REGISTRY:
        raise ValueError(f"A game called {name!r} is registered already. Choose another name.")
    _REGISTRY[name] = factory


def get_game(name: str) -> Game:
    """
    The registered game called `name`.

    Raises:
        ValueError: If there is none; the message lists the closest names.
    """
    check_game(name)
    if name not in _GAMES:
        _GAMES[name] = _REGISTRY[name]()
    return _GAMES[name]


def check_game(name: str) -> None:
    """Raises `ValueError`, naming the closest games, if no game is called `name`. Loads nothing."""
    if name in _REGISTRY:
        return
    folded = {known.casefold(): known for known in _REGISTRY}
    close = [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)]
    hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else "`trl-spiral games` lists them all."
    raise ValueError(f"There is no game called {name!r}. {hint}")


def game_names() -> list[str]:
    """Names of all registered games, sorted."""
    return sorted(_REGISTRY)
