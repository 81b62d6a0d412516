"""Settings of self-play, in one frozen object that checks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from trl_spiral.selfplay.referee import Forfeit
from trl_spiral.selfplay.rows import SampleUnit
from trl_spiral.text.prompts import PROMPT_STYLES


MOST_IN_FLIGHT = 512
"""Default limit on the number of games that are played at the same time."""


@dataclass(frozen=True)
class SelfPlaySettings:
    """
    Settings of self-play that do not depend on the trainer.

    Attributes:
        sample_unit (`str`, defaults to `"turn"`):
            Content of one row: `"turn"` for one decision, or `"trajectory"` for all decisions of a seat in a game, as
            one conversation.
        prompt_style (`str`, defaults to `"chat"`):
            See [`~text.prompts.PromptRenderer`].
        opening_moves (`int`, defaults to `0`):
            Largest number of uniformly random legal moves that start a game. The number is drawn uniformly for each
            game. These moves are not trained on.
        games_per_start (`int`, defaults to `1`):
            Number of episodes that share one deal, one opening and one drawing of seats, for
            [`~selfplay.advantages.GroupMean`].
        max_draw_retries (`int`, defaults to `0`):
            How many times a drawn game is played again.
        forfeit ([`~selfplay.referee.Forfeit`], *optional*):
            Returns of a game that ends by an illegal or truncated reply.
        priming_games (`int`, defaults to `0`):
            Number of games between random players that the estimator is updated with before the first batch.
        winner_learns_from_forfeit (`bool`, defaults to `True`):
            Whether the seats that did not cause a forfeit are trained on that game.
        filter_zero_advantages (`bool`, defaults to `False`):
            Whether rows with an advantage of zero are replaced by rows of more games.
        baseline_per_opponent (`bool`, defaults to `True`):
            Whether the estimator keeps separate baselines for each class of opponent: the policy itself, its
            snapshots, and each other player.
        games_in_flight (`int`, *optional*):
            Most games that a rank plays at the same time. Default: one for each row of the batch, up to 512.
        constrain_moves (`bool`, defaults to `False`):
            Whether the engine constrains replies to end in a legal move.
        game_weights (`Sequence[float]`, *optional*):
            Sampling weight of each game, in the order of the games. Default: uniform. Weights apply to episodes, so
            long games contribute more rows.
        row_advantages (`bool`, defaults to `False`):
            Whether the trainer uses the advantage of each row as it is, and corrects for rows that earlier weights
            wrote, as [`SpiralTrainer`] does. Rows that do not fit in a batch are then kept for the next one. A plain
            [`~trl.GRPOTrainer`] does neither, and such rows are dropped.

    Raises:
        ValueError: If a setting is out of range.
    """

    sample_unit: SampleUnit = "turn"
    prompt_style: str = "chat"
    opening_moves: int = 0
    games_per_start: int = 1
    max_draw_retries: int = 0
    forfeit: Forfeit = field(default_factory=Forfeit)
    priming_games: int = 0
    winner_learns_from_forfeit: bool = True
    filter_zero_advantages: bool = False
    baseline_per_opponent: bool = True
    games_in_flight: int | None = None
    constrain_moves: bool = False
    game_weights: Sequence[float] | None = None
    row_advantages: bool = False

    def __post_init__(self) -> None:
        if self.sample_unit not in get_args(SampleUnit):
            raise ValueError(f"`sample_unit` ({self.sample_unit!r}) must be 'turn' or 'trajectory'.")
        if self.prompt_style != "chat" and self.prompt_style not in PROMPT_STYLES:
            raise ValueError(
                f"`prompt_style` ({self.prompt_style!r}) must be 'chat' or one of "
                f"{', '.join(map(repr, PROMPT_STYLES))}."
            )
        least = {"opening_moves": 0, "games_per_start": 1, "max_draw_retries": 0, "priming_games": 0}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ValueError(f"`{name}` ({getattr(self, name)}) must be at least {minimum}.")
        if self.games_in_flight is not None and self.games_in_flight < 1:
            raise ValueError(f"`games_in_flight` ({self.games_in_flight}) must be at least 1, or unset.")

    @property
    def needs_legal_moves(self) -> str | None:
        """Name of a setting in use that only works with games that list their legal moves."""
        return next(
            (name for name in ("constrain_moves", "opening_moves", "priming_games") if getattr(self, name)), None
        )
