"""Log entries of callbacks, apart from the trainer's own."""

from __future__ import annotations

from transformers import Trainer


def log_separately(trainer: Trainer, metrics: dict[str, float]) -> None:
    """
    Log metrics in an entry of their own, and leave the trainer's next entry unchanged.

    Args:
        trainer ([`~transformers.Trainer`]):
            Any trainer.
        metrics (`dict[str, float]`):
            Values by name.
    """
    due = trainer.control.should_log
    # `GRPOTrainer.log` would also flush its own metrics, in the middle of their window.
    Trainer.log(trainer, metrics)
    # Any entry clears `should_log`, and the loss of the step would not be logged.
    # https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/trainer_callback.py
    trainer.control.should_log = due
