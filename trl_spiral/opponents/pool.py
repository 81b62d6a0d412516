"""
Earlier selves of the policy, in a folder.

The folder holds one sub-folder per snapshot and an index. A new snapshot is written under another name, moved into place,
and only then listed; one that leaves is first struck off the list, then deleted. So the index names whole snapshots at
every moment, and folders that it does not name are swept away. Checkpoints hold a pool of their own: see `save_to`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from trl_spiral.files import damage, link_tree, naming_full_disk, write_text
from trl_spiral.opponents.ratings import Ratings
from trl_spiral.opponents.snapshots import (
    FORMAT,
    Kind,
    OtherFormat,
    Snapshot,
    copy_weights,
    files_of,
    kind_of,
    read_index,
)
from trl_spiral.text.printable import get_logger
from trl_spiral.types import POLICY


logger = get_logger(__name__)

INDEX = "index.json"
POOL_FOLDER = "opponents"
"""Where a run keeps its pool in its output folder, and a checkpoint its own. It goes to the Hub with the model."""

Eviction = Literal["oldest", "lowest", "ladder"]

_OURS = re.compile(r"(step|past)-\d+|base|\.partial-.*")
_CHECKPOINT = re.compile(r"(?:checkpoint|step)-(\d+)")


class OpponentPool:
    """
    Snapshots of a policy in a folder, and how they have fared.

    Opening a folder that has an index takes up what is there. Nothing is written before the first snapshot.

    Args:
        folder (`str` or `os.PathLike`):
            The pool's own folder: what is in it under a snapshot's name and not in the index is deleted.
        capacity (`int`, defaults to `25`):
            Most snapshots kept, pinned ones apart. SPIRAL keeps 25.
        eviction (`str`, defaults to `"oldest"`):
            Who leaves a full pool: the `"oldest"`, the `"lowest"` rated, or one chosen so that the ages of those left
            form a geometric `"ladder"`, dense near the present and sparse far back. The newest never leaves.

    Attributes:
        ratings ([`~opponents.ratings.Ratings`]):
            Ratings and results, kept in the index beside the snapshots.
        run (`str`):
            Identity of the run whose snapshots these are, so that no run sweeps away another's.

    Raises:
        ValueError: If an argument is out of range, another version wrote the index, or it is damaged and no checkpoint
            next to the pool has another.
    """

    def __init__(self, folder: str | os.PathLike[str], capacity: int = 25, eviction: Eviction = "oldest") -> None:
        if capacity < 1:
            raise ValueError(f"The pool's capacity ({capacity}) must be at least 1: the newest snapshot always stays.")
        if eviction not in get_args(Eviction):
            raise ValueError(f"The pool's eviction ({eviction!r}) must be one of {', '.join(get_args(Eviction))}.")
        self.folder = Path(folder)
        self.capacity = capacity
        self.eviction: Eviction = eviction
        self.ratings = Ratings()
        self.run = secrets.token_hex(8)
        self._snapshots: dict[str, Snapshot] = {}
        if (self.folder / INDEX).exists():
            self._open()

    def _open(self) -> None:
        """Read the index. If it is damaged, read that of the newest checkpoint next to the pool."""
        index = self.folder / INDEX
        others = sorted(self.folder.parent.glob(f"*/{POOL_FOLDER}/{INDEX}"), key=os.path.getmtime, reverse=True)
        for path in (index, *others):
            try:
                self.load_state_dict(read_index(path))
            except OtherFormat:
                raise
            except (KeyError, TypeError, ValueError):
                continue
            if path != index:
                logger.warning("%s is damaged, and that in %s takes its place.", index, path.parent)
            return
        raise ValueError(
            f"{index} is damaged. Delete {self.folder} and resume the run: its checkpoints hold the snapshots."
        )

    # ---- looking ----
    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Those that may be drawn, in the order in which they were added."""
        return tuple(snapshot for snapshot in self._snapshots.values() if not snapshot.pinned)

    @property
    def has_own(self) -> bool:
        """Whether a run has taken snapshots, beside those that were there before it."""
        return any(snapshot.step > 0 for snapshot in self.snapshots)

    @property
    def size(self) -> int:
        """Bytes that the index accounts for, pinned snapshots included."""
        return sum(snapshot.size for snapshot in self._snapshots.values())

    @property
    def files(self) -> dict[str, tuple[int, str]]:
        """Size and digest of every snapshot's files, by path in the pool's folder."""
        return {f"{one.name}/{path}": known for one in self._snapshots.values() for path, known in one.files.items()}

    def __len__(self) -> int:
        return len(self.snapshots)

    def __contains__(self, name: object) -> bool:
        return name in self._snapshots

    def __getitem__(self, name: str) -> Snapshot:
        if name not in self._snapshots:
            raise KeyError(f"The pool in {self.folder} has no snapshot {name!r}; it has {sorted(self._snapshots)}.")
        return self._snapshots[name]

    def path(self, name: str) -> Path:
        """Folder of a snapshot: what `from_pretrained` reads."""
        return self.folder / self[name].name

    def problems(self) -> list[str]:
        """What is wrong with the files of the snapshots, one clause each; empty if nothing is. Reads every byte."""
        return [clause for snapshot in self._snapshots.values() if (clause := self._problem(snapshot))]

    def table(self) -> str:
        """Markdown: each snapshot's step, kind, size and rating."""
        lines = ["| snapshot | step | kind | MB | rating | 95 % |", "|---|---:|---|---:|---:|---:|"]
        for snapshot in self._snapshots.values():
            rating = self.ratings.rating(snapshot.name)
            lines.append(
                f"| {snapshot.name} | {snapshot.step} | {snapshot.kind} | {snapshot.size / 1e6:.1f} | {rating.mu:.0f} | "
                f"{rating.low:.0f} to {rating.high:.0f} |"
            )
        return "\n".join(lines)

    # ---- changing ----
    def add(
        self,
        step: int,
        kind: Kind,
        write: Callable[[Path], object],
        name: str | None = None,
        pinned: bool = False,
    ) -> Snapshot:
        """
        Writes a snapshot into the pool, and lets another go where there is no room.

        Args:
            step (`int`):
                Optimizer step.
            kind (`str`):
                `"adapter"` or `"weights"`.
            write (`Callable[[Path], object]`):
                Writes the files into the empty folder that it is given, as `save_pretrained` does.
            name (`str`, *optional*):
                `step-{step}` by default.
            pinned (`bool`, defaults to `False`):
                Whether to keep it beside the pool.

        Raises:
            OSError: If the disk is full.
            ValueError: If the pool holds a snapshot of that name, nothing was written, or the folder has no index and
                others' folders in it that are called like snapshots.
        """
        name = name or f"step-{step}"
        if name in self._snapshots:
            raise ValueError(
                f"The pool in {self.folder} already holds {name}. A snapshot never changes: take a new one."
            )
        if not _OURS.fullmatch(name):
            raise ValueError(f"A snapshot's name ({name!r}) must be step-N, past-N or base.")
        self._claim()
        with naming_full_disk(self.folder):
            self._write(name, write)
        files = files_of(self.folder / name)
        if not files:
            raise ValueError(f"Nothing was written for the snapshot {name}.")
        snapshot = Snapshot(name, step, kind, files, pinned)
        self._list(snapshot)
        self.save()
        self.sweep()
        return snapshot

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a snapshot under another name and move it into place."""
        unfinished = self.folder / f".partial-{name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write(unfinished)
        # Left by a run that was killed before it listed it, or that a resume has gone back behind.
        shutil.rmtree(self.folder / name, ignore_errors=True)
        os.rename(unfinished, self.folder / name)

    def _claim(self) -> None:
        """Makes the folder the pool's own, before anything in it may be deleted."""
        if (self.folder / INDEX).exists():
            return
        strangers = sorted(path.name for path in self.folder.glob("*") if path.is_dir() and _OURS.fullmatch(path.name))
        if strangers:
            raise ValueError(
                f"{self.folder} has no index of a pool and holds {strangers[0]}, which a pool would delete. Give the pool a "
                "folder of its own."
            )
        self.save()

    def _list(self, snapshot: Snapshot) -> None:
        """Takes a snapshot into the index, and strikes off whoever has to leave."""
        self._snapshots[snapshot.name] = snapshot
        self.ratings.inherit(snapshot.name, POLICY)
        while len(self) > self.capacity:
            gone = self._who_leaves()
            del self._snapshots[gone.name]
            self.ratings.forget(gone.name)
            logger.info("%s leaves the pool, which is full with %d.", gone.name, self.capacity)

    def _who_leaves(self) -> Snapshot:
        held = self.snapshots
        if self.eviction == "oldest" or len(held) < 3:
            return held[0]
        if self.eviction == "lowest":
            return min(held[:-1], key=lambda snapshot: (self.ratings.rating(snapshot.name).mu, snapshot.step))
        # Ages in steps, counted so that the newest has one. Whoever leaves the smallest ratio between its neighbours'
        # ages is missed least; the two ends stay.
        now = held[-1].step + max(1, held[-1].step - held[-2].step)
        ages = [now - snapshot.step for snapshot in held]
        return held[min(range(1, len(held) - 1), key=lambda i: (ages[i - 1] / ages[i + 1], -i))]

    def start_anew(self) -> None:
        """Forget all results and the snapshots that a run has taken. Keep those that were there before it."""
        for snapshot in list(self._snapshots.values()):
            if snapshot.step > 0 or snapshot.pinned:
                del self._snapshots[snapshot.name]
        self.ratings = Ratings()  # a new policy has played no games
        self.run = secrets.token_hex(8)
        if (self.folder / INDEX).exists():
            self.save()
            self.sweep()

    def save(self) -> None:
        """Write the index, ratings included."""
        self._save_index(self.folder)

    def save_to(self, folder: Path) -> None:
        """
        Write the pool into another folder, such as a checkpoint's, in place of the one that is there.

        Snapshots are hard links where the file system has them, and copies elsewhere. The index is written last.
        """
        with naming_full_disk(folder.parent):
            shutil.rmtree(folder, ignore_errors=True)
            for name in self._snapshots:
                link_tree(self.folder / name, folder / name)
            self._save_index(folder)

    def _save_index(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / INDEX, json.dumps({"format": FORMAT, **self.state_dict()}, indent=1))

    def sweep(self) -> list[str]:
        """Delete the snapshots that are not listed, and return their names."""
        gone = []
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            if path.is_dir() and _OURS.fullmatch(path.name) and path.name not in self._snapshots:
                # Under another name first, so that half a snapshot never stands where a whole one is expected.
                doomed = path if path.name.startswith(".") else path.with_name(f".partial-{path.name}-gone")
                if doomed != path:
                    os.rename(path, doomed)
                try:
                    shutil.rmtree(doomed)
                except OSError as error:
                    logger.warning("%s could not be deleted and takes up room: %s", doomed, error)
                else:
                    gone.append(path.name)
        return gone

    # ---- state ----
    def state_dict(self) -> dict[str, Any]:
        """The index, as plain values: which snapshots there are and how they have fared, not their weights."""
        return {
            "snapshots": [
                {**asdict(snapshot), "files": {path: list(known) for path, known in snapshot.files.items()}}
                for snapshot in self._snapshots.values()
            ],
            "ratings": self.ratings.state_dict(),
            "run": self.run,
        }

    def restore(self, folder: Path, repair: bool = False) -> None:
        """
        Go back to the pool that `save_to` wrote into a checkpoint.

        To be called by one process; others call `load_state_dict` with this one's new `state_dict`.

        Args:
            folder (`Path`):
                The pool's folder in the checkpoint. Its files are taken as they are unless `repair` is on.
            repair (`bool`, defaults to `False`):
                Whether to look at every file and to go on without snapshots that are missing or damaged.

        Raises:
            ValueError: If this pool holds another run's snapshots.
        """
        kept = OpponentPool(folder)
        if self.has_own and kept.run != self.run:
            raise ValueError(
                f"{self.folder} holds snapshots of another run than {folder}. Resume into another `output_dir`, or "
                "choose another folder for the pool."
            )
        for snapshot in list(kept._snapshots.values()) if repair else ():
            if clause := kept._problem(snapshot):
                logger.warning("Going on without %s: %s.", snapshot.name, clause)
                del kept._snapshots[snapshot.name]
                kept.ratings.forget(snapshot.name)
        self._claim()
        for name, snapshot in kept._snapshots.items():
            if self._snapshots.get(name) != snapshot or self._problem(snapshot):
                self._write(name, partial(link_tree, folder / name))
        self.load_state_dict(kept.state_dict())
        self.save()
        self.sweep()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Reads no file: see `restore`."""
        self.run = state["run"]
        self._snapshots = {}
        for entry in state["snapshots"]:
            files = {path: (int(size), str(digest)) for path, (size, digest) in entry["files"].items()}
            self._snapshots[entry["name"]] = Snapshot(**{**entry, "files": files})
        self.ratings = Ratings()
        self.ratings.load_state_dict(state["ratings"])

    def _problem(self, snapshot: Snapshot) -> str | None:
        """Return a clause that says what is wrong with a snapshot's files; `None` if nothing is."""
        for name, known in snapshot.files.items():
            if clause := damage(self.folder / snapshot.name / name, *known):
                return f"{snapshot.name}/{name} {clause}"
        return None

    # ---- from and to elsewhere ----
    @classmethod
    def from_checkpoints(
        cls,
        checkpoints: str | os.PathLike[str],
        folder: str | os.PathLike[str],
        capacity: int = 25,
        eviction: Eviction = "oldest",
    ) -> OpponentPool:
        """
        A pool of the checkpoints of an earlier run, as `past-N`, whose steps are counted back from the last of them.

        Files are copied; the checkpoints may be deleted afterwards.

        Args:
            checkpoints (`str`):
                Folder with `checkpoint-N` folders, of any trainer, or another pool's: LoRA adapters or whole models in
                safetensors.
            folder (`str`):
                The new pool's folder.
            capacity, eviction:
                As for [`OpponentPool`].

        Raises:
            ValueError: If there is no checkpoint with weights, or the pool is not empty.
        """
        pool = cls(folder, capacity, eviction)
        if len(pool):
            raise ValueError(f"The pool in {folder} holds {len(pool)} snapshots already. Choose another folder.")
        root = Path(checkpoints)
        found = sorted(
            (int(match[1]), path)
            for path in (root.iterdir() if root.is_dir() else ())
            if path.is_dir() and (match := _CHECKPOINT.fullmatch(path.name)) and kind_of(path)
        )
        if not found:
            raise ValueError(f"{root} holds no checkpoint-N folder with safetensors or a LoRA adapter.")
        for step, path in found:
            kind = kind_of(path)
            assert kind is not None, "only such folders were found"
            pool.add(step - found[-1][0], kind, partial(copy_weights, path), name=f"past-{step}")
        return pool

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> None:
        """
        Uploads the pool, ratings included, into the folder `opponents` of a model's repository.

        Args:
            repo_id (`str`):
                Repository on the Hub. It is created if need be.
            kwargs:
                More arguments of [`~huggingface_hub.HfApi.upload_folder`].
        """
        from huggingface_hub import HfApi

        self.save()
        api = HfApi()
        api.create_repo(repo_id, exist_ok=True)
        listed = [INDEX, *(f"{name}/*" for name in self._snapshots)]
        api.upload_folder(
            **{"commit_message": "Opponent pool", **kwargs},
            repo_id=repo_id,
            folder_path=self.folder,
            path_in_repo="opponents",
            allow_patterns=listed,
        )

    @classmethod
    def from_hub(cls, repo_id: str, folder: str | os.PathLike[str] | None = None, **kwargs: Any) -> OpponentPool:
        """
        The pool that a model's repository holds in its folder `opponents`.

        Args:
            repo_id (`str`):
                Repository on the Hub.
            folder (`str`, *optional*):
                Where to put it. By default in the Hub's cache, where it can be played from but not added to.
            kwargs:
                More arguments of [`~huggingface_hub.snapshot_download`], such as `revision`.

        Raises:
            ValueError: If the repository has no pool, or it did not arrive whole.
        """
        from huggingface_hub import snapshot_download

        root = Path(
            snapshot_download(
                repo_id, allow_patterns="opponents/*", local_dir=Path(folder) if folder else None, **kwargs
            )
        )
        if not (root / "opponents" / INDEX).exists():
            raise ValueError(f"{repo_id} has no pool: there is no opponents/{INDEX} in it.")
        pool = cls(root / "opponents")
        if problems := pool.problems():
            raise ValueError(f"The pool of {repo_id} did not arrive whole: {'; '.join(problems)}. Download it again.")
        return pool
