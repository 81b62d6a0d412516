"""Rock-paper-scissors, one throw each: the smallest game in which every settled habit can be punished."""

from __future__ import annotations

from trl_spiral.games.base import Dealt, Match, Traits
from trl_spiral.games.dialogue import bare_move
from trl_spiral.types import Ending, Observation


NAME = "RockPaperScissors-v0"
THROWS = ("[rock]", "[paper]", "[scissors]")
INFORMATION_STATES = ("0", "1")

_RULES = (
    "You are Player {seat} in a game of rock-paper-scissors.\n"
    "Both players choose one throw in secret: rock beats scissors, scissors beat paper, and paper beats rock. Equal "
    "throws are a draw.\n"
    "Your legal moves: '[rock]', '[paper]', '[scissors]'"
)


class RockPaperScissors(Dealt):
    """One throw each. The seats are asked one after the other, and neither is told of the other's throw."""

    name = NAME
    traits = Traits(perfect_information=False)

    def start(self, seed: int) -> RockPaperScissorsMatch:
        del seed
        return RockPaperScissorsMatch()

    def deals(self) -> tuple[tuple[()], ...]:
        return ((),)  # nothing is dealt, which is one deal

    def deal(self, deal: tuple[()]) -> RockPaperScissorsMatch:
        del deal
        return RockPaperScissorsMatch()

    def information_state(self, observation: Observation) -> str:
        return information_state(observation)

    def canonical(self, action: str) -> str | None:
        move = f"[{bare_move(action)}]"
        return move if move in THROWS else None


class RockPaperScissorsMatch(Match):
    """One match of one throw each."""

    def __init__(self) -> None:
        self._throws: list[int] = []

    @property
    def to_move(self) -> int | None:
        return None if self.ending is not None else len(self._throws)

    @property
    def returns(self) -> tuple[float, ...]:
        if self.ending is not Ending.FINISHED:
            return (0.0, 0.0)
        gain = payoff(*self._throws)
        return (gain, -gain)

    def observe(self, seat: int) -> Observation:
        content = _RULES.format(seat=seat)
        return Observation(
            game=NAME,
            seat=seat,
            messages=({"role": "user", "content": content},),
            update=content,
            legal_actions=self.legal_actions() if seat == self.to_move else None,
        )

    def legal_actions(self) -> tuple[str, ...]:
        return () if self.ending is not None else THROWS

    def apply(self, action: str) -> str | None:
        if (seat := self.to_move) is None:
            raise ValueError(f"This match of {NAME} has ended ({self.ending}). Start a new one.")
        move = RockPaperScissors().canonical(action)
        if move is None:
            self.ending, self.offender, self.detail = Ending.ILLEGAL_MOVE, seat, "no readable move"
            return None
        self._throws.append(THROWS.index(move))
        if len(self._throws) == 2:
            self.ending = Ending.FINISHED
        return move


def payoff(first: int, second: int) -> float:
    """What the first seat wins, from the throws' places in `THROWS`: each beats the one before it."""
    return (0.0, 1.0, -1.0)[(first - second) % 3]


def information_state(observation: Observation) -> str:
    """What a seat knows before it throws: nothing but who it is."""
    return str(observation.seat)
