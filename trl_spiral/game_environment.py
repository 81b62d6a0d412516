"""
`GameEnvironment`: any game as a TRL environment, for a plain `GRPOTrainer` whose model calls tools.

The model has one seat and moves by calling `play`; our players fill the others. The `referee` runs the game, as
everywhere in this package. This module adds the pause while TRL generates.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Generator
from typing import Any, cast

from datasets import Dataset

from trl_spiral.games import Game, get_game
from trl_spiral.players import Player, ScriptedPlayer, scripted_player
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Ask, Engine, Forfeit, Playing, Start, play, referee
from trl_spiral.text.control import escape_control_text
from trl_spiral.text.printable import get_logger
from trl_spiral.text.replies import read_move
from trl_spiral.types import POLICY, Ending, Episode, Observation, Turn, has_won


logger = get_logger(__name__)

HOW_TO_MOVE = "Make each of your moves by calling the tool `play`, until it tells you that the game is over."
"""Instruction after the first observation."""

# Placeholder in the seat of the model. Its turns come from `GameEnvironment.play`, so it is never asked.
_MODEL = ScriptedPlayer(POLICY, lambda observation: None)


class GameEnvironment:
    """
    One seat of a game as a TRL environment, and a factory: a call returns another environment of the same game.

    ```python
    environment = GameEnvironment("TicTacToe-v0", opponent="random")
    trainer = GRPOTrainer(
        model="Qwen/Qwen3-0.6B",
        environment_factory=environment,
        train_dataset=environment.dataset(1024),
        args=GRPOConfig(num_generations=8, max_completion_length=2048),
    )
    ```

    The reward is the return of the seat. The `seed` of a dataset row determines the deal, the seat and the random
    choices of the opponents. The completions of a GRPO group share a row, so they start from the same position.

    An illegal move ends the game and costs the forfeit. So does an unfinished game: otherwise a model could avoid
    losing by stopping. Engines of opponents serve one game at a time, since TRL runs tools one by one.

    Args:
        game (`str` or [`~games.Game`]):
            Game to play.
        opponent (`str` or [`~players.Player`], defaults to `"random"`):
            Player in every other seat: the name of a scripted player, or any player.
        seat (`int`, *optional*):
            Seat of the model. By default, each row's seed draws one uniformly.
        engine ([`~selfplay.referee.Engine`], *optional*):
            Engine of the opponent, if it needs one: `EndpointEngine` for an `EndpointPlayer`.
        forfeit ([`~selfplay.referee.Forfeit`], *optional*):
            Returns after an illegal move or an unfinished game.

    Attributes:
        episode ([`~types.Episode`], *optional*):
            The episode once it has ended, for reward functions that need more than its return.

    Raises:
        ValueError: If the game, the player or the seat does not exist.
        RuntimeError: If the game cannot be played on this machine.
    """

    def __init__(
        self,
        game: str | Game,
        opponent: str | Player = "random",
        seat: int | None = None,
        engine: Engine | None = None,
        forfeit: Forfeit | None = None,
    ) -> None:
        self._made_of = game, opponent, seat, engine, forfeit
        self.game = get_game(game) if isinstance(game, str) else game
        self.game.check()
        self.opponent = scripted_player(opponent, self.game) if isinstance(opponent, str) else opponent
        if seat is not None and not 0 <= seat < self.game.traits.seats:
            raise ValueError(
                f"`seat` ({seat}) must be a seat of {self.game.name}, 0 to {self.game.traits.seats - 1}. Leave it out "
                "to draw a seat for each game."
            )
        self.seat = seat
        self.engine = engine
        self.forfeit = forfeit or Forfeit()
        self._begin(None)

    def __call__(self) -> GameEnvironment:
        """Return another environment of the same game, with no game started."""
        other = object.__new__(type(self))
        other.__dict__.update(vars(self))
        other._begin(None)
        return other

    @classmethod  # TRL uses every plain method as a tool
    def dataset(cls, rows: int, seed: int = 0, prompt: str = "") -> Dataset:
        """
        Return a dataset of `rows` games. TRL repeats each for a group, and appends the first observation to `prompt`.

        Args:
            rows (`int`):
                Number of games.
            seed (`int`, defaults to `0`):
                Seed of the games.
            prompt (`str`, *optional*):
                Text before the observation. Default: none.
        """
        seeds = [derive_seed(seed, "environment", row) for row in range(rows)]
        return Dataset.from_dict({"prompt": [[{"role": "user", "content": prompt}]] * rows, "seed": seeds})

    def _begin(self, playing: Playing | None, place: int = 0) -> None:
        self._playing, self._place = playing, place
        self._asked: Observation | None = None
        self._failure: Exception | None = None
        self.episode: Episode | None = None

    # ---- called by TRL ----
    def reset(self, **row: Any) -> str:
        """
        Start the game of a row.

        Args:
            row (`Any`):
                Columns of the row. Its `seed` determines all random choices; without one, all columns together do.

        Returns:
            `str`: The observation before the first move of the seat, and how to move.
        """
        if "seed" not in row:
            _warn_of_rows_without_seed(self.game.name)
        seed = derive_seed("environment", row["seed"] if "seed" in row else repr(sorted(row.items())))
        seats = range(self.game.traits.seats)
        drawn = random.Random(derive_seed(seed, "seats")).choice(seats)
        place = drawn if self.seat is None else self.seat
        start = Start(
            game=self.game,
            players=[_MODEL if seat == place else self.opponent for seat in seats],
            seed=derive_seed(seed, "match"),
            play_seed=derive_seed(seed, "play"),
            forfeit=self.forfeit,
        )
        self._begin(referee(start), place)
        self._advance(None)
        if self._asked is None:
            return self._verdict()
        observed = "\n\n".join(message["content"] for message in self._asked.messages)
        return f"{escape_control_text(observed)}\n\n{HOW_TO_MOVE}"

    def play(self, move: str) -> str:
        """
        Plays your next move.

        Args:
            move: Your move, written as the game writes its moves.

        Returns:
            What you see when it is your turn again, or how the game has ended.
        """
        if self._playing is None:
            raise ValueError(f"No game of {self.game.name} has been started. Call `reset` first.")
        if self.episode is not None:
            return f"You cannot move any more. {self._verdict()}"
        text = str(move)  # models also write numbers
        action = None if self._asked is None else read_move(self._asked, text)
        try:
            self._advance(Turn(action=action, text=text))
        except Exception as error:
            self._failure = error
            raise
        return self._verdict() if self._asked is None else escape_control_text(self._asked.update)

    def get_reward(self) -> float | None:
        """
        Return the return of the seat, the forfeit if the game is unfinished, or `None` if it was broken off.

        Raises:
            Exception: The error that `play` raised, if any. TRL has shown it only to the model.
        """
        if self._failure is not None:
            raise self._failure
        if self.episode is None:
            return self.forfeit.returns(self.game.traits, self._place)[self._place]
        return None if self.episode.ending.is_broken else self.episode.returns[self._place]

    # ---- the game ----
    def _advance(self, turn: Turn | None) -> None:
        """Apply the turn of this seat, and let the others play until it is this seat's turn or the game has ended."""
        self._asked = None
        # `play` asks the opponents and their engine, and accepts a generator that returns no episode.
        list(play([cast(Playing, self._until_asked(turn))], self.engine))

    def _until_asked(self, turn: Turn | None) -> Generator[Ask, Turn, None]:
        """Run the game from one observation of this seat to the next."""
        assert self._playing is not None, "a game has been started"
        while True:
            try:
                ask = next(self._playing) if turn is None else self._playing.send(turn)
            except StopIteration as end:
                self.episode = end.value
                return
            if ask.observation.seat == self._place:
                self._asked = ask.observation
                return
            turn = yield ask

    def _verdict(self) -> str:
        """Return the result of the game for the model."""
        assert self.episode is not None, "the game has ended"
        episode, mine = self.episode, self.episode.returns[self._place] + 0.0  # never "-0"
        if episode.ending.is_broken:
            return "The game is over: it was broken off and does not count."
        if episode.ending.is_forfeit:
            how = "your move was illegal" if episode.offender == self._place else "another player's move was illegal"
        elif episode.ending is Ending.TURN_LIMIT:
            how = "it took too many turns"
        elif episode.is_draw:
            how = "it is a draw"
        else:
            how = "you won" if has_won(episode.returns, self._place) else "you lost"
        return f"The game is over: {how}. Your return is {mine:g}."

    def __reduce__(self) -> tuple[type[GameEnvironment], tuple[Any, ...]]:
        # A running game is a generator, which cannot be pickled: the copy starts without one.
        return type(self), self._made_of


@functools.cache
def _warn_of_rows_without_seed(game: str) -> None:
    logger.warning(
        "Rows without a `seed` are seeded by their columns: rows with equal columns play the same game of %s, with "
        "the same deal, seat and opponent. Use `train_dataset=GameEnvironment.dataset(1024)`, which has seeds.",
        game,
    )
