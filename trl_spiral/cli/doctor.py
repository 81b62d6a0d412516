"""`trl-spiral doctor`: what this machine has, what it lacks, and what lacking it costs. Changes nothing, asks no network."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, requires, version

from trl_spiral import __version__
from trl_spiral.text.printable import echo


PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets", "textarena")
PACKAGE = "trl-spiral"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command takes none."""


def run(args: argparse.Namespace) -> None:
    """Prints what is found. What lacks is no error."""
    echo(f"{PACKAGE} {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name in PACKAGES:
        echo(f"  {name:<13}{installed(name) or 'missing: install it to train'}")
    echo("\nWhat runs the model")
    for line in devices():
        echo(f"  {line}")
    echo("\nExtras")
    for extra, packages in extras().items():
        missing = ", ".join(name for name in packages if installed(name) is None)
        echo(f"  {extra:<13}{f'lacks {missing}' if missing else 'complete'}")
    echo("\nWhat contains programs that a model wrote")
    for line in layers():
        echo(f"  {line}")


def installed(name: str) -> str | None:
    """Version of a distribution, or `None`; imports nothing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def extras() -> dict[str, list[str]]:
    """Distributions that each extra of ours asks for; for those that it asks another's extra for, that extra's name."""
    found: dict[str, list[str]] = {}
    for line in requires(PACKAGE) or ():
        # Such as `lm-eval[hf]<0.5,>=0.4.13; extra == 'eval'`
        if match := re.match(r"([\w.-]+)(?:\[(\w+)\])?[^;]*; extra == ['\"](\w+)['\"]", line):
            name, other, extra = match.groups()
            if name != PACKAGE and extra != "dev":
                found.setdefault(extra, []).append(other if name == "trl" else name)
    return found


def devices() -> list[str]:
    """Cores, threads and accelerators."""
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    lines = [f"{os.cpu_count()} cores, {usable_cores()} for this process; OMP_NUM_THREADS {threads}"]
    if installed("torch") is None:
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
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def layers() -> list[str]:
    """What the sandbox finds of what it builds on."""
    from trl_spiral.sandbox.kernel import features

    found = features()
    width = max(len(layer.name) for layer in found) + 2
    lines = [f"{layer.name:<{width}}{layer.found or f'no: {layer.cost}'}" for layer in found]
    bubblewrap = shutil.which("bwrap")
    lines.append(f"{'bubblewrap':<{width}}{bubblewrap or 'no: `BubblewrapSandbox` is refused'}")
    return [*lines, verdict()]


def verdict() -> str:
    """What comes of trying."""
    from trl_spiral.sandbox import CannotContain, Job, LocalSandbox

    try:
        with LocalSandbox(workers=1) as sandbox:
            (outcome,) = sandbox.run([Job("", calls=("6 * 7",))])
    except CannotContain as error:
        return str(error)
    except RuntimeError as error:  # of a kernel or a container around us that promises more than it keeps
        return f"A program could not be run: {error}"
    return "A program was run, and is contained." if outcome.answers else f"A program could not be run: {outcome}"
