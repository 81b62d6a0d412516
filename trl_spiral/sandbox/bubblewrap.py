"""The local sandbox inside namespaces, by bubblewrap (https://github.com/containers/bubblewrap)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from glob import glob

from trl_spiral.sandbox import seccomp
from trl_spiral.sandbox.base import CannotContain, Limits
from trl_spiral.sandbox.helper import PYTHON
from trl_spiral.sandbox.local import LocalSandbox


# `--die-with-parent` refers to the *thread* that started it, which here waits for the program. /proc is for the helper
# process and shows no outside process; programs cannot read it.
_NAMESPACES = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--proc", "/proc")
# Folders of shared libraries, which some modules of the standard library need.
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64")
_WAIT = 30.0  # seconds for an empty program


class BubblewrapSandbox(LocalSandbox):
    """
    Runs programs in contained processes of this machine, each in its own namespaces.

    All guarantees of [`LocalSandbox`] hold. In addition a program sees only its own processes and those of its helper,
    no network device, and no files except Python's library and the paths in the limits. Each program has a new Python
    process that shares nothing with others, so each costs the start of one. The tests of a trial run in the namespaces
    of the program, but in another process.

    Args:
        limits ([`Limits`], *optional*):
            Limits of each program.
        workers (`int`, *optional*):
            Number of parallel programs; by default one for each core available to this process, divided by the ranks
            of this machine (`LOCAL_WORLD_SIZE`).
        allow_degraded (`bool`, defaults to `False`):
            Whether to run without seccomp if the kernel lacks it. A missing Landlock is always accepted, since
            bubblewrap hides the files too.

    Raises:
        CannotContain: If bubblewrap is missing or cannot create namespaces, or if the kernel lacks seccomp and that is
            not allowed.
        ValueError: If `workers` is not positive, or a path of the limits does not exist.
    """

    def __init__(self, limits: Limits | None = None, workers: int | None = None, allow_degraded: bool = False) -> None:
        filtered = sys.platform == "linux" and seccomp.is_there()
        super().__init__(limits, workers, allow_degraded or filtered)

    def _prefix(self) -> list[str]:
        prefix = command(self.limits)
        try:
            done = subprocess.run(
                [*prefix, PYTHON, "-I", "-S", "-c", ""],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env={},
                timeout=_WAIT,
            )
        except subprocess.TimeoutExpired:
            raise CannotContain(f"Bubblewrap did not start Python within {_WAIT:g} seconds.") from None
        if done.returncode != 0:
            raise CannotContain(
                f"Bubblewrap cannot run Python here ({done.stderr.strip()}). Allow unprivileged user namespaces in "
                "the kernel and in the surrounding container, or use `LocalSandbox`."
            )
        return prefix


def command(limits: Limits) -> list[str]:
    """Return the prefix that makes a command run in namespaces."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise CannotContain(
            "Bubblewrap is not installed: there is no `bwrap` in PATH. Install your system's package `bubblewrap`, or "
            "use `LocalSandbox`."
        )
    return [bwrap, *_NAMESPACES, *_files(limits), "--remount-ro", "/", "--chdir", "/", "--"]


def _files(limits: Limits) -> list[str]:
    """Return the options that fill the new root, which is empty at first."""
    options = ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for path in _LIBRARIES:
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]  # on systems with all libraries below /usr
        elif os.path.isdir(path):
            options += ["--ro-bind", path, path]
    # Python itself: its library, its shared library next to it, and the program, through the link that names it.
    needed = {os.path.dirname(os.__file__), f"{sys.base_exec_prefix}/{sys.platlibdir}", f"{sys.base_exec_prefix}/lib"}
    for path in sorted(needed):
        options += ["--ro-bind-try", path, path]
    python = os.path.realpath(PYTHON)
    options += ["--ro-bind", python, python]
    if python != PYTHON:
        options += ["--symlink", python, PYTHON]
    hidden = sorted(_third_party(needed | set(_LIBRARIES)))
    for path in hidden:
        options += ["--tmpfs", path]
    for path in limits.readable:
        options += ["--ro-bind", path, path]
    for path in limits.writable:
        options += ["--bind", path, path]
    for path in hidden:
        options += ["--remount-ro", path]
    return options


def _third_party(libraries: set[str]) -> set[str]:
    """Return the folders of third-party packages below libraries."""
    patterns = [f"{library}/{python}*-packages" for library in libraries for python in ("", "python3*/")]
    return {os.path.realpath(path) for pattern in patterns for path in glob(pattern)}
