"""
Settings that depend on the machine, for whoever has not set them: precision, batch size, reporting.

The order of precedence is argument > environment > YAML > platform default > the recipe's own default. Nothing here asks the network.
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
GiB from which a recipe's batch fits as it is: an A100 of "40 GB" reports 39.4. Eight rows of 1,024 tokens have 4.6 GiB of float32
logits over Qwen2.5's 151,936 tokens, of which a step holds several copies, beside 6 GiB of weights. Reckoned, not measured.
"""

KERNELS = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG", "VLLM_BATCH_INVARIANT")
"""Environment variables that choose among kernels, which round differently."""

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
"""Libraries whose version may change a run's numbers."""

_PRECISION = ("bf16", "fp16", "use_cpu")
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
_EVALUATION = "per_device_eval_batch_size"
_UNSET = object()


@dataclass(frozen=True, slots=True)
class Device:
    """
    What a process trains on.

    Attributes:
        kind (`str`):
            `"cpu"`, `"cuda"`, or what torch calls another accelerator.
        capability (`tuple[int, int]`, *optional*):
            Compute capability of a CUDA device: (7, 0) is a V100, (7, 5) a T4, (8, 0) an A100.
        memory (`float`, defaults to `inf`):
            Of a CUDA device, in GiB; unknown by default, so that no batch is divided for want of it.
    """

    kind: str
    capability: tuple[int, int] | None = None
    memory: float = math.inf


def this_device() -> Device:
    """The device of this process, as torch sees it."""
    import torch

    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        return Device("cuda", (found.major, found.minor), found.total_memory / 2**30)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return Device(accelerator.type if accelerator else "cpu")


def describe_machine(processes: int) -> dict[str, Any]:
    """
    Return what a run's numbers depend on beside its settings: two runs of one seed are equal where all of it is.

    Args:
        processes (`int`):
            Number of processes of the run.

    Returns:
        `dict[str, Any]`: `processes`, `threads`, `architecture`, `cpu` (the instruction set that torch's kernels use),
        `accelerator`, and under `environment` the variables that choose kernels, where they are set.
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
    """Return the versions of Python and of the installed libraries that a run's numbers depend on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def platform_defaults(
    recipe: Mapping[str, Any], given: Mapping[str, Any] | None = None, device: Device | None = None
) -> dict[str, Any]:
    """
    A recipe's settings, fitted to the machine. For `TrlParser.set_defaults`.

    Without an accelerator, float32 on the CPU. On a GPU of compute capability 8 or more (A100) bfloat16, below it (V100, T4)
    float16 and at most half the batch. Less memory than `AMPLE_MEMORY` halves the batch until it is in proportion; each halving
    doubles `gradient_accumulation_steps`, so that a step sees as many rows. A `per_device_eval_batch_size` of the recipe's is divided
    alike, down to `num_generations`. Where the Hub is off limits (`HF_HUB_OFFLINE`), nothing is
    reported to anybody.

    Args:
        recipe (`Mapping[str, Any]`):
            The recipe's own settings.
        given (`Mapping[str, Any]`, *optional*):
            What was asked for explicitly. It is not part of what is returned, and nothing is returned that contradicts it.
        device ([`Device`], *optional*):
            What is trained on; by default [`this_device`].

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
    `parser.parse_args_and_config(arguments)`, with a recipe's settings fitted to the machine for what is not set explicitly.

    The environment has its say through `accelerate launch`, whose `--mixed_precision` and `--cpu` arrive as
    `ACCELERATE_MIXED_PRECISION` and `ACCELERATE_USE_CPU`. Which precision is one question: `--bf16 True` is also an answer to what
    a YAML file or this machine says about `fp16`.

    Args:
        parser ([`~trl.TrlParser`]):
            For a training configuration, and whatever else the recipe has.
        arguments (`Sequence[str]`):
            Of the command line, `--config FILE` perhaps among them.
        recipe (`Mapping[str, Any]`):
            The recipe's own settings.

    Returns:
        `tuple`: What the parser returns.
    """
    given: dict[str, Any] = {}
    file = _from_yaml(arguments)
    parser.set_defaults_with_config(**file)  # before any look at the arguments, some of which it makes optional
    named = _from_arguments(parser, arguments, [*_PRECISION, *_BATCH, _EVALUATION, "num_generations"])
    for level in (file, _from_environment(), named):
        for one, other in (("bf16", "fp16"), ("fp16", "bf16")):
            if level.get(one):
                given[other] = False
        given |= level
    parser.set_defaults(**platform_defaults(recipe, given))
    # In front of the arguments, where they are above the YAML file and below whatever follows.
    settled = [f"--{name}={given[name]}" for name in _PRECISION if name in given]
    return tuple(parser.parse_args_and_config([*settled, *arguments]))


def explicit(parser: Any, arguments: Sequence[str], name: str) -> Any:
    """
    What something is set to explicitly, in whatever spelling on the command line or in the YAML file of `--config`, or `None`.

    For recipes whose other settings depend on it, as on `games`.

    Args:
        parser ([`~trl.TrlParser`]):
            Which knows the name.
        arguments (`Sequence[str]`):
            Of the command line.
        name (`str`):
            Of a setting.
    """
    return _from_arguments(parser, arguments, [name]).get(name, _from_yaml(arguments).get(name))


def is_set(parser: Any, arguments: Sequence[str], name: str) -> bool:
    """Whether something is set explicitly, as on `model_name_or_path` much depends. Arguments are those of [`explicit`]."""
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
        group = int(settings.get("num_generations", 1))  # TRL wants whole groups in a batch
        fitting[_EVALUATION] = max(int(settings[_EVALUATION]) // parts // group, 1) * group
    return fitting


def _from_yaml(arguments: Sequence[str]) -> dict[str, Any]:
    """What the file of `--config` sets; `TrlParser` reads it once more and complains of what is wrong with it."""
    import yaml

    if "--config" not in arguments[:-1]:
        return {}
    with open(arguments[list(arguments).index("--config") + 1]) as file:
        found = yaml.safe_load(file)
    return {name: value for name, value in found.items() if name != "env"} if isinstance(found, dict) else {}


def _from_environment() -> dict[str, Any]:
    # `accelerate launch` writes "no" and "False" itself where nobody said anything, so these say nothing here.
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION")
    found = {precision: True} if precision in ("bf16", "fp16") else {}
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"):
        found["use_cpu"] = True
    return found


def _from_arguments(parser: Any, arguments: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """What the command line sets of these. Argparse leaves alone whatever is in the namespace already, unless an argument names it."""
    from argparse import Namespace

    found, _ = parser.parse_known_args(list(arguments), Namespace(**dict.fromkeys(names, _UNSET)))
    return {name: value for name in names if (value := getattr(found, name)) is not _UNSET}
