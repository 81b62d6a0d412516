"""Base of `SpiralTrainer` and `AlgorithmTrainer` over `GRPOTrainer`: own advantages, and exact resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from safetensors.torch import load_model, save_model
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from trl_spiral import _trl
from trl_spiral.callbacks.preemption import PreemptionCallback
from trl_spiral.distributed import lock_on_rank_zero, on_rank_zero
from trl_spiral.files import naming_full_disk
from trl_spiral.text.printable import get_logger
from trl_spiral.training.checkpoint import (
    check_checkpoint,
    check_resume,
    invalidate,
    newest_complete_checkpoint,
    read_marker,
    save_atomically,
    state_file,
    write_marker,
)
from trl_spiral.training.preflight import lora_config
from trl_spiral.training.resume import check_settings, digest, settings_of


logger = get_logger(__name__)

_REFERENCE_FILE = "selfplay_reference.safetensors"
_FREE_SPACE = "Free some space and continue with `resume_from_checkpoint=True`: earlier checkpoints are complete."


class AdvantageMixin:
    """
    Over [`~trl.GRPOTrainer`]: own advantages in place of TRL's, and resumed runs that continue with the same numbers
    on an equal machine.

    A subclass returns the advantages from `_own_advantages`, and its state for checkpoints from `_own_state`. It may
    write more files in `_save_own_files`. The output folder is locked from construction to the end of `train()`.

    Attributes:
        resumed (`dict`, *optional*):
            The checkpoint and the step that this run was resumed from, and the settings that changed.
    """

    _state_name = "algorithm_state"
    _repairs_pool = False
    resumed: dict[str, Any] | None = None

    def __init__(self, model, reward_funcs, args, *others, **kwargs):
        # It would save in the middle of a step, and add a file of its own to the folder.
        args.enable_jit_checkpoint = False
        super().__init__(model, reward_funcs, args, *others, **kwargs)
        self._preemption = PreemptionCallback(self)
        self.add_callback(self._preemption)

    def _own_advantages(self, output: dict[str, Any]) -> tuple[torch.Tensor, list[float]] | None:
        """
        Return this rank's advantages, of shape (rows,) or (rows, tokens), and one number per row for the log; `None`
        to keep TRL's.

        Args:
            output (`dict[str, Any]`):
                The batch, generated and scored by TRL.
        """
        raise NotImplementedError

    def _sample(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch, generated and scored, with TRL's advantages."""
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
                A checkpoint's folder, or `True` (or `"true"`) for the newest complete one in `args.output_dir`. For
                each newer one that is skipped, the reason is logged. `"auto"` resumes from the newest complete
                checkpoint if there is one, and starts a new run otherwise.

        Raises:
            ValueError: If there is no complete checkpoint, the given one is not complete, or a setting that a resume
                cannot change differs from the checkpoint's; see [`~training.resume`].
            SystemExit: After a signal, once the checkpoint is saved. See [`PreemptionCallback`].
        """
        self._output_lock = lock_on_rank_zero(self.args.output_dir, self.is_world_process_zero())
        check_resume(resume_from_checkpoint, self.args.output_dir)
        wanted = resume_from_checkpoint
        if isinstance(wanted, str) and wanted.lower() in ("true", "false"):
            wanted = wanted.lower() == "true"
        self._settings = self._described()
        self.resumed = on_rank_zero(lambda: self._find(wanted)) if wanted else None
        self._unrestored = self.resumed["checkpoint"] if self.resumed else None
        if self.resumed is None:
            self._start_anew()
        try:
            output = super().train(resume_from_checkpoint=self._unrestored, **kwargs)
        finally:
            self._preemption.restore()
            self._output_lock = None
        return output._replace(training_loss=output.metrics["train_loss"])

    def _find(self, wanted: str | bool) -> dict[str, Any] | None:
        """Return the checkpoint to resume from, its step, and the settings that change. Loads nothing."""
        if wanted is True or wanted == "auto":
            checkpoint = newest_complete_checkpoint(self.args.output_dir, self._repairs_pool)
            if checkpoint is None and wanted == "auto":
                return None
            if checkpoint is None:
                raise ValueError(
                    f"There is no complete checkpoint in {self.args.output_dir}. Start without "
                    "`resume_from_checkpoint`."
                )
        else:
            checkpoint = str(wanted)
            check_checkpoint(checkpoint, self._repairs_pool)
        folder = Path(checkpoint)
        if not (folder / state_file(0, self._state_name)).is_file():
            raise ValueError(
                f"Cannot resume from {checkpoint}: it is complete, but has no {state_file(0, self._state_name)}, so "
                "another trainer wrote it. Resume from a checkpoint of this trainer."
            )
        changed = check_settings(checkpoint, read_marker(folder)["settings"], self._settings)
        if self.args.sync_ref_model and not (folder / _REFERENCE_FILE).is_file():
            raise ValueError(
                f"Cannot resume from {checkpoint} with `sync_ref_model`: the run that wrote it did not change its "
                "reference model, and stored none. Resume without it."
            )
        step = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["global_step"]
        return {"checkpoint": checkpoint, "step": step, "changed": changed}

    def _described(self, **others: Any) -> dict[str, Any]:
        """Return all settings of this run that change numbers."""
        model = self.accelerator.unwrap_model(self.model)
        weights = list(model.named_parameters())
        shapes = [(name, list(weight.shape)) for name, weight in weights]
        adapter = lora_config(model, None)
        if adapter is not None:
            # The base model may have been moved, and a dropout changes no weight.
            left_out = ("base_model_name_or_path", "revision", "inference_mode", "lora_dropout", "peft_version")
            content = {name: value for name, value in adapter.to_dict().items() if name not in left_out}
            content = {name: sorted(value) if isinstance(value, set) else value for name, value in content.items()}
            others |= {
                "adapter": f"{adapter.peft_type.value} of rank {getattr(adapter, 'r', None)} {digest(content)}",
                "base_model": adapter.base_model_name_or_path,
            }
        return settings_of(
            self.args,
            world_size=self.args.world_size,
            distributed_type=self.accelerator.distributed_type.value,
            model=f"{type(model).__name__} {digest(shapes)}",
            dtype=sorted({str(weight.dtype) for _, weight in weights}),
            chat_template=_trl.tokenizer_of(self).chat_template,
            kl_term=self.args.beta != 0.0,
            **others,
        )

    def _start_anew(self) -> None:
        """Prepare a new run. Called on every rank."""

    def _own_state(self) -> dict[str, Any]:
        """Return this rank's state for a checkpoint, as plain values and tensors."""
        return {}

    def _restore_own_state(self, state: dict[str, Any], folder: Path) -> None:
        """Restore the state that `_own_state` returned."""

    def _save_own_files(self, folder: Path) -> None:
        """Write more files into a checkpoint before it is complete. Called on every rank."""

    def save_model(self, *args, **kwargs):
        with _trl.saving_without_secrets():
            super().save_model(*args, **kwargs)

    def _push_from_checkpoint(self, checkpoint_folder):
        with _trl.saving_without_secrets():
            super()._push_from_checkpoint(checkpoint_folder)

    def _known_digests(self) -> dict[str, tuple[int, str]]:
        """Return sizes and digests of files that `_save_own_files` wrote, as far as they are known."""
        return {}

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        # A complete checkpoint of that name may exist. From here on it is incomplete.
        invalidate(folder)

        def complete() -> None:
            write_marker(folder, self._settings, self._known_digests())

        with naming_full_disk(folder.parent, _FREE_SPACE), _trl.after_trainer_state(self, complete):
            super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir):
        # Called on every rank, before the push to the Hub and before older checkpoints are rotated away.
        super()._save_rng_state(output_dir)
        folder = Path(output_dir)
        state = {**self._own_state(), "cycle": _trl.cycle_state(self)}
        save_atomically(state, folder / state_file(self.args.process_index, self._state_name))
        if self.args.sync_ref_model and self.is_world_process_zero():
            # TRL reloads the initial reference model, without the changes since then.
            save_model(self.accelerator.unwrap_model(self.ref_model), str(folder / _REFERENCE_FILE))
        self._save_own_files(folder)
        self.accelerator.wait_for_everyone()

    def _load_optimizer_and_scheduler(self, checkpoint):
        fresh = _trl.hyperparameters(self)
        # TRL's own file of its entropy controller is not covered by the marker. The rank's state holds the same.
        adaptive, self.use_adaptive_entropy = self.use_adaptive_entropy, False
        super()._load_optimizer_and_scheduler(checkpoint)
        self.use_adaptive_entropy = adaptive
        if checkpoint is not None and not self.is_deepspeed_enabled:
            _trl.apply_hyperparameters(self, fresh)

    def _load_rng_state(self, checkpoint):
        super()._load_rng_state(checkpoint)
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        path = folder / state_file(self.args.process_index, self._state_name)
        state = torch.load(path, map_location="cpu", weights_only=True)
        self._restore_own_state(state, folder)
        _trl.restore_cycle(self, state["cycle"])
        if self.args.sync_ref_model:
            load_model(self.accelerator.unwrap_model(self.ref_model), folder / _REFERENCE_FILE)
        self._unrestored = None

    # ---- the end ----
    def _run_epoch(self, *args, **kwargs):
        # transformers takes one more step if `max_steps` is reached in the middle of an epoch.
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)

    def _finalize_training(self, *args):
        if self._unrestored is not None:
            logger.warning(
                "%s has taken %d steps and `max_steps` is %d: nothing is left to train. Raise `max_steps` to "
                "continue.",
                *(self._unrestored, self.state.global_step, self.state.max_steps),
            )
            # Without a step, it has not been restored yet.
            self._load_rng_state(self._unrestored)
        return super()._finalize_training(*args)

    def log(self, logs, start_time=None):
        if "train_loss" in logs:
            # transformers divides by the steps since the resume, and the restored loss is that of the whole run.
            logs["train_loss"] = self._total_loss_scalar / max(self.state.global_step, 0.001)
        with _trl.printing_safely():
            super().log(logs, start_time)
