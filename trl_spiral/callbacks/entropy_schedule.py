"""A linear schedule of the entropy bonus."""

from __future__ import annotations

from transformers import TrainerCallback
from trl import GRPOTrainer


class EntropyScheduleCallback(TrainerCallback):
    """
    Changes `entropy_coef` of a [`~trl.GRPOTrainer`] linearly over the run.

    The value depends on the step alone, so a resumed run continues where it was.

    Args:
        trainer ([`~trl.GRPOTrainer`]):
            The trainer. Its `entropy_coef` is the value of the first step.
        end (`float`, defaults to `0.0`):
            Value after the last step.

    Raises:
        ValueError: If `entropy_coef` is 0 or adaptive.
    """

    def __init__(self, trainer: GRPOTrainer, end: float = 0.0) -> None:
        args = trainer.args
        if args.entropy_coef == 0.0 or args.use_adaptive_entropy:
            raise ValueError(
                f"The schedule to `end` ({end}) changes `entropy_coef` ({args.entropy_coef}), which must not be 0 at "
                "the start or adaptive (`use_adaptive_entropy`). Set `entropy_coef`, or leave the schedule out."
            )
        self.trainer = trainer
        self.end = end

    def on_step_begin(self, args, state, control, **kwargs):
        done = state.global_step / max(state.max_steps, 1)
        self.trainer.entropy_coef = args.entropy_coef + (self.end - args.entropy_coef) * done
