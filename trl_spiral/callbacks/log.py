"""Entries in a trainer's log that stand beside its own."""

from __future__ import annotations

from transformers import Trainer


def log_beside(trainer: Trainer, numbers: dict[str, float]) -> None:
    """
    Logs numbers on their own, and leaves the trainer's next entry as it would have been.

    Args:
        trainer ([`~transformers.Trainer`]):
            Whose log it is.
        numbers (`dict[str, float]`):
            By name.
    """
    due = trainer.control.should_log
    # `GRPOTrainer.log` would also flush its own metrics, in the middle of their window.
    Trainer.log(trainer, numbers)
    # Whatever is logged counts as the entry that was due, so that the step's loss would go unlogged.
    # https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/trainer_callback.py
    trainer.control.should_log = due
