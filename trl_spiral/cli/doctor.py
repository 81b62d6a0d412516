"""`trl-spiral doctor`: what this machine has for training and for running programs. Offline; it changes nothing."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, requires, version

from trl_spiral import __version__
from trl_spiral.cli.command import Command
from trl_spiral.text.printable import echo


PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets", "textarena")
PACKAGE = "trl-spiral"


class DoctorCommand(Command):
    """Shows packages, devices, extras and the layers of the sandbox. A missing part is not an error."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing: the command has no arguments."""

    def run(self, args: argparse.Namespace) -> None:
        echo(f"{PACKAGE} {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
        for name in PACKAGES:
            echo(f"  {name:<13}{installed_version(name) or 'missing: required for training'}")
        echo("\nDevices")
        for line in devices():
            echo(f"  {line}")
        echo("\nExtras")
        for extra, packages in extras().items():
            missing = ", ".join(name for name in packages if installed_version(name) is None)
            echo(f"  {extra:<13}{f'missing {missing}' if missing else 'complete'}")
        echo("\nSandbox for programs that a model wrote")
        for line in [*sandbox_layers(), try_sandbox()]:
            echo(f"  {line}")


def installed_version(name: str) -> str | None:
    """Return the version of a distribution, or `None`, without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def extras() -> dict[str, list[str]]:
    """
    Return the distributions of each extra.

    If an extra requires another package's extra, as in `trl[vllm]`, it is the name of that extra.
    """
    found: dict[str, list[str]] = {}
    for line in requires(PACKAGE) or ():
        # Such as `lm-eval[hf]<0.5,>=0.4.13; extra == 'eval'`
        if match := re.match(r"([\w.-]+)(?:\[(\w+)\])?[^;]*; extra == ['\"](\w+)['\"]", line):
            name, other, extra = match.groups()
            if name != PACKAGE and extra != "dev":
                found.setdefault(extra, []).append(other if name == "trl" else name)
    return found


def devices() -> list[str]:
    """Return one line on cores and threads, and one on the accelerators."""
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    lines = [f"{os.cpu_count()} cores, {usable_cores()} for this process; OMP_NUM_THREADS {threads}"]
    if installed_version("torch") is None:
        return [*lines, "no torch"]
    import torch

    from trl_spiral.machine import this_device

    device = this_device()
    if device.kind == "cpu":
        return [*lines, "no accelerator: float32 on the CPU"]
    line = f"{torch.accelerator.device_count()} × {device.kind}"
    if device.capability:
        precision = "bf16" if device.capability >= (8, 0) else "no bf16, hence fp16"
        capability = ".".join(map(str, device.capability))
        line += f" of {device.memory:.0f} GiB, compute capability {capability}: {precision}"
    return [*lines, line]


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sandbox_layers() -> list[str]:
    """Return one line for each layer of the sandbox: its version, or the consequence if it is missing."""
    from trl_spiral.sandbox.kernel import features

    found = features()
    width = max(len(layer.name) for layer in found) + 2
    lines = [f"{layer.name:<{width}}{layer.found or f'no: {layer.cost}'}" for layer in found]
    bubblewrap = shutil.which("bwrap")
    return [*lines, f"{'bubblewrap':<{width}}{bubblewrap or 'no: `BubblewrapSandbox` is refused'}"]


def try_sandbox() -> str:
    """Run a program in the sandbox, and return the result as one sentence."""
    from trl_spiral.sandbox import CannotContain, Job, LocalSandbox

    try:
        with LocalSandbox(workers=1) as sandbox:
            (outcome,) = sandbox.run([Job("", calls=("6 * 7",))])
    except CannotContain as error:
        return str(error)
    except RuntimeError as error:  # a kernel or a container that does not do what it reports
        return f"A program could not be run: {error}"
    return "A program was run, and is contained." if outcome.answers else f"A program could not be run: {outcome}"
