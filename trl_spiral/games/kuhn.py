"""
Kuhn poker by its true rules, in one round or several: our own engine, since TextArena's bets are free.

Information states are written as OpenSpiel writes them, so that theory can be asked about them: the card as `"0"`, `"1"`
or `"2"` for jack, queen and king, then the round's moves, `"p"` for a check or a fold and `"b"` for a bet or a call.
Whoever starts the round is OpenSpiel's player 0.
"""

from __future__ import annotations

import random
import re

from trl_spiral.games.base import Game, Match, Traits
from trl_spiral.types import Ending, Observation


NAME = "Kuhn-v0"
CARDS = "JQK"
LETTERS = {"[check]": "p", "[fold]": "p", "[bet]": "b", "[call]": "b"}
INFORMATION_STATES = tuple(f"{card}{moves}" for moves in ("", "p", "b", "pb") for card in range(3))

_RULES = (
    "You are Player {seat} in a two-player game of Kuhn poker.\n"
    "There are three cards: J is the lowest, Q beats J, and K beats both. Each player puts 1 chip into the pot and is "
    "dealt one card, which the other player never sees.\n"
    "While nobody has bet, you may [check] or [bet] 1 more chip. After a bet, you may [call] it with 1 more chip or "
    "[fold].\n"
    "A fold gives the pot to the other player. After two checks or a call, the higher card wins the pot."
)
_SEVERAL = "You play {rounds} rounds and take turns at moving first. The chips won over all rounds are your score."


class KuhnPoker(Game):
    """
    True [Kuhn poker](https://en.wikipedia.org/wiki/Kuhn_poker): three cards, an ante of 1, one bet of 1.

    Returns are the chips won or lost over all rounds. Seat 0 starts the first round, and the starter alternates.

    Args:
        rounds (`int`, defaults to `1`):
            Rounds of a match, each with a deal of its own.
    """

    traits = Traits(stochastic=True, perfect_information=False)

    def __init__(self, rounds: int = 1) -> None:
        self.rounds = rounds
        self.name = NAME if rounds == 1 else f"{NAME}-{rounds}"

    def start(self, seed: int) -> KuhnMatch:
        return KuhnMatch(self, seed)

    def canonical(self, action: str) -> str | None:
        move = f"[{action.strip().removeprefix('[').removesuffix(']').strip().lower()}]"
        return move if move in LETTERS else None

    @property
    def atoms(self) -> str:
        return rf"\b[{CARDS}]\b|{super().atoms}"


class KuhnMatch(Match):
    """
    One match of one or more rounds.

    Attributes:
        cards (`tuple[int, int]`):
            Card of each seat in the present round, 0 to 2. No observation shows both.
    """

    def __init__(self, game: KuhnPoker, seed: int) -> None:
        self.game = game
        self.cards: tuple[int, int]
        self._seat: int
        self._chance = random.Random(seed)
        self._round = -1
        self._chips = [0, 0]
        self._lines = [[_RULES.format(seat=seat)] for seat in (0, 1)]
        self._since = [0, 0]
        if game.rounds > 1:
            self._tell(_SEVERAL.format(rounds=game.rounds))
        self._deal()

    @property
    def to_move(self) -> int | None:
        return None if self.ending is not None else self._seat

    @property
    def returns(self) -> tuple[float, ...]:
        if self.ending is not Ending.FINISHED:
            return (0.0, 0.0)
        return tuple(map(float, self._chips))

    def observe(self, seat: int) -> Observation:
        legal = self.legal_actions() if seat == self.to_move else None
        asked = [f"Your legal moves: {', '.join(map(repr, legal))}"] if legal else []
        lines = self._lines[seat]
        return Observation(
            game=self.game.name,
            seat=seat,
            messages=({"role": "user", "content": "\n".join(lines + asked)},),
            update="\n".join(lines[self._since[seat] :] + asked),
            legal_actions=legal,
        )

    def legal_actions(self) -> tuple[str, ...]:
        return () if self.ending is not None else legal_moves(self._moves)

    def apply(self, action: str) -> str | None:
        if self.ending is not None:
            raise ValueError(f"This match of {self.game.name} has ended ({self.ending}). Start a new one.")
        move, seat = self.game.canonical(action), self._seat
        if move is None or move not in self.legal_actions():
            self.ending, self.offender, self.detail = Ending.ILLEGAL_MOVE, seat, move or "no readable move"
            return None
        self._moves += LETTERS[move]
        self._tell(f"Player {seat}: {move}")
        self._since[seat] = len(self._lines[seat])
        starter = self._round % 2
        won = payoff(self._moves, self.cards[starter] > self.cards[1 - starter])
        if won is None:
            self._seat = 1 - seat
            return move
        self._chips[starter] += won
        self._chips[1 - starter] -= won
        winner = starter if won > 0 else 1 - starter
        self.detail = f"Player {winner} wins {abs(won)} {'chip' if abs(won) == 1 else 'chips'}."
        self._tell(self.detail)
        if self._round + 1 < self.game.rounds:
            self._deal()
        else:
            self.ending = Ending.FINISHED
        return move

    def _deal(self) -> None:
        self._round += 1
        self._moves = ""
        self._seat = self._round % 2
        first, second = self._chance.sample(range(3), 2)
        self.cards = first, second
        for seat, card in enumerate(self.cards):
            number = f"Round {self._round + 1} of {self.game.rounds}. " if self.game.rounds > 1 else ""
            self._lines[seat].append(f"{number}Player {self._seat} moves first. Your card is {CARDS[card]}.")

    def _tell(self, line: str) -> None:
        """A line that both seats read."""
        for lines in self._lines:
            lines.append(line)


def legal_moves(moves: str) -> tuple[str, ...]:
    """What may be done after a round's moves, given as an information state with or without its card."""
    return ("[call]", "[fold]") if moves.endswith("b") else ("[check]", "[bet]")


def payoff(moves: str, starter_is_higher: bool) -> int | None:
    """Chips that a round brings whoever started it; `None` while it goes on."""
    if moves in ("bp", "pbp"):
        return 1 if moves == "bp" else -1
    if moves in ("pp", "bb", "pbb"):
        stake = 1 if moves == "pp" else 2
        return stake if starter_is_higher else -stake
    return None


def information_state(observation: Observation) -> str:
    """What the seat to move knows of the present round, as OpenSpiel writes it."""
    card, moves = observation.messages[-1]["content"].rsplit("Your card is ", 1)[-1].split(".", 1)
    return str(CARDS.index(card)) + "".join(
        LETTERS[move] for move in re.findall(r"^Player [01]: (\[\w+\])$", moves, re.MULTILINE)
    )
