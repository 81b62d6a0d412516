"""Write files atomically, detect damaged files by their digests, and report a full disk."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash


FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBE = 1 << 20


def digest_of(path: Path) -> str:
    """Return the XXH3 digest of a file, at about 4 GB/s from memory. It finds damage, not forgery."""
    found = xxhash.xxh3_128()
    with path.open("rb") as file:
        while part := file.read(1 << 22):
            found.update(part)
    return found.hexdigest()


def damage(path: Path, size: int, digest: str) -> str | None:
    """Return a clause that says how a file differs from what was written; `None` if it does not."""
    if not path.is_file():
        return "is missing"
    found = path.stat().st_size
    if found != size:
        return f"has {found} bytes and should have {size}"
    return None if digest_of(path) == digest else "is not what was written"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """
    Yield a path next to `path` to write to, and rename it to `path` in the end.

    After a crash, either the old content or the whole new content is there. Works for a new folder, too.
    """
    partial = path.with_name(f"{path.name}.partial")
    yield partial
    os.replace(partial, path)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with naming_full_disk(path.parent), replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder by hard links, or file by file if the file system has no hard links."""
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted(source.rglob("*")):
        if path.is_file():
            twin = target / path.relative_to(source)
            twin.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, twin)
            except OSError:
                shutil.copy2(path, twin)


@contextmanager
def naming_full_disk(folder: Path, advice: str = "Free some space.") -> Iterator[None]:
    """
    Turn any error that a full disk causes into one sentence.

    Torch does not report why it cannot write. After an error of another kind than `OSError`, the folder is probed.

    Args:
        folder (`Path`):
            Folder of the files.
        advice (`str`, *optional*):
            Remedy, as a sentence.

    Raises:
        OSError: If the disk or the user's quota is full.
    """
    try:
        yield
    except Exception as error:
        code = _code_of(error, folder)
        if code not in FULL:
            raise
        raise OSError(f"The disk is full: {folder} cannot be written ({os.strerror(code)}). {advice}") from error


def _code_of(error: Exception, folder: Path) -> int:
    """Return the system's error code of a failed write, or 0."""
    if isinstance(error, OSError):
        return error.errno or 0
    if named := re.search(r"\(os error (\d+)\)", str(error)):  # Rust's format, for safetensors
        return int(named[1])
    return _probe(folder)


def _probe(folder: Path) -> int:
    """Write a megabyte into a folder. Return the system's error code, or 0."""
    path = folder / f".probe-{os.getpid()}"
    try:
        path.write_bytes(bytes(_PROBE))
    except OSError as error:
        return error.errno or 0
    finally:
        path.unlink(missing_ok=True)
    return 0
