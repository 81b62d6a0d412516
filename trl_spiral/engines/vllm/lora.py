"""LoRA adapters for vLLM: checks that it can serve them, files that it reads, and loading into a server."""

from __future__ import annotations

import atexit
import glob
import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import torch
from safetensors.torch import load_file, save_file

from trl_spiral.engines.adapters import INTACT, fingerprint
from trl_spiral.engines.http.client import Client, Received
from trl_spiral.files import replacing
from trl_spiral.text.printable import reported


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""File names that `save_pretrained` gives an adapter."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `max_lora_rank`. https://github.com/vllm-project/vllm/blob/v0.31.0/vllm/config/lora.py#L26"""

TIMEOUT = 120.0
"""Seconds that a server may take to answer. Reading an adapter takes less than one, but a long step may come first."""

_OURS = "trl_spiral-"  # prefix of the names of all adapters that we load into a server


def check_lora_config(config: Any, whose: str = "in training") -> None:
    """
    Check that vLLM 0.31 can serve an adapter next to others, and does not silently serve something else.

    It reads one rank and one alpha for the whole adapter, and only pairs of low-rank matrices.

    Args:
        config ([`~peft.PeftConfig`]):
            Configuration of the adapter.
        whose (`str`, defaults to `"in training"`):
            Words for the adapter in the error message.

    Raises:
        ValueError: If vLLM cannot serve such an adapter.
    """
    init = getattr(config, "init_lora_weights", True)
    problems = {
        "it is not LoRA": str(config.peft_type).rpartition(".")[2] != "LORA",
        "`use_dora`": getattr(config, "use_dora", False),
        "`modules_to_save`": getattr(config, "modules_to_save", None),
        "`bias`": getattr(config, "bias", "none") != "none" or getattr(config, "lora_bias", False),
        "`rank_pattern` or `alpha_pattern`": getattr(config, "rank_pattern", None)
        or getattr(config, "alpha_pattern", None),
        "`target_parameters`": getattr(config, "target_parameters", None),
        "`trainable_token_indices`": getattr(config, "trainable_token_indices", None),
        "`layer_replication`": getattr(config, "layer_replication", None),
        # These change the weights below the adapter, which other adapters need unchanged.
        f"`init_lora_weights={init!r}`": init not in INTACT,
        f"a rank of {getattr(config, 'r', 0)}, above {RANKS[-1]}": getattr(config, "r", 0) > RANKS[-1],
    }
    found = [problem for problem, present in problems.items() if present]
    if found:
        raise ValueError(
            f"vLLM cannot serve the adapter {whose} next to others ({', '.join(found)}). Use plain LoRA, or generate "
            "with transformers: `use_vllm=False`."
        )


def check_adapter(folder: str | Path) -> None:
    """Apply `check_lora_config` to the adapter in a folder."""
    config = json.loads((Path(folder) / CONFIG).read_text())
    check_lora_config(SimpleNamespace(**config), f"in {folder}")


def largest_rank(rank: int) -> int:
    """Return the smallest `max_lora_rank` of vLLM for adapters of this rank."""
    return next(known for known in RANKS if known >= rank)


def is_adapter(folder: str | Path) -> bool:
    """Return whether a folder holds an adapter, not whole weights."""
    return (Path(folder) / CONFIG).is_file()


