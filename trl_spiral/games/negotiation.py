"""
SimpleNegotiation-v2: five resources, swapped by offers. Our own engine, since in TextArena's a refused offer stays open.

A move is an offer, an acceptance or a refusal, and nothing else is passed on. An offer is open for the other seat's next
turn alone: accepting it makes the swap, if both seats hold what they give, and anything else clears it. Amounts, values
and their spread are those of TextArena's SimpleNegotiation-v0, with gold in the place of its ore, as in SPIRAL.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trl_spiral.games.base import Game, Traits
from trl_spiral.games.dialogue import ToldMatch, bare_move
from trl_spiral.types import Observation


NAME = "SimpleNegotiation-v2"
TURNS = 10
"""Turns of a match, of both seats together."""
BASE_VALUES: Mapping[str, int] = {"Wheat": 5, "Wood": 10, "Sheep": 15, "Brick": 25, "Gold": 40}
"""What a resource is worth, give or take a fifth, which each seat draws for itself."""
ACCEPT, DENY = "[Accept]", "[Deny]"

_LEAST_VALUE, _GREATEST_VALUE = 5, 40
_AMOUNTS = (5, 25)
_MOST = 999
_ITEM = re.compile(r"([0-9]{1,3}) ([a-z]+)", re.ASCII)

_RULES = (
    "You are Player {seat} in a negotiation game for two players.\n"
    "Both players hold five resources, which they value differently. Nobody knows what the other holds, or how they value "
    "it. Swap for what is worth more to you.\n"
    "In each turn, make one of these moves:\n"
    "[Offer: 1 Wood, 2 Gold -> 3 Brick] offers 1 Wood and 2 Gold, which you must hold, for 3 Brick.\n"
    "[Accept] takes the offer that the other player has just made, if you hold what it asks for.\n"
    "[Deny] refuses that offer, or passes. An offer that is not accepted at once is gone.\n"
    "The game lasts {turns} turns, {each} for each player. Whoever's holdings have then gained more value, counted by "
    "their own values, wins."
)


@dataclass(frozen=True, slots=True)
class Offer:
    """
    A swap.

    Attributes:
        gives, asks (`Mapping[str, int]`):
            How much of each resource the seat that offers gives, and what it asks for in return.
    """

    gives: Mapping[str, int]
    asks: Mapping[str, int]

    def __str__(self) -> str:
        gives, asks = (
            ", ".join(f"{side[name]} {name}" for name in BASE_VALUES if name in side)
            for side in (self.gives, self.asks)
        )
        return f"[Offer: {gives} -> {asks}]"


def read_offer(move: str) -> Offer | None:
    """The offer that a move makes, or `None` if it makes none: 1 to 999 of a resource in all, in either case."""
    text = bare_move(move)
    if not text.startswith("offer"):
        return None
    sides = text.removeprefix("offer").removeprefix(" ").removeprefix(":").split("->")
    if len(sides) != 2:
        return None
    read: list[Mapping[str, int]] = []
    for side in sides:
        amounts: dict[str, int] = {}
        for item in side.split(","):
            found = _ITEM.fullmatch(item.strip())
            if found is None or (name := found[2].capitalize()) not in BASE_VALUES or int(found[1]) == 0:
                return None
            amounts[name] = amounts.get(name, 0) + int(found[1])
            if amounts[name] > _MOST:
                return None
        read.append(amounts)
    return Offer(*read)


class SimpleNegotiation(Game):
    """
    Ten turns of offers between two seats. Returns are 1 for the seat that gains more value, -1 for the other, 0 in a draw.

    Legal moves are too many to be listed; a match can `sample` one.
    """

    name = NAME
    traits = Traits(stochastic=True, perfect_information=False, free_text=True)

    def start(self, seed: int) -> NegotiationMatch:
        chance = random.Random(seed)
        held = tuple({name: chance.randint(*_AMOUNTS) for name in BASE_VALUES} for _ in (0, 1))
        values = tuple({name: _draw_value(chance, base) for name, base in BASE_VALUES.items()} for _ in (0, 1))
        return NegotiationMatch(self, held, values)

    def canonical(self, action: str) -> str | None:
        if (move := f"[{bare_move(action).capitalize()}]") in (ACCEPT, DENY):
            return move
        offer = read_offer(action)
        return str(offer) if offer else None

    @property
    def atoms(self) -> str:
        return rf"\b(?:{'|'.join(BASE_VALUES)})\b|{super().atoms}"


def _draw_value(chance: random.Random, base: int) -> int:
    spread = base // 5
    return chance.randint(max(base - spread, _LEAST_VALUE), min(base + spread, _GREATEST_VALUE))


class NegotiationMatch(ToldMatch):
    """
    One match.

    Args:
        game ([`SimpleNegotiation`]):
            Its rules.
        held (`tuple[Mapping[str, int], ...]`):
            What each seat holds at first.
        values (`tuple[Mapping[str, int], ...]`):
            What one of each resource is worth to each seat.

    Attributes:
        held (`tuple[Mapping[str, int], ...]`):
            What each seat holds now. Never changed in place.
    """

    def __init__(
        self, game: SimpleNegotiation, held: tuple[Mapping[str, int], ...], values: tuple[Mapping[str, int], ...]
    ) -> None:
        super().__init__(game, [_RULES.format(seat=seat, turns=TURNS, each=TURNS // 2) for seat in (0, 1)])
        self.held = held
        self._values = values
        self._worth_at_first = self._worth()
        self._offer: Offer | None = None
        self._turns = 0
        for seat in (0, 1):
            worth = ", ".join(f"{name} {value}" for name, value in values[seat].items())
            self.tell(f"What one of each is worth to you: {worth}.", seat)
            self._tell_holdings(seat)

    def legal_actions(self) -> None:
        return None

    def sample(self, rng: random.Random) -> str:
        """A move that the seat to move may make: see `sample_move`."""
        return sample_move(Position(self.held[self.seat], self._values[self.seat], self._offer), rng)

    def allows(self, move: str) -> bool:
        if move == DENY:
            return True
        if move != ACCEPT:
            offer = read_offer(move)
            return offer is not None and _holds(self.held[self.seat], offer.gives)
        if self._offer is None:
            return False
        # Both sides once more: what was promised when it was held must still be there when it is taken.
        return _holds(self.held[1 - self.seat], self._offer.gives) and _holds(self.held[self.seat], self._offer.asks)

    def play(self, seat: int, move: str) -> None:
        if move == ACCEPT:
            self._swap(seat)
        self._offer = read_offer(move)
        self._turns += 1
        if self._turns < TURNS:
            self.seat = 1 - seat
            return
        first, second = (after - before for after, before in zip(self._worth(), self._worth_at_first, strict=True))
        self.detail = f"Player 0 gained {first}, Player 1 {second}."
        self.finish((0, 0) if first == second else (1, -1) if first > second else (-1, 1))

    def _swap(self, taker: int) -> None:
        assert self._offer is not None, "only an open offer is accepted"
        given, taken = self._offer.gives, self._offer.asks
        held = [dict(amounts) for amounts in self.held]
        for sign, amounts in ((1, given), (-1, taken)):
            for name, amount in amounts.items():
                held[taker][name] += sign * amount
                held[1 - taker][name] -= sign * amount
        self.held = tuple(held)
        for seat in (0, 1):
            self._tell_holdings(seat)

    def _worth(self) -> tuple[int, ...]:
        """What each seat's holdings are worth to it."""
        return tuple(
            sum(amount * values[name] for name, amount in held.items())
            for held, values in zip(self.held, self._values, strict=True)
        )

    def _tell_holdings(self, seat: int) -> None:
        self.tell(f"You hold {', '.join(f'{amount} {name}' for name, amount in self.held[seat].items())}.", seat)


