"""
Kuhn poker with its true rules, in one or several rounds. In TextArena's version, bets are free.

Information states have OpenSpiel's format: the card as `"0"`, `"1"` or `"2"` for jack, queen and king (`"3"` for the
ace with three seats), then the moves of the round, `"p"` for a check or a fold and `"b"` for a bet or a call. The seat
that starts the round is OpenSpiel's player 0.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import permutations

from trl_spiral.games.base import Dealt, Game, Traits
from trl_spiral.games.dialogue import DialogueMatch, normalize_move
from trl_spiral.types import Observation


NAME = "Kuhn-v0"
CARDS = "JQKA"
LETTERS = {"[check]": "p", "[fold]": "p", "[bet]": "b", "[call]": "b"}
INFORMATION_STATES = tuple(f"{card}{moves}" for moves in ("", "p", "b", "pb") for card in range(3))
"""Information states with two seats."""

_RULES = (
    "You are Player {seat} in a two-player game of Kuhn poker.\n"
    "There are three cards: J is the lowest, Q beats J, and K beats both. Each player puts 1 chip into the pot and is "
    "dealt one card, which the other player never sees.\n"
    "While nobody has bet, you may [check] or [bet] 1 more chip. After a bet, you may [call] it with 1 more chip or "
    "[fold].\n"
    "A fold gives the pot to the other player. After two checks or a call, the higher card wins the pot."
)
_RULES_OF_THREE = (
    "You are Player {seat} in a three-player game of Kuhn poker.\n"
    "There are four cards, from the lowest to the highest: J, Q, K, A. Each player puts 1 chip into the pot and is "
    "dealt one card, which the others never see.\n"
    "Players move in turn. While nobody has bet, you may [check] or [bet] 1 more chip. After a bet, each of the "
    "others may [call] it with 1 more chip or [fold], and the round ends.\n"
    "Among those who have put in the same as whoever bet, or among all if nobody did, the highest card wins the pot."
)
_SEVERAL = "You play {rounds} rounds and take turns at moving first. The chips won over all rounds are your score."


class _Kuhn(Game):
    """Base class of one round and several rounds."""

    def __init__(self, seats: int, rounds: int = 1) -> None:
        # A round costs at most the ante and a bet.
        self.traits = Traits(seats=seats, stochastic=True, perfect_information=False, lowest=-2.0 * rounds)

    def canonical(self, action: str) -> str | None:
        move = f"[{normalize_move(action)}]"
        return move if move in LETTERS else None

    @property
    def atoms(self) -> str:
        return rf"\b[{CARDS[: self.traits.seats + 1]}]\b|{super().atoms}"


class KuhnPoker(_Kuhn, Dealt):
    """
    One round of true [Kuhn poker](https://en.wikipedia.org/wiki/Kuhn_poker): an ante of 1 and one bet of 1.

    Returns are the chips won or lost. Seat 0 moves first.

    Args:
        seats (`int`, defaults to `2`):
            2, with three cards, or 3, with four cards.

    Raises:
        ValueError: If `seats` is neither 2 nor 3.
    """

    def __init__(self, seats: int = 2) -> None:
        if seats not in (2, 3):
            raise ValueError(f"`seats` ({seats}) must be 2 or 3.")
        super().__init__(seats)
        self.name = NAME if seats == 2 else f"{NAME}-{seats}p"

    def start(self, seed: int) -> KuhnMatch:
        seats = self.traits.seats
        return self.deal(tuple(random.Random(seed).sample(range(seats + 1), seats)))

    def deals(self) -> tuple[tuple[int, ...], ...]:
        seats = self.traits.seats
        return tuple(permutations(range(seats + 1), seats))

    def deal(self, deal: tuple[int, ...]) -> KuhnMatch:
        rules = _RULES if self.traits.seats == 2 else _RULES_OF_THREE
        return KuhnMatch(self, [rules.format(seat=seat) for seat in range(self.traits.seats)], (deal,))

    def information_state(self, observation: Observation) -> str:
        card, moves = observation.messages[-1]["content"].rsplit("Your card is ", 1)[-1].split(".", 1)
        made = re.findall(r"^Player [0-2]: (\[\w+\])$", moves, re.MULTILINE)
        return str(CARDS.index(card)) + "".join(LETTERS[move] for move in made)


class KuhnRounds(_Kuhn):
    """
    Several rounds of Kuhn poker with two seats and a new deal per round.

    Returns are the chips won or lost over all rounds. Seat 0 starts the first round, and the starter alternates.

    Args:
        rounds (`int`):
            Number of rounds.
    """

    def __init__(self, rounds: int) -> None:
        super().__init__(seats=2, rounds=rounds)
        self.rounds = rounds
        self.name = f"{NAME}-{rounds}"

    def start(self, seed: int) -> KuhnMatch:
        several = _SEVERAL.format(rounds=self.rounds)
        rules = [f"{_RULES.format(seat=seat)}\n{several}" for seat in (0, 1)]
        return KuhnMatch(self, rules, random_deals(seed, self.rounds))


class KuhnMatch(DialogueMatch):
    """
    One match of one or more rounds.

    Args:
        game ([`~games.Game`]):
            The rules.
        rules (`Sequence[str]`):
            First message of each seat.
        deals (`Sequence[tuple[int, ...]]`):
            Cards of each round, one per seat, 0 for the lowest.
        first (`int`, defaults to `0`):
            Seat that starts the first round. The next seat starts the next round.
    """

    def __init__(self, game: Game, rules: Sequence[str], deals: Sequence[tuple[int, ...]], first: int = 0) -> None:
        super().__init__(game, rules, first)
        self._deals = tuple(deals)
        self._first = first
        self._round = -1
        self._moves = ""
        self._chips = (0,) * game.traits.seats
        self._deal()

    @property
    def cards(self) -> tuple[int, ...]:
        """Card of each seat in the current round. Each seat observes its own card only."""
        return self._deals[self._round]

    def legal_actions(self) -> tuple[str, ...]:
        return () if self.ending is not None else kuhn_moves(self._moves)

    def gains(self, moves: str, cards: Sequence[int]) -> tuple[int, ...] | None:
        """Return the chips won in a round, starter first; `None` before its end."""
        return payoffs(moves, cards)

    def score(self, chips: tuple[int, ...], last: tuple[int, ...]) -> tuple[float, ...]:
        """Return the payoffs of the match, from the chips won in all rounds and in the last."""
        return chips

    def play(self, seat: int, move: str) -> None:
        self._moves += LETTERS[move]
        seats = self.game.traits.seats
        starter = self._starter()
        gains = self.gains(self._moves, self.cards[starter:] + self.cards[:starter])
        if gains is None:
            self.seat = (seat + 1) % seats
            return
        won = tuple(gains[(other - starter) % seats] for other in range(seats))
        self._chips = tuple(map(sum, zip(self._chips, won, strict=True)))
        winner = max(range(seats), key=won.__getitem__)
        self.detail = f"Player {winner} wins {won[winner]} {'chip' if won[winner] == 1 else 'chips'}."
        self.send(self.detail)
        if self._round + 1 < len(self._deals):
            self._deal()
        else:
            self.finish(self.score(self._chips, won))

    def _deal(self) -> None:
        self._round += 1
        self._moves = ""
        self.seat = self._starter()
        number = f"Round {self._round + 1} of {len(self._deals)}. " if len(self._deals) > 1 else ""
        for seat, card in enumerate(self.cards):
            self.send(f"{number}Player {self.seat} moves first. Your card is {CARDS[card]}.", seat)

    def _starter(self) -> int:
        return (self._first + self._round) % self.game.traits.seats


def random_deals(seed: int, rounds: int) -> tuple[tuple[int, int], ...]:
    """Return the cards of each round for two seats, drawn uniformly."""
    chance = random.Random(seed)
    return tuple((first, second) for first, second in (chance.sample(range(3), 2) for _ in range(rounds)))


def kuhn_moves(moves: str) -> tuple[str, ...]:
    """Return the legal moves after the moves of a round, given as an information state with or without its card."""
    return ("[call]", "[fold]") if "b" in moves else ("[check]", "[bet]")


def payoffs(moves: str, cards: Sequence[int]) -> tuple[int, ...] | None:
    """
    Return the chips won by each seat in a round, starter first; `None` before its end.

    Args:
        moves (`str`):
            Moves of the round, in the format of information states.
        cards (`Sequence[int]`):
            Card of each seat, starter first.
    """
    seats, bet = range(len(cards)), moves.find("b")
    # Without a bet, each seat moves once. After a bet, each other seat moves once more.
    if len(moves) < len(cards) + max(bet, 0):
        return None
    raised = {turn % len(cards) for turn, letter in enumerate(moves) if letter == "b"}
    stakes = [2 if seat in raised else 1 for seat in seats]
    winner = max(raised or seats, key=cards.__getitem__)
    return tuple(sum(stakes) - stake if seat == winner else -stake for seat, stake in zip(seats, stakes, strict=True))
