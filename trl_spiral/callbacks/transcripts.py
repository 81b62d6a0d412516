"""Games that a person can read."""

from __future__ import annotations

import logging
from pathlib import Path

from transformers import Trainer, TrainerCallback

from trl_spiral import _trl
from trl_spiral.callbacks.policy import check_can_play, evaluation_player
from trl_spiral.evaluation.matches import play_matches
from trl_spiral.evaluation.transcripts import write_transcripts
from trl_spiral.games import get_game
from trl_spiral.players import RandomPlayer
from trl_spiral.types import Episode


logger = logging.getLogger(__name__)


class TranscriptCallback(TrainerCallback):
    """
    Writes readable games of the finished policy into `transcripts/` of the output folder: against itself, and in each
    seat against a random player.

    Args:
        trainer ([`~transformers.Trainer`]):
            Whose policy plays.
        game (`str`, defaults to `"TicTacToe-v0"`):
            What is played.
        games (`int`, defaults to `10`):
            How many games.
        temperature (`float`, defaults to `0.25`):
            At which the policy plays.
        prompt_style (`str`, *optional*):
            See [`~prompts.PromptRenderer`]; by default that of the trainer's self-play, or `"chat"`.

    Raises:
        ValueError: When training begins, if the trainer's model cannot play.
    """

    def __init__(
        self,
        trainer: Trainer,
        game: str = "TicTacToe-v0",
        games: int = 10,
        temperature: float = 0.25,
        prompt_style: str | None = None,
    ) -> None:
        self.trainer = trainer
        self.game = get_game(game)
        self.games = games
        self.temperature = temperature
        self.prompt_style = prompt_style

    def on_train_begin(self, args, state, control, **kwargs):
        check_can_play(self.trainer, self.prompt_style)

    def on_train_end(self, args, state, control, **kwargs):
        policy, guest = evaluation_player(self.trainer, self.temperature, self.prompt_style), RandomPlayer()
        seats = self.game.traits.seats
        share = self.games // (seats + 1)
        episodes: list[Episode] = []
        with _trl.open_engine(self.trainer) as engine:
            if not _trl.is_first_to_play(self.trainer):
                return
            episodes += play_matches(self.game, policy, policy, 0, self.games - seats * share, engine)
            for seat in range(seats):
                episodes += play_matches(self.game, policy, guest, seat, share, engine)
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / "transcripts"
        write_transcripts(episodes, folder, _trl.tokenizer_of(self.trainer).decode)
        logger.info("Wrote %d transcripts to %s.", len(episodes), folder)
