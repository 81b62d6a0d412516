"""
All that changes what happens next, in one place, and its way to disk and back.

A checkpoint of transformers holds the model, the optimizer and the random state. A self-play run also depends on its
baselines, its episode counter, the turns it kept for the next batch, and where in TRL's generation cycle it stopped; TRL
saves none of that. Each rank writes its own `RolloutState` beside its own random state, and rank 0 then lists what the
checkpoint holds in a marker file. A checkpoint without a true marker was cut off while it was written, and is skipped.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from trl_spiral.rows import Row


logger = logging.getLogger(__name__)

MARKER = "selfplay_complete.json"
_TRAINER_STATE = "trainer_state.json"


@dataclass
class RolloutState:
    """
    What one rank must remember between batches.

    Attributes:
        episodes (`int`):
            Episodes this rank has started in training.
        kept (`list[Row]`):
            Rows that were sampled for an earlier batch and wait for the next.
        recent_rows, recent_episodes (`float`):
            Rows and episodes of late, each batch counting half as much as the next: how many games fill a batch.
        estimator (`dict`):
            State of the advantage estimator, equal on all ranks.
        opponents (`dict`, *optional*):
            State of the opponents: the pool's index, ratings and results, equal on all ranks, and what this rank has used
            of limited engines. `None` in a checkpoint from before there were any.
        measured (`dict`):
            What was measured of the last batch over all ranks, for a curriculum.
        curriculum (`dict`, *optional*):
            State of the curriculum, equal on all ranks; `None` where there is none or it remembers nothing.
    """

    episodes: int = 0
    kept: list[Row] = field(default_factory=list)
    recent_rows: float = 0.0
    recent_episodes: float = 0.0
    estimator: dict[str, Any] = field(default_factory=dict)
    opponents: dict[str, Any] | None = None
    measured: dict[str, float] = field(default_factory=dict)
    curriculum: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "episodes": self.episodes,
            "kept": [row.to_dict() for row in self.kept],
            "recent_rows": self.recent_rows,
            "recent_episodes": self.recent_episodes,
            "estimator": self.estimator,
            "opponents": self.opponents,
            "measured": self.measured,
            "curriculum": self.curriculum,
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> RolloutState:
        """What `state_dict` gave."""
        return cls(**{**state, "kept": [Row(**row) for row in state["kept"]]})


def state_file(rank: int, name: str = "selfplay_state") -> str:
    """Name of a rank's file in a checkpoint."""
    return f"{name}_{rank}.pt"


def save_atomically(value: Any, path: Path) -> None:
    """`torch.save` that leaves either the old file or the whole new one."""
    partial = path.with_name(path.name + ".partial")
    torch.save(value, partial)
    os.replace(partial, path)


def invalidate(checkpoint: Path) -> None:
    """Takes back that a checkpoint is complete, before it is written again. Harmless where there is none."""
    for name in (MARKER, _TRAINER_STATE):
        (checkpoint / name).unlink(missing_ok=True)


def write_marker(checkpoint: Path, world_size: int, batch_shape: dict[str, int]) -> None:
    """
    Lists every file of a checkpoint with its size. The last thing that a trainer of ours writes into it.

    Args:
        checkpoint (`Path`):
            The checkpoint's folder.
        world_size (`int`):
            How many processes have written into it.
        batch_shape (`dict[str, int]`):
            Options that divide the batch in use into steps, by name.
    """
    sizes = {
        str(path.relative_to(checkpoint)): path.stat().st_size
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != MARKER
    }
    partial = checkpoint / (MARKER + ".partial")
    partial.write_text(json.dumps({"world_size": world_size, "batch_shape": batch_shape, "files": sizes}, indent=1))
    os.replace(partial, checkpoint / MARKER)


def why_incomplete(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be resumed from, in a few words; `None` if it is complete."""
    try:
        listed = json.loads((checkpoint / MARKER).read_text())["files"]
        # The trainer writes its state after the marker; half a JSON file does not parse.
        json.loads((checkpoint / _TRAINER_STATE).read_text())
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (json.JSONDecodeError, KeyError, TypeError):
        return f"{MARKER} or {_TRAINER_STATE} is cut off"
    for name, size in listed.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} is cut off"
    return None


def check_resume(resume_from_checkpoint: str | bool | None, output_dir: str | os.PathLike[str]) -> None:
    """
    Refuse to resume from a checkpoint that does not exist. Reads no file.

    Args:
        resume_from_checkpoint (`str` or `bool`, *optional*):
            A checkpoint's folder, or `True` for the newest complete one in `output_dir`.
        output_dir (`str`):
            The run's output folder.

    Raises:
        ValueError: If there is no such folder.
    """
    wanted = str(resume_from_checkpoint or False)
    if wanted.lower() == "true":
        if not any(Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")):
            raise ValueError(
                f"There is no complete checkpoint in {output_dir}. Start without `resume_from_checkpoint`."
            )
    elif wanted.lower() not in ("false", "auto") and not Path(wanted).is_dir():
        raise ValueError(
            f"`resume_from_checkpoint` ({wanted!r}) is not a folder. Pass the folder of a checkpoint, or `true` for "
            f"the newest complete one in {str(output_dir)!r}."
        )


def check_checkpoint(checkpoint: str | os.PathLike[str], world_size: int, batch_shape: dict[str, int]) -> None:
    """
    Args:
        checkpoint (`str`):
            The checkpoint's folder.
        world_size (`int`):
            Processes of the run that is to resume from it.
        batch_shape (`dict[str, int]`):
            What that run has for `write_marker`.

    Raises:
        ValueError: If the checkpoint is incomplete, or was written by another number of processes or with batches of another
            shape.
    """
    path = Path(checkpoint)
    if (reason := why_incomplete(path)) is not None:
        raise ValueError(
            f"Cannot resume from {path}: {reason}, as in a checkpoint that was not written to the end or that a trainer of "
            "TRL's own wrote. Pass `True` to resume from the newest complete one."
        )
    marker = json.loads((path / MARKER).read_text())
    written_by = marker["world_size"]
    if written_by != world_size:
        raise ValueError(
            f"{path} was written by {written_by} process(es) and this run has {world_size}. Every rank resumes from its "
            f"own state: launch with `--num_processes {written_by}`."
        )
    # Older checkpoints do not say.
    for option, before in marker.get("batch_shape", {}).items():
        if before != batch_shape[option]:
            raise ValueError(
                f"{path} was written with `{option}={before}` and this run has {batch_shape[option]}. It holds the batch in "
                f"use, divided into steps by that: set `{option}` to {before}."
            )


def newest_complete_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """
    The newest complete checkpoint of a run, or `None`. Logs which newer ones it skips, and why.

    Args:
        output_dir (`str`):
            The run's output folder.
    """
    root = Path(output_dir)
    found = [
        (int(path.name.rsplit("-", 1)[1]), path)
        for path in (root.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if root.is_dir() else ())
        if path.is_dir() and path.name.rsplit("-", 1)[1].isdigit()
    ]
    for _, path in sorted(found, reverse=True):
        if (reason := why_incomplete(path)) is None:
            return str(path)
        logger.warning("Skipping %s, which was not written to the end: %s.", path.name, reason)
    return None
