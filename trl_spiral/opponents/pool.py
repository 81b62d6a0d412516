"""
The pool of opponents: snapshots of the policy, in a folder.

The folder contains one sub-folder for each snapshot, and an index. A snapshot is written under another name, moved
into place, and then added to the index. To remove one, it is first removed from the index, and then deleted. So the
index lists only complete snapshots at any time, and folders that it does not list are deleted. Each checkpoint
contains a pool of its own: see `save_to`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from trl_spiral.files import link_tree, naming_full_disk, write_text
from trl_spiral.opponents.ratings import Ratings
from trl_spiral.opponents.snapshots import FORMAT, Kind, OtherFormat, Snapshot, files_of, read_index
from trl_spiral.text.printable import get_logger
from trl_spiral.types import POLICY


logger = get_logger(__name__)

INDEX = "index.json"
POOL_FOLDER = "opponents"
"""Folder of the pool in a run's output folder, in a checkpoint and in a repository on the Hub."""

Eviction = Literal["oldest", "lowest", "ladder"]

_OURS = re.compile(r"(step|past)-\d+|base|\.partial-.*")


class OpponentPool:
    """
    Snapshots of a policy in a folder, with their ratings.

    If the folder has an index, the pool is restored from it. Nothing is written before the first snapshot.

    Args:
        folder (`str` or `os.PathLike`):
            Folder of the pool alone. Sub-folders with the name of a snapshot that the index does not list are deleted.
        capacity (`int`, defaults to `25`):
            Maximum number of snapshots, without pinned ones. SPIRAL keeps 25.
        eviction (`str`, defaults to `"oldest"`):
            Snapshot that leaves a full pool: the `"oldest"`, the `"lowest"` rated, or one chosen so that the ages of
            the others form a geometric `"ladder"`, dense near the present and sparse far back. The newest never
            leaves.

    Attributes:
        ratings ([`~opponents.ratings.Ratings`]):
            Ratings and results, stored in the index.
        run (`str`):
            Identity of the run that took the snapshots, so that no run deletes those of another.

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
            f"{index} is damaged. Delete {self.folder} and resume the run: its checkpoints contain the snapshots."
        )

    # ---- content ----
    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Snapshots without pinned ones, in the order in which they were added."""
        return tuple(snapshot for snapshot in self._snapshots.values() if not snapshot.pinned)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all snapshots, pinned ones included."""
        return tuple(self._snapshots)

    @property
    def has_own(self) -> bool:
        """True if it contains snapshots that a run has taken, and not only older ones."""
        return any(snapshot.step > 0 for snapshot in self.snapshots)

    @property
    def size(self) -> int:
        """Bytes of all snapshots, pinned ones included."""
        return sum(snapshot.size for snapshot in self._snapshots.values())

    @property
    def files(self) -> dict[str, tuple[int, str]]:
        """Size and digest of each file of all snapshots, by path in the pool's folder."""
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
        """Return the folder of a snapshot, for `from_pretrained`."""
        return self.folder / self[name].name

    def problems(self) -> list[str]:
        """Return one clause for each snapshot with damaged files. Reads all files."""
        return [clause for snapshot in self._snapshots.values() if (clause := snapshot.problem(self.folder))]

    def table(self) -> str:
        """Format step, kind, size and rating of each snapshot as a Markdown table."""
        lines = ["| snapshot | step | kind | MB | rating | 95 % |", "|---|---:|---|---:|---:|---:|"]
        for snapshot in self._snapshots.values():
            rating = self.ratings.rating(snapshot.name)
            lines.append(
                f"| {snapshot.name} | {snapshot.step} | {snapshot.kind} | {snapshot.size / 1e6:.1f} | "
                f"{rating.mu:.0f} | {rating.low:.0f} to {rating.high:.0f} |"
            )
        return "\n".join(lines)

    # ---- changes ----
    def add(
        self,
        step: int,
        kind: Kind,
        write: Callable[[Path], object],
        name: str | None = None,
        pinned: bool = False,
    ) -> Snapshot:
        """
        Write a snapshot into the pool, and evict another if the pool is full.

        Args:
            step (`int`):
                Optimizer step.
            kind (`str`):
                `"adapter"` or `"weights"`.
            write (`Callable[[Path], object]`):
                Writes the files into an empty folder, as `save_pretrained` does.
            name (`str`, *optional*, defaults to `step-{step}`):
                Name of the snapshot.
            pinned (`bool`, defaults to `False`):
                See [`Snapshot`].

        Raises:
            OSError: If the disk is full.
            ValueError: If the name is taken or malformed, or `write` wrote nothing. If the folder has no index, and
                sub-folders with the names of snapshots.
        """
        name = name or f"step-{step}"
        if name in self._snapshots:
            raise ValueError(
                f"The pool in {self.folder} already contains {name}. A snapshot never changes: take a new one."
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
        self._snapshots[name] = snapshot
        self.ratings.inherit(name, POLICY)
        while len(self) > self.capacity:
            evicted = self._next_evicted().name
            del self._snapshots[evicted]
            self.ratings.remove(evicted)
            logger.info("%s leaves the pool, which is full with %d.", evicted, self.capacity)
        self.save()
        self.sweep()
        return snapshot

    def _claim(self) -> None:
        """Write the first index. Raise `ValueError` if the folder contains sub-folders that a sweep would delete."""
        if (self.folder / INDEX).exists():
            return
        others = sorted(path.name for path in self.folder.glob("*") if path.is_dir() and _OURS.fullmatch(path.name))
        if others:
            raise ValueError(
                f"{self.folder} has no index of a pool and contains {others[0]}, which a pool would delete. Give the "
                "pool a folder of its own."
            )
        self.save()

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a snapshot under another name and move it into place."""
        unfinished = self.folder / f".partial-{name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write(unfinished)
        # From a run that was killed before it listed the snapshot, or that was resumed from an earlier step.
        shutil.rmtree(self.folder / name, ignore_errors=True)
        os.rename(unfinished, self.folder / name)

    def _next_evicted(self) -> Snapshot:
        held = self.snapshots
        if self.eviction == "oldest" or len(held) < 3:
            return held[0]
        if self.eviction == "lowest":
            return min(held[:-1], key=lambda snapshot: (self.ratings.rating(snapshot.name).mu, snapshot.step))
        # The snapshot between the two neighbours whose ages have the smallest ratio. The oldest and the newest stay.
        # Ages count from one interval after the newest snapshot.
        now = held[-1].step + max(1, held[-1].step - held[-2].step)
        ages = [now - snapshot.step for snapshot in held]
        return held[min(range(1, len(held) - 1), key=lambda i: (ages[i - 1] / ages[i + 1], -i))]

    def start_anew(self) -> None:
        """Delete all results and the snapshots of a run. Keep snapshots that are older than the run."""
        for snapshot in list(self._snapshots.values()):
            if snapshot.step > 0 or snapshot.pinned:
                del self._snapshots[snapshot.name]
        self.ratings = Ratings()
        self.run = secrets.token_hex(8)
        if (self.folder / INDEX).exists():
            self.save()
            self.sweep()

    def save(self) -> None:
        """Write the index, ratings included."""
        self._save_index(self.folder)

    def save_to(self, folder: Path) -> None:
        """
        Write the pool into another folder, such as a checkpoint's, and replace the pool there.

        Snapshots are hard links, or copies if the file system has no links. The index is written last.
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
        deleted = []
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            if path.is_dir() and _OURS.fullmatch(path.name) and path.name not in self._snapshots:
                # First renamed, so that a snapshot's name never refers to an incomplete folder.
                doomed = path if path.name.startswith(".") else path.with_name(f".partial-{path.name}-gone")
                if doomed != path:
                    os.rename(path, doomed)
                try:
                    shutil.rmtree(doomed)
                except OSError as error:
                    logger.warning("%s could not be deleted and takes up disk space: %s", doomed, error)
                else:
                    deleted.append(path.name)
        return deleted

    # ---- state ----
    def state_dict(self) -> dict[str, Any]:
        """Return the index as plain values: snapshots and ratings, without weights."""
        return {
            "snapshots": [snapshot.to_json() for snapshot in self._snapshots.values()],
            "ratings": self.ratings.state_dict(),
            "run": self.run,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Reads no file: see `restore`."""
        self.run = state["run"]
        self._snapshots = {entry["name"]: Snapshot.from_json(entry) for entry in state["snapshots"]}
        self.ratings = Ratings()
        self.ratings.load_state_dict(state["ratings"])

    def restore(self, folder: Path, repair: bool = False) -> None:
        """
        Restore the pool that `save_to` wrote into a checkpoint.

        Call it in one process. In the others, call `load_state_dict` with the new `state_dict` of this one.

        Args:
            folder (`Path`):
                Folder of the pool in the checkpoint. Its files are not checked unless `repair` is on.
            repair (`bool`, defaults to `False`):
                Whether to check every file, and to leave out snapshots that are missing or damaged.

        Raises:
            ValueError: If this pool holds snapshots of another run.
        """
        saved = OpponentPool(folder)
        if self.has_own and saved.run != self.run:
            raise ValueError(
                f"{self.folder} contains snapshots of another run than {folder}. Resume into another `output_dir`, or "
                "choose another folder for the pool."
            )
        for snapshot in list(saved._snapshots.values()) if repair else ():
            if clause := snapshot.problem(folder):
                logger.warning("Going on without %s: %s.", snapshot.name, clause)
                del saved._snapshots[snapshot.name]
                saved.ratings.remove(snapshot.name)
        self._claim()
        for name, snapshot in saved._snapshots.items():
            if self._snapshots.get(name) != snapshot or snapshot.problem(self.folder):
                self._write(name, partial(link_tree, folder / name))
        self.load_state_dict(saved.state_dict())
        self.save()
        self.sweep()
