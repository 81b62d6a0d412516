"""
The nouns of self-play, each once: what a seat sees, what it does, and what came of it.

Everything here is frozen and free of torch, so the game half of the package can be tested in milliseconds and read
without knowing how a model is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


Message = Mapping[str, str]
"""One chat message: `{"role": …, "content": …}`."""

POLICY = "policy"
"""Name of the policy in training, as a player and as a set of weights."""

SELF = "self"
"""Name of the opponent in self-play: the policy fills every seat."""

POOL = "pool"
"""Name of the opponents that are snapshots of the policy."""

BASE = "base"
"""Name of the model that training started from, as an opponent and as a set of weights."""

HUMAN = "human"
"""Name of a person at the terminal."""


class Ending(StrEnum):
    """Why an episode ended. Everything but `ENVIRONMENT_ERROR` and `PLAYER_LOST` is ordinary data to learn from."""

    FINISHED = "finished"
    """The rules ended it: a win or a draw."""
    ILLEGAL_MOVE = "illegal_move"
    """A seat's reply held no legal move."""
    TRUNCATED = "truncated"
    """A seat's reply hit the token limit before it ended."""
    TURN_LIMIT = "turn_limit"
    """The game's cap on turns was reached; every seat returns zero."""
    PLAYER_LOST = "player_lost"
    """Whoever filled a seat is gone (an endpoint that fails, a person who left). Never trained on."""
    ENVIRONMENT_ERROR = "environment_error"
    """The environment raised. Never trained on."""

    @property
    def is_forfeit(self) -> bool:
        """Whether one seat ended the episode by its own fault."""
        return self in FORFEITS.values()

    @property
    def is_broken(self) -> bool:
        """Whether the result says nothing about how anybody played."""
        return self in (Ending.PLAYER_LOST, Ending.ENVIRONMENT_ERROR)


FORFEITS: Mapping[str, Ending] = {"illegal": Ending.ILLEGAL_MOVE, "truncated": Ending.TRUNCATED}
"""How a seat can end a game by its own reply, under the names that every table, log and file uses."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """
    How a reply is drawn.

    Attributes:
        temperature (`float`, defaults to `1.0`):
            Softmax temperature; `0.0` takes the likeliest token.
        top_p (`float`, defaults to `1.0`):
            Nucleus probability in (0, 1].
        top_k (`int`, defaults to `0`):
            Number of likeliest tokens kept; `0` keeps all.
        min_p (`float`, *optional*):
            Tokens below this share of the likeliest token's probability are dropped.
        repetition_penalty (`float`, defaults to `1.0`):
            Penalty above 1 on tokens already seen.
        max_new_tokens (`int`, defaults to `256`):
            Longest reply, in tokens. A reply that reaches it is truncated.
        stop (`tuple[str, ...]`, defaults to none):
            Texts that end a reply once it has written one of them. The text belongs to the reply.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """
    One decision by one seat: what it read, what it wrote, and how likely that was.

    Attributes:
        action (`str`, *optional*):
            Move handed to the game, in the game's canonical form or as the player wrote it. `None` if the reply held
            no readable move: the seat forfeits.
        text (`str`):
            The whole reply as text, for people. Never tokenized again.
        prompt_ids (`tuple[int, ...]`):
            Tokens the player was conditioned on, chat template applied; empty for scripted players.
        completion_ids (`tuple[int, ...]`):
            Tokens it sampled, end-of-turn included. Kept as sampled, never re-tokenized from text.
        logprobs (`tuple[float, ...]`):
            Log-probability, in nats, of each completion token under the policy that sampled it (temperature applied,
            nothing filtered). Same length as `completion_ids`; empty for scripted players.
        policy (`str`, *optional*):
            Name of the weights that wrote the reply; `None` for scripted players. Only turns of `POLICY` are trained.
        version (`int`):
            Version of those weights, as the engine reported it.
        truncated (`bool`):
            Whether the reply hit the token limit.
        lost (`bool`):
            Whether the player is gone and no reply will ever come.

    Raises:
        ValueError: If `logprobs` is non-empty and differs in length from `completion_ids`.
    """

    action: str | None
    text: str = ""
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    policy: str | None = None
    version: int = 0
    truncated: bool = False
    lost: bool = False

    def __post_init__(self) -> None:
        if self.logprobs and len(self.logprobs) != len(self.completion_ids):
            raise ValueError(
                f"A turn has {len(self.logprobs)} log-probabilities for {len(self.completion_ids)} completion tokens. "
                "Give one per token, or none."
            )


