"""Episodes in, training rows out: one row a turn, or one row for all of a seat's turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trl_spiral.selfplay.advantages import Advantages
from trl_spiral.types import Episode, Turn


SampleUnit = Literal["turn", "trajectory"]


@dataclass(frozen=True, slots=True)
class Row:
    """
    What one row of a generation batch holds.

    Attributes:
        prompt_ids (`list[int]`):
            Tokens the policy read first.
        completion_ids (`list[int]`):
            Tokens that follow: what the policy wrote and, in a row of several turns, what it read in between.
        mask (`list[int]`):
            1 for each token of `completion_ids` that the policy wrote, else 0.
        logprobs (`list[float]`):
            Log-probabilities of `completion_ids` as sampled, in nats; 0 where `mask` is 0.
        advantages (`list[float]`):
            Advantage of each token; 0 where `mask` is 0.
        reward (`float`):
            The seat's return.
        game (`str`):
            Name of the game.
        seat (`int`):
            The seat.
        episode (`int`):
            Counter of the episode.
        version (`int`):
            Version of the weights that wrote the last token.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    advantages: list[float]
    reward: float
    game: str
    seat: int
    episode: int
    version: int

    @property
    def advantage(self) -> float:
        """Mean advantage of the tokens that the policy wrote."""
        written = [advantage for advantage, mine in zip(self.advantages, self.mask, strict=True) if mine]
        return sum(written) / len(written)

    @property
    def policy_tokens(self) -> int:
        """Tokens that the policy wrote."""
        return sum(self.mask)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return asdict(self)


def make_rows(episode: Episode, advantages: Advantages, unit: SampleUnit) -> list[Row]:
    """
    The training rows of one episode, in playing order. Other players' turns become no row.

    Args:
        episode ([`~types.Episode`]):
            What was played.
        advantages (`Advantages`):
            For each seat, one number per turn, or none for a seat that is not trained on: a broken episode, another
            player.
        unit (`str`):
            `"turn"` or `"trajectory"`.

    Returns:
        `list[Row]`: For turns, in the order in which they were taken; for trajectories, by seat.
    """
    if unit == "trajectory":
        return [
            _row(episode, seat.seat, seat.turns, numbers)
            for seat, numbers in zip(episode.trajectories, advantages, strict=True)
            if numbers
        ]
    waiting = [
        iter(list(zip(seat.turns, numbers, strict=False)))
        for seat, numbers in zip(episode.trajectories, advantages, strict=True)
    ]
    return [
        _row(episode, seat, [turn], [advantage])
        for seat in episode.order
        for turn, advantage in [next(waiting[seat], (None, 0.0))]
        if turn is not None
    ]


def _row(episode: Episode, seat: int, turns: Sequence[Turn], advantages: Sequence[float]) -> Row:
    """One row of one or more turns, each prompt of which must carry on from what came before."""
    written = list(turns[0].prompt_ids)
    start = len(written)
    mask: list[int] = []
    logprobs: list[float] = []
    per_token: list[float] = []
    for turn, advantage in zip(turns, advantages, strict=True):
        read = turn.prompt_ids[len(written) :]
        if tuple(written) != turn.prompt_ids[: len(written)]:
            raise ValueError(
                f"Turns of seat {seat} in {episode.game} do not carry on from one another, so they cannot share a row. "
                'Use `sample_unit="turn"`, or a policy player with `conversation=True`.'
            )
        if len(turn.logprobs) != len(turn.completion_ids) or not turn.completion_ids:
            raise ValueError(
                f"A turn of seat {seat} in {episode.game} has {len(turn.completion_ids)} tokens and "
                f"{len(turn.logprobs)} log-probabilities. To be trained on, it needs one for each, and at least one token."
            )
        written += [*read, *turn.completion_ids]
        mask += [0] * len(read) + [1] * len(turn.completion_ids)
        logprobs += [0.0] * len(read) + list(turn.logprobs)
        per_token += [0.0] * len(read) + [advantage] * len(turn.completion_ids)
    return Row(
        prompt_ids=written[:start],
        completion_ids=written[start:],
        mask=mask,
        logprobs=logprobs,
        advantages=per_token,
        reward=episode.returns[seat],
        game=episode.game,
        seat=seat,
        episode=episode.counter,
        version=turns[-1].version,
    )
