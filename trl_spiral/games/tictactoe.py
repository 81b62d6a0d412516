"""
Tic-tac-toe: legal moves, and the exact oracles that measure a player over all reachable boards.

A board is a string of nine characters, `"."` for an empty cell, `"O"` for the first seat and `"X"` for the second (as
in TextArena, whose seat 0 plays O and moves first). The oracles measure; no training game uses them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trl_spiral.games.base import get_game
from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.types import Observation


NAME = "TicTacToe-v0"
EMPTY = "........."
MARKS = "OX"
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))

MoveDistribution = Mapping[int, float]
"""Probability of each cell; what is missing from 1 is the probability of an illegal reply."""


def legal_moves(env: Any) -> tuple[str, ...]:
    """Canonical legal moves from TextArena's environment."""
    board = env.state.game_state["board"]
    return tuple(f"[{3 * row + column}]" for row in range(3) for column in range(3) if board[row][column] == "")


def make_game() -> TextArenaGame:
    """TicTacToe-v0 as SPIRAL plays it: the observation is the rules and the current board."""
    return TextArenaGame(
        name=NAME,
        move="[0-9]",
        legal=legal_moves,
        observation="first_last",
        max_turns=9,
        # A row of the board, a listed move, and a box with its move: what a tokenizer keeps whole and apart.
        cells=r" [XO0-8] \| [XO0-8] \| [XO0-8] (?:\n---\+---\+---\n)?|'\[[0-8]\]'(?:, |(?=\n))|\\boxed\{\[[0-8]\]\}",
    )


def to_move(board: str) -> int:
    """Seat to move: the first where both have as many marks."""
    return (9 - board.count(".")) % 2


def play(board: str, cell: int) -> str:
    """The board after the seat to move takes `cell`."""
    return board[:cell] + MARKS[to_move(board)] + board[cell + 1 :]


def winner(board: str) -> int | None:
    """Seat with three in a row, if any."""
    for a, b, c in LINES:
        if board[a] != "." and board[a] == board[b] == board[c]:
            return MARKS.index(board[a])
    return None


def empty_cells(board: str) -> tuple[int, ...]:
    """Cells that can be taken; none once the game is over."""
    return () if winner(board) is not None else tuple(cell for cell in range(9) if board[cell] == ".")


@cache
def decision_boards() -> tuple[str, ...]:
    """All 4,520 boards at which a seat has to move, in a fixed order."""
    seen, frontier = {EMPTY}, [EMPTY]
    for board in frontier:
        for cell in empty_cells(board):
            if (after := play(board, cell)) not in seen:
                seen.add(after)
                frontier.append(after)
    return tuple(board for board in frontier if empty_cells(board))


@cache
def minimax_value(board: str) -> int:
    """Value of `board` for the seat to move under perfect play: 1, 0 or -1."""
    if winner(board) is not None:
        return -1
    return max((-minimax_value(play(board, cell)) for cell in empty_cells(board)), default=0)


@cache
def minimax_moves(board: str) -> tuple[int, ...]:
    """Every cell that keeps the minimax value."""
    value = minimax_value(board)
    return tuple(cell for cell in empty_cells(board) if -minimax_value(play(board, cell)) == value)


def uniform_policy(board: str) -> MoveDistribution:
    """A player that takes any empty cell."""
    cells = empty_cells(board)
    return dict.fromkeys(cells, 1 / len(cells))


def minimax_policy(board: str) -> MoveDistribution:
    """A perfect player that takes any of the best cells."""
    cells = minimax_moves(board)
    return dict.fromkeys(cells, 1 / len(cells))


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    Exact probabilities of how a game ends, from the first seat's side or, flipped, the second's.

    Attributes:
        win, draw, loss (`float`):
            They add up to 1; a game that ends by an illegal move counts as lost by the offender.
        illegal (`float`):
            Probability that the player under test ends the game by an illegal move; a part of `loss`.
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
) -> Outcome:
    """
    How `player` in `seat` fares against `rival`, by summing over every game that can happen.

    Args:
        player (`Callable[[str], MoveDistribution]`):
            Distribution over cells at a board; probability missing from 1 is an illegal reply.
        rival (`Callable[[str], MoveDistribution]`):
            The other seat, likewise.
        seat (`int`):
            Seat of `player`: 0 moves first.

    Returns:
        [`Outcome`]: Exact up to rounding. Uniform against uniform, first seat: .5849 / .1270 / .2881.
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
            for index, part in enumerate(walk(play(board, cell))):
                totals[index] += probability * part
        return totals[0], totals[1], totals[2], totals[3]

    return Outcome(*walk(EMPTY))


@cache
def board_observation(board: str) -> Observation:
    """What the seat to move sees at `board`, from a real match played up to it."""
    cells: tuple[list[int], list[int]] = ([], [])
    for cell, mark in enumerate(board):
        if mark != ".":
            cells[MARKS.index(mark)].append(cell)
    match = get_game(NAME).start(seed=0)
    # Any order of the same marks leads to the same board, and no proper part of a decision board holds a line.
    for turn in range(9 - board.count(".")):
        match.apply(f"[{cells[turn % 2][turn // 2]}]")
    seat = match.to_move
    if seat is None:
        raise ValueError(f"Nobody is to move at {board!r}: the game is over.")
    return match.observe(seat)


def read_board(observation: Observation) -> str:
    """The board that an observation shows."""
    text = observation.messages[-1]["content"].rsplit("Current Board:", 1)[-1]
    symbols = re.findall(r"(?<= )[XO0-8](?= )", text)[:9]
    return "".join(symbol if symbol in MARKS else "." for symbol in symbols)


def random_lessons(rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """
    One lesson for a warm start, on a board that random play has led to: a question and its reply.

    It holds rules and no strategy: either a uniformly random legal move, or what would come of a move.

    Args:
        rng (`random.Random`):
            Source of the board, the move and the question.
        reading (`bool`):
            Whether to ask what comes of a move instead of asking for one.
        instruction (`str`):
            What every prompt ends with.
    """
    board, plies = EMPTY, rng.randrange(9)
    for _ in range(plies):
        if not (cells := empty_cells(board)):
            break
        board = play(board, rng.choice(cells))
    if not empty_cells(board):
        return random_lessons(rng, reading, instruction)
    seen, cell = board_observation(board).messages[0]["content"], rng.choice(empty_cells(board))
    if not reading:
        return f"{seen}\n\n{instruction}", f"\\boxed{{[{cell}]}}"
    mark = rng.choice(MARKS)
    after = board[:cell] + mark + board[cell + 1 :]
    result = f"{mark} has won" if winner(after) is not None else "draw" if "." not in after else "the game goes on"
    # The move is written as the list of moves writes it, so that what is learned here is known there.
    return f"{seen}\n\nIf {mark} takes '[{cell}]', what comes of it?", result
