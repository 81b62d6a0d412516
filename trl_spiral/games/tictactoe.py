"""
Tic-tac-toe: the game, and exact evaluation of players over all reachable boards.

A board is a string of nine characters: `"."` for an empty cell, `"O"` for the first seat and `"X"` for the second, as
in TextArena, where seat 0 plays O and moves first. Training does not use the exact evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from trl_spiral.games.base import get_game
from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.games.textarena.boards import numbered_cells
from trl_spiral.types import Observation


NAME = "TicTacToe-v0"
EMPTY = "........."
MARKS = "OX"
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))

MoveDistribution = Mapping[int, float]
"""Probability of each cell. The remainder to 1 is the probability of an illegal reply."""


def make_game() -> TextArenaGame:
    """Return TicTacToe-v0 with SPIRAL's observation, the rules and the current board."""
    return TextArenaGame(
        name=NAME,
        move="[0-9]",
        legal=numbered_cells,
        observation="first_last",
        max_turns=9,
        # Tokens of their own: a row of the board, a listed move, and a box with its move.
        cells=r" [XO0-8] \| [XO0-8] \| [XO0-8] (?:\n---\+---\+---\n)?|'\[[0-8]\]'(?:, |(?=\n))|\\boxed\{\[[0-8]\]\}",
    )


def to_move(board: str) -> int:
    """Return the seat to move: the first if both have equally many marks."""
    return (9 - board.count(".")) % 2


def place_mark(board: str, cell: int) -> str:
    """Return the board after the seat to move takes `cell`."""
    return board[:cell] + MARKS[to_move(board)] + board[cell + 1 :]


def winner(board: str) -> int | None:
    """Return the seat with three in a row, if any."""
    for a, b, c in LINES:
        if board[a] != "." and board[a] == board[b] == board[c]:
            return MARKS.index(board[a])
    return None


def empty_cells(board: str) -> tuple[int, ...]:
    """Return the empty cells of a board; none once a seat has won."""
    return () if winner(board) is not None else tuple(cell for cell in range(9) if board[cell] == ".")


@cache
def decision_boards() -> tuple[str, ...]:
    """Return all 4,520 boards on which a seat has to move, in a fixed order."""
    seen, frontier = {EMPTY}, [EMPTY]
    for board in frontier:
        for cell in empty_cells(board):
            if (after := place_mark(board, cell)) not in seen:
                seen.add(after)
                frontier.append(after)
    return tuple(board for board in frontier if empty_cells(board))


@cache
def minimax_value(board: str) -> int:
    """Return the value of `board` for the seat to move under perfect play: 1, 0 or -1."""
    if winner(board) is not None:
        return -1
    return max((-minimax_value(place_mark(board, cell)) for cell in empty_cells(board)), default=0)


@cache
def minimax_moves(board: str) -> tuple[int, ...]:
    """Return the cells that keep the minimax value."""
    value = minimax_value(board)
    return tuple(cell for cell in empty_cells(board) if -minimax_value(place_mark(board, cell)) == value)


def uniform_policy(board: str) -> MoveDistribution:
    """Return the uniform distribution over empty cells."""
    cells = empty_cells(board)
    return dict.fromkeys(cells, 1 / len(cells))


def minimax_policy(board: str) -> MoveDistribution:
    """Return the uniform distribution over the best cells."""
    cells = minimax_moves(board)
    return dict.fromkeys(cells, 1 / len(cells))


@dataclass(frozen=True, slots=True)
class OutcomeProbabilities:
    """
    Exact probabilities of the results of a game for one player.

    Attributes:
        win, draw, loss (`float`):
            They sum to 1. An illegal move counts as a loss.
        illegal (`float`):
            Probability of an illegal move of the player, a part of `loss`.
    """

    win: float
    draw: float
    loss: float
    illegal: float

    @property
    def non_loss(self) -> float:
        """Probability of a win or a draw."""
        return self.win + self.draw


def exact_outcome(
    player: Callable[[str], MoveDistribution], rival: Callable[[str], MoveDistribution], seat: int
) -> OutcomeProbabilities:
    """
    Return the result probabilities of `player` against `rival`, summed over all games.

    Args:
        player (`Callable[[str], MoveDistribution]`):
            Distribution over cells at a board. The remainder to 1 is an illegal reply.
        rival (`Callable[[str], MoveDistribution]`):
            Distribution of the other seat.
        seat (`int`):
            Seat of `player`: 0 moves first.

    Returns:
        [`OutcomeProbabilities`]: Exact up to rounding. Uniform against uniform, first seat: .5849 / .1270 / .2881.
    """

    @cache
    def walk(board: str) -> tuple[float, float, float, float]:
        won = winner(board)
        if won is not None:
            return (1.0, 0.0, 0.0, 0.0) if won == seat else (0.0, 0.0, 1.0, 0.0)
        if "." not in board:
            return (0.0, 1.0, 0.0, 0.0)
        mine = to_move(board) == seat
        moves = (player if mine else rival)(board)
        illegal = max(0.0, 1.0 - sum(moves.values()))
        totals = [0.0, 0.0, illegal, illegal] if mine else [illegal, 0.0, 0.0, 0.0]
        for cell, probability in moves.items():
            for index, part in enumerate(walk(place_mark(board, cell))):
                totals[index] += probability * part
        return totals[0], totals[1], totals[2], totals[3]

    return OutcomeProbabilities(*walk(EMPTY))


@cache
def board_observation(board: str) -> Observation:
    """Return the observation of the seat to move at `board`, from a match with these marks."""
    cells: tuple[list[int], list[int]] = ([], [])
    for cell, mark in enumerate(board):
        if mark != ".":
            cells[MARKS.index(mark)].append(cell)
    match = get_game(NAME).start(seed=0)
    # Any order of the marks leads to the same board, and no earlier board contains a line.
    for turn in range(9 - board.count(".")):
        match.apply(f"[{cells[turn % 2][turn // 2]}]")
    seat = match.to_move
    if seat is None:
        raise ValueError(f"No seat is to move at {board!r}: the game is over.")
    return match.observe(seat)


def read_board(observation: Observation) -> str:
    """Return the board in an observation."""
    text = observation.messages[-1]["content"].rsplit("Current Board:", 1)[-1]
    symbols = re.findall(r"(?<= )[XO0-8](?= )", text)[:9]
    return "".join(symbol if symbol in MARKS else "." for symbol in symbols)
