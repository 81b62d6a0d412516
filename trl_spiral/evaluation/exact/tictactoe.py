"""A policy at tic-tac-toe, graded exactly over every reachable board."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from trl_spiral.evaluation.exact.strategies import Scorer, replies_that_are
from trl_spiral.games.base import get_game
from trl_spiral.games.tictactoe import (
    NAME,
    MoveDistribution,
    OutcomeProbabilities,
    board_observation,
    decision_boards,
    empty_cells,
    exact_outcome,
    minimax_policy,
    place_mark,
    to_move,
    uniform_policy,
    winner,
)
from trl_spiral.text.prompts import PromptRenderer


RIVALS: Mapping[str, Callable[[str], MoveDistribution]] = {"random": uniform_policy, "minimax": minimax_policy}
"""Opponents that a policy is graded against, whatever it does."""

BEST_RESPONSE = "best_response"
"""The opponent that knows the policy: see `best_response`."""


@dataclass(frozen=True, slots=True)
class TicTacToeReport:
    """
    Exact results of one policy, by (rival, seat): against each of `RIVALS`, and against a best response to it.

    A move is counted in the four ways in which it can stand alone, `\\boxed{[4]}`, `\\boxed{4}`, `[4]` and `4`, each right
    to the end-of-turn token. Any other reply counts as illegal. For the tiny player that is exact: within its two tokens
    there is no other way. A model that says more than its move is better than reported.
    """

    outcomes: Mapping[tuple[str, int], OutcomeProbabilities]

    def mean(self, rival: str, field: str) -> float:
        """Mean of an [`~games.tictactoe.OutcomeProbabilities`] field over both seats."""
        return math.fsum(getattr(self.outcomes[rival, seat], field) for seat in (0, 1)) / 2

    def metrics(self) -> dict[str, float]:
        """Flat numbers, for a log."""
        numbers = {
            f"{rival}/seat{seat}/{field}": getattr(outcome, field)
            for (rival, seat), outcome in self.outcomes.items()
            for field in ("win", "draw", "loss", "illegal")
        }
        for rival in (*RIVALS, BEST_RESPONSE):
            numbers[f"{rival}/non_loss"] = self.mean(rival, "non_loss")
            numbers[f"{rival}/illegal"] = self.mean(rival, "illegal")
        return numbers


def grade_tictactoe(renderer: PromptRenderer, score: Scorer) -> list[TicTacToeReport]:
    """
    Grades a policy whose replies are moves and nothing else.

    Args:
        renderer ([`~text.prompts.PromptRenderer`]):
            The policy's prompts.
        score (`Scorer`):
            Log-probabilities of replies, at each temperature to be graded.

    Returns:
        `list[TicTacToeReport]`: One for each temperature, exact up to rounding, over all 4,520 boards at which somebody
        has to move.

    Raises:
        ValueError: If its prompts open a thought, so that no reply is a move alone.
    """
    boards = decision_boards()
    ways = [replies_that_are(get_game(NAME), renderer, f"[{cell}]") for cell in range(9)]
    prompts = {board: renderer.prompt(board_observation(board)) for board in boards}
    pairs = [(board, cell, reply) for board in boards for cell in empty_cells(board) for reply in ways[cell]]
    reports = []
    for logprobs in score([prompts[board] for board, _, _ in pairs], [reply for _, _, reply in pairs]):
        table: dict[str, dict[int, float]] = {board: dict.fromkeys(empty_cells(board), 0.0) for board in boards}
        for (board, cell, _), logprob in zip(pairs, logprobs, strict=True):
            table[board][cell] += math.exp(logprob)
        reports.append(grade_distribution(table.__getitem__))
    return reports


def grade_distribution(player: Callable[[str], MoveDistribution]) -> TicTacToeReport:
    """Exact results of a policy given as a distribution over cells at each board; what is missing from 1 is illegal."""
    outcomes = {(name, seat): exact_outcome(player, rival, seat) for name, rival in RIVALS.items() for seat in (0, 1)}
    for seat in (0, 1):
        outcomes[BEST_RESPONSE, seat] = exact_outcome(player, best_response(player, 1 - seat), seat)
    return TicTacToeReport(outcomes)


def best_response(player: Callable[[str], MoveDistribution], seat: int) -> Callable[[str], MoveDistribution]:
    """
    What a perfect opponent in `seat` does that knows how `player` moves in the other.

    At every board that can be reached it takes the cell with the highest expected result, a win counting 1, a draw 0 and a
    loss -1; of equals, the first. An illegal reply of `player` is a win for it, and it counts on those: against a policy
    that breaks the rules often, it plays for time.

    Args:
        player (`Callable[[str], MoveDistribution]`):
            Distribution over cells at a board; probability missing from 1 is an illegal reply.
        seat (`int`):
            Seat of the opponent: 0 moves first.

    Returns:
        `Callable[[str], MoveDistribution]`: All of the probability on one cell. Against uniform play, moving first, it wins
        .9948 and draws .0052 of all games.
    """

    @cache
    def value(board: str) -> float:
        won = winner(board)
        if won is not None:
            return 1.0 if won == seat else -1.0
        if "." not in board:
            return 0.0
        if to_move(board) == seat:
            return max(value(place_mark(board, cell)) for cell in empty_cells(board))
        moves = player(board)
        illegal = max(0.0, 1.0 - math.fsum(moves.values()))
        return illegal + math.fsum(share * value(place_mark(board, cell)) for cell, share in moves.items())

    return lambda board: {max(empty_cells(board), key=lambda cell: value(place_mark(board, cell))): 1.0}
