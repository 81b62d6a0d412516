"""Grades at math while the policy learns to play."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from accelerate.utils import gather_object
from transformers import Trainer, TrainerCallback

from trl_spiral import _trl
from trl_spiral.callbacks.hub import hub_rows
from trl_spiral.callbacks.log import log_beside
from trl_spiral.callbacks.policy import check_can_play, evaluation_player, share_of
from trl_spiral.distributed import agree
from trl_spiral.evaluation.problems.files import read_rows
from trl_spiral.evaluation.problems.math import MathAttempt, answer_problems, math_metrics
from trl_spiral.evaluation.problems.math_grading import check_can_grade
from trl_spiral.evaluation.problems.math_sets import MathProblem, MathSet, get_math_set, math_problems
from trl_spiral.text.printable import get_logger


logger = get_logger(__name__)


class MathCallback(TrainerCallback):
    r"""
    Grades the policy at math before training, every so often, and after: whether what it learns in games carries over.

    The problems are shared out among the ranks. Each is asked in the prompt style of the trainer's games, and graded from
    `\boxed{}` with math-verify. Nothing here is used for training, and nothing in the trainer moves. Every reply is
    written to `math/{set}_step{step}.jsonl` in the output folder.

    Args:
        trainer ([`~transformers.Trainer`]):
            Whose policy is graded.
        sets (`str`, [`~evaluation.problems.math_sets.MathSet`] or a sequence of them):
            Of [`~evaluation.problems.math_sets.MATH_SETS`], by name, or your own.
        every (`int`, *optional*):
            Steps between grades; only before and after training by default.
        limit (`int`, *optional*):
            How many problems of each set are asked, from its first on; all by default.
        temperature (`float`, *optional*, defaults to `0.0`):
            Temperature of the replies. The default is greedy, as published scores are; `None` for the trainer's, in
            evaluation. All other sampling options are the trainer's.
        path (`str`, `Path` or `Mapping[str, str | Path]`, *optional*):
            File of the only set, or files by set name. Sets without one come from the Hub.
        max_new_tokens (`int`, *optional*):
            Longest reply, in tokens. Default: the trainer's in evaluation (`max_completion_length`), or 256 where it
            generates nothing, as an `SFTTrainer`.
        seed (`int`, defaults to `0`):
            Seed of the replies.
        prompt_style (`str`, *optional*):
            See [`~text.prompts.PromptRenderer`]; by default that of the trainer's self-play, or `"chat"`.

    Raises:
        ValueError: If a set is unknown or its problems cannot be had, or a number is out of range, and, when training begins, if the trainer's model
            cannot be graded.
        ImportError: If math-verify is not installed.
    """

    def __init__(
        self,
        trainer: Trainer,
        sets: str | MathSet | Sequence[str | MathSet],
        every: int | None = None,
        limit: int | None = None,
        temperature: float | None = 0.0,
        path: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | None = None,
        max_new_tokens: int | None = None,
        seed: int = 0,
        prompt_style: str | None = None,
    ) -> None:
        for name, number in (("every", every), ("max_new_tokens", max_new_tokens)):
            if number is not None and number < 1:
                raise ValueError(f"`{name}` ({number}) must be at least 1. Leave it out for its default.")
        if temperature is not None and temperature < 0.0:
            raise ValueError(f"`temperature` ({temperature}) must not be negative. Use `0.0` for the likeliest reply.")
        check_can_grade()
        self.trainer = trainer
        self.every = every
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        self.prompt_style = prompt_style
        self.problems = load_problems([sets] if isinstance(sets, str | MathSet) else sets, path, limit)

    @property
    def curve(self) -> list[dict[str, float]]:
        """One entry per grade. Taken from the trainer's log, so that a resumed run knows how it began."""
        first = f"math/{next(iter(self.problems))}/accuracy"
        return [entry for entry in self.trainer.state.log_history if first in entry]

    def on_train_begin(self, args, state, control, **kwargs):
        check_can_play(self.trainer, self.prompt_style)
        if not self.curve:
            self._grade(state)

    def on_step_end(self, args, state, control, **kwargs):
        if self.every and state.global_step % self.every == 0 and state.global_step < state.max_steps:
            self._grade(state)

    def on_train_end(self, args, state, control, **kwargs):
        self._grade(state)

    def _grade(self, state) -> None:
        numbers: dict[str, float] = {}
        with ExitStack() as opened:
            # No rank waits for one that has failed, to open it or to answer.
            engine = agree(lambda: opened.enter_context(_trl.open_engine(self.trainer)))
            for name, problems in self.problems.items():
                mine = agree(
                    partial(self._answer, name, problems, engine),
                    lambda: _trl.restore_weights(self.trainer, engine),
                )
                attempts = sorted(gather_object(mine), key=lambda attempt: attempt.number)
                numbers |= {f"math/{name}/{field}": value for field, value in math_metrics(attempts).items()}
                if state.is_world_process_zero:
                    self._write(name, state.global_step, attempts)
        # On every rank, so that all of them know what has been graded already.
        log_beside(self.trainer, numbers)

    def _answer(self, name: str, problems: Sequence[MathProblem], engine) -> list[MathAttempt]:
        """This rank's share. Ranks that share an engine ask it the same, and the first of them keeps the replies."""
        share, keeps = share_of(self.trainer, problems)
        player = evaluation_player(self.trainer, self.temperature, self.prompt_style, self.max_new_tokens)
        attempts = answer_problems(share, player, engine, self.seed, name)
        return attempts if keeps else []

    def _write(self, name: str, step: int, attempts: Sequence[MathAttempt]) -> None:
        file = Path(self.trainer.args.output_dir) / "math" / f"{name}_step{step}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(attempt.record(), ensure_ascii=False) + "\n" for attempt in attempts]
        file.write_text("".join(lines), encoding="utf-8")
        logger.info("Wrote %d replies to %s.", len(attempts), file)


def load_problems(
    sets: Sequence[str | MathSet],
    path: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | None = None,
    limit: int | None = None,
) -> dict[str, list[MathProblem]]:
    """
    Problems by set, each in its own order, from files or the Hub. Arguments and exceptions are those of `MathCallback`.
    """
    known = [get_math_set(name) if isinstance(name, str) else name for name in sets]
    if not known:
        raise ValueError("`sets` is empty: there is nothing to grade. Name at least one, such as 'gsm8k'.")
    if path is not None and not isinstance(path, Mapping):
        if len(known) > 1:
            raise ValueError(
                f"`path` ({path}) is one file, and {len(known)} sets are asked for. Give files by name: "
                f"`{{{known[0].name!r}: …}}`."
            )
        path = {known[0].name: path}
    files = dict(path or {})
    if strangers := files.keys() - {math_set.name for math_set in known}:
        raise ValueError(
            f"`path` names {min(strangers)!r}, which is not among the sets. Add it to them, or leave it out."
        )
    return {
        math_set.name: math_problems(
            read_rows(files[math_set.name])
            if math_set.name in files
            else hub_rows(f"math set {math_set.name!r}", math_set.hub, math_set.config, math_set.split),
            math_set,
            limit,
        )
        for math_set in known
    }
