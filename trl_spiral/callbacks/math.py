"""Grades at math during training."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from accelerate.utils import gather_object
from transformers import Trainer

from trl_spiral import _trl
from trl_spiral.callbacks.grading import GradingCallback, check_at_least_one, check_not_negative
from trl_spiral.callbacks.problem_sets import load_math_problems
from trl_spiral.callbacks.trainer_policy import evaluation_player, share_of
from trl_spiral.distributed import agree
from trl_spiral.evaluation.problems.math import MathAttempt, answer_problems, math_metrics
from trl_spiral.evaluation.problems.math_grading import check_can_grade
from trl_spiral.evaluation.problems.math_sets import MathProblem, MathSet
from trl_spiral.text.printable import get_logger


logger = get_logger(__name__)


class MathCallback(GradingCallback):
    r"""
    Grades the policy at math before training, every `every` steps, and after: does game skill transfer?

    The ranks share the problems. Each is posed in the prompt style of the trainer's games, and graded from `\boxed{}`
    with math-verify. Every reply is written to `math/{set}_step{step}.jsonl` in the output folder. See also
    [`GradingCallback`].

    Args:
        trainer, every, prompt_style:
            See [`GradingCallback`].
        sets (`str`, [`~evaluation.problems.math_sets.MathSet`] or a sequence of them):
            Names from [`~evaluation.problems.math_sets.MATH_SETS`], or sets of your own.
        limit (`int`, *optional*):
            Number of problems of each set, from the first one. Default: all.
        temperature (`float`, *optional*, defaults to `0.0`):
            Temperature of the replies. The default is greedy, as in published scores. `None` for the trainer's, in
            evaluation. All other sampling options are the trainer's.
        path (`str`, `Path` or `Mapping[str, str | Path]`, *optional*):
            File of the only set, or files by set name. Sets without a file come from the Hub.
        max_new_tokens (`int`, *optional*):
            Token limit of a reply. Default: the trainer's in evaluation (`max_completion_length`), or 256 in a trainer
            that generates nothing, such as `SFTTrainer`.
        seed (`int`, defaults to `0`):
            Seed of the replies.

    Raises:
        ValueError: If a set is unknown or cannot be loaded, or a number is out of range. When training begins, if the
            trainer's model cannot be graded.
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
        super().__init__(trainer, every, prompt_style)
        check_at_least_one(max_new_tokens=max_new_tokens)
        check_not_negative(temperature)
        check_can_grade()
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        self.problems = load_math_problems([sets] if isinstance(sets, str | MathSet) else sets, path, limit)

    @property
    def key_metrics(self) -> list[str]:
        return [f"math/{next(iter(self.problems))}/accuracy"]

    def grade(self, step: int) -> dict[str, float]:
        metrics: dict[str, float] = {}
        with ExitStack() as opened:
            # If one rank fails to open its engine or to answer, all ranks raise.
            engine = agree(lambda: opened.enter_context(_trl.open_engine(self.trainer)))
            for name, problems in self.problems.items():
                mine = agree(
                    partial(self._answer, name, problems, engine),
                    lambda: _trl.restore_weights(self.trainer, engine),
                )
                attempts = sorted(gather_object(mine), key=lambda attempt: attempt.number)
                metrics |= {f"math/{name}/{field}": value for field, value in math_metrics(attempts).items()}
                if self.trainer.is_world_process_zero():
                    self._write(name, step, attempts)
        return metrics

    def _answer(self, name: str, problems: Sequence[MathProblem], engine) -> list[MathAttempt]:
        """Answer this rank's share of the problems. Ranks that share an engine all send the same requests."""
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
