"""State of self-play that a checkpoint contains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trl_spiral.selfplay.rows import Row


@dataclass
class RolloutState:
    """
    What one rank must remember between batches.

    Attributes:
        episodes (`int`):
            Episodes this rank has started in training.
        kept (`list[Row]`):
            Rows that were sampled for an earlier batch and wait for the next.
        recent_rows, recent_episodes (`float`):
            Rows and episodes of late, each batch counting half as much as the next: how many games fill a batch.
        estimator (`dict`):
            State of the advantage estimator, equal on all ranks.
        opponents (`dict`, *optional*):
            State of the opponents: the pool's index, ratings and results, equal on all ranks, and what this rank has used
            of limited engines. `None` in a checkpoint from before there were any.
        measured (`dict`):
            What was measured of the last batch over all ranks, for a curriculum.
        curriculum (`dict`, *optional*):
            State of the curriculum, equal on all ranks; `None` where there is none or it remembers nothing.
    """

    episodes: int = 0
    kept: list[Row] = field(default_factory=list)
    recent_rows: float = 0.0
    recent_episodes: float = 0.0
    estimator: dict[str, Any] = field(default_factory=dict)
    opponents: dict[str, Any] | None = None
    measured: dict[str, float] = field(default_factory=dict)
    curriculum: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "episodes": self.episodes,
            "kept": [row.to_dict() for row in self.kept],
            "recent_rows": self.recent_rows,
            "recent_episodes": self.recent_episodes,
            "estimator": self.estimator,
            "opponents": self.opponents,
            "measured": self.measured,
            "curriculum": self.curriculum,
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> RolloutState:
        """What `state_dict` gave."""
        return cls(**{**state, "kept": [Row(**row) for row in state["kept"]]})