def _holds(held: Mapping[str, int], amounts: Mapping[str, int]) -> bool:
    return all(held[name] >= amount for name, amount in amounts.items())


@dataclass(frozen=True, slots=True)
class Position:
    """
    What a seat knows when it is asked.

    Attributes:
        held, values (`Mapping[str, int]`):
            What it holds, and what one of each is worth to it.
        offer ([`Offer`], *optional*):
            The open offer, made by the other seat.
    """

    held: Mapping[str, int]
    values: Mapping[str, int]
    offer: Offer | None

    def can_accept(self) -> bool:
        """Whether there is an offer, and this seat holds what it asks for."""
        return self.offer is not None and _holds(self.held, self.offer.asks)

    def gain(self, offer: Offer, takes: bool) -> int:
        """What this seat wins by an offer that it takes or, otherwise, makes."""
        worth = (
            sum(self.values[name] * amount for name, amount in side.items()) for side in (offer.gives, offer.asks)
        )
        given, asked = worth
        return given - asked if takes else asked - given


def read_position(observation: Observation) -> Position:
    """What the seat to move reads in its observation."""
    lines = observation.messages[-1]["content"].split("\n")
    values = next(line for line in lines if line.startswith("What one of each is worth to you: "))
    held = next(line for line in reversed(lines) if line.startswith("You hold "))
    moves = [line for line in lines if re.match(r"Player [01]: ", line)]
    return Position(
        held={name: int(amount) for amount, name in re.findall(r"\b(\d+) (\w+)", held)},
        values={name: int(value) for name, value in re.findall(r"\b(\w+) (\d+)", values)},
        offer=read_offer(moves[-1].split(": ", 1)[1]) if moves else None,
    )


def sample_move(position: Position, rng: random.Random) -> str:
    """
    Whether to accept (if possible), deny or offer, each as likely as another, and what: 1 to 5 of something for 1 to 5 of
    something else.
    """
    held = [name for name, amount in position.held.items() if amount]
    kinds = [DENY, *([ACCEPT] if position.can_accept() else []), *(["offer"] if held else [])]
    if (kind := rng.choice(kinds)) != "offer":
        return kind
    given = rng.choice(held)
    asked = rng.choice([name for name in BASE_VALUES if name != given])
    return str(Offer({given: rng.randint(1, min(5, position.held[given]))}, {asked: rng.randint(1, 5)}))
