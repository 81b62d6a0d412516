"""One run per folder: a lock of the operating system, which ends with the process that holds it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TextIO
from weakref import WeakValueDictionary, finalize

from trl_spiral.text.printable import get_logger


logger = get_logger(__name__)

LOCK_FILE = "_lock"
"""Name of the file that is locked. transformers does not push names with a leading underscore to the Hub."""


class FolderLock:
    """Keeps other processes out of a folder until the last reference to this object is gone."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        finalize(self, _release, file)


def _release(file: TextIO) -> None:
    if not file.closed:
        # Closing alone is not enough while a forked child still has its copy.
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_UN)
        file.close()


_held: WeakValueDictionary[Path, FolderLock] = WeakValueDictionary()


def lock_folder(folder: str | os.PathLike[str]) -> FolderLock:
    """
    Lock a folder for this process. Calls for the same folder in one process share one lock.

    Forked children do not hold the lock. Where the file system has no locks, a warning is logged.

    Args:
        folder (`str` or `os.PathLike`):
            The folder. It is created if it does not exist.

    Raises:
        ValueError: If another process holds the lock.
    """
    path = Path(folder).resolve() / LOCK_FILE
    if (held := _held.get(path)) is not None:
        return held
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", encoding="utf-8")
    try:
        import fcntl  # not on Windows

        # `flock` and not `lockf`: the latter is lost when any part of the process closes the file.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read() or "another process"
        file.close()
        raise ValueError(f"{folder} is in use by {holder}. End that run, or choose another folder.") from None
    except (ImportError, OSError) as error:
        logger.warning("%s cannot be locked (%s). Do not start a second run in it.", folder, error)
    else:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
    _held[path] = lock = FolderLock(file)
    return lock


def _let_go() -> None:
    """Close a forked child's copies of the locked files. A copy would keep the lock if its owner is killed."""
    for lock in list(_held.values()):
        lock.file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
