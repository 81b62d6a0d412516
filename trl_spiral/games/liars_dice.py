"""
Liar's dice with TextArena's rules, except that the number of dice in play limits bids.

A bid must raise the quantity or the face of the last one and lower neither. No face is wild. The seat after the caller
starts the next round.
"""

from __future__ import annotations

import random
import re
from itertools import product

from trl_spiral.games.base import Dealt, Game, Traits
from trl_spiral.games.dialogue import DialogueMatch, normalize_move
from trl_spiral.seeding import derive_seed
from trl_spiral.types import Observation


NAME = "LiarsDice-v1"
FACES = 6
CALL = "[Call]"
_BID = "[Bid: {}, {}]"
_READ_BID = re.compile(r"bid ?:? ?([0-9]{1,2})(?: ?, ?| )([0-9])", re.ASCII)

Dice = tuple[tuple[int, ...], ...]
"""Faces of the dice of each seat."""

_RULES = (
    "You are Player {seat} in a game of liar's dice for {seats} players.\n"
    "Each player starts with {dice} and rolls in secret. Players take turns. [Bid: 2, 4] claims that among all dice "
    "in play, those of the other players included, at least two show a 4. A bid needs a higher quantity or a higher "
    "face than the last, and neither may be lower; the quantity may be as high as the number of dice in play.\n"
    "Instead of bidding, you may [Call] the last bid. If fewer dice show its face than it claims, whoever bid loses a "
    "die; otherwise you lose one. Then all roll again, and the player after the one who called bids first. "
    "{end}"
)
_END_OF_TWO = "Whoever has no dice left loses."
_END_OF_THREE = (
    "Whoever has no dice left is out. The first to be out gets -1 point, the second 0 points, the winner 1."
)


class LiarsDice(Game):
    """
    [Liar's dice](https://en.wikipedia.org/wiki/Liar%27s_dice), played until only one seat has dice.

    Returns are 1 for the winner and -1 for the seat that is out first. With three seats, the second gets 0.

    Args:
        dice (`int`):
            Dice per seat, 1 to 5.
        seats (`int`, defaults to `2`):
            2 or 3.

    Raises:
        ValueError: If `dice` or `seats` is out of range.
    """

    def __init__(self, dice: int, seats: int = 2) -> None:
        if not 1 <= dice <= 5 or seats not in (2, 3):
            raise ValueError(f"`dice` ({dice}) must be 1 to 5 for each seat, and `seats` ({seats}) must be 2 or 3.")
        self.dice = dice
        self.name = f"{NAME}-{dice}" if seats == 2 else f"{NAME}-{dice}-{seats}p"
        self.traits = Traits(seats=seats, stochastic=True, perfect_information=False)

    def start(self, seed: int) -> LiarsDiceMatch:
        return LiarsDiceMatch(self, roll(seed, 0, (self.dice,) * self.traits.seats), seed)

    def canonical(self, action: str) -> str | None:
        move = normalize_move(action)
        if move == "call":
            return CALL
        bid = _READ_BID.fullmatch(move)
        return _BID.format(int(bid[1]), int(bid[2])) if bid else None


class OneDieLiarsDice(LiarsDice, Dealt):
    """Liar's dice for two seats with one die each, in which the first call decides: small enough to be solved."""

    def __init__(self) -> None:
        super().__init__(dice=1)

    def deals(self) -> tuple[tuple[int, int], ...]:
        return tuple((mine, yours) for mine, yours in product(range(1, FACES + 1), repeat=2))

    def deal(self, deal: tuple[int, int]) -> LiarsDiceMatch:
        return LiarsDiceMatch(self, tuple((face,) for face in deal), seed=0)

    def information_state(self, observation: Observation) -> str:
        """Return the own die, then the bids as quantity and face: `"3 1-2 1-5"`."""
        text = observation.messages[-1]["content"].rsplit("Your dice: ", 1)[-1]
        die, _, rest = text.partition(".")
        bids = re.findall(r"^Player [01]: \[Bid: (\d+), (\d)\]$", rest, re.M)
        return " ".join([die, *("-".join(bid) for bid in bids)])


