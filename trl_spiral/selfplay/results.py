"""Summary of an episode for estimators and metrics, and the seats that are trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trl_spiral.types import POLICY, SELF, Ending, Episode


@dataclass(frozen=True, slots=True)
class Result:
    """
    The part of an episode that estimators and metrics use, small enough to send to every rank.

    Attributes:
        counter (`int`):
            Number of the episode in the run.
        game (`str`):
            Name of the game.
        seed (`int`):
            Seed of the match. Episodes with the same seed start from the same deal and opening.
        returns (`tuple[float, ...]`):
            Terminal payoff per seat.
        ending ([`~types.Ending`]):
            Why it ended.
        offender (`int`, *optional*):
            The seat that caused a forfeit or a failure.
        learners (`tuple[bool, ...]`):
            Whether each seat is trained on.
        positions (`tuple[tuple[int, ...], ...]`):
            For each seat, a hash of the prompt at each of its turns; empty for other players.
        order (`tuple[int, ...]`):
            Seat of each turn, in playing order.
        tokens (`int`):
            Number of tokens that the policy sampled.
        logprob_sum (`float`):
            Sum of their log-probabilities, in nats.
        discarded_tokens (`int`):
            Number of policy tokens in drawn attempts that were played again.
        policy_turns (`int`):
            Number of turns of the policy.
        opening (`int`):
            Number of moves in the random opening.
        players (`tuple[str, ...]`):
            Name of the player in each seat.
        opponent (`str`):
            Class of the policy's opponents. Estimators keep separate baselines for each class.
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

    @classmethod
    def of(cls, episode: Episode, learners: Sequence[int] | None = None, opponent: str = SELF) -> Result:
        """
        Summarize an episode.

        Args:
            episode ([`~types.Episode`]):
                The episode.
            learners (`Sequence[int]`, *optional*):
                Seats that are trained on. Default: all `learning_seats`.
            opponent (`str`, defaults to `SELF`):
                Class of the policy's opponents.
        """
        learning = learning_seats(episode) if learners is None else learners
        mine = [[turn for turn in seat.turns if turn.policy == POLICY] for seat in episode.trajectories]
        return cls(
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


def learning_seats(episode: Episode, winner_learns_from_forfeit: bool = True) -> tuple[int, ...]:
    """
    Return the seats that are trained on: those of the policy, in episodes that did not break.

    Args:
        episode ([`~types.Episode`]):
            The episode.
        winner_learns_from_forfeit (`bool`, defaults to `True`):
            Whether to include seats that did not cause an illegal or truncated ending.
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
