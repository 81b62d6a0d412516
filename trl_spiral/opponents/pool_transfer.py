"""Pools from checkpoints of an earlier run, and pools on the Hub."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from trl_spiral.opponents.pool import INDEX, POOL_FOLDER, Eviction, OpponentPool
from trl_spiral.opponents.snapshots import Kind


_CHECKPOINT = re.compile(r"(?:checkpoint|step)-(\d+)")
_KINDS: dict[str, Kind] = {
    "adapter_config.json": "adapter",
    "model.safetensors": "weights",
    "model.safetensors.index.json": "weights",
}


def kind_of(folder: Path) -> Kind | None:
    """Return the kind of snapshot that a folder contains, or `None` if it has no adapter and no safetensors."""
    return next((kind for name, kind in _KINDS.items() if (folder / name).is_file()), None)


def pool_from_checkpoints(
    checkpoints: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    capacity: int = 25,
    eviction: Eviction = "oldest",
) -> OpponentPool:
    """
    Make a pool from the checkpoints of an earlier run.

    Its snapshots are called `past-N`. Their steps count back from the last checkpoint, which has step 0. The files are
    copied, so the checkpoints may be deleted afterwards.

    Args:
        checkpoints (`str`):
            Folder with `checkpoint-N` folders of any trainer, or another pool's folder. They contain LoRA adapters or
            whole models in safetensors.
        folder (`str`):
            Folder of the new pool.
        capacity, eviction:
            As for [`OpponentPool`].

    Raises:
        ValueError: If there is no checkpoint with weights, or the pool is not empty.
    """
    pool = OpponentPool(folder, capacity, eviction)
    if len(pool):
        raise ValueError(f"The pool in {folder} already contains {len(pool)} snapshots. Choose another folder.")
    root = Path(checkpoints)
    found = sorted(
        (int(match[1]), path, kind)
        for path in (root.iterdir() if root.is_dir() else ())
        if path.is_dir() and (match := _CHECKPOINT.fullmatch(path.name)) and (kind := kind_of(path))
    )
    if not found:
        raise ValueError(f"{root} contains no checkpoint-N folder with safetensors or a LoRA adapter.")
    for step, path, kind in found:
        pool.add(step - found[-1][0], kind, partial(_copy_weights, path), name=f"past-{step}")
    return pool


def _copy_weights(source: Path, target: Path) -> None:
    """Copy the files of a model or an adapter. Not by links: a trainer may overwrite its own files."""
    names = ("adapter_config.json", "config.json", "generation_config.json", "model.safetensors.index.json")
    weights = [*source.glob("adapter_model.safetensors"), *source.glob("model*.safetensors")]
    for path in [*(source / name for name in names), *weights]:
        if path.is_file():
            shutil.copy2(path, target / path.name)


def push_pool_to_hub(pool: OpponentPool, repo_id: str, **kwargs: Any) -> None:
    """
    Upload a pool, ratings included, into the folder `opponents` of a model's repository.

    Args:
        pool ([`OpponentPool`]):
            Pool to upload.
        repo_id (`str`):
            Repository on the Hub. It is created if it does not exist.
        kwargs:
            Further arguments of [`~huggingface_hub.HfApi.upload_folder`].
    """
    from huggingface_hub import HfApi

    pool.save()
    api = HfApi()
    api.create_repo(repo_id, exist_ok=True)
    api.upload_folder(
        **{"commit_message": "Opponent pool", **kwargs},
        repo_id=repo_id,
        folder_path=pool.folder,
        path_in_repo=POOL_FOLDER,
        allow_patterns=[INDEX, *(f"{name}/*" for name in pool.names)],
    )


def pool_from_hub(repo_id: str, folder: str | os.PathLike[str] | None = None, **kwargs: Any) -> OpponentPool:
    """
    Download the pool in the folder `opponents` of a model's repository.

    Args:
        repo_id (`str`):
            Repository on the Hub.
        folder (`str`, *optional*):
            Target folder. Default: the Hub's cache, for pools that are only played from and not changed.
        kwargs:
            Further arguments of [`~huggingface_hub.snapshot_download`], such as `revision`.

    Raises:
        ValueError: If the repository has no pool, or the download is incomplete.
    """
    from huggingface_hub import snapshot_download

    local_dir = Path(folder) if folder else None
    root = Path(snapshot_download(repo_id, allow_patterns=f"{POOL_FOLDER}/*", local_dir=local_dir, **kwargs))
    if not (root / POOL_FOLDER / INDEX).exists():
        raise ValueError(f"{repo_id} has no pool: there is no {POOL_FOLDER}/{INDEX} in it.")
    pool = OpponentPool(root / POOL_FOLDER)
    if problems := pool.problems():
        raise ValueError(
            f"The download of the pool of {repo_id} is damaged: {'; '.join(problems)}. Download it again."
        )
    return pool
