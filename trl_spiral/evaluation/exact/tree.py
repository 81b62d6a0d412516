"""
Complete game trees in sequence form, for exact computations in small games with hidden information.

A sequence is a move at an information state together with all earlier moves of its seat. From [von Stengel,
1996](https://doi.org/10.1006/game.1996.0050): a strategy is the probability of each sequence of its seat, and the
value of two strategies is a sum over pairs of sequences. A tree is walked once; after that, a best response takes one
pass over its ends.
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
"""Probability of each legal move at an information state, by the game's name of the state. Covers both seats."""

MOST_DECISIONS = 1_000_000
"""Maximum number of decisions of a tree over all deals. That many take minutes."""

EMPTY = (0, 1)
"""Index of each seat's empty sequence, before its first move."""


@dataclass(frozen=True, slots=True)
class InformationState:
    """
    The knowledge of a seat at one of its decisions.

    Attributes:
        name (`str`):
            The game's name of the state.
        seat (`int`):
            The seat to move.
        observation ([`~types.Observation`]):
            Observation of the seat, equal in all positions of the state.
        moves (`tuple[str, ...]`):
            The legal moves.
        parent (`int`):
            Index of the seat's sequence that leads here.
        first (`int`):
            Index of the sequence that ends in the first of `moves`; those of the other moves follow.
    """

    name: str
    seat: int
    observation: Observation
    moves: tuple[str, ...]
    parent: int
    first: int

    @property
    def sequences(self) -> range:
        """Indices of the sequences that end here, in the order of `moves`."""
        return range(self.first, self.first + len(self.moves))


