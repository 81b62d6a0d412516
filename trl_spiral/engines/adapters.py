"""LoRA adapters, for engines of every kind: fingerprints of their folders, and whether their base model is intact."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any


INTACT = (True, False, "gaussian", "eva", "orthogonal")
"""
Values of PEFT's `init_lora_weights` that leave the base weights unchanged. Any other moves part of them into the
adapter, so the model without the adapter is not the one that training started from.
"""


def fingerprint(folder: str | Path) -> str:
    """Return a digest of a folder that changes with its path and whenever its weights are written again."""
    folder = Path(folder).absolute()
    files = [*sorted(folder.glob("*.safetensors")), *folder.glob("adapter_config.json")]
    written = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    return hashlib.blake2b(repr((str(folder), written)).encode(), digest_size=8).hexdigest()


def check_base(config: Any) -> None:
    """
    Check that the model without its adapter is the one that training started from.

    Args:
        config ([`~peft.PeftConfig`]):
            Configuration of the adapter in training.

    Raises:
        ValueError: If it is not.
    """
    if getattr(config, "bias", "none") != "none":
        raise ValueError("The biases of the base model are trained, so it is no opponent any more. Use `bias='none'`.")
    init = getattr(config, "init_lora_weights", True)
    if init not in INTACT:
        raise ValueError(
            f"`init_lora_weights={init!r}` changes the weights below the adapter, so that without it they are no "
            "opponent. Use the default, or play against a snapshot from before the first step."
        )
