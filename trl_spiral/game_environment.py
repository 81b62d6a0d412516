"""
`GameEnvironment`: any game as an environment of TRL's, for a plain `GRPOTrainer` whose model calls tools.

One seat is the model's, which moves by calling `play`; players of ours fill the others. The game itself is the `referee`'s,
here as everywhere: what is added is the pause while TRL generates.
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
"""What the model reads after the first observation."""

# Sits where the model does. Its turns come in by `GameEnvironment.play`, so nobody ever asks it.
_MODEL = ScriptedPlayer(POLICY, lambda observation: None)


class GameEnvironment:
    """
    One seat of a game, as an environment of TRL's; called, it makes another, so it is its own factory.

    ```python
    environment = GameEnvironment("TicTacToe-v0", opponent="random")
    trainer = GRPOTrainer(
        model="Qwen/Qwen3-0.6B",
        environment_factory=environment,
        train_dataset=environment.dataset(1024),
        args=GRPOConfig(num_generations=8, max_completion_length=2048),
    )
    ```

    The reward is the seat's return. Rows of the data set tell the games apart: a row's `seed` decides the deal, the seat and
    whatever the opponents draw, so that a group of GRPO's, which shares a row, compares like with like.

    An illegal move ends the game and costs the forfeit. So does leaving it unfinished: otherwise, to stop in time would be
    the way never to lose. Opponents that ask an engine are answered one game at a time, since TRL runs tools one by one.

    Args:
        game (`str` or [`~games.Game`]):
            What is played.
        opponent (`str` or [`~players.Player`], defaults to `"random"`):
            Fills every other seat: a scripted player by name, or any player.
        seat (`int`, *optional*):
            The model's seat; by default each row's seed draws one, each as likely as another.
        engine ([`~selfplay.referee.Engine`], *optional*):
            Answers an opponent that asks one: `EndpointEngine` for an `EndpointPlayer`.
        forfeit ([`~selfplay.referee.Forfeit`], *optional*):
            What an illegal move or an unfinished game costs.

    Attributes:
        episode ([`~types.Episode`], *optional*):
            The game, once it has ended, for reward functions that want more than its return.

    Raises:
        ValueError: If there is no such game, player or seat.
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
                f"`seat` ({seat}) must be one of {self.game.name}'s, 0 to {self.game.traits.seats - 1}. Leave it out to sit "
                "in each of them equally often."
            )
        self.seat = seat
        self.engine = engine
        self.forfeit = forfeit or Forfeit()
        self._begin(None)

    def __call__(self) -> GameEnvironment:
        """Another environment for the same game, in which nothing has been started."""
        other = object.__new__(type(self))
        other.__dict__.update(vars(self))
        other._begin(None)
        return other

    @classmethod  # TRL takes every plain function for a tool
    def dataset(cls, rows: int, seed: int = 0, prompt: str = "") -> Dataset:
        """
        A data set of `rows` games: TRL repeats each for a group, and puts the game's first observation after `prompt`.

        Args:
            rows (`int`):
                How many games there are.
            seed (`int`, defaults to `0`):
                Another one gives other games.
            prompt (`str`, defaults to nothing):
                What the model reads before the observation.
        """
        seeds = [derive_seed(seed, "environment", row) for row in range(rows)]
        return Dataset.from_dict({"prompt": [[{"role": "user", "content": prompt}]] * rows, "seed": seeds})

    def _begin(self, playing: Playing | None, place: int = 0) -> None:
        self._playing, self._place = playing, place
        self._asked: Observation | None = None
        self._failure: Exception | None = None
        self.episode: Episode | None = None

    # ---- what TRL calls ----
    def reset(self, **row: Any) -> str:
        """
        Starts the game of a row.

        Args:
            row (`Any`):
                The row's columns. Its `seed` decides everything that is drawn; without one, all columns together do.

        Returns:
            `str`: What the seat sees when it is asked for its first move, and how to answer.
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
        text = str(move)  # a model may well write a number
        action = None if self._asked is None else read_move(self._asked, text)
        try:
            self._advance(Turn(action=action, text=text))
        except Exception as error:
            self._failure = error
            raise
        return self._verdict() if self._asked is None else escape_control_text(self._asked.update)

    def get_reward(self) -> float | None:
        """
        The seat's return, the forfeit if the game was left unfinished, and `None` if it broke.

        Raises:
            Exception: Whatever went wrong in `play`: TRL has shown it to the model alone, as if that could mend it.
        """
        if self._failure is not None:
            raise self._failure
        if self.episode is None:
            return self.forfeit.returns(self.game.traits, self._place)[self._place]
        return None if self.episode.ending.is_broken else self.episode.returns[self._place]

    # ---- the game ----
    def _advance(self, turn: Turn | None) -> None:
        """Sends this seat's turn into the game, and lets the others play until it is asked again or the game has ended."""
        self._asked = None
        # `play` asks opponents and their engine, and does not mind a game that ends without an episode, for the moment.
        list(play([cast(Playing, self._until_asked(turn))], self.engine))

    def _until_asked(self, turn: Turn | None) -> Generator[Ask, Turn, None]:
        """The part of the game between two questions to this seat."""
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
        """How the game ended, for the model."""
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
        # Games and players are made anew from their names, and a game under way, which is a generator, stays here.
        return type(self), self._made_of


@functools.cache
def _warn_of_rows_without_seed(game: str) -> None:
    logger.warning(
        "Rows without a `seed` are told apart by their columns, and equal ones play the same game of %s from the same seat "
        "against the same moves. `train_dataset=GameEnvironment.dataset(1024)` has as many games as you like.",
        game,
    )
