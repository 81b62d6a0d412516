"""Batches of training rows, full or being filled."""

from __future__ import annotations

from dataclasses import dataclass, field

from trl_spiral.selfplay.results import Result
from trl_spiral.selfplay.rows import Row
from trl_spiral.types import Episode


_ROWS_PER_EPISODE = 8
"""Guess before the first batch."""


@dataclass(frozen=True)
class Batch:
    """
    A batch of one rank.

    Attributes:
        rows (`list[Row]`):
            Rows to train on.
        episodes (`list[Episode]`):
            This rank's episodes. Some of their rows may be in a later batch.
        metrics (`dict[str, float]`):
            Metrics to log, by name.
    """

    rows: list[Row] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Pace:
    """Rows and episodes of recent batches, each of which counts half as much as the next."""

    rows: float = 0.0
    episodes: float = 0.0
    fixed: bool = False

    @property
    def rows_per_episode(self) -> float:
        return (self.rows / self.episodes if self.episodes else 0.0) or _ROWS_PER_EPISODE

    def start_batch(self) -> None:
        self.rows, self.episodes = self.rows / 2, self.episodes / 2

    def add(self, rows: int) -> None:
        if not self.fixed:
            self.rows += rows
            self.episodes += 1


@dataclass
class Filling:
    """A batch that is being filled."""

    needed: int
    pace: Pace
    number: int  # of the next episode
    queue: list[Row]
    spare: list[Row] = field(default_factory=list)  # rows without an advantage, which are filtered
    results: list[Result] = field(default_factory=list)  # of all ranks
    episodes: list[Episode] = field(default_factory=list)
    carried: int = field(init=False)  # rows in the queue from earlier batches

    def __post_init__(self) -> None:
        self.carried = len(self.queue)

    @property
    def missing(self) -> int:
        return self.needed - len(self.queue)

    @property
    def surplus(self) -> list[Row]:
        return self.queue[self.needed :]


def account(filling: Filling, kept: int) -> dict[str, float]:
    """Return the use of all tokens that the policy sampled on this rank. TRL averages over ranks."""
    sampled = sum(episode.policy_tokens + episode.discarded_tokens for episode in filling.episodes)
    unused = sampled - sum(row.policy_tokens for row in filling.queue[filling.carried :])
    dropped = [] if kept else filling.surplus
    unused += sum(row.policy_tokens for row in dropped)
    return {
        "selfplay/carried_rows": float(filling.carried),
        "selfplay/kept_rows": float(kept),
        "selfplay/unused_rows": float(len(dropped)),
        "selfplay/filtered_turns": float(len(filling.spare)),
        # Filtered turns, drawn attempts, turns of seats that do not learn, broken games, and dropped rows.
        "selfplay/unused_tokens": float(unused),
        "selfplay/unused_share": unused / sampled if sampled else 0.0,
    }
