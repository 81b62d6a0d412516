"""
Whole game trees, in sequence form: what exact answers about a small game of hidden information are computed from.

A sequence is a move at an information state, with all that its seat did before. From
[von Stengel, 1996](https://doi.org/10.1006/game.1996.0050): what a strategy does is how likely it makes each of its seat's
sequences, and what two strategies win is a sum over pairs of sequences. A tree is walked once; after that, a best response
is one pass over its ends.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from trl_spiral.games.base import Dealt, Match, get_game
from trl_spiral.types import Ending, Observation


Strategy = Callable[[str], Mapping[str, float]]
"""Probability of each legal move at an information state, in both seats; states are named as the game names them."""

MOST_DECISIONS = 1_000_000
"""Decisions of a tree, all deals together, beyond which it is not walked: that many take minutes."""

EMPTY = (0, 1)
"""Number of each seat's empty sequence: nothing done yet."""


@dataclass(frozen=True, slots=True)
class InformationState:
    """
    What a seat may know when it is to move.

    Attributes:
        name (`str`):
            As the game writes it.
        seat (`int`):
            Whose decision it is.
        observation ([`~types.Observation`]):
            What the seat sees: the same in every position that it cannot tell apart.
        moves (`tuple[str, ...]`):
            The legal ones.
        parent (`int`):
            Number of the sequence by which its seat came here.
        first (`int`):
            Number of the sequence that ends in the first of `moves`; those of the others follow.
    """

    name: str
    seat: int
    observation: Observation
    moves: tuple[str, ...]
    parent: int
    first: int

    @property
    def sequences(self) -> range:
        """Numbers of the sequences that end here, in the order of `moves`."""
        return range(self.first, self.first + len(self.moves))


