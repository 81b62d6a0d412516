"""Games among snapshots: ratings that do not hang on the policy alone, and circles that can be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from accelerate.utils import broadcast_object_list
from transformers import Trainer

from trl_spiral import _trl
from trl_spiral.callbacks.policy import policy_player
from trl_spiral.games import Game
from trl_spiral.opponents import OpponentPool, Played
from trl_spiral.rollout import Playing, Start, play, referee
from trl_spiral.seeding import derive_seed


def play_rating_games(
    trainer: Trainer, pool: OpponentPool, name: str, pairs: int, games: Sequence[Game], seed: int
) -> list[Played]:
    """
    Lets a snapshot play every other one. Every rank must call it; one engine plays, and all ranks are told.

    Args:
        trainer ([`~transformers.Trainer`]):
            Whose engine answers.
        pool ([`~opponents.OpponentPool`]):
            Holds them all.
        name (`str`):
            The snapshot.
        pairs (`int`):
            Deals of each game, against each other snapshot. Each deal is played once from every seat.
        games (sequence of [`~games.Game`]):
            What is played.
        seed (`int`):
            Seed of the deals and of all decisions.
    """
    rivals = [snapshot.name for snapshot in pool.snapshots if snapshot.name != name]
    if not rivals:
        return []
    folders = {one: pool.path(one) for one in (name, *rivals)}
    played: list[Played] = []
    with _trl.open_engine(trainer, folders) as engine:
        if _trl.is_first_to_play(trainer):
            policy = policy_player(trainer)

            def starts() -> Iterator[Playing]:
                counter = count()
                for rival in rivals:
                    for game in games:
                        for deal in range(pairs):
                            for seat in range(game.traits.seats):
                                yield referee(
                                    Start(
                                        game=game,
                                        players=tuple(
                                            policy.playing_as(name if place == seat else rival)
                                            for place in range(game.traits.seats)
                                        ),
                                        seed=derive_seed(seed, "rating", game.name, deal),
                                        play_seed=derive_seed(seed, "rating", game.name, rival, deal, seat),
                                        counter=next(counter),
                                    )
                                )

            played = [
                Played(episode.players, episode.returns, episode.counter)
                for episode in play(starts(), engine)
                if not episode.ending.is_broken
            ]
    told = [played]
    broadcast_object_list(told, from_process=0)
    return told[0]
