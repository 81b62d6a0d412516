"""Opponents of the policy: matchmaking, the pool of snapshots, and ratings."""

from __future__ import annotations

from trl_spiral.opponents.matchmaking import SCHEMES, Candidate, Scheme, get_scheme, probabilities
from trl_spiral.opponents.opponents import Opponents
from trl_spiral.opponents.pool import OpponentPool
from trl_spiral.opponents.pool_transfer import pool_from_checkpoints, pool_from_hub, push_pool_to_hub
from trl_spiral.opponents.ratings import Played, Ratings
from trl_spiral.opponents.settings import PoolSettings
from trl_spiral.opponents.snapshots import Snapshot


__all__ = [
    "SCHEMES",
    "Candidate",
    "OpponentPool",
    "Opponents",
    "Played",
    "PoolSettings",
    "Ratings",
    "Scheme",
    "Snapshot",
    "get_scheme",
    "pool_from_checkpoints",
    "pool_from_hub",
    "probabilities",
    "push_pool_to_hub",
]
