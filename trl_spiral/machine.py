"""
Defaults that depend on the machine: precision, batch size, reporting.

Precedence: argument > environment > YAML > machine > the recipe's own default. Nothing here uses the network.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any


AMPLE_MEMORY = 39.0
"""
GPU memory in GiB that fits a recipe's batch: an A100 of "40 GB" reports 39.4. Computed, not measured: eight rows of
1,024 tokens have 4.6 GiB of float32 logits over Qwen2.5's 151,936 tokens. A step holds several copies of them, and 6
GiB of weights.
"""

KERNELS = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG", "VLLM_BATCH_INVARIANT")
"""Environment variables that select kernels, which round differently."""

LIBRARIES = (
    "trl-spiral",
    "trl",
    "transformers",
    "accelerate",
    "peft",
    "vllm",
    "torch",
    "numpy",
    "tokenizers",
    "textarena",
)
"""Libraries whose version can change the numbers of a run."""

_PRECISION = ("bf16", "fp16", "use_cpu")
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
_EVALUATION = "per_device_eval_batch_size"
_UNSET = object()


@dataclass(frozen=True, slots=True)
class Device:
    """
    Device that a process trains on.

    Attributes:
        kind (`str`):
            `"cpu"`, `"cuda"`, or torch's name of another accelerator.
        capability (`tuple[int, int]`, *optional*):
            Compute capability of a CUDA device: (7, 0) is a V100, (7, 5) a T4, (8, 0) an A100.
        memory (`float`, defaults to `inf`):
            Memory of a CUDA device in GiB. If it is unknown (the default), no batch is divided because of it.
    """

    kind: str
    capability: tuple[int, int] | None = None
    memory: float = math.inf


def this_device() -> Device:
    """Return the device of this process, as torch reports it."""
    import torch

    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        return Device("cuda", (found.major, found.minor), found.total_memory / 2**30)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return Device(accelerator.type if accelerator else "cpu")


def describe_machine(processes: int) -> dict[str, Any]:
    """
    Return the properties of the machine that the numbers of a run depend on.

    Two runs with the same seed and settings are equal if these properties are.

    Args:
        processes (`int`):
            Number of processes of the run.

    Returns:
        `dict[str, Any]`: `processes`, `threads`, `architecture`, `cpu` (the instruction set that torch's kernels use),
        `accelerator`, and `environment` with the variables that select kernels, if set.
    """
    import torch

    return {
        "processes": processes,
        "threads": torch.get_num_threads(),
        "architecture": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "environment": {name: os.environ[name] for name in KERNELS if name in os.environ},
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that the numbers of a run depend on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def platform_defaults(
    recipe: Mapping[str, Any], given: Mapping[str, Any] | None = None, device: Device | None = None
) -> dict[str, Any]:
    """
    Return a recipe's settings, adapted to the machine, for `TrlParser.set_defaults`.

    - Without an accelerator: float32 on the CPU.
    - CUDA with compute capability 8 or higher (A100): bfloat16. Below (V100, T4): float16 and at most half the batch.
    - With less memory than `AMPLE_MEMORY`, the batch size is halved until it fits. Each halving doubles
      `gradient_accumulation_steps`, so that a step has the same number of rows. The recipe's
      `per_device_eval_batch_size` is divided alike, but not below `num_generations`.
    - With `HF_HUB_OFFLINE`, `report_to` is `"none"`.

    Args:
        recipe (`Mapping[str, Any]`):
            The recipe's own settings.
        given (`Mapping[str, Any]`, *optional*):
            Settings that the user has set. They are not returned, and no returned setting contradicts them.
        device ([`Device`], *optional*):
            Device to train on. Default: [`this_device`].

    Returns:
        `dict[str, Any]`: Settings by name.
    """
    from huggingface_hub import is_offline_mode

    given = given or {}
    device = device or this_device()
    if {**recipe, **given}.get("use_cpu"):
        device = Device("cpu")
    settings = {**recipe, **({"report_to": "none"} if is_offline_mode() else {})}
    if device.kind == "cpu":
        settings |= {"use_cpu": True, "bf16": False, "fp16": False}
    elif device.capability is not None:
        old = device.capability < (8, 0)
        settings |= {"bf16": not old and not given.get("fp16"), "fp16": old and not given.get("bf16")}
        if not any(name in given for name in _BATCH):
            settings |= _fitting_batch({**recipe, **given}, device.memory, old)
    return {name: value for name, value in settings.items() if name not in given}


def parse_for_platform(parser: Any, arguments: Sequence[str], recipe: Mapping[str, Any]) -> tuple[Any, ...]:
    """
    Return `parser.parse_args_and_config(arguments)`, with defaults from the recipe and the machine.

    The environment is that of `accelerate launch`, whose `--mixed_precision` and `--cpu` set
    `ACCELERATE_MIXED_PRECISION` and `ACCELERATE_USE_CPU`. Precision is one setting: `--bf16 True` overrides `fp16` of
    a YAML file and of the machine.

    Args:
        parser ([`~trl.TrlParser`]):
            Parser of a training configuration, and of other dataclasses of the recipe.
        arguments (`Sequence[str]`):
            Arguments of the command line, with or without `--config FILE`.
        recipe (`Mapping[str, Any]`):
            The recipe's own settings.

    Returns:
        `tuple`: The dataclasses that the parser returns.
    """
    given: dict[str, Any] = {}
    file = _from_yaml(arguments)
    parser.set_defaults_with_config(**file)  # first, since it makes required arguments optional
    named = _from_arguments(parser, arguments, [*_PRECISION, *_BATCH, _EVALUATION, "num_generations"])
    for level in (file, _from_environment(), named):
        for one, other in (("bf16", "fp16"), ("fp16", "bf16")):
            if level.get(one):
                given[other] = False
        given |= level
    parser.set_defaults(**platform_defaults(recipe, given))
    # Before the arguments: these override the YAML file, and later arguments override these.
    settled = [f"--{name}={given[name]}" for name in _PRECISION if name in given]
    return tuple(parser.parse_args_and_config([*settled, *arguments]))


def explicit(parser: Any, arguments: Sequence[str], name: str) -> Any:
    """
    Return the value of a setting on the command line or in the YAML file of `--config`; `None` if it is not set.

    For recipes in which other settings depend on it, as on `games`.

    Args:
        parser ([`~trl.TrlParser`]):
            Parser that has the setting.
        arguments (`Sequence[str]`):
            Arguments of the command line.
        name (`str`):
            Name of the setting.
    """
    return _from_arguments(parser, arguments, [name]).get(name, _from_yaml(arguments).get(name))


def is_set(parser: Any, arguments: Sequence[str], name: str) -> bool:
    """Return whether a setting has a value on the command line or in the YAML file. Arguments as in [`explicit`]."""
    return explicit(parser, arguments, name) is not None


def _fitting_batch(settings: Mapping[str, Any], memory: float, old: bool) -> dict[str, int]:
    batch = int(settings.get("per_device_train_batch_size", 8))  # TRL's and transformers' own defaults
    accumulation = int(settings.get("gradient_accumulation_steps", 1))
    parts = 2 if old else 1
    while memory * parts < AMPLE_MEMORY and parts < batch:
        parts *= 2
    while batch % parts:
        parts //= 2
    fitting = dict(zip(_BATCH, (batch // parts, accumulation * parts), strict=True))
    if _EVALUATION in settings:
        group = int(settings.get("num_generations", 1))  # TRL requires whole groups in a batch
        fitting[_EVALUATION] = max(int(settings[_EVALUATION]) // parts // group, 1) * group
    return fitting


def _from_yaml(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the settings in the file of `--config`. `TrlParser` reads it again, and reports errors in it."""
    import yaml

    if "--config" not in arguments[:-1]:
        return {}
    with open(arguments[list(arguments).index("--config") + 1]) as file:
        found = yaml.safe_load(file)
    return {name: value for name, value in found.items() if name != "env"} if isinstance(found, dict) else {}


def _from_environment() -> dict[str, Any]:
    # `accelerate launch` sets "no" and "False" by default, so these are no explicit settings.
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION")
    found = {precision: True} if precision in ("bf16", "fp16") else {}
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"):
        found["use_cpu"] = True
    return found


def _from_arguments(parser: Any, arguments: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """Return the values of these settings on the command line. Argparse keeps the other values of a namespace."""
    from argparse import Namespace

    found, _ = parser.parse_known_args(list(arguments), Namespace(**dict.fromkeys(names, _UNSET)))
    return {name: value for name in names if (value := getattr(found, name)) is not _UNSET}