@dataclass(frozen=True, slots=True)
class BestResponse:
    """
    What a perfect opponent does against a strategy.

    Attributes:
        seat (`int`):
            Where it sits.
        value (`float`):
            What it wins a game, on average.
        moves (`Mapping[str, str]`):
            Its move at each information state of its seat. Where the strategy never lets it come, the first one.
    """

    seat: int
    value: float
    moves: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GameTree:
    """
    A game of two seats, walked to every end.

    Strategies come in as tables: a probability for each sequence's last move, by the sequence's number.

    Attributes:
        game (`str`):
            Its name.
        states (`tuple[InformationState, ...]`):
            All of them; a seat's earlier decisions come before its later ones.
        size (`int`):
            How many sequences there are, the empty ones included.
        ends (`tuple[tuple[int, int, float], ...]`):
            The sequences of seat 0 and seat 1 that lead to an end together, and what seat 0 wins there times the
            probability of the deals that allow it. Ends of the same two sequences are added up.
        visits (`tuple[tuple[int, int, float], ...]`):
            Index of a state, the other seat's sequence by which the game comes to it, and the probability of the deals
            that allow it.
    """

    game: str
    states: tuple[InformationState, ...]
    size: int
    ends: tuple[tuple[int, int, float], ...]
    visits: tuple[tuple[int, int, float], ...]

    def table(self, strategy: Strategy) -> list[float]:
        """
        A strategy written out.

        Raises:
            ValueError: Unless it is a distribution over the legal moves at every information state.
        """
        table = [1.0] * self.size
        for state in self.states:
            given = strategy(state.name)
            odds = [given.get(move, 0.0) for move in state.moves]
            # Never true of a NaN.
            if not (abs(math.fsum(odds) - 1.0) <= 1e-6 and min(odds) >= 0.0):
                raise ValueError(
                    f"At {state.name!r} in {self.game}, the legal moves have probabilities "
                    f"{dict(zip(state.moves, odds, strict=True))}, which must add up to 1. Share what a model spends on "
                    "illegal replies out among them first."
                )
            table[state.first : state.first + len(odds)] = odds
        return table

    def plan(self, table: Sequence[float]) -> list[float]:
        """How likely a seat's own moves make each of its sequences: its realisation plan."""
        plan = list(table)
        for state in self.states:
            for sequence in state.sequences:
                plan[sequence] *= plan[state.parent]
        return plan

    def reach(self, table: Sequence[float]) -> list[float]:
        """Probability that a game of the strategy against itself comes to each information state, in order."""
        plan = self.plan(table)
        reach = [0.0] * len(self.states)
        for state, other, chance in self.visits:
            reach[state] += chance * plan[other] * plan[self.states[state].parent]
        return reach

    def value(self, table: Sequence[float]) -> float:
        """What seat 0 wins a game, on average, when both seats play the strategy."""
        plan = self.plan(table)
        return math.fsum(plan[first] * plan[second] * won for first, second, won in self.ends)

    def best_responses(self, table: Sequence[float]) -> tuple[BestResponse, BestResponse]:
        """The best response of each seat while the other keeps to the strategy."""
        plan = self.plan(table)
        gains = [0.0] * self.size
        for own, other, won in self.ends:
            gains[own] += plan[other] * won
            gains[other] -= plan[own] * won
        moves: tuple[dict[str, str], dict[str, str]] = ({}, {})
        # From the last decisions back, so that what follows a move is counted before the move is chosen.
        for state in reversed(self.states):
            best = max(state.sequences, key=gains.__getitem__)
            gains[state.parent] += gains[best]
            moves[state.seat][state.name] = state.moves[best - state.first]
        first, second = (
            BestResponse(seat, gains[EMPTY[seat]], dict(reversed(moves[seat].items()))) for seat in (0, 1)
        )
        return first, second

    def average(self, tables: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
        """The table that plays like a player who draws one of `tables` by `weights` before each game and keeps to it."""
        plans = [self.plan(table) for table in tables]
        average = [1.0] * self.size
        for state in self.states:
            reach = [weight * plan[state.parent] for weight, plan in zip(weights, plans, strict=True)]
            # Where no strategy ever comes, it makes no difference what is done there.
            shares = reach if math.fsum(reach) > _LEAST_REACH else weights
            total = math.fsum(shares)
            for sequence in state.sequences:
                drawn = zip(shares, tables, strict=True)
                average[sequence] = math.fsum(share * table[sequence] for share, table in drawn) / total
        return average

    def strategy(self, table: Sequence[float]) -> Strategy:
        """A table as a strategy."""
        written = {
            state.name: {move: table[state.first + place] for place, move in enumerate(state.moves)}
            for state in self.states
        }
        return written.__getitem__


_LEAST_REACH = 1e-12


@cache
def game_tree(game: str | Dealt) -> GameTree:
    """
    The tree of a game, walked when it is first asked for.

    Args:
        game (`str` or [`~games.Dealt`]):
            A game of two seats whose chance is one deal, or its name.

    Raises:
        ValueError: If the game is not one of those, is too large, or its information states tell too little: positions
            that share one must look the same and come after the same own moves.
    """
    found = get_game(game) if isinstance(game, str) else game
    if not isinstance(found, Dealt) or found.traits.seats != 2 or not found.traits.zero_sum:
        raise ValueError(
            f"{found.name} cannot be graded by its exploitability: only zero-sum games of two seats whose every deal can "
            "be played (`games.Dealt`) can. Play matches instead."
        )
    return _Walk(found).tree()


class _Walk:
    """One walk over every deal of a game."""

    def __init__(self, game: Dealt) -> None:
        self.game = game
        self.states: dict[str, int] = {}
        self.found: list[InformationState] = []
        self.size = len(EMPTY)
        self.ends: dict[tuple[int, int], float] = {}
        self.visits: dict[tuple[int, int], float] = {}
        self.decisions = 0

    def tree(self) -> GameTree:
        deals = self.game.deals()
        for deal in deals:
            self.decisions = 0
            self._walk(self.game.deal(deal), EMPTY, 1.0 / len(deals), MOST_DECISIONS // len(deals))
        return GameTree(
            self.game.name,
            tuple(self.found),
            self.size,
            tuple((first, second, won) for (first, second), won in self.ends.items()),
            tuple((state, other, chance) for (state, other), chance in self.visits.items()),
        )

    def _walk(self, match: Match, past: tuple[int, int], chance: float, most: int) -> None:
        seat = match.to_move
        if seat is None:
            first, second = match.returns
            if match.ending is not Ending.FINISHED or not math.isclose(first, -second, abs_tol=1e-9):
                raise ValueError(
                    f"A game of {self.game.name} ended ({match.ending}) with returns {match.returns}. Legal moves must "
                    "lead to returns that add up to 0."
                )
            self.ends[past] = self.ends.get(past, 0.0) + chance * first
            return
        self.decisions += 1
        if self.decisions > most:
            raise ValueError(
                f"{self.game.name} is too large to be graded by its exploitability: one deal alone has more than {most} "
                "decisions. Play matches instead, or a smaller variant."
            )
        index = self._state(match, seat, past[seat])
        state = self.found[index]
        met = index, past[1 - seat]
        self.visits[met] = self.visits.get(met, 0.0) + chance
        for move, sequence in zip(state.moves, state.sequences, strict=True):
            # Nobody needs the position itself any more once its last move is taken.
            after = match if move == state.moves[-1] else copy.deepcopy(match)
            after.apply(move)
            self._walk(after, (sequence, past[1]) if seat == 0 else (past[0], sequence), chance, most)

    def _state(self, match: Match, seat: int, parent: int) -> int:
        """Index of the information state that a match is at, which is noted if it is new."""
        observation, moves = match.observe(seat), match.legal_actions()
        if not moves:
            raise ValueError(f"{self.game.name} cannot list its legal moves, so its tree cannot be walked.")
        name = self.game.information_state(observation)
        index = self.states.setdefault(name, len(self.found))
        if index == len(self.found):
            self.found.append(InformationState(name, seat, observation, moves, parent, self.size))
            self.size += len(moves)
        known = self.found[index]
        if (known.seat, known.moves, known.parent) != (seat, moves, parent):
            raise ValueError(
                f"Two positions of {self.game.name} share the information state {name!r}, yet differ in who moves, in the "
                "legal moves, or in what the seat did before. `information_state` must tell all that the seat knows."
            )
        if known.observation.messages != observation.messages:
            raise ValueError(
                f"Two positions of {self.game.name} share the information state {name!r}, yet look different to seat "
                f"{seat}. Either the observation shows what is hidden, or `information_state` tells too little."
            )
        return index
