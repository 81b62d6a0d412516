"""Warns while a run collapses, rather than after it has."""

from __future__ import annotations

from transformers import Trainer, TrainerCallback

from trl_spiral.callbacks.log import log_beside
from trl_spiral.collapse import CollapseMonitor
from trl_spiral.text.printable import get_logger


logger = get_logger(__name__)


class CollapseCallback(TrainerCallback):
    """
    Warns of collapse, with the remedy in the same sentence, and logs `collapse/warnings`, how many there have been, with each.

    What counts as collapse is in [`~collapse`]. It is read from the metrics that self-play logs anyway and costs nothing
    else; a healthy run hears nothing from it. A resumed run goes on from its log and repeats no warning.

    Args:
        trainer ([`~transformers.Trainer`]):
            Whose log is read.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.monitor = CollapseMonitor()

    def on_train_begin(self, args, state, control, **kwargs):
        self.monitor = CollapseMonitor()
        for entry in state.log_history:
            self.monitor.observe(entry.get("step", 0), entry)

    def on_log(self, args, state, control, logs=None, **kwargs):
        new = self.monitor.observe(state.global_step, logs or {})
        if state.is_world_process_zero:
            for warning in new:
                logger.warning("Step %d: %s", warning.step, warning.sentence)
        if new:
            log_beside(self.trainer, {"collapse/warnings": float(len(self.monitor.warnings))})
