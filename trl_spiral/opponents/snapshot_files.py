"""What a snapshot is, and what is read and written on disk for it: its files, a pool's index, checkpoints' lists."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


FORMAT = 1
NEEDED = "opponent_pool.json"
"""A checkpoint's list of the snapshots without which it cannot be resumed."""

Kind = Literal["adapter", "weights"]

_WEIGHT_FILES = {
    "adapter_config.json": "adapter",
    "model.safetensors": "weights",
    "model.safetensors.index.json": "weights",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    A frozen copy of the policy.

    Attributes:
        name (`str`):
            Its policy name, such as `"step-40"`: what requests for its weights say, and its folder in the pool.
        step (`int`):
            Optimizer step after which it was taken; zero or less for one that was there before the run.
        kind (`str`):
            `"adapter"` for a LoRA adapter's folder, `"weights"` for a whole model's.
        files (`Mapping[str, tuple[int, str]]`):
            Size in bytes and BLAKE2b digest of each file, by its path in the folder.
        pinned (`bool`):
            Whether it is kept beside the pool: it takes no room, is never evicted and never drawn as an earlier self.
    """

    name: str
    step: int
    kind: Kind
    files: Mapping[str, tuple[int, str]]
    pinned: bool = False

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(size for size, _ in self.files.values())


def kind_of(folder: Path) -> Kind | None:
    """What a folder holds: an adapter, whole weights in safetensors, or neither."""
    for name, kind in _WEIGHT_FILES.items():
        if (folder / name).is_file():
            return "adapter" if kind == "adapter" else "weights"
    return None


def needed_by_checkpoints(output_dir: str | os.PathLike[str]) -> set[str]:
    """Names of the snapshots that the checkpoints in a run's output folder need."""
    names: set[str] = set()
    for path in Path(output_dir).glob(f"checkpoint-*/{NEEDED}"):
        try:
            names |= {entry["name"] for entry in json.loads(path.read_text(encoding="utf-8"))["snapshots"]}
        except (OSError, ValueError, KeyError, TypeError):
            continue  # cut off while it was written: nobody can resume from that one
    return names


def read_index(index: Path) -> Mapping[str, Any]:
    try:
        state: Mapping[str, Any] = json.loads(index.read_text(encoding="utf-8"))
        known = state["format"] == FORMAT and "snapshots" in state and "ratings" in state
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise ValueError(
            f"{index} is no index of a pool in format {FORMAT}. Use the version of trl_spiral that wrote it, or another folder."
        )
    return state


def files_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and digest of every file below a folder, each of them safe on disk."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
            found[path.relative_to(folder).as_posix()] = path.stat().st_size, digest_of(path)
    sync(folder)
    return found


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def sync(folder: Path) -> None:
    """Makes renames within a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_weights(source: Path, target: Path) -> None:
    """The files of a model or an adapter, and nothing of the trainer's. No links: a trainer may write over its own."""
    described = ("adapter_config.json", "config.json", "generation_config.json", "model.safetensors.index.json")
    weights = [*source.glob("adapter_model.safetensors"), *source.glob("model*.safetensors")]
    for path in [*(source / name for name in described), *weights]:
        if path.is_file():
            shutil.copy2(path, target / path.name)
