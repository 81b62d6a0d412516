"""Game, opening, seats and seeds of each episode."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from trl_spiral.games.base import Game
from trl_spiral.players import random_move
from trl_spiral.players.base import Player
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.matchmaking import Matchmaker
from trl_spiral.selfplay.referee import Playing, Start, referee, until_decided
from trl_spiral.selfplay.settings import SelfPlaySettings
from trl_spiral.types import POLICY, Observation, Reply, Request, Turn


@dataclass(frozen=True)
class Schedule:
    """
    Makes the episodes of one rank. Equal schedules make equal episodes.

    Training and evaluation have one schedule each, which differ in `purpose` and so in all seeds.

    Attributes:
        games (`Sequence[Game]`):
            The games.
        settings ([`SelfPlaySettings`]):
            Settings of self-play.
        player ([`~players.Player`]):
            The policy.
        matchmaker ([`~selfplay.matchmaking.Matchmaker`]):
            Fills the seats.
        seed (`int`):
            Seed of the run.
        purpose (`str`, defaults to `"train"`):
            `"train"` or `"eval"`.
        rank, world_size (`int`):
            Number of this rank, and number of ranks. Ranks that share an engine count as one.
        sharing (`int`, defaults to `1`):
            Number of ranks that share each engine. All of them must play the same games.
        shares (`Sequence[float]`, *optional*):
            Share of the episodes of each game. Default: uniform.
    """

    games: Sequence[Game]
    settings: SelfPlaySettings
    player: Player
    matchmaker: Matchmaker
    seed: int
    purpose: Literal["train", "eval"] = "train"
    rank: int = 0
    world_size: int = 1
    sharing: int = 1
    shares: Sequence[float] | None = None

    def episode(self, number: int) -> Playing:
        """Start episode `number` of this rank. Counters interleave ranks, so they are unique in the run."""
        settings = self.settings
        counter = number * self.world_size + self.rank
        group = (number // settings.games_per_start) * self.world_size + self.rank
        rng = random.Random(derive_seed(self.seed, self.purpose, "start", group))
        game = rng.choice(self.games) if self.shares is None else rng.choices(self.games, self.shares)[0]
        opening = rng.randint(0, settings.opening_moves)
        seats_seed = derive_seed(self.seed, self.purpose, "seats", group)
        players = self.matchmaker(self.player, game.traits.seats, seats_seed)

        def start(attempt: int) -> Start:
            return Start(
                game=game,
                players=players,
                seed=derive_seed(self.seed, self.purpose, "match", group, attempt),
                play_seed=derive_seed(self.seed, self.purpose, "play", counter, attempt),
                counter=counter,
                opening=opening,
                forfeit=settings.forfeit,
            )

        return until_decided(start, settings.max_draw_retries)

    def priming_episodes(self) -> Iterator[Playing]:
        """Start this rank's games between uniformly random players."""
        games = played_games(self.games, self.shares)
        guest = _RandomAtPrompts(self.player)
        for counter in range(self.rank, self.settings.priming_games, self.world_size):
            game = games[counter % len(games)]
            yield referee(
                Start(
                    game=game,
                    players=(guest,) * game.traits.seats,
                    seed=derive_seed(self.seed, "prime", counter),
                    play_seed=derive_seed(self.seed, "prime", "play", counter),
                    counter=counter,
                    forfeit=self.settings.forfeit,
                )
            )


def played_games(games: Sequence[Game], shares: Sequence[float] | None) -> list[Game]:
    """Return the games with a share above 0."""
    return list(games) if shares is None else [game for game, x in zip(games, shares, strict=True) if x > 0.0]


def check_lists_moves(game: Game, option: str) -> None:
    """
    Check that a game lists its legal moves.

    Args:
        game ([`~games.Game`]):
            The game.
        option (`str`):
            Name of the setting that needs them.

    Raises:
        ValueError: If it does not.
    """
    match = game.start(0)
    if match.to_move is not None and match.observe(match.to_move).legal_actions is None:
        raise ValueError(
            f"`{option}` needs games that list their legal moves, and {game.name} does not. Leave it off."
        )


class _RandomAtPrompts:
    """A random player with the prompts of the policy, so that its positions are the policy's."""

    name = "random"

    def __init__(self, policy: Player) -> None:
        self._policy = policy

    def ask(self, observation: Observation) -> Turn | Request:
        request = self._policy.ask(observation)
        return Turn(action=random_move(observation), prompt_ids=request.prompt_ids, policy=POLICY)

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        raise AssertionError("a random player makes no request")
