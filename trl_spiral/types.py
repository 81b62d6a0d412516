"""Types of self-play: observations, turns, requests, replies and episodes. All are frozen and free of torch."""

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
    """Why an episode ended. Episodes are trained on unless they ended by `ENVIRONMENT_ERROR` or `PLAYER_LOST`."""

    FINISHED = "finished"
    """The rules ended it: a win or a draw."""
    ILLEGAL_MOVE = "illegal_move"
    """A seat's reply contained no legal move."""
    TRUNCATED = "truncated"
    """A seat's reply reached the token limit before it ended."""
    TURN_LIMIT = "turn_limit"
    """The game's limit on turns was reached. Every seat returns zero."""
    PLAYER_LOST = "player_lost"
    """A player is gone (an endpoint that fails, a person who left). Never trained on."""
    ENVIRONMENT_ERROR = "environment_error"
    """The environment raised. Never trained on."""

    @property
    def is_forfeit(self) -> bool:
        """Return whether a seat ended the episode by an illegal or truncated reply."""
        return self in FORFEITS.values()

    @property
    def is_broken(self) -> bool:
        """Return whether the returns mean nothing."""
        return self in (Ending.PLAYER_LOST, Ending.ENVIRONMENT_ERROR)


FORFEITS: Mapping[str, Ending] = {"illegal": Ending.ILLEGAL_MOVE, "truncated": Ending.TRUNCATED}
"""Endings that a seat's own reply causes, by their names in tables, logs and files."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """
    Sampling settings of a reply.

    Attributes:
        temperature (`float`, defaults to `1.0`):
            Softmax temperature; `0.0` is greedy decoding.
        top_p (`float`, defaults to `1.0`):
            Nucleus probability in (0, 1].
        top_k (`int`, defaults to `0`):
            Number of most likely tokens kept; `0` keeps all.
        min_p (`float`, *optional*):
            Tokens below this share of the most likely token's probability are dropped.
        repetition_penalty (`float`, defaults to `1.0`):
            Penalty above 1 on tokens already seen.
        max_new_tokens (`int`, defaults to `256`):
            Longest reply, in tokens. A reply that reaches it is truncated.
        stop (`tuple[str, ...]`, defaults to none):
            Texts that end a reply. The text is part of the reply.
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
    One decision of one seat: prompt, completion and log-probabilities.

    Attributes:
        action (`str`, *optional*):
            Move passed to the game, in the game's canonical form or as the player wrote it. `None` if the reply
            contains no readable move; the seat then forfeits.
        text (`str`):
            The whole reply as text, for people. It is never tokenized again.
        prompt_ids (`tuple[int, ...]`):
            Tokens of the prompt, with the chat template applied; empty for scripted players.
        completion_ids (`tuple[int, ...]`):
            Sampled tokens, including the end of turn. Never re-tokenized from text.
        logprobs (`tuple[float, ...]`):
            Log-probability, in nats, of each completion token under the policy that sampled it, with temperature and
            without filtering. Same length as `completion_ids`; empty for scripted players.
        policy (`str`, *optional*):
            Name of the weights that sampled the reply; `None` for scripted players. Only turns of `POLICY` are trained
            on.
        version (`int`):
            Version of those weights, as reported by the engine.
        truncated (`bool`):
            Whether the reply reached the token limit.
        lost (`bool`):
            Whether the player is gone and will not reply.

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
    The input of one decision of a seat.

    Attributes:
        game (`str`):
            Name of the game.
        seat (`int`):
            Position at the table, from 0.
        messages (`tuple[Message, ...]`):
            The whole observation as chat messages, for a player without memory.
        update (`str`):
            The new part since this seat's last decision, for a player that continues a conversation. At the first
            decision, such a player reads `messages`.
        legal_actions (`tuple[str, ...]`, *optional*):
            Canonical legal moves, or `None` if they cannot be listed.
        seed (`int`):
            The only source of randomness for this decision. The same episode has the same seed.
        turns (`tuple[Turn, ...]`):
            This seat's earlier turns in the episode.
        history (`tuple[tuple[int, str], ...]`):
            All moves so far, as (seat, action), with the random opening, in games of perfect information. Empty in
            other games, where it would reveal hidden information.
        asks_program (`bool`, defaults to `False`):
            Whether the move is a program, in a code block instead of a box: see `prompts.extract_code_move`.
        is_duel (`bool`, defaults to `True`):
            Whether the game is zero-sum for two seats, which prompts mention. Set by the referee from the game's
            traits.
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
    A request of a player to an engine: prompt, policy and sampling settings.

    Attributes:
        prompt_ids (`tuple[int, ...]`):
            Token ids, with the chat template applied. Empty if `messages` are sent instead.
        sampling ([`Sampling`]):
            Sampling settings of the reply.
        policy (`str`, defaults to `POLICY`):
            Name of the weights that reply.
        seed (`int`):
            Seed of this reply alone. Other requests of the same batch change it only by rounding.
        messages (`tuple[Message, ...]`, defaults to none):
            The prompt as chat messages, for an endpoint that accepts no token ids.
        legal_moves (`tuple[str, ...]`, defaults to none):
            If given, the reply is constrained to end in one of these moves, boxed. An engine that does not support
            this refuses the request.
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
    The reply of an engine.

    Attributes:
        completion_ids (`tuple[int, ...]`):
            Sampled tokens, including the end of turn.
        logprobs (`tuple[float, ...]`):
            Log-probability of each token, in nats.
        finish_reason (`str`):
            `"stop"`, `"length"` if the token limit was reached, or `"lost"` if there is no reply.
        version (`int`):
            Version of the weights that sampled it.
        text (`str`):
            The reply as text, from an endpoint that returns no token ids.
    """

    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length", "lost"] = "stop"
    version: int = 0
    text: str = ""


def is_drawn(returns: Sequence[float]) -> bool:
    """Return whether all of several seats have the same return. A one-seat game is never a draw."""
    return len(returns) > 1 and len(set(returns)) == 1


def has_won(returns: Sequence[float], seat: int) -> bool:
    """
    Return whether a seat won: it has the highest return and some other seat has less. In one-seat games, whether the
    return is 1.
    """
    return returns[0] >= 1.0 if len(returns) == 1 else returns[seat] == max(returns) > min(returns)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One seat's turns in an episode, in order."""

    seat: int
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """
    One episode of a game.

    Attributes:
        game (`str`):
            Name of the game.
        seed (`int`):
            Seed of the match: deals, dice and opening.
        players (`tuple[str, ...]`):
            Name of the player in each seat.
        trajectories (`tuple[Trajectory, ...]`):
            One per seat, also for seats without turns.
        returns (`tuple[float, ...]`):
            Terminal payoff per seat.
        ending ([`Ending`]):
            Why it ended.
        offender (`int`, *optional*):
            The seat that caused a forfeit or a failure.
        counter (`int`):
            Number of the episode in the run, unique among all ranks.
        moves (`tuple[tuple[int, str], ...]`):
            All moves, as (seat, action), with the random opening: enough to replay the episode.
        opening (`int`):
            Number of moves in the random opening.
        order (`tuple[int, ...]`):
            The seat of each turn, in playing order.
        discarded_tokens (`int`):
            Number of policy tokens in drawn attempts that were played again.
        detail (`str`):
            The environment's reason, or the error, for people.
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
        """Return whether all seats have the same return."""
        return is_drawn(self.returns)

    @property
    def policy_tokens(self) -> int:
        """Number of tokens that the policy sampled in this episode."""
        return sum(
            len(turn.completion_ids)
            for trajectory in self.trajectories
            for turn in trajectory.turns
            if turn.policy == POLICY
        )
