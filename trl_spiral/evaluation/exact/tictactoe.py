"""Exact results of a policy at tic-tac-toe, over every reachable board."""

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
"""Fixed opponents of the graded policy."""

BEST_RESPONSE = "best_response"
"""Name of the best response to the policy: see `best_response`."""


@dataclass(frozen=True, slots=True)
class TicTacToeReport:
    """
    Exact results of one policy by (rival, seat): against each of `RIVALS`, and against a best response.

    The probability of a move is the sum over its four forms `\\boxed{[4]}`, `\\boxed{4}`, `[4]` and `4`, each with the
    end-of-turn token. Any other reply counts as illegal. For the tiny player that is exact: its two tokens allow no
    other form. A model that writes more than its move is better than reported.
    """

    outcomes: Mapping[tuple[str, int], OutcomeProbabilities]

    def mean(self, rival: str, field: str) -> float:
        """Return the mean of an [`~games.tictactoe.OutcomeProbabilities`] field over both seats."""
        return math.fsum(getattr(self.outcomes[rival, seat], field) for seat in (0, 1)) / 2

    def metrics(self) -> dict[str, float]:
        """Return all numbers by name, for a log."""
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
    Grade a policy whose replies are moves and nothing else.

    Args:
        renderer ([`~text.prompts.PromptRenderer`]):
            Renders the prompts of the policy.
        score (`Scorer`):
            Returns log-probabilities of replies at each temperature.

    Returns:
        `list[TicTacToeReport]`: One for each temperature, exact up to rounding, over all 4,520 boards with a move to
        make.

    Raises:
        ValueError: If the prompts open a thought, so that no reply is a move alone.
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
    """Return exact results of a policy, given as a distribution over cells. The rest to 1 is illegal."""
    outcomes = {(name, seat): exact_outcome(player, rival, seat) for name, rival in RIVALS.items() for seat in (0, 1)}
    for seat in (0, 1):
        outcomes[BEST_RESPONSE, seat] = exact_outcome(player, best_response(player, 1 - seat), seat)
    return TicTacToeReport(outcomes)


def best_response(player: Callable[[str], MoveDistribution], seat: int) -> Callable[[str], MoveDistribution]:
    """
    Return the best response in `seat` to a player in the other seat.

    At each board it takes the first cell with the highest expected result: 1 for a win, 0 for a draw, -1 for a loss.
    An illegal reply of `player` is a win for it. Against a policy that often breaks the rules, it therefore prolongs
    the game.

    Args:
        player (`Callable[[str], MoveDistribution]`):
            Distribution over cells at a board; the rest to 1 is the probability of an illegal reply.
        seat (`int`):
            Seat of the best response: 0 moves first.

    Returns:
        `Callable[[str], MoveDistribution]`: All probability on one cell. Against uniform play, in seat 0, it wins
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