@dataclass(frozen=True, slots=True)
class BestResponse:
    """
    A best response to a strategy.

    Attributes:
        seat (`int`):
            Its seat.
        value (`float`):
            Its mean return.
        moves (`Mapping[str, str]`):
            Its move at each information state of its seat; the first legal move if the strategy never allows the
            state.
    """

    seat: int
    value: float
    moves: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GameTree:
    """
    The complete tree of a game of two seats.

    A strategy is given as a table: the probability of the last move of each sequence, by the index of the sequence.

    Attributes:
        game (`str`):
            Name of the game.
        states (`tuple[InformationState, ...]`):
            All information states; earlier decisions of a seat come before its later ones.
        size (`int`):
            Number of sequences, including the empty ones.
        ends (`tuple[tuple[int, int, float], ...]`):
            Sequences of seat 0 and seat 1 that lead to an end, and the return of seat 0 there times the probability of
            the deals that allow it. Ends with the same two sequences are summed.
        visits (`tuple[tuple[int, int, float], ...]`):
            Index of a state, the other seat's sequence that leads to it, and the probability of the deals that allow
            it.
    """

    game: str
    states: tuple[InformationState, ...]
    size: int
    ends: tuple[tuple[int, int, float], ...]
    visits: tuple[tuple[int, int, float], ...]

    def table(self, strategy: Strategy) -> list[float]:
        """
        Return the table of a strategy.

        Raises:
            ValueError: If it is not a distribution over the legal moves at every information state.
        """
        table = [1.0] * self.size
        for state in self.states:
            given = strategy(state.name)
            odds = [given.get(move, 0.0) for move in state.moves]
            # False for NaN.
            if not (abs(math.fsum(odds) - 1.0) <= 1e-6 and min(odds) >= 0.0):
                raise ValueError(
                    f"At {state.name!r} in {self.game}, the legal moves have probabilities "
                    f"{dict(zip(state.moves, odds, strict=True))}, which must add up to 1. First distribute the "
                    "probability of illegal replies over them."
                )
            table[state.first : state.first + len(odds)] = odds
        return table

    def plan(self, table: Sequence[float]) -> list[float]:
        """Return the realization plan of a table: the probability of each sequence from the moves of its own seat."""
        plan = list(table)
        for state in self.states:
            for sequence in state.sequences:
                plan[sequence] *= plan[state.parent]
        return plan

    def reach(self, table: Sequence[float]) -> list[float]:
        """Return the probability of each information state when the strategy plays itself, in order."""
        plan = self.plan(table)
        reach = [0.0] * len(self.states)
        for state, other, chance in self.visits:
            reach[state] += chance * plan[other] * plan[self.states[state].parent]
        return reach

    def value(self, table: Sequence[float]) -> float:
        """Return the mean return of seat 0 when both seats play the strategy."""
        plan = self.plan(table)
        return math.fsum(plan[first] * plan[second] * won for first, second, won in self.ends)

    def best_responses(self, table: Sequence[float]) -> tuple[BestResponse, BestResponse]:
        """Return the best response of each seat while the other seat plays the strategy."""
        plan = self.plan(table)
        gains = [0.0] * self.size
        for own, other, won in self.ends:
            gains[own] += plan[other] * won
            gains[other] -= plan[own] * won
        moves: tuple[dict[str, str], dict[str, str]] = ({}, {})
        # Backward from the last decisions, so that the value of a move is complete before it is chosen.
        for state in reversed(self.states):
            best = max(state.sequences, key=gains.__getitem__)
            gains[state.parent] += gains[best]
            moves[state.seat][state.name] = state.moves[best - state.first]
        first, second = (
            BestResponse(seat, gains[EMPTY[seat]], dict(reversed(moves[seat].items()))) for seat in (0, 1)
        )
        return first, second

    def average(self, tables: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
        """Return the table that is equivalent to drawing one of `tables` by `weights` before each game."""
        plans = [self.plan(table) for table in tables]
        average = [1.0] * self.size
        for state in self.states:
            reach = [weight * plan[state.parent] for weight, plan in zip(weights, plans, strict=True)]
            # At states that no strategy reaches, the choice makes no difference.
            shares = reach if math.fsum(reach) > _LEAST_REACH else weights
            total = math.fsum(shares)
            for sequence in state.sequences:
                drawn = zip(shares, tables, strict=True)
                average[sequence] = math.fsum(share * table[sequence] for share, table in drawn) / total
        return average

    def strategy(self, table: Sequence[float]) -> Strategy:
        """Return the strategy of a table."""
        written = {
            state.name: {move: table[state.first + place] for place, move in enumerate(state.moves)}
            for state in self.states
        }
        return written.__getitem__


_LEAST_REACH = 1e-12


@cache
def game_tree(game: str | Dealt) -> GameTree:
    """
    Return the tree of a game. It is walked at the first call.

    Args:
        game (`str` or [`~games.Dealt`]):
            A zero-sum game of two seats whose only chance event is one deal, or its name.

    Raises:
        ValueError: If the game is of another kind or too large, or if its information states contain too little:
            positions of one state must look the same and follow the same own moves.
    """
    found = get_game(game) if isinstance(game, str) else game
    if not isinstance(found, Dealt) or found.traits.seats != 2 or not found.traits.zero_sum:
        raise ValueError(
            f"{found.name} cannot be graded by its exploitability: only zero-sum games of two seats that list their "
            "deals (`games.Dealt`) can. Play matches instead."
        )
    return _Walk(found).tree()


class _Walk:
    """One walk over all deals of a game."""

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
                    f"A game of {self.game.name} ended ({match.ending}) with returns {match.returns}. Legal moves "
                    "must lead to returns that add up to 0."
                )
            self.ends[past] = self.ends.get(past, 0.0) + chance * first
            return
        self.decisions += 1
        if self.decisions > most:
            raise ValueError(
                f"{self.game.name} is too large to be graded by its exploitability: one deal alone has more than "
                f"{most} decisions. Play matches instead, or use a smaller variant."
            )
        index = self._state(match, seat, past[seat])
        state = self.found[index]
        met = index, past[1 - seat]
        self.visits[met] = self.visits.get(met, 0.0) + chance
        for move, sequence in zip(state.moves, state.sequences, strict=True):
            # The last move may change the position itself, which is not needed afterwards.
            after = match if move == state.moves[-1] else copy.deepcopy(match)
            after.apply(move)
            self._walk(after, (sequence, past[1]) if seat == 0 else (past[0], sequence), chance, most)

    def _state(self, match: Match, seat: int, parent: int) -> int:
        """Return the index of the current information state of a match. Add the state if it is new."""
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
                f"Two positions of {self.game.name} share the information state {name!r}, but differ in the seat to "
                "move, the legal moves, or the seat's earlier moves. `information_state` must contain all that the "
                "seat knows."
            )
        if known.observation.messages != observation.messages:
            raise ValueError(
                f"Two positions of {self.game.name} share the information state {name!r}, but look different to seat "
                f"{seat}. Either the observation shows hidden information, or `information_state` contains too little."
            )
        return index
