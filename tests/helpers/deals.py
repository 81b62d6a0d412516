"""Every way to play a game whose deal is chosen: how the tests of `Dealt` games walk them, and look for leaks."""

from __future__ import annotations

import copy
from collections import defaultdict


def positions(match, moves=()):
    """Every position that can follow, ended ones included, as (moves, match): the first is the match itself."""
    yield moves, match
    for move in match.legal_actions():
        after = copy.deepcopy(match)
        after.apply(move)
        yield from positions(after, (*moves, move))


def ended(match):
    """Every way to play to the end, as (moves, match)."""
    return ((moves, after) for moves, after in positions(match) if after.to_move is None)


def told_apart(game, knows):
    """
    Positions, as (seat, moves, what the seat knows), in which some deals look different from others.

    Args:
        game ([`~games.Dealt`]):
            Walked from every deal.
        knows (`Callable`):
            From a deal, a seat and the moves so far, the part of the deal that the seat may know.
    """
    views = defaultdict(set)
    for deal in game.deals():
        for moves, match in positions(game.deal(deal)):
            if match.to_move is not None:
                for seat in range(game.traits.seats):
                    seen = match.observe(seat)
                    told = (*(message["content"] for message in seen.messages), seen.update, seen.legal_actions)
                    views[seat, moves, knows(deal, seat, moves)].add(told)
    return [position for position, seen in views.items() if len(seen) > 1]
