"""A scripted player of liar's dice that plays by probabilities."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from math import comb

from trl_spiral.games.liars_dice import CALL, FACES, NAME
from trl_spiral.players.scripted import ScriptedPlayer
from trl_spiral.types import Observation


class OddsPlayer(ScriptedPlayer):
    """
    Player that compares two probabilities: that the last bid is false, and that its own best bid is true. It calls if
    the first is higher, and bids otherwise.

    Hidden dice are taken as uniform and independent of the bids: it never bluffs, and infers nothing from bids.

    Args:
        game (`str`, defaults to `"LiarsDice-v1-5"`):
            One of the package's own liar's dice games.

    Raises:
        ValueError: If it is another game.
    """

    def __init__(self, game: str = f"{NAME}-5") -> None:
        if not game.startswith(f"{NAME}-"):
            raise ValueError(f"There is no 'odds' player for {game}: it plays {NAME}-1 to {NAME}-5. Use 'random'.")
        super().__init__("odds", _likeliest_move)


def chance(bid: tuple[int, int], mine: Sequence[int], hidden: int) -> float:
    """
    Compute the probability that a bid is true.

    Args:
        bid (`tuple[int, int]`):
            Quantity and face.
        mine (`Sequence[int]`):
            Faces of the visible dice.
        hidden (`int`):
            Number of hidden dice.
    """
    quantity, face = bid
    missing = max(0, quantity - list(mine).count(face))
    ways = sum(comb(hidden, hits) * (FACES - 1) ** (hidden - hits) for hits in range(missing, hidden + 1))
    return float(ways / FACES**hidden)


def _likeliest_move(observation: Observation) -> str:
    present = observation.messages[-1]["content"].rsplit("New round. ", 1)[-1]
    counts = [int(count) for count in re.findall(r"Player \d has (\d)", present)]
    mine = [int(face) for face in present.split("Your dice: ", 1)[1].split(".", 1)[0].split(", ")]
    hidden = sum(counts) - len(mine)
    bids = [move for move in observation.legal_actions or () if move != CALL]
    odds = {move: chance(_read(move), mine, hidden) for move in bids}
    best = max(odds.values(), default=0.0)
    earlier = re.findall(r"^Player \d: (\[Bid: .*\])$", present, re.MULTILINE)
    if not bids or (earlier and 1.0 - chance(_read(earlier[-1]), mine, hidden) > best):
        return CALL
    return random.Random(observation.seed).choice([move for move in bids if odds[move] == best])


def _read(bid: str) -> tuple[int, int]:
    quantity, face = re.findall(r"\d+", bid)
    return int(quantity), int(face)
