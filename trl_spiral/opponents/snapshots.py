"""Snapshots, and the files of a pool."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trl_spiral.files import digest_of


FORMAT = 2

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
            Size in bytes and digest of each file, by its path in the folder.
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


class OtherFormat(ValueError):
    """Another version of the package wrote a pool's index."""


def read_index(index: Path) -> Mapping[str, Any]:
    """
    Read a pool's index.

    Raises:
        OtherFormat: If another version wrote it.
        KeyError, TypeError, ValueError: If it is damaged.
    """
    state: Mapping[str, Any] = json.loads(index.read_text(encoding="utf-8"))
    if state["format"] != FORMAT:
        raise OtherFormat(
            f"{index} is no index of a pool in format {FORMAT}. Use the version of trl_spiral that wrote it, or "
            "another folder."
        )
    return state


def files_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the size and the digest of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_size, digest_of(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def copy_weights(source: Path, target: Path) -> None:
    """The files of a model or an adapter, and nothing of the trainer's. No links: a trainer may write over its own."""
    described = ("adapter_config.json", "config.json", "generation_config.json", "model.safetensors.index.json")
    weights = [*source.glob("adapter_model.safetensors"), *source.glob("model*.safetensors")]
    for path in [*(source / name for name in described), *weights]:
        if path.is_file():
            shutil.copy2(path, target / path.name)
