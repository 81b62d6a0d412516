"""What estimators and metrics need to know of an episode, and whose turns in it are trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trl_spiral.types import POLICY, SELF, Ending, Episode


@dataclass(frozen=True, slots=True)
class Result:
    """
    What estimators and metrics need of an episode, small enough to send to every rank.

    Attributes:
        counter (`int`):
            Number of the episode in the run.
        game (`str`):
            Name of the game.
        seed (`int`):
            Seed of the match: episodes that share it started from the same deal and opening.
        returns (`tuple[float, ...]`):
            Terminal payoff per seat.
        ending ([`~types.Ending`]):
            Why it ended.
        offender (`int`, *optional*):
            Seat whose fault ended it.
        learners (`tuple[bool, ...]`):
            Whether each seat's turns are trained on.
        positions (`tuple[tuple[int, ...], ...]`):
            For each seat, a fingerprint of the prompt at each of its turns; empty where the policy did not sit.
        order (`tuple[int, ...]`):
            The seat of each turn, in playing order.
        tokens (`int`):
            Tokens that the policy wrote.
        logprob_sum (`float`):
            Sum of the log-probabilities of all policy tokens, in nats.
        discarded_tokens (`int`):
            Policy tokens of drawn attempts that were played again.
        policy_turns (`int`):
            Turns taken by the policy.
        opening (`int`):
            Moves of the random opening.
        players (`tuple[str, ...]`):
            Name of whoever filled each seat.
        opponent (`str`):
            Class of the policy's opponents: baselines are kept for each apart.
    """

    counter: int
    game: str
    seed: int
    returns: tuple[float, ...]
    ending: Ending
    offender: int | None
    learners: tuple[bool, ...]
    positions: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    tokens: int
    logprob_sum: float
    discarded_tokens: int
    policy_turns: int
    opening: int
    players: tuple[str, ...] = ()
    opponent: str = SELF


def learning_seats(episode: Episode, winner_learns_from_forfeit: bool = True) -> tuple[int, ...]:
    """
    Seats whose turns are trained on: those that the policy filled, in an episode whose result means something.

    Args:
        episode ([`~types.Episode`]):
            What was played.
        winner_learns_from_forfeit (`bool`, defaults to `True`):
            Whether the seats that did not cause an illegal or truncated ending count.
    """
    if episode.ending.is_broken:
        return ()
    only = episode.offender if episode.ending.is_forfeit and not winner_learns_from_forfeit else None
    return tuple(
        trajectory.seat
        for trajectory in episode.trajectories
        if (only is None or trajectory.seat == only)
        and trajectory.turns
        and all(turn.policy == POLICY for turn in trajectory.turns)
    )


def summarize(episode: Episode, learners: Sequence[int] | None = None, opponent: str = SELF) -> Result:
    """
    The [`Result`] of an episode.

    Args:
        episode ([`~types.Episode`]):
            What was played.
        learners (`Sequence[int]`, *optional*):
            Seats that are trained on; all `learning_seats` by default.
        opponent (`str`, defaults to `SELF`):
            Class of the policy's opponents.
    """
    learning = learning_seats(episode) if learners is None else learners
    mine = [[turn for turn in seat.turns if turn.policy == POLICY] for seat in episode.trajectories]
    return Result(
        counter=episode.counter,
        game=episode.game,
        seed=episode.seed,
        returns=episode.returns,
        ending=episode.ending,
        offender=episode.offender,
        learners=tuple(seat in learning for seat in range(len(mine))),
        positions=tuple(tuple(hash(turn.prompt_ids) for turn in turns) for turns in mine),
        order=episode.order,
        tokens=episode.policy_tokens,
        logprob_sum=math.fsum(logprob for turns in mine for turn in turns for logprob in turn.logprobs),
        discarded_tokens=episode.discarded_tokens,
        policy_turns=sum(map(len, mine)),
        opening=episode.opening,
        players=episode.players,
        opponent=opponent,
    )
