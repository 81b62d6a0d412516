"""Against whom the policy plays."""

from __future__ import annotations

from trl_spiral.opponents.matchmaking import Matchmaker, mirror


__all__ = ["Matchmaker", "mirror"]
