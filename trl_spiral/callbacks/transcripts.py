"""Transcripts of games, and the description of the run that they belong to."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from trl_spiral import _trl
from trl_spiral.callbacks.trainer_policy import (
    check_can_play,
    evaluation_player,
    games_of,
    latest_batch,
    resume_of,
    rollout_of,
)
from trl_spiral.evaluation.matches import play_matches
from trl_spiral.evaluation.transcripts import GAMES, GameLog, make_record, write_transcripts
from trl_spiral.games import Game
from trl_spiral.machine import describe_machine, describe_versions
from trl_spiral.players import PolicyPlayer, scripted_player
from trl_spiral.players.names import has_random_player
from trl_spiral.selfplay.batch import Batch
from trl_spiral.selfplay.referee import Engine
from trl_spiral.selfplay.rows import Row
from trl_spiral.text.printable import get_logger
from trl_spiral.text.secrets import is_secret_name, redact_all, redact_command
from trl_spiral.types import Episode


logger = get_logger(__name__)

RUN = "run.json"


class TranscriptCallback(TrainerCallback):
    """
    Writes games that can be read, in the output folder. `trl-spiral report` replays them.

    After training, the final policy plays the trainer's games against itself and, if a game has a random player,
    against that in each seat. Prompts and sampling are those of the trainer's evaluation. These games are written as
    Markdown in `transcripts/` and as records in `games.jsonl`. With `every`, training games are recorded too, with the
    advantages of their turns. `run.json` records how the run was started.

    Recorded training games are the first of their batch on the first rank. If a batch is trained on for several steps,
    steps after a resume (in a plain trainer, after an evaluation) record none. `games.jsonl` is limited to 100 MB. A
    resumed run removes the records after its checkpoint, since it will write them again.

    Args:
        trainer ([`~transformers.Trainer`]):
            Trainer whose policy plays.
        game (`str`, [`~games.Game`] or a sequence of them, *optional*):
            Games to play after training. Default: the trainer's; required if the trainer plays none.
        games (`int`, defaults to `10`):
            Number of episodes: after training, divided among the games, and at each step that records training games.
        temperature (`float`, *optional*):
            Temperature of the final policy. Default: the trainer's, in evaluation.
        prompt_style (`str`, *optional*):
            See [`~text.prompts.PromptRenderer`]. Default: the style of the trainer's self-play, or `"chat"`.
        every (`int`, *optional*):
            Steps between records of training games, in addition to the first step. By default, none are recorded.

    Raises:
        ValueError: If no game is given and the trainer plays none. When training begins, if the trainer's model cannot
            play, or `every` is set and the trainer does not play by [`SelfPlayRollout`].
        RuntimeError: If the game cannot be played on this machine.
    """

    def __init__(
        self,
        trainer: Trainer,
        game: str | Game | Sequence[str | Game] | None = None,
        games: int = 10,
        temperature: float | None = None,
        prompt_style: str | None = None,
        every: int | None = None,
    ) -> None:
        if every is not None and every < 1:
            raise ValueError(
                f"`every` ({every}) must be at least 1: it counts steps. Use `None` to record no training games."
            )
        self.trainer = trainer
        self.played = {game.name: game for game in games_of(trainer, game, "game")}
        self.games = games
        self.temperature = temperature
        self.prompt_style = prompt_style
        self.every = every
        self.log = GameLog(Path(trainer.args.output_dir) / GAMES)
        self._evaluated: Batch | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        check_can_play(self.trainer, self.prompt_style)
        if self.every and rollout_of(self.trainer) is None:
            raise ValueError(
                f"`every` ({self.every}) records training games, and this trainer plays none. Leave it out, or train "
                "with `SelfPlayRollout` or `SpiralTrainer`."
            )
        if state.is_world_process_zero:
            Path(args.output_dir).mkdir(parents=True, exist_ok=True)
            self.log.rewind(state.global_step)
            path = Path(args.output_dir) / RUN
            resumed = _resumed_before(path, state.global_step)
            if this := resume_of(self.trainer):
                resumed.append(this)
            text = json.dumps({**describe_run(args, sys.argv), "resumed": resumed}, indent=1)
            path.write_text(text, encoding="utf-8")

    def on_prediction_step(self, args, state, control, **kwargs):
        # In a plain trainer, the latest batch may be that of an evaluation.
        self._evaluated = latest_batch(self.trainer)

    def on_step_end(self, args, state, control, **kwargs):
        step = state.global_step
        if not self.every or not state.is_world_process_zero or (step != 1 and step % self.every):
            return
        batch = latest_batch(self.trainer)
        if batch is self._evaluated:
            return
        rules = {game.name: game for game in rollout_of(self.trainer).games}
        self.log.append(
            [
                make_record(episode, rules[episode.game], step, "training", trained_advantages(episode, batch.rows))
                for episode in batch.episodes[: self.games]
            ]
        )

    def on_train_end(self, args, state, control, **kwargs):
        policy = evaluation_player(self.trainer, self.temperature, self.prompt_style)
        episodes: list[Episode] = []
        with _trl.open_engine(self.trainer) as engine:
            if not _trl.is_first_to_play(self.trainer):
                return
            for place, game in enumerate(self.played.values()):
                share, rest = divmod(self.games, len(self.played))
                episodes += self._play(game, policy, share + (place < rest), engine)
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / "transcripts"
        write_transcripts(episodes, folder, _trl.tokenizer_of(self.trainer).decode)
        self.log.append([make_record(one, self.played[one.game], state.global_step, "final") for one in episodes])
        logger.info("Wrote %d transcripts to %s.", len(episodes), folder)

    def _play(self, game: Game, policy: PolicyPlayer, number: int, engine: Engine) -> list[Episode]:
        """Play a game against itself and, if it has a random player, against that in each seat."""
        seats = game.traits.seats
        share = number // (seats + 1) if has_random_player(game) else 0
        episodes = play_matches(game, policy, policy, 0, number - seats * share, engine)
        for seat in range(seats) if share else ():
            episodes += play_matches(game, policy, scripted_player("random", game), seat, share, engine)
        return episodes


def trained_advantages(episode: Episode, batch: Sequence[Row]) -> list[list[float | None]]:
    """
    Return the advantage of each turn of each seat in a batch, as a mean over its tokens.

    It is `None` for a turn that is not in the batch: a turn of another player or of another rank, one that waits for
    the next batch, or one that was filtered out. A plain [`~trl.GRPOTrainer`] subtracts the batch mean from them.
    """
    result = []
    for trajectory in episode.trajectories:
        rows = [row for row in batch if row.episode == episode.counter and row.seat == trajectory.seat]
        numbers: list[float | None] = []
        written: list[float] = []  # remaining advantages of a row, of tokens that the policy wrote
        for turn in trajectory.turns:
            if not written and rows and tuple(rows[0].prompt_ids) == turn.prompt_ids:
                row = rows.pop(0)
                written = [number for number, mine in zip(row.advantages, row.mask, strict=True) if mine]
            own, written = written[: len(turn.completion_ids)], written[len(turn.completion_ids) :]
            numbers.append(sum(own) / len(own) if own else None)
        result.append(numbers)
    return result


def _resumed_before(path: Path, step: int) -> list[dict[str, Any]]:
    """Return the resumes that an earlier process of this run recorded, up to a step."""
    try:
        return [one for one in json.loads(path.read_text(encoding="utf-8"))["resumed"] if one["step"] <= step and step]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # no earlier process, or its record is damaged


def describe_run(args: Any, argv: Sequence[str]) -> dict[str, Any]:
    """
    Return how a run was started, without secrets.

    Contains the command, the seed, the settings that differ from their defaults, versions, and the machine.
    """
    settings = {}
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        plain = isinstance(value, str | int | float | bool | list)
        if plain and value not in (default, []) and not is_secret_name(field.name):
            settings[field.name] = value
    return {
        "command": shlex.join(redact_command(argv)),
        "seed": args.seed,
        "settings": redact_all(settings),
        "versions": describe_versions(),
        "machine": describe_machine(args.world_size),
    }
