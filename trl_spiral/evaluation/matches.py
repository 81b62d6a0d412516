"""Matches between players, sampled: for policies that cannot be graded exactly."""

from __future__ import annotations

from collections.abc import Sequence

from trl_spiral.games import Game
from trl_spiral.players import Player
from trl_spiral.rollout import Engine, Forfeit, Start, play, referee
from trl_spiral.seeding import derive_seed
from trl_spiral.types import Ending, Episode


def play_matches(
    game: Game,
    player: Player,
    rival: Player,
    seat: int,
    games: int,
    engine: Engine | None = None,
    seed: int = 0,
    forfeit: Forfeit | None = None,
) -> list[Episode]:
    """
    Plays `games` games with `player` in `seat` and `rival` in every other.

    The same `seed` gives the same deals and openings in every seat, so that a comparison of seats or players is paired.

    Args:
        game ([`~games.Game`]):
            What is played.
        player, rival ([`~players.Player`]):
            Who plays.
        seat (`int`):
            Where `player` sits.
        games (`int`):
            How many games.
        engine ([`~rollout.Engine`], *optional*):
            Answers players that ask one.
        seed (`int`, defaults to `0`):
            Seed of the series.
        forfeit ([`~rollout.Forfeit`], *optional*):
            What an illegal move costs.

    Returns:
        `list[Episode]`: In the order of their counters.
    """
    players = tuple(player if place == seat else rival for place in range(game.traits.seats))
    starts = (
        referee(
            Start(
                game=game,
                players=players,
                seed=derive_seed(seed, "series", number),
                play_seed=derive_seed(seed, "series", "play", number, seat),
                counter=number,
                forfeit=forfeit or Forfeit(),
            )
        )
        for number in range(games)
    )
    return sorted(play(starts, engine), key=lambda episode: episode.counter)


def tally(episodes: Sequence[Episode], seat: int) -> dict[str, float]:
    """Shares of wins, draws, losses and own illegal or truncated replies among episodes, from one seat's side."""
    number = len(episodes)
    won = sum(e.returns[seat] == max(e.returns) > min(e.returns) for e in episodes)
    drawn = sum(e.is_draw for e in episodes)
    illegal = sum(e.offender == seat and e.ending in (Ending.ILLEGAL_MOVE, Ending.TRUNCATED) for e in episodes)
    return {
        "win": won / number,
        "draw": drawn / number,
        "loss": (number - won - drawn) / number,
        "illegal": illegal / number,
    }
