"""Imports from the standard library without listing its folder."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, all_suffixes
from importlib.util import spec_from_file_location


class LibraryFinder:
    """
    Find the modules of a folder by their file names.

    Python's own finder lists the folder. Landlock would have to allow that for all folders below, including
    site-packages.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(self, name: str, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module or package, or `None` if the folder has neither."""
        stem = f"{self.folder}/{name.rpartition('.')[2]}"
        for ending in ("/__init__.py", *all_suffixes()):
            if os.path.isfile(stem + ending):
                return spec_from_file_location(name, stem + ending)
        return None


def install() -> None:
    """Find the modules in the folders of `sys.path` without listing them, from now on in this process."""
    folders = frozenset(filter(os.path.isdir, sys.path))

    def hook(folder: str) -> LibraryFinder:
        if folder not in folders:
            raise ImportError(folder)
        return LibraryFinder(folder)

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
