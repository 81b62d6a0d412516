"""Against whom the policy plays."""

from __future__ import annotations

from trl_spiral.opponents.matchmaking import SCHEMES, Candidate, Scheme, get_scheme, probabilities
from trl_spiral.opponents.opponents import Opponents
from trl_spiral.opponents.pool import OpponentPool
from trl_spiral.opponents.ratings import Played, Ratings
from trl_spiral.opponents.snapshots import Snapshot
from trl_spiral.opponents.spec import parse_opponents


__all__ = [
    "SCHEMES",
    "Candidate",
    "OpponentPool",
    "Opponents",
    "Played",
    "Ratings",
    "Scheme",
    "Snapshot",
    "get_scheme",
    "parse_opponents",
    "probabilities",
]
