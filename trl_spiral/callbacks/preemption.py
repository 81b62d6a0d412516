"""Stop a run on a signal: finish the step, save a checkpoint, and exit so that a scheduler starts the run again."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy

from trl_spiral.sandbox.libc import prctl
from trl_spiral.text.printable import get_logger


logger = get_logger(__name__)

REQUEUE = 75
"""Exit code after SIGTERM and SIGUSR1: `EX_TEMPFAIL` of `sysexits.h`, which means "try again later"."""

INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C, as shells report it."""

# Windows has no SIGUSR1.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGINT") if hasattr(signal, name))

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_LAUNCHERS = {
    *("accelerate", "accelerate-launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
    *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
}


class PreemptionCallback(TrainerCallback):
    """
    Saves a checkpoint and exits on SIGTERM, SIGUSR1 and Ctrl-C, in any trainer of TRL.

    The optimizer step in progress is finished first, on all ranks, even if the signal reaches only one of them. The
    exit code is 75 after SIGTERM and SIGUSR1, and 130 after Ctrl-C. A second Ctrl-C ends the process at once.

    Signals act as usual before the first step and after training, when there is nothing to save, and if training does
    not run in the main thread. [`SpiralTrainer`] and [`AlgorithmTrainer`] add this callback themselves.

    Args:
        trainer ([`~transformers.Trainer`]):
            The trainer to stop.
    """

    def __init__(self, trainer: Trainer) -> None:
        follow_launcher()
        self.trainer = trainer
        self._previous: dict[int, Any] = {}  # handlers that are replaced during training
        self._received = 0  # a signal's number, set only by the handler
        self._agreed = 0  # the same on all ranks
        self._saved: Path | None = None

    # ---- signals ----
    def _on_signal(self, number, frame):
        self._received = self._received or number
        if number == signal.SIGINT:
            # `torchrun` sends SIGTERM to its workers at the second Ctrl-C.
            self._restore(signal.SIGINT, signal.SIGTERM)
            if self.trainer.is_world_process_zero():
                # Not through `logging`, which may be in the middle of a line.
                os.write(2, b"\nFinishing the step and saving. Press Ctrl-C again to end at once.\n")

    def _listen(self):
        if self._previous or self._received or threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            previous = signal.getsignal(number) or signal.SIG_DFL
            if previous is not signal.SIG_IGN:
                self._previous[number] = previous
                signal.signal(number, self._on_signal)

    def _restore(self, *numbers):
        for number in numbers:
            if number in self._previous:
                signal.signal(number, self._previous.pop(number))

    def restore(self) -> None:
        """Put the previous signal handlers back. Call it if `train()` of another trainer raises."""
        self._restore(*SIGNALS)

    def _is_requested(self) -> bool:
        """Return whether any rank has received a signal. Every rank must call it."""
        self._agreed = self._received
        if self.trainer.accelerator.num_processes > 1:
            received = torch.tensor([self._agreed], device=self.trainer.accelerator.device)
            self._agreed = int(self.trainer.accelerator.gather(received).max())
        return self._agreed > 0

    # ---- events ----
    def on_train_begin(self, args, state, control, **kwargs):
        self._received, self._saved = 0, None

    def on_step_begin(self, args, state, control, **kwargs):
        self._listen()

    def on_step_end(self, args, state, control, **kwargs):
        if self._is_requested():
            control.should_save = True
            if args.save_strategy == SaveStrategy.BEST:
                control.should_evaluate = False  # an evaluation would decide whether to save

    def on_save(self, args, state, control, **kwargs):
        if self._is_requested():
            self._saved = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            control.should_training_stop = True

    def on_epoch_end(self, args, state, control, **kwargs):
        # Every callback has handled `on_save` by now, and none has begun its work after training.
        if self._saved is None:
            return
        if state.is_world_process_zero:
            logger.warning(
                "%s: the run stopped after step %d. Resume it with `--resume_from_checkpoint %s`.",
                signal.Signals(self._agreed).name,
                state.global_step,
                self._saved,
            )
        # The launcher ends all ranks when the first of them exits.
        self.trainer.accelerator.wait_for_everyone()
        raise SystemExit(INTERRUPTED if self._agreed == signal.SIGINT else REQUEUE)

    def on_train_end(self, args, state, control, **kwargs):
        self.restore()
        if self._received:
            os.kill(os.getpid(), self._received)  # it arrived after the last step


def follow_launcher() -> None:
    """
    Let this process receive SIGUSR1 when the `accelerate launch` or `torchrun` that started it ends. Linux only.

    A launcher that is killed would otherwise leave its processes running. In training they save and exit; elsewhere
    they end at once.
    """
    launcher = os.getppid()
    try:
        words = Path(f"/proc/{launcher}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return  # not Linux, or the launcher has just ended
    if _LAUNCHERS.isdisjoint(os.path.basename(word) for word in words[:4]):
        return
    prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != launcher:  # it ended before that was set
        os.kill(os.getpid(), signal.SIGUSR1)