@cache
def scratch_folder() -> Path:
    """
    Return a folder of this process in `TMPDIR`.

    It is removed at exit, or after a kill by the next process on this machine.
    """
    # With the name of the machine, because other machines may share `TMPDIR`.
    ours = f"trl_spiral_{socket.gethostname()}_"
    _sweep(ours)
    folder = Path(tempfile.mkdtemp(prefix=f"{ours}{os.getpid()}_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _sweep(prefix: str) -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{glob.escape(prefix)}*"):
        pid = folder.name.removeprefix(prefix).partition("_")[0]
        with suppress(FileNotFoundError):  # if another process removes it at the same time
            if pid.isdecimal() and folder.stat().st_uid == os.getuid() and not _lives(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def save_active_adapter(model: Any, folder: Path) -> Path:
    """
    Save the active adapter of a model as `save_pretrained` does. The folder appears only when it is complete.

    Args:
        model ([`~peft.PeftModel`]):
            The model. Sharded parameters must be gathered.
        folder (`Path`):
            Folder to create.

    Returns:
        `Path`: The folder.

    Raises:
        ValueError: If anything but pairs of low-rank matrices is trained.
    """
    from peft import get_peft_model_state_dict

    name = model.active_adapter
    tensors = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    if strange := [key for key in tensors if not re.search(r"\.lora_[AB]\.weight$", key)]:
        raise ValueError(
            f"vLLM cannot serve an adapter with `{strange[0]}` next to others. Train linear layers only, or generate "
            "with transformers: `use_vllm=False`."
        )
    with replacing(folder) as partial:
        partial.mkdir()
        model.peft_config[name].save_pretrained(partial)
        save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, partial / WEIGHTS)
    return folder


def adapter_of_zeros(like: str | Path) -> Path:
    """Return the folder of an adapter of zeros with the shapes of another. It is removed at exit."""
    config = (Path(like) / CONFIG).read_bytes()
    folder = scratch_folder() / f"zeros-{hashlib.blake2b(config, digest_size=8).hexdigest()}"
    if not folder.exists():
        folder.mkdir()
        (folder / CONFIG).write_bytes(config)
        tensors = load_file(Path(like) / WEIGHTS)
        save_file({name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, folder / WEIGHTS)
    return folder


def load_into_server(base_url: str, folders: Mapping[str, Path]) -> dict[str, str]:
    """
    Load these adapters into a vLLM server, and unload all other adapters of ours.

    The server is asked for its adapters each time: it may have restarted, or have served a run that was killed.

    Args:
        base_url (`str`):
            Address of the server, without `/v1`.
        folders (`Mapping[str, Path]`):
            Folders of adapters by policy name. The server must be able to read them.

    Returns:
        `dict[str, str]`: The server's names of the adapters, by policy name.

    Raises:
        RuntimeError: If the server does not accept an adapter, or does not answer.
    """
    # vLLM caches adapters by name, so a folder that is written again needs another name.
    names = {policy: f"{_OURS}{policy}-{fingerprint(folder)}" for policy, folder in folders.items()}
    # TRL's own session retries after an error of the server, and hides its message.
    with closing(Client(base_url, timeout=TIMEOUT)) as server:
        try:
            models = server.request("/v1/models")
            _check(server, models, f"The server at {base_url} does not list its adapters")
            held = {model["id"] for model in json.loads(models.content)["data"]}
            for name in sorted(held - set(names.values())):
                if name.startswith(_OURS):
                    answer = server.request("/v1/unload_lora_adapter", {"lora_name": name})
                    _check(server, answer, f"The server at {base_url} does not drop the adapter {name}")
            for policy, name in names.items():
                if name not in held:
                    folder = Path(folders[policy]).absolute()
                    answer = server.request("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
                    what = f"The server at {base_url} does not take the adapter in {folder}"
                    _check(server, answer, what, _remedy(folder))
        except (httpx2.HTTPError, OSError, ValueError, KeyError, TypeError) as error:
            raise RuntimeError(
                f"The server at {reported(base_url)} was asked for its adapters and gave no answer that can be read "
                f"({server.reason(error)}). See its log, and start it again."
            ) from error
    return names


def _check(server: Client, answer: Received, what: str, remedy: str = "See its log, and start it again.") -> None:
    if answer.status >= 400:
        raise RuntimeError(f"{reported(what)} (HTTP {answer.status}: {server.message(answer.content)}). {remedy}")


def _remedy(folder: Path) -> str:
    rank = json.loads((folder / CONFIG).read_text())["r"]
    return (
        "Start it with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True` and with `--enable-lora --max-lora-rank "
        f"{largest_rank(rank)} --max-loras N`, where N is the largest number of opponents plus 2, and let it read "
        "that folder. The adapter in training is in `TMPDIR`."
    )
