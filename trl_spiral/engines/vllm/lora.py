"""LoRA adapters as vLLM takes them: which it can serve, where it reads them, and how a server is given them."""

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

from trl_spiral.engines.http.client import Received
from trl_spiral.engines.http.retrying import PatientTransport
from trl_spiral.engines.snapshots import INTACT, fingerprint
from trl_spiral.files import replacing
from trl_spiral.text.printable import reported


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""What `save_pretrained` calls the files of an adapter."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as its largest rank. https://github.com/vllm-project/vllm/blob/v0.31.0/vllm/config/lora.py#L26"""

TIMEOUT = 120.0
"""Seconds that a server may take to answer. It reads an adapter in less than one, and may have a long step to finish first."""

_OURS = "trl_spiral-"  # how the names of all that we load into a server begin


def check_lora_config(config: Any, whose: str = "in training") -> None:
    """
    What vLLM 0.31 would refuse, or serve as something else without a word: it reads a rank and an alpha for the whole
    adapter, and nothing but pairs of low-rank matrices.

    Args:
        config ([`~peft.PeftConfig`]):
            Of an adapter.
        whose (`str`, defaults to `"in training"`):
            Which adapter that is.

    Raises:
        ValueError: If vLLM cannot serve such an adapter beside others.
    """
    init = getattr(config, "init_lora_weights", True)
    problems = {
        "it is no LoRA": str(config.peft_type).rpartition(".")[2] != "LORA",
        "`use_dora`": getattr(config, "use_dora", False),
        "`modules_to_save`": getattr(config, "modules_to_save", None),
        "`bias`": getattr(config, "bias", "none") != "none" or getattr(config, "lora_bias", False),
        "`rank_pattern` or `alpha_pattern`": getattr(config, "rank_pattern", None)
        or getattr(config, "alpha_pattern", None),
        "`target_parameters`": getattr(config, "target_parameters", None),
        "`trainable_token_indices`": getattr(config, "trainable_token_indices", None),
        "`layer_replication`": getattr(config, "layer_replication", None),
        # These change the weights below the adapter, so that nothing else fits on them.
        f"`init_lora_weights={init!r}`": init not in INTACT,
        f"a rank of {getattr(config, 'r', 0)}, above {RANKS[-1]}": getattr(config, "r", 0) > RANKS[-1],
    }
    found = [problem for problem, present in problems.items() if present]
    if found:
        raise ValueError(
            f"vLLM cannot serve the adapter {whose} beside others ({', '.join(found)}). Use plain LoRA, or generate with "
            "transformers: `use_vllm=False`."
        )


def check_adapter(folder: str | Path) -> None:
    """As `check_lora_config`, of an adapter in a folder."""
    config = json.loads((Path(folder) / CONFIG).read_text())
    check_lora_config(SimpleNamespace(**config), f"in {folder}")


def largest_rank(rank: int) -> int:
    """The smallest `max_lora_rank` of vLLM's that holds adapters of this rank."""
    return next(known for known in RANKS if known >= rank)


def is_adapter(folder: str | Path) -> bool:
    """Whether a folder holds an adapter, rather than whole weights."""
    return (Path(folder) / CONFIG).is_file()


@cache
def scratch_folder() -> Path:
    """A folder of this process alone, gone with it, or with the next on this machine if it is killed. `TMPDIR` says where."""
    # With the machine's name: processes of others may write to the same place.
    ours = f"trl_spiral_{socket.gethostname()}_"
    _sweep(ours)
    folder = Path(tempfile.mkdtemp(prefix=f"{ours}{os.getpid()}_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _sweep(prefix: str) -> None:
    """Removes what processes have left behind that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{glob.escape(prefix)}*"):
        pid = folder.name.removeprefix(prefix).partition("_")[0]
        with suppress(FileNotFoundError):  # another process sweeps at the same time
            if pid.isdecimal() and folder.stat().st_uid == os.getuid() and not _lives(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's by now
        return True
    return True


def save_adapter(model: Any, folder: Path) -> Path:
    """
    Writes the adapter that a model has active as `save_pretrained` would, so that the folder is there only once it is
    whole.

    Args:
        model ([`~peft.PeftModel`]):
            Its parameters must be whole: gathered, where they are sharded.
        folder (`Path`):
            Where to; must not exist.

    Returns:
        `Path`: The folder.

    Raises:
        ValueError: If more than pairs of low-rank matrices are trained.
    """
    from peft import get_peft_model_state_dict

    name = model.active_adapter
    tensors = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    if strange := [key for key in tensors if not re.search(r"\.lora_[AB]\.weight$", key)]:
        raise ValueError(
            f"vLLM cannot serve an adapter with `{strange[0]}` beside others. Train linear layers alone, or "
            "generate with transformers: `use_vllm=False`."
        )
    with replacing(folder) as partial:
        partial.mkdir()
        model.peft_config[name].save_pretrained(partial)
        save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, partial / WEIGHTS)
    return folder


def adapter_of_zeros(like: str | Path) -> Path:
    """Folder of an adapter that changes nothing, shaped like another; gone with the process."""
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
    Sees to it that a vLLM server holds these adapters, and none of ours besides.

    What it holds is asked, never remembered: it may have been started again since, or have served a run that was killed.

    Args:
        base_url (`str`):
            Where the server is, without `/v1`.
        folders (`Mapping[str, Path]`):
            Of adapters, by policy name. The server must be able to read them.

    Returns:
        `dict[str, str]`: What the server calls each, by policy name.

    Raises:
        RuntimeError: If the server does not take one, or does not answer.
    """
    # vLLM never looks again what a path holds, so a folder that is written again needs another name.
    names = {policy: f"{_OURS}{policy}-{fingerprint(folder)}" for policy, folder in folders.items()}
    # TRL's own session tries again after an error of the server, and never shows its message.
    with closing(PatientTransport(base_url, timeout=TIMEOUT)) as server:
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


def _check(
    server: PatientTransport, answer: Received, what: str, remedy: str = "See its log, and start it again."
) -> None:
    if answer.status >= 400:
        raise RuntimeError(f"{reported(what)} (HTTP {answer.status}: {server.message(answer.content)}). {remedy}")


def _remedy(folder: Path) -> str:
    rank = json.loads((folder / CONFIG).read_text())["r"]
    return (
        "Start it with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True` and with `--enable-lora "
        f"--max-lora-rank {largest_rank(rank)} --max-loras` as many as there may be opponents and two more, and let it "
        "read that folder: `TMPDIR` says where the policy's own is."
    )
