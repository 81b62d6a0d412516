"""Metrics of a batch of games."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trl_spiral.selfplay.results import Result
from trl_spiral.types import FORFEITS, POLICY, has_won, is_drawn


def measure(results: Sequence[Result], prefix: str = "selfplay") -> dict[str, float]:
    """
    Compute the metrics of all ranks' games of one batch.

    Broken games count only in `games` and `broken_rate`. A game is a draw if all seats have the same return. Otherwise
    each seat with the highest return has won, which can be two of three, and the others have lost. In one-seat games,
    the seat has won if its return is 1, and lost otherwise. `policy` is the share of games in which the policy had the
    seat.

    Args:
        results (`Sequence[Result]`):
            Results of all ranks.
        prefix (`str`, defaults to `"selfplay"`):
            Prefix of every name.

    Returns:
        `dict[str, float]`: Shares in [0, 1], lengths in turns and tokens, entropy in nats per token.
    """
    metrics = {f"{prefix}/games": float(len(results))}
    if results:
        metrics[f"{prefix}/broken_rate"] = _share(results, lambda result: result.ending.is_broken)
    played = [result for result in results if not result.ending.is_broken]
    if not played:
        return metrics
    tokens = sum(result.tokens for result in played)
    metrics |= {
        f"{prefix}/turns_per_game": sum(len(result.order) for result in played) / len(played),
        f"{prefix}/discarded_tokens": float(sum(result.discarded_tokens for result in played)),
        **{
            f"{prefix}/{name}_rate": sum(result.ending is ending for result in played) / len(played)
            for name, ending in FORFEITS.items()
        },
        f"{prefix}/draw_rate": _share(played, _is_draw),
    }
    if tokens:
        # The mean of -log p over what was sampled is an unbiased estimate of the entropy.
        metrics[f"{prefix}/entropy"] = -sum(result.logprob_sum for result in played) / tokens
        metrics[f"{prefix}/reply_length"] = tokens / sum(result.policy_turns for result in played)
    for game in sorted({result.game for result in played}):
        of_game = [result for result in played if result.game == game]
        metrics[f"{prefix}/{game}/games"] = float(len(of_game))
        for seat in range(len(of_game[0].returns)):
            metrics |= _of_seat(of_game, seat, f"{prefix}/{game}/seat{seat}")
    return metrics


def _of_seat(results: Sequence[Result], seat: int, prefix: str) -> dict[str, float]:
    won = sum(has_won(r.returns, seat) for r in results)
    drawn = sum(map(_is_draw, results))
    return {
        f"{prefix}/win": won / len(results),
        f"{prefix}/draw": drawn / len(results),
        f"{prefix}/loss": (len(results) - won - drawn) / len(results),
        **{
            f"{prefix}/{name}": sum(r.ending is ending and r.offender == seat for r in results) / len(results)
            for name, ending in FORFEITS.items()
        },
        f"{prefix}/policy": _share(results, lambda result: result.players[seat : seat + 1] == (POLICY,)),
    }


def _is_draw(result: Result) -> bool:
    return is_drawn(result.returns)


def _share(results: Sequence[Result], holds: Callable[[Result], bool]) -> float:
    return sum(map(holds, results)) / len(results)
