"""A game with predictable length and result."""

from dataclasses import dataclass, field

from trl_spiral.games import Game, Match, Traits
from trl_spiral.types import Ending, Observation


CELLS = tuple(f"[{cell}]" for cell in range(9))


@dataclass(frozen=True)
class SumGame(Game):
    """
    Seats take turns to name a cell of tic-tac-toe, `[0]` to `[8]`. A model that writes cells plays legally.

    A game has `short` moves for an even seed and `long` moves for an odd one. The sum of the cells modulo 3 decides: 0
    is a draw, 1 a win of the first seat, 2 a win of the second.
    """

    name: str = "Sum-v0"
    short: int = 2
    long: int = 12
    traits: Traits = field(default_factory=lambda: Traits(stochastic=True))

    def start(self, seed):
        return SumMatch(self, self.length(seed))

    def length(self, seed: int) -> int:
        return self.long if seed % 2 else self.short

    def canonical(self, action):
        move = action.strip().strip("[]").strip()
        return f"[{move}]" if f"[{move}]" in CELLS else None


class SumMatch(Match):
    def __init__(self, game, plies):
        self.game, self.plies, self.moves = game, plies, []

    @property
    def to_move(self):
        return None if self.ending is not None else len(self.moves) % 2

    def observe(self, seat):
        update = f"Current Board: {' | '.join(self.moves[-2:])}. {self.plies - len(self.moves)} to play."
        text = f"You are Player {seat}.\n{update}"
        return Observation(
            self.game.name,
            seat,
            ({"role": "user", "content": text},),
            update=update if len(self.moves) > 1 else text,
            legal_actions=CELLS,
        )

    def legal_actions(self):
        return CELLS

    def apply(self, action):
        move = self.game.canonical(action)
        if move is None:
            self.ending, self.offender = Ending.ILLEGAL_MOVE, self.to_move
            return None
        self.moves.append(move)
        if len(self.moves) == self.plies:
            self.ending = Ending.FINISHED
        return move

    @property
    def returns(self):
        if self.ending is not Ending.FINISHED:
            return (0.0, 0.0)
        outcome = sum(CELLS.index(move) for move in self.moves) % 3
        return ((0.0, 0.0), (1.0, -1.0), (-1.0, 1.0))[outcome]
