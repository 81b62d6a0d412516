"""What `SpiralTrainer` and `AlgorithmTrainer` share over TRL's `GRPOTrainer`: advantages of one's own, and exact resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from safetensors.torch import load_model, save_model
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from trl_spiral import _trl
from trl_spiral.preemption import PreemptionCallback
from trl_spiral.ranks import lock_together
from trl_spiral.state import (
    check_checkpoint,
    check_resume,
    invalidate,
    newest_complete_checkpoint,
    save_atomically,
    state_file,
    write_marker,
)


_REFERENCE_FILE = "selfplay_reference.safetensors"

_SHAPE = ("per_device_train_batch_size", "steps_per_generation", "num_iterations", "num_generations")
"""Options that say how the batch in use, which a checkpoint holds, is divided into steps."""


class AdvantageMixin:
    """
    Over [`~trl.GRPOTrainer`]: advantages of one's own in place of TRL's, and a resumed run that goes on exactly where it was.

    A subclass returns them from `_own_advantages`, and what a checkpoint must contain from `_own_state`. It may write
    more files in `_save_own_files`. The output folder is locked from construction to the end of `train()`.
    """

    _state_name = "algorithm_state"

    def __init__(self, model, reward_funcs, args, *others, **kwargs):
        # transformers saves in the middle of a step, into a folder that then lists a file of its own.
        args.enable_jit_checkpoint = False
        super().__init__(model, reward_funcs, args, *others, **kwargs)
        self._preemption = PreemptionCallback(self)
        self.add_callback(self._preemption)

    def _own_advantages(self, output: dict[str, Any]) -> tuple[torch.Tensor, list[float]] | None:
        """
        This rank's advantages, of shape (rows,) or (rows, tokens), and what a log shows of each row; `None` to keep TRL's.

        Args:
            output (`dict[str, Any]`):
                The batch that TRL generated and scored.
        """
        raise NotImplementedError

    def _sample(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch, generated and scored, with TRL's advantages."""
        return super()._generate_and_score_completions(inputs)

    def _generate_and_score_completions(self, inputs):
        output = self._sample(inputs)
        own = self._own_advantages(output)
        if own is not None:
            output["advantages"], logged = own
            if self.log_completions:
                _trl.replace_log(self, "advantages", gather_object(logged))
        return output

    # ---- checkpoints ----
    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        """
        Main training entry point, as in [`~transformers.Trainer`].

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                A checkpoint's folder, or `True` (or `"true"`) for the newest complete one in `args.output_dir`. One
                that was cut off while it was written is skipped, with a line that says so. `"auto"` resumes from the
                newest complete checkpoint if there is one, and starts anew otherwise.

        Raises:
            ValueError: If there is no complete checkpoint, or it was written by another number of processes or with batches
                of another shape.
            SystemExit: After a signal, when the checkpoint is saved. See [`PreemptionCallback`].
        """
        self._output_lock = lock_together(self.args.output_dir, self.is_world_process_zero())
        check_resume(resume_from_checkpoint, self.args.output_dir)
        if resume_from_checkpoint == "auto":
            resume_from_checkpoint = newest_complete_checkpoint(self.args.output_dir)
        if isinstance(resume_from_checkpoint, str) and resume_from_checkpoint.lower() in ("true", "false"):
            resume_from_checkpoint = resume_from_checkpoint.lower() == "true"
        if resume_from_checkpoint is True:
            resume_from_checkpoint = newest_complete_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(
                    f"There is no complete checkpoint in {self.args.output_dir}. Start without "
                    "`resume_from_checkpoint`."
                )
        if resume_from_checkpoint:
            check_checkpoint(resume_from_checkpoint, self.args.world_size, self._batch_shape())
        else:
            self._start_anew()
        try:
            output = super().train(resume_from_checkpoint=resume_from_checkpoint or None, **kwargs)
        finally:
            self._preemption.restore()
            self._output_lock = None
        return output._replace(training_loss=output.metrics["train_loss"])

    def _batch_shape(self) -> dict[str, int]:
        return {option: getattr(self.args, option) for option in _SHAPE}

    def _start_anew(self) -> None:
        """Prepares a run that resumes from nothing. Called on every rank."""

    def _own_state(self) -> dict[str, Any]:
        """What this rank must remember, as plain values and tensors."""
        return {}

    def _restore_own_state(self, state: dict[str, Any], folder: Path) -> None:
        """Puts back what `_own_state` gave."""

    def _save_own_files(self, folder: Path) -> None:
        """Writes more into a checkpoint before it counts as complete. Called on every rank."""

    def _save_checkpoint(self, model, trial):
        # A folder of that name may be there already, whole; it is not whole from here on.
        invalidate(Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir):
        # Called on every rank, before the push to the Hub and before older checkpoints are rotated away.
        super()._save_rng_state(output_dir)
        folder = Path(output_dir)
        state = {**self._own_state(), "cycle": _trl.cycle_state(self)}
        save_atomically(state, folder / state_file(self.args.process_index, self._state_name))
        if self.args.sync_ref_model and self.is_world_process_zero():
            # TRL reloads the reference from the initial model, not as far as it has been moved.
            save_model(self.accelerator.unwrap_model(self.ref_model), str(folder / _REFERENCE_FILE))
        self._save_own_files(folder)
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            write_marker(folder, self.args.world_size, self._batch_shape())

    def _load_rng_state(self, checkpoint):
        super()._load_rng_state(checkpoint)
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        path = folder / state_file(self.args.process_index, self._state_name)
        if not path.is_file():
            raise ValueError(
                f"Cannot resume from {checkpoint}: it is whole, but without {path.name}, as one that another trainer wrote. "
                "Resume from one that this trainer wrote."
            )
        state = torch.load(path, map_location="cpu", weights_only=True)
        self._restore_own_state(state, folder)
        _trl.restore_cycle(self, state["cycle"])
        if self.args.sync_ref_model:
            if not (folder / _REFERENCE_FILE).is_file():
                raise ValueError(
                    f"Cannot resume from {checkpoint} with `sync_ref_model`: the run that wrote it did not move its reference model, and "
                    "kept none. Resume without it."
                )
            load_model(self.accelerator.unwrap_model(self.ref_model), folder / _REFERENCE_FILE)

    def log(self, logs, start_time=None):
        if "train_loss" in logs:
            # transformers divides by the steps since a resume, and the loss that we restore is the whole run's.
            logs["train_loss"] = self._total_loss_scalar / max(self.state.global_step, 0.001)
        super().log(logs, start_time)