class LiarsDiceMatch(DialogueMatch):
    """
    One match of liar's dice.

    Args:
        game ([`LiarsDice`]):
            The rules.
        dice (`tuple[tuple[int, ...], ...]`):
            The first roll.
        seed (`int`):
            Seed of all later rolls.

    Attributes:
        dice (`tuple[tuple[int, ...], ...]`):
            Faces of the dice of each seat in the current round. Each seat observes its own dice only.
    """

    def __init__(self, game: LiarsDice, dice: Dice, seed: int) -> None:
        seats = game.traits.seats
        each = "one die" if game.dice == 1 else f"{game.dice} dice"
        end = _END_OF_TWO if seats == 2 else _END_OF_THREE
        rules = [_RULES.format(seat=seat, seats=seats, dice=each, end=end) for seat in range(seats)]
        super().__init__(game, rules)
        self._seed = seed
        self._rounds = 0
        self._out: tuple[int, ...] = ()
        self._bid: tuple[int, int] | None = None
        self._bidder = self.seat
        self._begin(dice)

    def legal_actions(self) -> tuple[str, ...]:
        if self.ending is not None:
            return ()
        low = self._bid or (1, 1)
        higher = product(range(low[0], sum(map(len, self.dice)) + 1), range(low[1], FACES + 1))
        bids = tuple(_BID.format(*bid) for bid in higher if bid != self._bid)
        return bids if self._bid is None else (*bids, CALL)

    def legal_moves_message(self, legal: tuple[str, ...]) -> str:
        if sum(map(len, self.dice)) == 2 or legal == (CALL,):
            return super().legal_moves_message(legal)
        # A list of the bids on ten dice would add 900 characters to every observation.
        low, high = self._bid or (1, 1), sum(map(len, self.dice))
        bids = f"'[Bid: q, f]' with q from {low[0]} to {high} and f from {low[1]} to {FACES}"
        return f"Your legal moves: {bids}" + (f", but for '{_BID.format(*low)}', and '{CALL}'" if self._bid else "")

    def play(self, seat: int, move: str) -> None:
        if move == CALL:
            self._call(seat)
            return
        quantity, face = map(int, re.findall(r"\d+", move))
        self._bid, self._bidder = (quantity, face), seat
        self.seat = self._after(seat)

    def _call(self, caller: int) -> None:
        assert self._bid is not None, "a call requires a bid"
        quantity, face = self._bid
        count = sum(faces.count(face) for faces in self.dice)
        loser = self._bidder if count < quantity else caller
        show = "1 die shows" if count == 1 else f"{count} dice show"
        self.detail = f"In all, {show} a {face}. Player {loser} loses a die."
        left = tuple(len(faces) - (seat == loser) for seat, faces in enumerate(self.dice))
        if left[loser] == 0:
            self._out = (*self._out, loser)
            self.detail += f" Player {loser} is out."
        self.send(self.detail)
        seats = len(left)
        if len(self._out) == seats - 1:
            winner = next(seat for seat in range(seats) if left[seat])
            ranked = (*self._out, winner)
            self.finish([2 * ranked.index(seat) / (seats - 1) - 1 for seat in range(seats)])
            return
        self._rounds += 1
        self.seat = self._after(caller)
        self._begin(roll(self._seed, self._rounds, left))

    def _begin(self, dice: Dice) -> None:
        self.dice = dice
        self._bid = None
        held = ", ".join(f"Player {seat} has {len(faces)}" for seat, faces in enumerate(dice))
        for seat, faces in enumerate(dice):
            mine = f"Your dice: {', '.join(map(str, faces)) or 'none'}."
            self.send(f"New round. {held}. Player {self.seat} bids first. {mine}", seat)

    def _after(self, seat: int) -> int:
        """Return the next seat that is not out."""
        seats = self.game.traits.seats
        return next(other % seats for other in range(seat + 1, seat + 1 + seats) if other % seats not in self._out)


def roll(seed: int, number: int, counts: tuple[int, ...]) -> Dice:
    """Return roll `number` (0, 1, …) of a match, with `counts` dice per seat."""
    chance = random.Random(derive_seed(seed, "roll", number))
    return tuple(tuple(chance.randint(1, FACES) for _ in range(count)) for count in counts)
