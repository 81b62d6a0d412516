"""Settings of a pool beyond its capacity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from trl_spiral.opponents.pool import Eviction


DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class PoolSettings:
    """
    Content of `pool_kwargs`.

    Attributes:
        start (`int`, defaults to `0`):
            Step of the first snapshot. The model at step 0 itself is `base`.
        eviction (`str`, defaults to `"oldest"`):
            The snapshot that leaves a full pool: the `oldest`, the `lowest` rated, or one chosen so that the ages of
            the others form a geometric `ladder`.
        dtype (`str`, *optional*):
            Type in which whole weights are stored, such as `"bfloat16"`. Default: as they are trained.
        rating_games (`int`, defaults to `0`):
            Number of games that each new snapshot plays against every other one, for their ratings.
        repair (`bool`, defaults to `False`):
            Whether a resumed run continues without snapshots that are missing or damaged.

    Raises:
        ValueError: If a value is out of range.
    """

    start: int = 0
    eviction: Eviction = "oldest"
    dtype: str | None = None
    rating_games: int = 0
    repair: bool = False

    def __post_init__(self) -> None:
        for name in ("start", "rating_games"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` ({getattr(self, name)}) in `pool_kwargs` must be at least 0.")
        if self.eviction not in get_args(Eviction):
            raise ValueError(
                f"`eviction` ({self.eviction!r}) in `pool_kwargs` must be one of {', '.join(get_args(Eviction))}."
            )
        if self.dtype not in (None, *DTYPES):
            raise ValueError(f"`dtype` ({self.dtype!r}) in `pool_kwargs` must be {', '.join(DTYPES)} or unset.")

    @classmethod
    def of(cls, pool_kwargs: Mapping[str, Any] | None) -> PoolSettings:
        """Return the settings in `pool_kwargs`."""
        given = pool_kwargs or {}
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(f"`pool_kwargs` names {unknown[0]!r}; it takes {', '.join(known)}.")
        return cls(**given)
