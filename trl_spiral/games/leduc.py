"""
Leduc poker for two, our own engine: TextArena has none.

Rules and information states are OpenSpiel's, so that theory can be asked about them. Cards are numbered as there: 0 and 1
are the jacks, 2 and 3 the queens, 4 and 5 the kings, hearts before spades; moves are 0 for a fold, 1 for a check or a
call, 2 for a raise. From [Southey et al., 2005](https://arxiv.org/abs/1207.1411).
"""

from __future__ import annotations

import random
import re
from itertools import permutations

from trl_spiral.games.base import Dealt, Traits
from trl_spiral.games.dialogue import ToldMatch, bare_move
from trl_spiral.types import Observation


NAME = "Leduc-v0"
CARDS = ("Jh", "Js", "Qh", "Qs", "Kh", "Ks")
ACTIONS = {"[fold]": 0, "[check]": 1, "[call]": 1, "[raise]": 2}
"""Moves as OpenSpiel numbers them."""
RAISES = (2, 4)
"""Chips of a raise in each round."""
MAX_RAISES = 2
"""Raises in a round, of both seats together."""
STACK = 100
"""Chips that OpenSpiel gives a seat: more than can be lost, 13."""

Deal = tuple[int, int, int]
"""The card of each seat, and the public one."""

_RULES = (
    "You are Player {seat} in a two-player game of Leduc poker.\n"
    "There are six cards: J, Q and K (the highest), each in hearts (h) and spades (s). Each player puts 1 chip into the "
    "pot and is dealt one card, which the other player never sees.\n"
    "There are two rounds of betting, and Player 0 moves first in both. In your turn, [check] if you have put in as much "
    "as the other player; otherwise [call] by putting in what is missing, or [fold] and lose the pot. You may also "
    "[raise]: you put in what is missing and 2 chips more in the first round, 4 more in the second. A round allows two "
    "raises. It ends when a raise is called or both players check.\n"
    "After the first round, one public card is laid open. After the second, a card of the same rank as the public card "
    "wins the pot; if nobody has one, the higher rank does; equal ranks share it. Suits do not matter."
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
        move = f"[{bare_move(action)}]"
        return move if move in ACTIONS else None

    def information_state(self, observation: Observation) -> str:
        return information_state(observation)

    @property
    def atoms(self) -> str:
        return rf"\b[JQK][hs]\b|{super().atoms}"


class LeducMatch(ToldMatch):
    """
    One match.

    Args:
        game ([`LeducPoker`]):
            Its rules.
        deal (`tuple[int, int, int]`):
            The card of each seat, and the public one. No observation shows another's.
    """

    def __init__(self, game: LeducPoker, deal: Deal) -> None:
        super().__init__(game, [_RULES.format(seat=seat) for seat in (0, 1)])
        self._deal = deal
        self._rounds: tuple[tuple[int, ...], ...] = ((),)
        for seat in (0, 1):
            self.tell(f"Your card is {CARDS[deal[seat]]}.", seat)

    def legal_actions(self) -> tuple[str, ...]:
        return () if self.ending is not None else legal_moves(self._rounds[-1])

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
            self.tell(f"Round 2. The public card is {CARDS[self._deal[2]]}.")

    def _show_down(self) -> None:
        # Suits do not matter: two cards of a rank are next to each other.
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


def legal_moves(moves: tuple[int, ...]) -> tuple[str, ...]:
    """What may be done after a round's moves, as OpenSpiel numbers them."""
    raises = moves.count(ACTIONS["[raise]"])
    if not raises:
        return ("[check]", "[raise]")
    return ("[call]", "[fold]", "[raise]") if raises < MAX_RAISES else ("[call]", "[fold]")


def is_over(moves: tuple[int, ...]) -> bool:
    """Whether a round in which nobody folds has ended: with a call, or a second check."""
    return len(moves) > 1 and moves[-1] == ACTIONS["[call]"]


def chips_in(rounds: tuple[tuple[int, ...], ...]) -> tuple[int, int]:
    """What each seat has put into the pot, after each round's moves."""
    chips = [1, 1]
    for moves, raised in zip(rounds, RAISES, strict=False):
        for turn, move in enumerate(moves):
            if move != ACTIONS["[fold]"]:
                chips[turn % 2] = max(chips) + (raised if move == ACTIONS["[raise]"] else 0)
    return chips[0], chips[1]


def information_state(observation: Observation) -> str:
    """All that the seat to move knows, as OpenSpiel's `information_state_string` writes it."""
    text, seat = observation.messages[-1]["content"], observation.seat
    private, public = _card("Your card is", text), _card("The public card is", text)
    first, _, second = text.partition("\nRound 2. ")
    rounds = tuple(
        tuple(ACTIONS[move] for move in re.findall(r"^Player [01]: (\[\w+\])$", told, re.MULTILINE))
        for told in (first, second)
    )
    chips = chips_in(rounds)
    parts = [f"Observer: {seat}", f"Private: {private}", f"Round {1 if public is None else 2}", f"Player: {seat}"]
    parts += [f"Pot: {sum(chips)}", f"Money: {STACK - chips[0]} {STACK - chips[1]}"]
    if public is not None:
        parts.append(f"Public: {public}")
    parts += [f"Round{number}: {' '.join(map(str, moves))}" for number, moves in enumerate(rounds, start=1)]
    return "".join(f"[{part}]" for part in parts)


def _card(words: str, text: str) -> int | None:
    """Number of the card that the words are followed by, if they stand there."""
    found = re.search(rf"\b{words} (\w\w)\.$", text, re.MULTILINE)
    return CARDS.index(found[1]) if found else None
