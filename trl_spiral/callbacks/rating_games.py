"""Games among snapshots, for ratings that do not depend on the policy alone and for cycles among snapshots."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from accelerate.utils import gather_object
from transformers import Trainer

from trl_spiral import _trl
from trl_spiral.callbacks.trainer_policy import engine_group, training_player
from trl_spiral.distributed import agree
from trl_spiral.games import Game
from trl_spiral.opponents import OpponentPool, Played
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Playing, Start, play, referee


def play_rating_games(
    trainer: Trainer, pool: OpponentPool, name: str, number: int, games: Sequence[Game], seed: int
) -> list[Played]:
    """
    Play a snapshot against every other one, and return all results. Every rank must call it.

    Args:
        trainer ([`~transformers.Trainer`]):
            Trainer whose engine is used.
        pool ([`~opponents.OpponentPool`]):
            Pool of all snapshots.
        name (`str`):
            Name of the snapshot.
        number (`int`):
            Episodes of each game against each other snapshot, rounded up to a whole number of deals. Each deal is
            played once from every seat.
        games (sequence of [`~games.Game`]):
            Games to play.
        seed (`int`):
            Seed of the deals and of all decisions.
    """
    rivals = [snapshot.name for snapshot in pool.snapshots if snapshot.name != name]
    if not rivals:
        return []
    policy = training_player(trainer)
    seatings = [
        (rival, game, deal, seat)
        for rival, game in itertools.product(rivals, games)
        for deal in range(-(-number // game.traits.seats))
        for seat in range(game.traits.seats)
    ]
    group, groups = engine_group(trainer)

    def starts() -> Iterator[Playing]:
        for counter in range(group, len(seatings), groups):
            rival, game, deal, seat = seatings[counter]
            seats = range(game.traits.seats)
            yield referee(
                Start(
                    game=game,
                    players=[policy.playing_as(name if place == seat else rival) for place in seats],
                    seed=derive_seed(seed, "rating", game.name, deal),
                    play_seed=derive_seed(seed, "rating", game.name, rival, deal, seat),
                    counter=counter,
                )
            )

    with _trl.open_engine(trainer, {one: pool.path(one) for one in (name, *rivals)}) as engine:
        episodes = agree(lambda: list(play(starts(), engine)), lambda: _trl.restore_weights(trainer, engine))
    results = [
        Played(episode.players, episode.returns, episode.counter)
        for episode in episodes
        if not episode.ending.is_broken
    ]
    # By counter: ranks that share an engine play the same episodes.
    gathered = {result.counter: result for result in gather_object(results)}
    return [gathered[counter] for counter in sorted(gathered)]
