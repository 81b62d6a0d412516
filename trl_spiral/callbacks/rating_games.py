"""Games among snapshots: ratings that do not hang on the policy alone, and circles that can be seen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from accelerate.utils import gather_object
from transformers import Trainer

from trl_spiral import _trl
from trl_spiral.callbacks.policy import policy_player
from trl_spiral.distributed import agree
from trl_spiral.games import Game
from trl_spiral.opponents import OpponentPool, Played
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Playing, Start, play, referee


def play_rating_games(
    trainer: Trainer, pool: OpponentPool, name: str, number: int, games: Sequence[Game], seed: int
) -> list[Played]:
    """
    Lets a snapshot play every other one. Every rank must call it, and is told all results.

    Args:
        trainer ([`~transformers.Trainer`]):
            Whose engine answers.
        pool ([`~opponents.OpponentPool`]):
            Holds them all.
        name (`str`):
            The snapshot.
        number (`int`):
            Playings of each game, against each other snapshot. Each deal is played once from every seat, so it is rounded up.
        games (sequence of [`~games.Game`]):
            What is played.
        seed (`int`):
            Seed of the deals and of all decisions.
    """
    rivals = [snapshot.name for snapshot in pool.snapshots if snapshot.name != name]
    if not rivals:
        return []
    policy = policy_player(trainer)
    seatings = [
        (rival, game, deal, seat)
        for rival, game in itertools.product(rivals, games)
        for deal in range(-(-number // game.traits.seats))
        for seat in range(game.traits.seats)
    ]
    # Each engine plays its share; ranks that share one all ask it the same.
    sharing = _trl.ranks_per_engine(trainer)
    group, groups = trainer.accelerator.process_index // sharing, trainer.accelerator.num_processes // sharing

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
    told = {result.counter: result for result in gather_object(results)}
    return [told[counter] for counter in sorted(told)]