@dataclass(frozen=True, slots=True)
class Observation:
    """
    What a seat sees when it is asked for a move.

    Attributes:
        game (`str`):
            Name of the game.
        seat (`int`):
            Position at the table, from 0.
        messages (`tuple[Message, ...]`):
            The whole observation as chat messages, for a player that remembers nothing.
        update (`str`):
            What is new since this seat's last decision, for a player that carries on a conversation. One without `turns`
            has none, and reads `messages`.
        legal_actions (`tuple[str, ...]`, *optional*):
            Canonical legal moves, or `None` where they cannot be listed.
        seed (`int`):
            The one source of randomness that a player may use for this decision: same episode, same seed.
        turns (`tuple[Turn, ...]`):
            This seat's own earlier turns in the episode.
        history (`tuple[tuple[int, str], ...]`):
            Every move so far, as (seat, action), random openings included, in games of perfect information; empty in
            any other, where it would tell a seat what is hidden from it.
        asks_program (`bool`, defaults to `False`):
            Whether the move is a program, which no box can hold: see `prompts.extract_code_move`.
        is_duel (`bool`, defaults to `True`):
            Whether the game is a zero-sum one for two, as prompts may then say. The referee sets it by the game's traits.
    """

    game: str
    seat: int
    messages: tuple[Message, ...]
    update: str = ""
    legal_actions: tuple[str, ...] | None = None
    seed: int = 0
    turns: tuple[Turn, ...] = ()
    history: tuple[tuple[int, str], ...] = ()
    asks_program: bool = False
    is_duel: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """
    What a player asks of an engine: a prompt, whose weights answer it, and how the reply is drawn.

    Attributes:
        prompt_ids (`tuple[int, ...]`):
            Token ids, chat template applied. Empty where `messages` are sent instead.
        sampling ([`Sampling`]):
            How the reply is drawn.
        policy (`str`, defaults to `POLICY`):
            Whose weights answer.
        seed (`int`):
            Seed of this reply alone, so that what is decoded in the same batch changes no more than its rounding.
        messages (`tuple[Message, ...]`, defaults to none):
            The prompt as chat messages, for a model behind an endpoint that takes no token ids.
        legal_moves (`tuple[str, ...]`, defaults to none):
            If given, the reply is constrained to end in one of these moves, boxed. An engine that cannot do that
            refuses the request.
    """

    prompt_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    policy: str = POLICY
    seed: int = 0
    messages: tuple[Message, ...] = ()
    legal_moves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """
    What an engine answers.

    Attributes:
        completion_ids (`tuple[int, ...]`):
            Sampled tokens, end-of-turn included.
        logprobs (`tuple[float, ...]`):
            One log-probability, in nats, per token.
        finish_reason (`str`):
            `"stop"`, `"length"` where the token limit was hit, or `"lost"` where no reply could be had.
        version (`int`):
            Version of the weights that wrote it.
        text (`str`):
            The reply as text, where an endpoint gave no token ids.
    """

    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length", "lost"] = "stop"
    version: int = 0
    text: str = ""


def is_drawn(returns: Sequence[float]) -> bool:
    """Whether no seat of several did better than another. A game of one seat is solved or not, and never drawn."""
    return len(returns) > 1 and len(set(returns)) == 1


def has_won(returns: Sequence[float], seat: int) -> bool:
    """Whether a seat returns the most and others less; where there are no others, whether it returns 1, a solved puzzle's."""
    return returns[0] >= 1.0 if len(returns) == 1 else returns[seat] == max(returns) > min(returns)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One seat's turns in an episode, in order."""

    seat: int
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """
    One playing of a game.

    Attributes:
        game (`str`):
            Name of the game.
        seed (`int`):
            Seed of the match: deals, dice and opening.
        players (`tuple[str, ...]`):
            Name of whoever filled each seat.
        trajectories (`tuple[Trajectory, ...]`):
            One per seat, empty ones included.
        returns (`tuple[float, ...]`):
            Terminal payoff per seat.
        ending ([`Ending`]):
            Why it ended.
        offender (`int`, *optional*):
            The seat whose fault ended it, where one is.
        counter (`int`):
            Number of the episode in the run, unique over all ranks.
        moves (`tuple[tuple[int, str], ...]`):
            Every move played, as (seat, action), random openings included: enough to replay the episode.
        opening (`int`):
            How many of those moves were a random opening that nobody chose.
        order (`tuple[int, ...]`):
            The seat of each turn, in playing order.
        discarded_tokens (`int`):
            Policy tokens sampled in drawn attempts that were played again.
        detail (`str`):
            For people: the environment's reason, or the error.
    """

    game: str
    seed: int
    players: tuple[str, ...]
    trajectories: tuple[Trajectory, ...]
    returns: tuple[float, ...]
    ending: Ending
    offender: int | None = None
    counter: int = 0
    moves: tuple[tuple[int, str], ...] = ()
    opening: int = 0
    order: tuple[int, ...] = ()
    discarded_tokens: int = 0
    detail: str = ""

    @property
    def is_draw(self) -> bool:
        """Whether no seat did better than another, judged on the game's own returns."""
        return is_drawn(self.returns)

    @property
    def policy_tokens(self) -> int:
        """Tokens that the trained policy wrote in this episode."""
        return sum(
            len(turn.completion_ids)
            for trajectory in self.trajectories
            for turn in trajectory.turns
            if turn.policy == POLICY
        )
