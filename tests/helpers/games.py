"""
Small games, players and engines for tests.

`LastStone` has three seats. `ShortOrLong` lasts one or nine turns, depending on the seed, and detects a preference for
short games. `AskingPlayer` and `EchoEngine` implement the `Player` and `Engine` protocols without a model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

from trl_spiral.games import Game, Match, Traits
from trl_spiral.types import POLICY, Ending, Observation, Reply, Request, Turn


class _SmallMatch(Match):
    """Base class: seats take turns, and moves can be listed."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.turns = 0
        self._returns = (0.0,) * game.traits.seats

    @property
    def to_move(self) -> int | None:
        return None if self.ending is not None else self.turns % self.game.traits.seats

    @property
    def returns(self) -> tuple[float, ...]:
        return self._returns

    @abstractmethod
    def status(self) -> str:
        """Return the position in words."""

    @abstractmethod
    def outcome(self, seat: int, move: str) -> tuple[float, ...] | None:
        """Play a legal move and return the payoffs if it ends the game."""

    def observe(self, seat: int) -> Observation:
        content = f"{self.game.name}, seat {seat}. {self.status()}"
        return Observation(
            game=self.game.name,
            seat=seat,
            messages=({"role": "user", "content": content},),
            update=content,
            legal_actions=self.legal_actions(),
        )

    def apply(self, action: str) -> str | None:
        seat = self.to_move
        if seat is None:
            raise ValueError(f"This match of {self.game.name} has ended.")
        move = self.game.canonical(action)
        if move is None or move not in (self.legal_actions() or ()):
            self.ending, self.offender = Ending.ILLEGAL_MOVE, seat
            return None
        self.turns += 1
        if (payoffs := self.outcome(seat, move)) is not None:
            self.ending, self._returns = Ending.FINISHED, payoffs
        return move


class LastStone(Game):
    """Three seats take one or two stones in turn from a pile of 7 to 9. The seat that takes the last one wins."""

    name = "LastStone"
    traits = Traits(seats=3)

    def start(self, seed: int) -> LastStoneMatch:
        return LastStoneMatch(self, stones=7 + seed % 3)

    def canonical(self, action: str) -> str | None:
        number = action.strip().strip("[]")
        return f"[{number}]" if number in ("1", "2") else None


class LastStoneMatch(_SmallMatch):
    def __init__(self, game: Game, stones: int) -> None:
        super().__init__(game)
        self.stones = stones

    def status(self) -> str:
        return f"{self.stones} stones are left: take [1] or [2]."

    def legal_actions(self) -> tuple[str, ...]:
        return ("[1]", "[2]")[: self.stones]

    def outcome(self, seat: int, move: str) -> tuple[float, ...] | None:
        self.stones -= int(move[1])
        return None if self.stones else tuple(1.0 if other == seat else -0.5 for other in range(3))


class ShortOrLong(Game):
    """Two seats, one turn for even seeds and nine for odd ones. The last move decides: [a] wins, [b] loses."""

    name = "ShortOrLong"
    traits = Traits()

    def start(self, seed: int) -> ShortOrLongMatch:
        return ShortOrLongMatch(self, length=9 if seed % 2 else 1)

    def canonical(self, action: str) -> str | None:
        letter = action.strip().strip("[]")
        return f"[{letter}]" if letter in ("a", "b") else None


class ShortOrLongMatch(_SmallMatch):
    def __init__(self, game: Game, length: int) -> None:
        super().__init__(game)
        self.length = length

    def status(self) -> str:
        return f"Turn {self.turns + 1} of {self.length}: say [a] or [b]."

    def legal_actions(self) -> tuple[str, ...]:
        return ("[a]", "[b]")

    def outcome(self, seat: int, move: str) -> tuple[float, ...] | None:
        if self.turns < self.length:
            return None
        gain = 1.0 if move == "[a]" else -1.0
        return (gain, -gain) if seat == 0 else (-gain, gain)


def any_move(observation: Observation) -> int:
    """Return the index of a legal move, derived from the observation's seed."""
    assert observation.legal_actions
    return observation.seed % len(observation.legal_actions)


class AskingPlayer:
    """A player whose prompt is the index of its move, which `EchoEngine` returns."""

    def __init__(
        self, choose: Callable[[Observation], int] = any_move, name: str = "asking", policy: str = POLICY
    ) -> None:
        self.name = name
        self.policy = policy
        self.choose = choose

    def ask(self, observation: Observation) -> Turn | Request:
        return Request(prompt_ids=(self.choose(observation),), policy=self.policy, seed=observation.seed)

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        assert observation.legal_actions
        return Turn(
            action=observation.legal_actions[reply.completion_ids[0]],
            prompt_ids=request.prompt_ids,
            completion_ids=reply.completion_ids,
            logprobs=reply.logprobs,
            policy=request.policy,
            version=reply.version,
        )


class EchoEngine:
    """
    An engine that returns the prompt of every request.

    Args:
        answers (`str`):
            Requests that a step answers: all in order, all in reverse, only the oldest, or only the newest.
    """

    def __init__(self, answers: Literal["all", "reverse", "oldest", "newest"] = "all") -> None:
        self.answers = answers
        self.waiting: dict[int, Request] = {}
        self.most_waiting = 0
        self.answered = 0
        self.aborted: list[int] = []

    def add(self, ticket: int, request: Request) -> None:
        assert ticket not in self.waiting
        self.waiting[ticket] = request
        self.most_waiting = max(self.most_waiting, len(self.waiting))

    def step(self) -> Sequence[tuple[int, Reply]]:
        assert self.waiting, "`step` needs a waiting request"
        tickets = list(self.waiting)
        chosen = {"all": tickets, "reverse": tickets[::-1], "oldest": tickets[:1], "newest": tickets[-1:]}[
            self.answers
        ]
        self.answered += len(chosen)
        return [(ticket, Reply(self.waiting.pop(ticket).prompt_ids, (-0.5,))) for ticket in chosen]

    def metrics(self) -> dict[str, float]:
        return {}

    def abort(self, tickets: Sequence[int]) -> None:
        self.aborted += tickets
        for ticket in tickets:
            self.waiting.pop(ticket, None)
