"""Rock-paper-scissors with one throw each: the smallest game in which every pure strategy loses to another."""

from __future__ import annotations

from trl_spiral.games.base import Dealt, Match, Traits
from trl_spiral.games.dialogue import normalize_move
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
    """Rock-paper-scissors. The seats move in turn, and neither observes the throw of the other."""

    name = NAME
    traits = Traits(perfect_information=False)

    def start(self, seed: int) -> RockPaperScissorsMatch:
        del seed
        return RockPaperScissorsMatch()

    def deals(self) -> tuple[tuple[()], ...]:
        return ((),)  # one empty deal

    def deal(self, deal: tuple[()]) -> RockPaperScissorsMatch:
        del deal
        return RockPaperScissorsMatch()

    def information_state(self, observation: Observation) -> str:
        return str(observation.seat)

    def canonical(self, action: str) -> str | None:
        move = f"[{normalize_move(action)}]"
        return move if move in THROWS else None


class RockPaperScissorsMatch(Match):
    """One match of rock-paper-scissors."""

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
    """Return the payoff of the first seat, from indices in `THROWS`: each throw beats the one before it."""
    return (0.0, 1.0, -1.0)[(first - second) % 3]
