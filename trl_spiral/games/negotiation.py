"""
SimpleNegotiation-v2: swaps of five resources. In TextArena's version, a refused offer stays open.

A move is an offer, an acceptance or a refusal. The other seat reads nothing else. An offer is open for one turn of the
other seat. Accepting it makes the swap, if both seats hold what they give. Any other move clears it. Amounts, values
and their spread are those of TextArena's SimpleNegotiation-v0, with gold instead of ore, as in SPIRAL.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trl_spiral.games.base import Game, Traits
from trl_spiral.games.dialogue import DialogueMatch, normalize_move
from trl_spiral.types import Observation


NAME = "SimpleNegotiation-v2"
TURNS = 10
"""Number of turns of a match, of both seats together."""
BASE_VALUES: Mapping[str, int] = {"Wheat": 5, "Wood": 10, "Sheep": 15, "Brick": 25, "Gold": 40}
"""Mean value of one unit of a resource. Each seat draws its own values within a fifth of it."""
ACCEPT, DENY = "[Accept]", "[Deny]"

_LEAST_VALUE, _GREATEST_VALUE = 5, 40
_AMOUNTS = (5, 25)
_MOST = 999
_ITEM = re.compile(r"([0-9]{1,3}) ([a-z]+)", re.ASCII)

_RULES = (
    "You are Player {seat} in a negotiation game for two players.\n"
    "Both players hold five resources, which they value differently. Nobody knows what the other holds, or how they "
    "value it. Swap for what is worth more to you.\n"
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
    Offer of a swap.

    Attributes:
        gives, asks (`Mapping[str, int]`):
            Amount of each resource that the offering seat gives, and that it asks for in return.
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
    """Return the offer in a move, or `None`. Amounts are 1 to 999 per resource, and case is ignored."""
    text = normalize_move(move)
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
    Ten turns of offers between two seats.

    The return is 1 for the seat that gains more value and -1 for the other, or 0 in a draw. Legal moves are too many
    to be listed. Matches have a `sample` method.
    """

    name = NAME
    traits = Traits(stochastic=True, perfect_information=False, free_text=True)

    def start(self, seed: int) -> NegotiationMatch:
        chance = random.Random(seed)
        held = tuple({name: chance.randint(*_AMOUNTS) for name in BASE_VALUES} for _ in (0, 1))
        values = tuple({name: _draw_value(chance, base) for name, base in BASE_VALUES.items()} for _ in (0, 1))
        return NegotiationMatch(self, held, values)

    def canonical(self, action: str) -> str | None:
        if (move := f"[{normalize_move(action).capitalize()}]") in (ACCEPT, DENY):
            return move
        offer = read_offer(action)
        return str(offer) if offer else None

    @property
    def atoms(self) -> str:
        return rf"\b(?:{'|'.join(BASE_VALUES)})\b|{super().atoms}"


def _draw_value(chance: random.Random, base: int) -> int:
    spread = base // 5
    return chance.randint(max(base - spread, _LEAST_VALUE), min(base + spread, _GREATEST_VALUE))


class NegotiationMatch(DialogueMatch):
    """
    One match of the negotiation.

    Args:
        game ([`SimpleNegotiation`]):
            The rules.
        held (`tuple[Mapping[str, int], ...]`):
            Initial holdings of each seat.
        values (`tuple[Mapping[str, int], ...]`):
            Value of one unit of each resource for each seat.

    Attributes:
        held (`tuple[Mapping[str, int], ...]`):
            Current holdings of each seat. Never changed in place.
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
            self.send(f"What one of each is worth to you: {worth}.", seat)
            self._send_holdings(seat)

    def legal_actions(self) -> None:
        return None

    def sample(self, rng: random.Random) -> str:
        """Return a random legal move: see [`random_negotiation_move`]."""
        return random_negotiation_move(
            NegotiationState(self.held[self.seat], self._values[self.seat], self._offer), rng
        )

    def is_legal(self, move: str) -> bool:
        if move == DENY:
            return True
        if move != ACCEPT:
            offer = read_offer(move)
            return offer is not None and _holds(self.held[self.seat], offer.gives)
        if self._offer is None:
            return False
        # Check both sides: the offering seat's holdings may have changed since the offer.
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
            self._send_holdings(seat)

    def _worth(self) -> tuple[int, ...]:
        """Return the value of each seat's holdings for that seat."""
        return tuple(
            sum(amount * values[name] for name, amount in held.items())
            for held, values in zip(self.held, self._values, strict=True)
        )

    def _send_holdings(self, seat: int) -> None:
        self.send(f"You hold {', '.join(f'{amount} {name}' for name, amount in self.held[seat].items())}.", seat)


def _holds(held: Mapping[str, int], amounts: Mapping[str, int]) -> bool:
    return all(held[name] >= amount for name, amount in amounts.items())


@dataclass(frozen=True, slots=True)
class NegotiationState:
    """
    Information of the seat to move.

    Attributes:
        held, values (`Mapping[str, int]`):
            Its holdings, and its value of one unit of each resource.
        offer ([`Offer`], *optional*):
            Open offer of the other seat.
    """

    held: Mapping[str, int]
    values: Mapping[str, int]
    offer: Offer | None

    def can_accept(self) -> bool:
        """Return whether there is an open offer and this seat holds what it asks for."""
        return self.offer is not None and _holds(self.held, self.offer.asks)

    def gain(self, offer: Offer, takes: bool) -> int:
        """Return the value that this seat gains by an offer that it takes or, with `takes=False`, makes."""
        worth = (
            sum(self.values[name] * amount for name, amount in side.items()) for side in (offer.gives, offer.asks)
        )
        given, asked = worth
        return given - asked if takes else asked - given


def read_negotiation(observation: Observation) -> NegotiationState:
    """Parse the observation of the seat to move."""
    lines = observation.messages[-1]["content"].split("\n")
    values = next(line for line in lines if line.startswith("What one of each is worth to you: "))
    held = next(line for line in reversed(lines) if line.startswith("You hold "))
    moves = [line for line in lines if re.match(r"Player [01]: ", line)]
    return NegotiationState(
        held={name: int(amount) for amount, name in re.findall(r"\b(\d+) (\w+)", held)},
        values={name: int(value) for name, value in re.findall(r"\b(\w+) (\d+)", values)},
        offer=read_offer(moves[-1].split(": ", 1)[1]) if moves else None,
    )


def random_negotiation_move(state: NegotiationState, rng: random.Random) -> str:
    """Return an acceptance (if possible), a refusal or an offer, uniformly. Offers swap 1 to 5 units on both sides."""
    held = [name for name, amount in state.held.items() if amount]
    kinds = [DENY, *([ACCEPT] if state.can_accept() else []), *(["offer"] if held else [])]
    if (kind := rng.choice(kinds)) != "offer":
        return kind
    given = rng.choice(held)
    asked = rng.choice([name for name in BASE_VALUES if name != given])
    return str(Offer({given: rng.randint(1, min(5, state.held[given]))}, {asked: rng.randint(1, 5)}))
