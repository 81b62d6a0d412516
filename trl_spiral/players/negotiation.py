"""Players of SimpleNegotiation-v2, whose moves cannot be listed: one that offers anything, and one that seeks its gain."""

from __future__ import annotations

import math
import random

from trl_spiral.games.negotiation import (
    ACCEPT,
    BASE_VALUES,
    DENY,
    NAME,
    Offer,
    random_negotiation_move,
    read_negotiation,
)
from trl_spiral.players.scripted import ScriptedPlayer
from trl_spiral.types import Observation


class RandomNegotiator(ScriptedPlayer):
    """A player that accepts, denies or offers something for something else: see `random_negotiation_move`."""

    def __init__(self) -> None:
        super().__init__("random", _anything)


class GreedyNegotiator(ScriptedPlayer):
    """
    A player that accepts whatever raises the value of what it holds, and otherwise offers a swap that would.

    It gives what is worth least to it, compared with the usual value, for what is worth most, at a price that is fair by
    the usual values; where that would not pay, it denies.

    Args:
        game (`str`, defaults to `"SimpleNegotiation-v2"`):
            What it is to play.

    Raises:
        ValueError: If that is another game.
    """

    def __init__(self, game: str = NAME) -> None:
        if game != NAME:
            raise ValueError(f"There is no greedy player for {game}: it plays {NAME} alone. Use 'random'.")
        super().__init__("greedy", _greedy)


def _anything(observation: Observation) -> str:
    return random_negotiation_move(read_negotiation(observation), random.Random(observation.seed))


def _greedy(observation: Observation) -> str:
    rng, position = random.Random(observation.seed), read_negotiation(observation)
    if position.offer is not None and position.can_accept() and position.gain(position.offer, takes=True) > 0:
        return ACCEPT

    def liking(name: str) -> float:
        return position.values[name] / BASE_VALUES[name]

    given = min((name for name, amount in position.held.items() if amount), key=liking)
    asked = max(BASE_VALUES, key=liking)
    amount = rng.randint(1, 5)
    # Rounded in the other seat's favour: as often as not, it values things as usual.
    price = math.ceil(amount * BASE_VALUES[asked] / BASE_VALUES[given])
    offer = Offer({given: price}, {asked: amount})
    if given == asked or price > position.held[given] or position.gain(offer, takes=False) <= 0:
        return DENY
    return str(offer)
