"""Training rows of an episode: one row per turn, or one row for all turns of a seat."""

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
    One row of a generation batch.

    Attributes:
        prompt_ids (`list[int]`):
            Tokens of the first prompt.
        completion_ids (`list[int]`):
            Tokens that follow: those that the policy sampled and, in a row of several turns, the prompts in between.
        mask (`list[int]`):
            1 for each token of `completion_ids` that the policy sampled, else 0.
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
            Version of the weights that sampled the last token.
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
        """Mean advantage of the tokens that the policy sampled."""
        written = [advantage for advantage, mine in zip(self.advantages, self.mask, strict=True) if mine]
        return sum(written) / len(written)

    @property
    def policy_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(self.mask)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for a checkpoint."""
        return asdict(self)


def make_rows(episode: Episode, advantages: Advantages, unit: SampleUnit) -> list[Row]:
    """
    Return the training rows of one episode. The turns of other players have no row.

    Args:
        episode ([`~types.Episode`]):
            The episode.
        advantages (`Advantages`):
            For each seat, one number per turn, or none for a seat that is not trained on.
        unit (`str`):
            `"turn"` or `"trajectory"`.

    Returns:
        `list[Row]`: Turns in playing order; trajectories by seat.

    Raises:
        ValueError: If a turn has no token or not one log-probability per token, or turns that share a row do not
            continue each other.
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
    """Return a row of one or more turns. Each prompt must start with the tokens of the turns before."""
    written = list(turns[0].prompt_ids)
    start = len(written)
    mask: list[int] = []
    logprobs: list[float] = []
    per_token: list[float] = []
    for turn, advantage in zip(turns, advantages, strict=True):
        read = turn.prompt_ids[len(written) :]
        if tuple(written) != turn.prompt_ids[: len(written)]:
            raise ValueError(
                f"Turns of seat {seat} in {episode.game} do not continue each other, so they cannot share a row. "
                'Use `sample_unit="turn"`, or a policy player with `conversation=True`.'
            )
        if len(turn.logprobs) != len(turn.completion_ids) or not turn.completion_ids:
            raise ValueError(
                f"A turn of seat {seat} in {episode.game} has {len(turn.completion_ids)} tokens and "
                f"{len(turn.logprobs)} log-probabilities. Training needs one for each token, and at least one token."
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
