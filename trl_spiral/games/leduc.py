"""
Leduc poker for two seats, which TextArena does not have. See [Southey et al., 2005](https://arxiv.org/abs/1207.1411).

Rules, information states and numbers are OpenSpiel's. Cards 0 and 1 are the jacks, 2 and 3 the queens, 4 and 5 the
kings, hearts before spades. Moves are 0 for a fold, 1 for a check or a call, and 2 for a raise.
"""

from __future__ import annotations

import random
import re
from itertools import permutations

from trl_spiral.games.base import Dealt, Traits
from trl_spiral.games.dialogue import DialogueMatch, normalize_move
from trl_spiral.types import Observation


NAME = "Leduc-v0"
CARDS = ("Jh", "Js", "Qh", "Qs", "Kh", "Ks")
ACTIONS = {"[fold]": 0, "[check]": 1, "[call]": 1, "[raise]": 2}
"""OpenSpiel's numbers of moves."""
RAISES = (2, 4)
"""Chips of a raise, by round."""
MAX_RAISES = 2
"""Maximum number of raises in a round, of both seats together."""
STACK = 100
"""OpenSpiel's chips per seat. At most 13 can be lost."""

Deal = tuple[int, int, int]
"""Card of each seat, and the public card."""

_RULES = (
    "You are Player {seat} in a two-player game of Leduc poker.\n"
    "There are six cards: J, Q and K (the highest), each in hearts (h) and spades (s). Each player puts 1 chip into "
    "the pot and is dealt one card, which the other player never sees.\n"
    "There are two rounds of betting, and Player 0 moves first in both. In your turn, [check] if you have put in as "
    "much as the other player; otherwise [call] by putting in what is missing, or [fold] and lose the pot. You may "
    "also [raise]: you put in what is missing and 2 chips more in the first round, 4 more in the second. A round "
    "allows two raises. It ends when a raise is called or both players check.\n"
    "After the first round, one public card is laid open. After the second, a card of the same rank as the public "
    "card wins the pot; if nobody has one, the higher rank does; equal ranks share it. Suits do not matter."
)


class LeducPoker(Dealt):
    """Leduc poker: six cards, an ante of 1, two rounds of betting. Returns are the chips won or lost, at most 13."""

    name = NAME
    traits = Traits(stochastic=True, perfect_information=False, lowest=-13.0)

    def start(self, seed: int) -> LeducMatch:
        mine, yours, public = random.Random(seed).sample(range(len(CARDS)), 3)
        return LeducMatch(self, (mine, yours, public))

    def deals(self) -> tuple[Deal, ...]:
        return tuple((mine, yours, public) for mine, yours, public in permutations(range(len(CARDS)), 3))

    def deal(self, deal: Deal) -> LeducMatch:
        return LeducMatch(self, deal)

    def canonical(self, action: str) -> str | None:
        move = f"[{normalize_move(action)}]"
        return move if move in ACTIONS else None

    def information_state(self, observation: Observation) -> str:
        text, seat = observation.messages[-1]["content"], observation.seat
        private, public = _card("Your card is", text), _card("The public card is", text)
        first, _, second = text.partition("\nRound 2. ")
        rounds = tuple(
            tuple(ACTIONS[move] for move in re.findall(r"^Player [01]: (\[\w+\])$", part, re.MULTILINE))
            for part in (first, second)
        )
        chips = chips_in(rounds)
        parts = [f"Observer: {seat}", f"Private: {private}", f"Round {1 if public is None else 2}", f"Player: {seat}"]
        parts += [f"Pot: {sum(chips)}", f"Money: {STACK - chips[0]} {STACK - chips[1]}"]
        if public is not None:
            parts.append(f"Public: {public}")
        parts += [f"Round{number}: {' '.join(map(str, moves))}" for number, moves in enumerate(rounds, start=1)]
        return "".join(f"[{part}]" for part in parts)

    @property
    def atoms(self) -> str:
        return rf"\b[JQK][hs]\b|{super().atoms}"


class LeducMatch(DialogueMatch):
    """
    One match of Leduc poker.

    Args:
        game ([`LeducPoker`]):
            The rules.
        deal (`tuple[int, int, int]`):
            Card of each seat, and the public card. No seat observes the other's card.
    """

    def __init__(self, game: LeducPoker, deal: Deal) -> None:
        super().__init__(game, [_RULES.format(seat=seat) for seat in (0, 1)])
        self._deal = deal
        self._rounds: tuple[tuple[int, ...], ...] = ((),)
        for seat in (0, 1):
            self.send(f"Your card is {CARDS[deal[seat]]}.", seat)

    def legal_actions(self) -> tuple[str, ...]:
        return () if self.ending is not None else leduc_moves(self._rounds[-1])

    def play(self, seat: int, move: str) -> None:
        self._rounds = (*self._rounds[:-1], (*self._rounds[-1], ACTIONS[move]))
        if move == "[fold]":
            self._win(1 - seat)
        elif not is_over(self._rounds[-1]):
            self.seat = 1 - seat
        elif len(self._rounds) == len(RAISES):
            self._show_down()
        else:
            self._rounds = (*self._rounds, ())
            self.seat = 0
            self.send(f"Round 2. The public card is {CARDS[self._deal[2]]}.")

    def _show_down(self) -> None:
        # Cards of equal rank have consecutive numbers. Suits do not matter.
        mine, yours, public = (card // 2 for card in self._deal)
        if mine == yours:
            self.detail = "Both players share the pot."
            self.finish((0, 0))
        else:
            self._win(0 if mine == public or (mine > yours and yours != public) else 1)

    def _win(self, winner: int) -> None:
        chips = chips_in(self._rounds)[1 - winner]
        self.detail = f"Player {winner} wins {chips} {'chip' if chips == 1 else 'chips'}."
        self.finish((chips, -chips) if winner == 0 else (-chips, chips))


def leduc_moves(moves: tuple[int, ...]) -> tuple[str, ...]:
    """Return the legal moves after the moves of a round, given as OpenSpiel's numbers."""
    raises = moves.count(ACTIONS["[raise]"])
    if not raises:
        return ("[check]", "[raise]")
    return ("[call]", "[fold]", "[raise]") if raises < MAX_RAISES else ("[call]", "[fold]")


def is_over(moves: tuple[int, ...]) -> bool:
    """Return whether a round without a fold has ended: by a call, or by a second check."""
    return len(moves) > 1 and moves[-1] == ACTIONS["[call]"]


def chips_in(rounds: tuple[tuple[int, ...], ...]) -> tuple[int, int]:
    """Return the chips of each seat in the pot, after the moves of each round."""
    chips = [1, 1]
    for moves, raised in zip(rounds, RAISES, strict=False):
        for turn, move in enumerate(moves):
            if move != ACTIONS["[fold]"]:
                chips[turn % 2] = max(chips) + (raised if move == ACTIONS["[raise]"] else 0)
    return chips[0], chips[1]


def _card(words: str, text: str) -> int | None:
    """Return the number of the card after `words` in a text, or `None` if there is none."""
    found = re.search(rf"\b{words} (\w\w)\.$", text, re.MULTILINE)
    return CARDS.index(found[1]) if found else None
