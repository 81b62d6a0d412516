"""Snapshots of the policy for a pool of opponents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from trl_spiral.callbacks.log import log_separately
from trl_spiral.callbacks.rating_games import play_rating_games
from trl_spiral.callbacks.trainer_policy import games_of
from trl_spiral.distributed import change_on_rank_zero, lock_on_rank_zero
from trl_spiral.games import Game
from trl_spiral.lock import FolderLock
from trl_spiral.opponents import OpponentPool
from trl_spiral.opponents.plots import draw_win_rates
from trl_spiral.opponents.pool import INDEX, POOL_FOLDER
from trl_spiral.opponents.snapshots import Kind
from trl_spiral.text.printable import get_logger
from trl_spiral.types import BASE, POLICY


logger = get_logger(__name__)

PICTURE = "win_rates.png"


class OpponentPoolCallback(TrainerCallback):
    """
    Adds a snapshot of the model to a pool every `every` steps, in any trainer of TRL.

    Snapshots of a LoRA run are adapters; those of other runs are whole weights. `from_pretrained` reads both. Rank 0
    writes, and all ranks have the same index. Each checkpoint contains its own pool in its folder `opponents`, by hard
    links: a snapshot takes disk space once, until neither the pool nor a checkpoint contains it.

    When a run is resumed, the pool is restored from the checkpoint. [`SpiralTrainer`] restores it from its own state.

    Args:
        trainer ([`~transformers.Trainer`]):
            Trainer of the model.
        pool ([`~opponents.OpponentPool`]):
            Pool that receives the snapshots.
        every (`int`, *optional*, defaults to `20`):
            Optimizer steps between snapshots; `None` for no snapshot except the base model.
        start (`int`, defaults to `0`):
            Step of the first snapshot. The model at step 0 is `base`, so 0 means after the first `every` steps.
        dtype (`torch.dtype`, *optional*):
            Data type of the stored floating-point weights. Default: as they are trained.
        base (`bool`, defaults to `False`):
            Whether to keep the initial model too. A LoRA run always has it.
        rating_games (`int`, defaults to `0`):
            Episodes of each game that a new snapshot plays against every other one, rounded up to a whole number of
            deals. Each deal is played from every seat.
        games (sequence of [`~games.Game`], *optional*):
            Games to play for ratings. Default: the trainer's; required if the trainer plays none.
        restores (`bool`, defaults to `True`):
            Whether to restore the pool on resume. Off in trainers that restore it themselves.
        repair (`bool`, defaults to `False`):
            Whether to resume without snapshots that are missing or damaged.

    Raises:
        ValueError: If `every` or `start` is out of range, or ratings need games and there are none. If another process
            uses the folder of the pool, or the output folder that contains it. When training begins, if the pool
            contains snapshots of another run, or lacks some that the checkpoint needs.
    """

    def __init__(
        self,
        trainer: Trainer,
        pool: OpponentPool,
        every: int | None = 20,
        start: int = 0,
        dtype: torch.dtype | None = None,
        base: bool = False,
        rating_games: int = 0,
        games: Sequence[Game] | None = None,
        restores: bool = True,
        repair: bool = False,
    ) -> None:
        if (every is not None and every < 1) or start < 0:
            raise ValueError(f"Snapshots need `every` ({every}) of at least 1 and `start` ({start}) of at least 0.")
        self.trainer = trainer
        self.pool = pool
        self._lock = self._reserve()
        self.rating_games = rating_games
        self.games = games_of(trainer, games) if rating_games else []
        self.every = every
        self.start = start
        self.dtype = dtype
        self.base = base
        self.restores = restores
        self.repair = repair

    def _reserve(self) -> FolderLock | None:
        """Lock the pool's folder, or the output folder if that contains it, until training ends."""
        output_dir = self.trainer.args.output_dir
        inside = Path(output_dir).resolve() in self.pool.folder.resolve().parents
        return lock_on_rank_zero(output_dir if inside else self.pool.folder, self.trainer.is_world_process_zero())

    # ---- events ----
    def on_train_begin(self, args, state, control, **kwargs):
        self._lock = self._reserve()
        if state.global_step and self.restores:
            change_on_rank_zero(self.pool, lambda: self._go_back(args, state.global_step))
        elif self.restores and self.pool.has_own:
            inside = Path(args.output_dir).resolve() in self.pool.folder.resolve().parents
            if not inside or any(Path(args.output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")):
                raise ValueError(
                    f"{self.pool.folder} holds snapshots of another run. Resume that run with "
                    "`resume_from_checkpoint`, or choose another folder for the pool."
                )
            # The snapshots are of a run that ended before its first checkpoint.
            change_on_rank_zero(self.pool, self.pool.start_anew)
        if self.base and not state.global_step and BASE not in self.pool:
            self._take(0, BASE)

    def on_step_end(self, args, state, control, **kwargs):
        since = state.global_step - self.start
        if self.every is not None and since >= 0 and since % self.every == 0:
            self._take(state.global_step, f"step-{state.global_step}")
            if state.is_world_process_zero and self.restores:
                numbers = {"pool/size": float(len(self.pool)), "pool/bytes": float(self.pool.size)}
                log_separately(self.trainer, numbers)

    def on_save(self, args, state, control, **kwargs):
        if not state.is_world_process_zero:
            return
        checkpoint = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        if self.restores and checkpoint.is_dir():
            self.pool.save_to(checkpoint / POOL_FOLDER)
        self._settle(args, state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero and len(self.pool):
            self._settle(args, state.global_step)
        self._lock = None

    def _settle(self, args, step: int) -> None:
        """Write the index and the picture of win rates."""
        self.pool.save()
        logger.info("The pool takes %.1f MB on disk.", self.pool.size / 1e6)
        self._draw(args, step)

    # ---- snapshots ----
    def _take(self, step: int, name: str) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        sharded = self.trainer.is_deepspeed_enabled or self.trainer.is_fsdp_enabled
        # Every rank takes part in gathering shards.
        weights = self.trainer.accelerator.get_state_dict(self.trainer.model_wrapped) if sharded else None
        kind: Kind = "adapter" if is_peft_model(model) else "weights"

        def write(folder: Path) -> None:
            state_dict = model.state_dict() if weights is None else weights
            if kind == "adapter":
                write_adapter(model, folder, state_dict, self.dtype)
            else:
                model.save_pretrained(folder, state_dict=cast_weights(state_dict, self.dtype))

        change_on_rank_zero(self.pool, lambda: self.pool.add(step, kind, write, name=name, pinned=name == BASE))
        if self.rating_games and name in [snapshot.name for snapshot in self.pool.snapshots]:
            wanted, args = self.rating_games, self.trainer.args
            played = play_rating_games(self.trainer, self.pool, name, wanted, self.games, args.seed)
            self.pool.ratings.update(played, policy_moved=False)
        logger.info("%s joins the pool: %d snapshots, %.1f MB.", name, len(self.pool), self.pool.size / 1e6)

    def _go_back(self, args, step: int) -> None:
        """Restore the pool of the checkpoint that the run was resumed from."""
        named = Path(str(args.resume_from_checkpoint))
        checkpoint = named if named.is_dir() else Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        folder = checkpoint / POOL_FOLDER
        if not (folder / INDEX).exists():
            raise ValueError(
                f"{folder} holds no pool to resume with. Resume from a checkpoint that has one. If the checkpoint was "
                "moved out of `output_dir` or renamed, set `args.resume_from_checkpoint` to it."
            )
        if not self.repair and (problems := OpponentPool(folder).problems()):
            raise ValueError(
                f"{folder} is damaged: {'; '.join(problems)}. Resume from another checkpoint, or continue without "
                "these snapshots with `repair=True`."
            )
        self.pool.restore(folder, self.repair)

    # ---- pictures ----
    def _draw(self, args, step: int) -> None:
        names = [POLICY, *(name for name in self.pool.ratings.names if name != POLICY)]
        matrix = self.pool.ratings.matrix(names)
        if not any(map(any, matrix.counts)) or find_spec("matplotlib") is None:
            return  # no games yet; a trainer without games never has any
        picture = self.pool.folder / PICTURE
        draw_win_rates(matrix, picture, {name: self.pool.ratings.rating(name) for name in names})
        if "wandb" in args.report_to and find_spec("wandb") is not None:
            import wandb

            if wandb.run is not None:
                # Under the name that transformers' callback gives the step, which is the axis of every curve.
                wandb.log({"pool/win_rates": wandb.Image(str(picture)), "train/global_step": step})


def cast_weights(state_dict: Mapping[str, Any], dtype: torch.dtype | None) -> dict[str, Any]:
    """Return the weights with floating-point tensors cast to `dtype`, if given. Tied tensors stay tied."""
    if dtype is None:
        return dict(state_dict)
    done: dict[tuple[Any, ...], torch.Tensor] = {}
    result = {}
    for name, value in state_dict.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            place = value.data_ptr(), value.shape, value.stride()
            if place not in done:
                done[place] = value.to(dtype)
            value = done[place]
        result[name] = value
    return result


def write_adapter(model: Any, folder: Path, state_dict: Mapping[str, Any], dtype: torch.dtype | None) -> None:
    """
    Write the adapter in training as `save_pretrained` does, directly into `folder` whatever the adapter's name.

    Other adapters of the model are left out, such as the copy that TRL keeps as a reference.
    """
    name = model.active_adapter
    # The base weights are not written, so they need no cast.
    adapter = {key: value for key, value in state_dict.items() if f".{name}." in f"{key}."}
    model.save_pretrained(folder, state_dict={**state_dict, **cast_weights(adapter, dtype)}, selected_adapters=[name])
    if name != "default":
        for path in (folder / name).iterdir():
            path.rename(folder / path.name)
        (folder / name).rmdir()
    # PEFT writes some fields in the order of a set, which differs between processes.
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for field in ("target_modules", "modules_to_save"):
        if isinstance(config.get(field), list):
            config[field].sort()
    path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
