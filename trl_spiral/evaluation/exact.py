"""A policy at tic-tac-toe, graded exactly over every reachable board."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trl_spiral.games.tictactoe import (
    MoveDistribution,
    Outcome,
    board_observation,
    decision_boards,
    empty_cells,
    exact_outcome,
    minimax_policy,
    uniform_policy,
)
from trl_spiral.prompts import PromptRenderer


RIVALS: Mapping[str, Callable[[str], MoveDistribution]] = {"random": uniform_policy, "minimax": minimax_policy}
"""Opponents that a policy is graded against."""

Scorer = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]]], Sequence[Sequence[float]]]
"""Log-probabilities, in nats, of whole replies after their prompts: one list for each temperature."""


@dataclass(frozen=True, slots=True)
class TicTacToeReport:
    """
    Exact results of one policy, by (rival, seat).

    A move is counted in the four ways in which it can stand alone, `\\boxed{[4]}`, `\\boxed{4}`, `[4]` and `4`, each right
    to the end-of-turn token. Any other reply counts as illegal. For the tiny player that is exact: within its two tokens
    there is no other way. A model that says more than its move is better than reported.
    """

    outcomes: Mapping[tuple[str, int], Outcome]

    def mean(self, rival: str, field: str) -> float:
        """Mean of an [`~games.tictactoe.Outcome`] field over both seats."""
        return math.fsum(getattr(self.outcomes[rival, seat], field) for seat in (0, 1)) / 2

    def metrics(self) -> dict[str, float]:
        """Flat numbers, for a log."""
        numbers = {
            f"{rival}/seat{seat}/{field}": getattr(outcome, field)
            for (rival, seat), outcome in self.outcomes.items()
            for field in ("win", "draw", "loss", "illegal")
        }
        for rival in RIVALS:
            numbers[f"{rival}/non_loss"] = self.mean(rival, "non_loss")
            numbers[f"{rival}/illegal"] = self.mean(rival, "illegal")
        return numbers


def grade_tictactoe(renderer: PromptRenderer, score: Scorer) -> list[TicTacToeReport]:
    """
    Grades a policy whose replies are moves and nothing else.

    Args:
        renderer ([`~prompts.PromptRenderer`]):
            The policy's prompts.
        score (`Scorer`):
            Log-probabilities of replies, at each temperature to be graded.

    Returns:
        `list[TicTacToeReport]`: One for each temperature, exact up to rounding, over all 4,520 boards at which somebody
        has to move.
    """
    boards = decision_boards()
    ways = [
        {renderer.reply(text) for text in (f"\\boxed{{[{cell}]}}", f"\\boxed{{{cell}}}", f"[{cell}]", f"{cell}")}
        for cell in range(9)
    ]
    prompts = {board: renderer.prompt(board_observation(board)) for board in boards}
    pairs = [(board, cell, reply) for board in boards for cell in empty_cells(board) for reply in sorted(ways[cell])]
    reports = []
    for logprobs in score([prompts[board] for board, _, _ in pairs], [reply for _, _, reply in pairs]):
        table: dict[str, dict[int, float]] = {board: dict.fromkeys(empty_cells(board), 0.0) for board in boards}
        for (board, cell, _), logprob in zip(pairs, logprobs, strict=True):
            table[board][cell] += math.exp(logprob)
        reports.append(
            TicTacToeReport(
                {
                    (name, seat): exact_outcome(table.__getitem__, rival, seat)
                    for name, rival in RIVALS.items()
                    for seat in (0, 1)
                }
            )
        )
    return reports
