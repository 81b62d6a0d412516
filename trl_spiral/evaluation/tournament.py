"""Round robins: everybody meets everybody, in every seat, on the same deals."""

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
    Lets every two players meet in every game: each deal once with the first of them in each seat and the second in every
    other. All of them are dealt the same.

    Args:
        games (sequence of [`~games.Game`]):
            What is played.
        players (sequence of [`~players.Player`]):
            Who plays; two at least, of different names.
        pairs (`int`):
            Deals of each game for each two players.
        engine ([`~selfplay.referee.Engine`], *optional*):
            Answers players that ask one.
        seed (`int`, defaults to `0`):
            Seed of the deals and of all decisions.
        in_flight (`int`, defaults to `256`):
            Most games under way at once.

    Returns:
        `list[Episode]`: In the order of their counters, which deals cards round after round: the first deal to everybody,
        then the second. Ratings, to which the order matters a little, so favour nobody.

    Raises:
        ValueError: If there are fewer than two players, or two of one name.
    """
    names = [player.name for player in players]
    if len(set(names)) < max(2, len(names)):
        raise ValueError(
            f"A tournament needs two players at least, each of a name of its own, and these are {', '.join(names)}."
        )
    meetings = list(itertools.combinations(players, 2))
    tables = [
        (meeting, game, deal, seat)
        for deal in range(pairs)
        for game in games
        for meeting in range(len(meetings))
        for seat in range(game.traits.seats)
    ]
    # Two players' games one after the other, so that an engine need not load their weights more than once.
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
