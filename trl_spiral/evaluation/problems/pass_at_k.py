"""pass@k: how likely it is that one of k programs passes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trl_spiral.intervals import Estimate, bootstrap_mean, wilson


def pass_at_k(programs: int, passed: int, k: int) -> float:
    """
    An unbiased estimate for one problem: 1 − C(n − c, k) / C(n, k)
    ([Chen et al. 2021](https://huggingface.co/papers/2107.03374)).

    Args:
        programs (`int`):
            How many were drawn (n).
        passed (`int`):
            How many of them passed (c).
        k (`int`):
            Of how many one has to pass.

    Raises:
        ValueError: If fewer than k were drawn: nothing unbiased can be said.
    """
    if not 1 <= k <= programs:
        raise ValueError(f"pass@{k} cannot be told from {programs} programs a problem. Draw at least {max(k, 1)}.")
    draws, without = math.comb(programs, k), math.comb(programs - passed, k)
    return (draws - without) / draws


def mean_pass_at_k(passed: Sequence[int], programs: int, k: int) -> Estimate:
    """
    pass@k over a set, with its 95 % interval over problems.

    The interval is Wilson's where each problem is either passed or not, as with one program each; elsewhere a percentile
    bootstrap, or Wilson's where that has nothing to draw from, since all problems came to the same.

    Args:
        passed (`Sequence[int]`):
            For each problem, how many of its programs passed.
        programs (`int`):
            How many were drawn for each.
        k (`int`):
            Of how many one has to pass.
    """
    values = [pass_at_k(programs, count, k) for count in passed]
    if set(values) <= {0.0, 1.0} or len(set(values)) == 1:
        return wilson(math.fsum(values) / len(values), len(values))
    return bootstrap_mean([[value] for value in values])
