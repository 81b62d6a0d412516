"""Search of whole game trees of `Dealt` games, and a test for leaks of hidden information."""

from __future__ import annotations

import copy
from collections import defaultdict


def positions(match, moves=()):
    """Yield all positions that can follow, final ones included, as (moves, match). The first is the match itself."""
    yield moves, match
    for move in match.legal_actions():
        after = copy.deepcopy(match)
        after.apply(move)
        yield from positions(after, (*moves, move))


def ended(match):
    """Return all final positions that can follow, as (moves, match)."""
    return ((moves, after) for moves, after in positions(match) if after.to_move is None)


def distinguishable_positions(game, knows):
    """
    Return the positions, as (seat, moves, known part), in which a seat observes differences of deals that it must not.

    Args:
        game ([`~games.Dealt`]):
            Searched from every deal.
        knows (`Callable`):
            Returns the part of a deal that a seat may know, from the deal, the seat and the moves so far.
    """
    views = defaultdict(set)
    for deal in game.deals():
        for moves, match in positions(game.deal(deal)):
            if match.to_move is not None:
                for seat in range(game.traits.seats):
                    seen = match.observe(seat)
                    view = (*(message["content"] for message in seen.messages), seen.update, seen.legal_actions)
                    views[seat, moves, knows(deal, seat, moves)].add(view)
    return [position for position, seen in views.items() if len(seen) > 1]
