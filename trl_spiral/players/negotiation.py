"""Scripted players of SimpleNegotiation-v2: one that plays random moves, and one that trades for gain."""

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
    """Player that accepts, denies or makes a random offer; see `random_negotiation_move`."""

    def __init__(self) -> None:
        super().__init__("random", _random_move)


class GreedyNegotiator(ScriptedPlayer):
    """
    Player that accepts each offer that raises the value of its resources, and otherwise offers a trade that does.

    It offers the resource that it values least, relative to the base value, for the one that it values most. The price
    is fair by the base values. If such a trade brings no gain, it denies.

    Args:
        game (`str`, defaults to `"SimpleNegotiation-v2"`):
            Game to play.

    Raises:
        ValueError: If it is another game.
    """

    def __init__(self, game: str = NAME) -> None:
        if game != NAME:
            raise ValueError(f"There is no greedy player for {game}: it plays only {NAME}. Use 'random'.")
        super().__init__("greedy", _greedy)


def _random_move(observation: Observation) -> str:
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
    # Rounded up in favour of the other seat, whose values are the base values on average.
    price = math.ceil(amount * BASE_VALUES[asked] / BASE_VALUES[given])
    offer = Offer({given: price}, {asked: amount})
    if given == asked or price > position.held[given] or position.gain(offer, takes=False) <= 0:
        return DENY
    return str(offer)
