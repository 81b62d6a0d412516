"""Round robins: each player meets each other, in each seat, with the same deals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from trl_spiral.games import Game
from trl_spiral.players import Player
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Engine, Start, play, referee
from trl_spiral.types import Episode


def round_robin(
    games: Sequence[Game],
    players: Sequence[Player],
    pairs: int,
    engine: Engine | None = None,
    seed: int = 0,
    in_flight: int = 256,
) -> list[Episode]:
    """
    Play a round robin. For each pair of players, each deal is played once with the first player in each seat and the
    second in all others. All pairs get the same deals.

    Args:
        games (sequence of [`~games.Game`]):
            Games to play.
        players (sequence of [`~players.Player`]):
            At least two players with different names.
        pairs (`int`):
            Deals of each game for each pair of players.
        engine ([`~selfplay.referee.Engine`], *optional*):
            Engine of players that need one.
        seed (`int`, defaults to `0`):
            Seed of deals and decisions.
        in_flight (`int`, defaults to `256`):
            Maximum number of concurrent episodes.

    Returns:
        `list[Episode]`: In the order of their counters: the first deal for all pairs, then the second. Ratings depend
        slightly on the order, and this order favors no player.

    Raises:
        ValueError: If there are fewer than two players, or two have the same name.
    """
    names = [player.name for player in players]
    if len(set(names)) < max(2, len(names)):
        raise ValueError(
            f"A tournament needs at least two players with different names, and these are {', '.join(names)}."
        )
    meetings = list(itertools.combinations(players, 2))
    tables = [
        (meeting, game, deal, seat)
        for deal in range(pairs)
        for game in games
        for meeting in range(len(meetings))
        for seat in range(game.traits.seats)
    ]
    # Sorted by pair, so that an engine loads the weights of a pair once.
    numbered = sorted(enumerate(tables), key=lambda entry: entry[1][0])
    starts = []
    for counter, (meeting, game, deal, seat) in numbered:
        one, other = meetings[meeting]
        starts.append(
            Start(
                game=game,
                players=[one if place == seat else other for place in range(game.traits.seats)],
                seed=derive_seed(seed, "tournament", game.name, deal),
                play_seed=derive_seed(seed, "tournament", game.name, one.name, other.name, deal, seat),
                counter=counter,
            )
        )
    return sorted(play(map(referee, starts), engine, in_flight), key=lambda episode: episode.counter)
