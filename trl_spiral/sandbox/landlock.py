"""
The files that a program may open, by Landlock (https://docs.kernel.org/userspace-api/landlock.html).

All others are denied. Without Landlock a program could read all files of its user: keys, datasets, `/proc`.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from trl_spiral.sandbox.libc import system_call


# include/uapi/linux/landlock.h; these three numbers are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER = 1 << 13  # moving a file from one folder to another
_FOR_WRITING = _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER
_FILE_RIGHTS_SINCE = {1: 13, 2: 14, 3: 15, 5: 16}  # number of rights on files, by the version that added them
NETWORK_SINCE, SCOPES_SINCE, TRUNCATE_SINCE = 4, 6, 3


def version() -> int:
    """Return the version of Landlock in this kernel; 0 if it is missing or disabled."""
    try:
        return system_call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def build_rules(readable: tuple[str, ...], writable: tuple[str, ...]) -> int:
    """
    Build rules that allow the standard library and the given paths.

    Returns:
        `int`: A descriptor for [`apply_rules`].
    """
    abi = version()
    files = (1 << max(rights for since, rights in _FILE_RIGHTS_SINCE.items() if since <= abi)) - 1
    network = 0b11 if abi >= NETWORK_SINCE else 0  # binding and connecting TCP sockets
    scopes = 0b11 if abi >= SCOPES_SINCE else 0  # abstract unix sockets of others, signals to others
    handled = struct.pack("=QQQ", files, network, scopes)
    rules = system_call(_CREATE_RULESET, ctypes.c_char_p(handled), len(handled), 0)
    # Not the library's own folder: a right to list it would hold for all folders below, including site-packages.
    for path in (*standard_library(), *map(Path, readable)):
        _allow(rules, path, _READ_FILE | _READ_DIR)
    for path in map(Path, writable):
        _allow(rules, path, (_READ_FILE | _READ_DIR | _FOR_WRITING) & files)
    return rules


def apply_rules(rules: int) -> None:
    """Apply rules to the calling process irrevocably."""
    system_call(_RESTRICT_SELF, rules, 0)


def standard_library() -> Iterator[Path]:
    """Yield the paths in the standard library's folders, except third-party packages, and C libraries."""
    for folder in map(Path, sys.path):
        if folder.is_dir():
            yield from (path for path in folder.iterdir() if path.name not in ("site-packages", "dist-packages"))
        else:
            yield folder  # a zipped library
    # C libraries of extension modules, such as libffi of `ctypes`: next to libc, or next to Python. Files and not
    # folders, since a folder of libraries may contain anything, such as site-packages.
    mapped = (line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines())
    folders = {Path(path).parent for path in mapped if ".so" in path and "lib-dynload" not in path}
    for folder in {*folders, Path(sys.base_prefix, "lib")}:
        yield from folder.glob("*.so*")


def _allow(rules: int, path: Path, rights: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not path.is_dir():
            rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE  # the rights that apply to files
        rule = struct.pack("=Qi", rights, beneath)
        system_call(_ADD_RULE, rules, _PATH_BENEATH, ctypes.c_char_p(rule), 0)
    finally:
        os.close(beneath)
