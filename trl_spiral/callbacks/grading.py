"""Base of the callbacks that grade the policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from transformers import Trainer, TrainerCallback

from trl_spiral.callbacks.log import log_separately
from trl_spiral.callbacks.trainer_policy import check_can_play


class GradingCallback(TrainerCallback, ABC):
    """
    Grades the policy before training, every `every` steps, and after training. The base of all grading callbacks.

    Each grade is logged in an entry of its own. Grades are not used for training, and the trainer's other numbers are
    those of a run without them. A resumed run continues with the grades in its checkpoint's log.

    The last step is graded once, after training, when the final model is loaded. If training stops early at a step
    that has a grade, it is not graded again, unless `load_best_model_at_end` has loaded other weights.

    A subclass implements [`~GradingCallback.grade`] and [`~GradingCallback.key_metrics`].

    Args:
        trainer ([`~transformers.Trainer`]):
            Trainer whose policy is graded.
        every (`int`, *optional*):
            Steps between grades. By default, only before and after training.
        prompt_style (`str`, *optional*):
            See [`~text.prompts.PromptRenderer`]. Default: the style of the trainer's self-play, or `"chat"`.

    Raises:
        ValueError: If `every` is below 1. When training begins, if the trainer's model cannot be graded.
    """

    def __init__(self, trainer: Trainer, every: int | None = None, prompt_style: str | None = None) -> None:
        check_at_least_one(every=every)
        self.trainer = trainer
        self.every = every
        self.prompt_style = prompt_style
        self._graded_at: int | None = None

    # ---- for subclasses ----
    @abstractmethod
    def grade(self, step: int) -> dict[str, float]:
        """
        Grade the policy. Every rank calls it.

        Args:
            step (`int`):
                Optimizer steps taken, for the names of files.

        Returns:
            `dict[str, float]`: Metrics to log. Empty on ranks that log nothing.
        """

    @property
    @abstractmethod
    def key_metrics(self) -> list[str]:
        """Metrics that all grades of this callback contain, by which its log entries are found."""

    @property
    def is_exact(self) -> bool:
        """True if rank 0 grades alone, from the probabilities of the model."""
        return False

    def prepare(self) -> None:
        """Check the trainer when training begins, and resolve settings that depend on it."""
        check_can_play(self.trainer, self.prompt_style, alone=self.is_exact)

    # ---- grades ----
    @property
    def curve(self) -> list[dict[str, float]]:
        """Log entries of all grades so far, including those before a resume."""
        return self.entries_with(*self.key_metrics)

    def entries_with(self, *metrics: str) -> list[dict[str, Any]]:
        """Return the log entries that contain all of these metrics."""
        return [entry for entry in self.trainer.state.log_history if all(name in entry for name in metrics)]

    def _grade(self, step: int) -> None:
        self._graded_at = step
        if metrics := self.grade(step):
            log_separately(self.trainer, metrics)

    # ---- events ----
    def on_train_begin(self, args, state, control, **kwargs):
        self.prepare()
        # Equal on all ranks: a new run has no log, and a resumed one has read the log of its checkpoint.
        curve = self.curve
        self._graded_at = curve[-1]["step"] if curve else None
        if self._graded_at is None:
            self._grade(state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        if self.every and state.global_step % self.every == 0 and state.global_step < state.max_steps:
            self._grade(state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        has_reloaded = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if self._graded_at != state.global_step or has_reloaded:
            self._grade(state.global_step)


def check_at_least_one(**numbers: int | None) -> None:
    """Raise `ValueError` if a number is given and below 1."""
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"`{name}` ({number}) must be at least 1. Leave it out for its default.")


def check_not_negative(temperature: float | None) -> None:
    """Raise `ValueError` if a temperature is given and negative."""
    if temperature is not None and temperature < 0.0:
        raise ValueError(f"`temperature` ({temperature}) must not be negative. Use `0.0` for greedy decoding.")
