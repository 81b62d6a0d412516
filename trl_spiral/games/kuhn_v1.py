"""
KuhnPoker-v1 with the rules of SPIRAL (arXiv 2506.24119), for comparison with the paper.

It is not Kuhn poker: bets and calls are free, so there is no reason to fold, and only the last of five rounds counts.
For Kuhn poker, choose `"Kuhn-v0"` or `"Kuhn-v0-5"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trl_spiral.games.kuhn import KuhnMatch, KuhnRounds, payoffs, random_deals


NAME = "KuhnPoker-v1"
ROUNDS = 5

_RULES = (
    "You are Player {seat} in a two-player game of Kuhn poker over {rounds} rounds.\n"
    "There are three cards: J is the lowest, Q beats J, and K beats both. In each round, each player puts 1 chip into "
    "the pot and is dealt one card, which the other player never sees.\n"
    "While nobody has bet, you may [check] or [bet]. After a bet, you may [call] or [fold]. Neither a bet nor a call "
    "adds to the pot.\n"
    "A fold gives the pot to the other player. After two checks or a call, the higher card wins the pot.\n"
    "You take turns at moving first. Whoever wins the last round wins the match."
)


class PaperKuhnPoker(KuhnRounds):
    """Five rounds, started by seats 1, 0, 1, 0 and 1. The return is 1 for the winner of the last round, else -1."""

    def __init__(self) -> None:
        super().__init__(ROUNDS)
        self.name = NAME
        self.traits = replace(self.traits, lowest=-1.0)

    def start(self, seed: int) -> KuhnMatch:
        rules = [_RULES.format(seat=seat, rounds=ROUNDS) for seat in (0, 1)]
        return _PaperKuhnMatch(self, rules, random_deals(seed, ROUNDS), first=1)


class _PaperKuhnMatch(KuhnMatch):
    """A match in which only the antes are at stake, and only the last round counts."""

    def gains(self, moves: str, cards: Sequence[int]) -> tuple[int, ...] | None:
        true = payoffs(moves, cards)
        return None if true is None else tuple(1 if chips > 0 else -1 for chips in true)

    def score(self, chips: tuple[int, ...], last: tuple[int, ...]) -> tuple[float, ...]:
        return last
