"""Warnings about runs that collapse or learn nothing."""

from __future__ import annotations

from accelerate.utils import gather_object
from transformers import Trainer, TrainerCallback

from trl_spiral import _trl
from trl_spiral.callbacks.log import log_separately
from trl_spiral.callbacks.trainer_policy import latest_batch, prompt_style_of, rollout_of
from trl_spiral.selfplay.first_batches import KEY, FirstBatches, Tally, count_replies
from trl_spiral.selfplay.monitoring import CollapseMonitor, CollapseWarning
from trl_spiral.text.printable import get_logger


logger = get_logger(__name__)


class CollapseCallback(TrainerCallback):
    """
    Warns of runs that collapse or learn nothing, with the remedy in the same sentence, and logs the number of warnings
    so far as `collapse/warnings`.

    A run learns nothing if 90 % of its first replies contain no legal move, all its first rewards are equal, no token
    is trained on, or the gradient is 0. This is judged once, by the first batches; see [`~selfplay.first_batches`].
    Collapse is found in the metrics that self-play logs; see [`~selfplay.monitoring`]. A healthy run gets no warning,
    and a resumed run repeats none. DeepSpeed hides gradients, so they are not judged under it.

    Args:
        trainer ([`~transformers.Trainer`]):
            Trainer to watch. The first batches are those of [`SpiralTrainer`], [`AlgorithmTrainer`] or a
            [`~trl.GRPOTrainer`].
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.monitor = CollapseMonitor()
        self.first = FirstBatches(judged=True)
        self._still = False

    def on_train_begin(self, args, state, control, **kwargs):
        self.monitor = CollapseMonitor()
        for entry in state.log_history:
            self.monitor.observe(entry.get("step", 0), entry)
        if not state.global_step:
            self.first = FirstBatches(judged=not _trl.generates_batches(self.trainer))
        elif KEY in state.stateful_callbacks:
            self.first = FirstBatches.from_state_dict(state.stateful_callbacks[KEY])
            self.monitor.warnings[:0] = self.first.warnings

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self._still = not self.first.judged and _trl.has_no_gradient(self.trainer.model)

    def on_step_end(self, args, state, control, **kwargs):
        if self.first.judged:
            return
        self.first.tally.add(gather_object([self._count()]))
        if self.first.is_due:
            self._judge(state)
        state.stateful_callbacks[KEY] = self.first.state_dict()

    def on_train_end(self, args, state, control, **kwargs):
        if not self.first.judged:
            self._judge(state)
            state.stateful_callbacks[KEY] = self.first.state_dict()

    def on_log(self, args, state, control, logs=None, **kwargs):
        self._warn(self.monitor.observe(state.global_step, logs or {}))

    def _count(self) -> Tally:
        """Count this rank's part of the latest step and, if that began a batch, of the batch."""
        tally = Tally(still_steps=int(self._still))
        cycle = _trl.generation_cycle(self.trainer)
        if cycle == self.first.cycle:
            return tally
        self.first.cycle = cycle
        tally.batches = 1
        counts = _trl.count_batch(self.trainer, _trl.trainer_sampling(self.trainer).max_new_tokens)
        tally.rows, tally.trained_tokens = counts.rows, counts.trained_tokens
        if rollout_of(self.trainer) is not None:
            batch = latest_batch(self.trainer)
            count_replies(batch.episodes, tally)
            tally.take_rewards(row.reward for row in batch.rows)
        else:
            tally.replies, tally.truncated = counts.rows, counts.cut_off
            tally.take_rewards(_trl.latest_rewards(self.trainer))
            written = _trl.log_columns(self.trainer)["completion"]
            replies = [one if isinstance(one, str) else str(one[-1].get("content") or "") for one in written]
            # TRL does not store which replies were truncated. If any was, a longest one was.
            tally.samples = {"truncated": max(replies, key=len), "any": replies[-1]}
        return tally

    def _judge(self, state) -> None:
        sampling = _trl.trainer_sampling(self.trainer)
        settings = {
            "max_completion_length": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "num_generations": self.trainer.num_generations,
            "prompt_style": prompt_style_of(self.trainer),
        }
        new = self.first.judge(state.global_step, settings, rollout_of(self.trainer) is not None)
        self.monitor.warnings += new
        self._warn(new)

    def _warn(self, new: list[CollapseWarning]) -> None:
        if self.trainer.is_world_process_zero():
            for warning in new:
                logger.warning("Step %d: %s", warning.step, warning.sentence)
        if new:
            log_separately(self.trainer, {"collapse/warnings": float(len(self.monitor.warnings))})
