"""Snapshots of the policy, and their files in a pool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trl_spiral.files import damage, digest_of


FORMAT = 2

Kind = Literal["adapter", "weights"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    A frozen copy of the policy.

    Attributes:
        name (`str`):
            Name of its weights in requests, such as `"step-40"`, and of its folder in the pool.
        step (`int`):
            Optimizer step after which it was taken. Zero or less if it is older than the run.
        kind (`str`):
            `"adapter"` for the folder of a LoRA adapter, `"weights"` for that of a whole model.
        files (`Mapping[str, tuple[int, str]]`):
            Size in bytes and digest of each file, by its path in the folder.
        pinned (`bool`):
            Whether it does not count toward the pool's capacity. It is never evicted, and never drawn from the pool.
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

    def problem(self, pool: Path) -> str | None:
        """Return a clause that describes the first damage to its files in a pool's folder, or `None`. Reads them."""
        for path, known in self.files.items():
            if clause := damage(pool / self.name / path, *known):
                return f"{self.name}/{path} {clause}"
        return None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the index of a pool."""
        return {**asdict(self), "files": {path: list(known) for path, known in self.files.items()}}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Snapshot:
        """Restore a snapshot from what `to_json` returned."""
        files = {path: (int(size), str(digest)) for path, (size, digest) in entry["files"].items()}
        return cls(**{**entry, "files": files})


class OtherFormat(ValueError):
    """A pool's index was written by another version of the package."""


def read_index(index: Path) -> Mapping[str, Any]:
    """
    Read the index of a pool.

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
    """Return the size and the digest of each file in a folder, by path."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_size, digest_of(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
