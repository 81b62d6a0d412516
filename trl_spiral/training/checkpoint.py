"""
Complete checkpoints: a marker file lists all files with their digests.

A checkpoint of transformers contains the model, the optimizer and the random state. A self-play run also depends on
its baselines, its episode counter, the rows kept for the next batch, its pool of opponents, and its place in TRL's
generation cycle. Each rank writes these next to its random state. Rank 0 then writes the marker. A checkpoint without
a valid marker is damaged or incomplete, and is skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from trl_spiral.files import damage, digest_of, replacing, write_text
from trl_spiral.opponents.pool import POOL_FOLDER
from trl_spiral.text.printable import get_logger


logger = get_logger(__name__)

MARKER = "selfplay_complete.json"
_FORMAT = 2
_UNLISTED = (
    MARKER,
    "entropy_ctrl_state.json",  # written by TRL after the marker, and never read: each rank's state contains the same
)


def state_file(rank: int, name: str = "selfplay_state") -> str:
    """Name of a rank's file in a checkpoint."""
    return f"{name}_{rank}.pt"


def save_atomically(value: Any, path: Path) -> None:
    """As `torch.save`, but leave either the old file or the complete new one."""
    with replacing(path) as partial:
        torch.save(value, partial)


def invalidate(checkpoint: Path) -> None:
    """Mark a checkpoint, if it exists, as incomplete before it is written again."""
    (checkpoint / MARKER).unlink(missing_ok=True)


def write_marker(
    checkpoint: Path, settings: Mapping[str, Any], digests: Mapping[str, tuple[int, str]] | None = None
) -> None:
    """
    List every file of a checkpoint with its size and digest. The marker is the last file that a save writes.

    Args:
        checkpoint (`Path`):
            The checkpoint's folder.
        settings (`Mapping[str, Any]`):
            Settings of the run that wrote it; see [`~training.resume`].
        digests (`Mapping[str, tuple[int, str]]`, *optional*):
            Known sizes and digests, by path in the folder. These files are not read again.
    """
    known = digests or {}
    files = {
        (name := path.relative_to(checkpoint).as_posix()): known.get(name) or (path.stat().st_size, digest_of(path))
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name not in _UNLISTED
    }
    content = {"format": _FORMAT, "settings": settings, "files": files}
    write_text(checkpoint / MARKER, json.dumps({"digest": _digest_of(content), **content}, indent=1))


def _digest_of(content: Any) -> str:
    return xxhash.xxh3_128(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Incomplete(ValueError):
    """A checkpoint cannot be resumed from. The message is a clause that says why."""


def read_marker(checkpoint: Path) -> dict[str, Any]:
    """
    Return the content of a checkpoint's marker.

    Raises:
        Incomplete: If there is none, or it is damaged.
    """
    try:
        content = json.loads((checkpoint / MARKER).read_text(encoding="utf-8"))
        digest = content.pop("digest", None)
        if content.get("format") != _FORMAT:
            raise Incomplete(f"was not written by this version of trl_spiral: {MARKER} is in another format")
        if digest == _digest_of(content):
            return content
    except FileNotFoundError as error:
        raise Incomplete(f"was not written to the end: {MARKER} is missing") from error
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, AttributeError, TypeError):
        pass
    raise Incomplete(f"is damaged: {MARKER} is not what was written")


def why_incomplete(checkpoint: Path, repair: bool = False) -> str | None:
    """
    Return a clause that says why a checkpoint cannot be resumed from; `None` if it can. Reads every byte of it.

    Args:
        checkpoint (`Path`):
            The checkpoint's folder.
        repair (`bool`, defaults to `False`):
            Whether snapshots in its pool of opponents may be damaged.
    """
    try:
        files = read_marker(checkpoint)["files"]
    except Incomplete as error:
        return str(error)
    for name, known in files.items():
        is_snapshot = name.startswith(f"{POOL_FOLDER}/") and name.count("/") > 1
        if not (repair and is_snapshot) and (clause := damage(checkpoint / name, *known)):
            return f"is damaged: {name} {clause}"
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
    elif wanted.lower() != "false" and wanted != "auto" and not Path(wanted).is_dir():
        raise ValueError(
            f"`resume_from_checkpoint` ({wanted!r}) is not a folder. Pass the folder of a checkpoint, or `true` for "
            f"the newest complete one in {str(output_dir)!r}."
        )


def check_checkpoint(checkpoint: str | os.PathLike[str], repair: bool = False) -> None:
    """
    Check a given checkpoint.

    Args:
        checkpoint (`str`):
            The checkpoint's folder.
        repair (`bool`, defaults to `False`):
            As for `why_incomplete`.

    Raises:
        ValueError: If the checkpoint is damaged, or was not written to the end.
    """
    path = Path(checkpoint)
    if (reason := why_incomplete(path, repair)) is None:
        return
    if not (path / MARKER).exists():
        reason += ", as in checkpoints of TRL's own trainers"
    other = newest_complete_checkpoint(path.parent, repair)
    advice = f"The newest complete one next to it is {other}." if other else "No checkpoint next to it is complete."
    raise ValueError(f"Cannot resume from {path}, which {reason}. {advice}")


def newest_complete_checkpoint(output_dir: str | os.PathLike[str], repair: bool = False) -> str | None:
    """
    Return the newest complete checkpoint of a run, or `None`. Log the newer ones that are skipped, and the reasons.

    Args:
        output_dir (`str`):
            The run's output folder.
        repair (`bool`, defaults to `False`):
            As for `why_incomplete`.
    """
    root = Path(output_dir)
    found = [
        (int(path.name.rsplit("-", 1)[1]), path)
        for path in (root.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if root.is_dir() else ())
        if path.is_dir() and path.name.rsplit("-", 1)[1].isdigit()
    ]
    for _, path in sorted(found, reverse=True):
        if (reason := why_incomplete(path, repair)) is None:
            return str(path)
        logger.warning("Skipping %s, which %s.", path.name, reason)
    return None
