"""Imports from the standard library, whose folder may not be listed."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, all_suffixes
from importlib.util import spec_from_file_location


class LibraryFinder:
    """
    Find the modules of a folder by asking for each file by name.

    Python's own finder lists the folder. Landlock would have to allow that for everything below, site-packages
    included.
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
    """Have this process find the modules of all folders that are now in `sys.path` without listing them."""
    folders = frozenset(filter(os.path.isdir, sys.path))

    def hook(folder: str) -> LibraryFinder:
        if folder not in folders:
            raise ImportError(folder)
        return LibraryFinder(folder)

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
