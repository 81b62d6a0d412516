"""pass@k: the probability that at least one of k programs passes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trl_spiral.intervals import Estimate, bootstrap_mean, wilson


def pass_at_k(programs: int, passed: int, k: int) -> float:
    """
    Return the unbiased estimate for one problem, 1 − C(n − c, k) / C(n, k).

    From [Chen et al. 2021](https://huggingface.co/papers/2107.03374).

    Args:
        programs (`int`):
            Number of programs (n).
        passed (`int`):
            Number of programs that passed (c).
        k (`int`):
            Number of programs of which one has to pass.

    Raises:
        ValueError: If there are fewer than k programs. No unbiased estimate exists.
    """
    if not 1 <= k <= programs:
        raise ValueError(
            f"pass@{k} cannot be estimated from {programs} programs per problem. Draw at least {max(k, 1)}."
        )
    draws, without = math.comb(programs, k), math.comb(programs - passed, k)
    return (draws - without) / draws


def mean_pass_at_k(passed: Sequence[int], programs: int, k: int) -> Estimate:
    """
    Return the mean pass@k of a set, with its 95 % interval over problems.

    The interval is Wilson's if each problem's estimate is 0 or 1, as with one program each, or if all estimates are
    equal. Otherwise it is a percentile bootstrap.

    Args:
        passed (`Sequence[int]`):
            Number of programs that passed, for each problem.
        programs (`int`):
            Number of programs per problem.
        k (`int`):
            Number of programs of which one has to pass.
    """
    values = [pass_at_k(programs, count, k) for count in passed]
    if set(values) <= {0.0, 1.0} or len(set(values)) == 1:
        return wilson(math.fsum(values) / len(values), len(values))
    return bootstrap_mean([[value] for value in values])
