"""What engines of every kind must know of the folder of a snapshot."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any


INTACT = (True, False, "gaussian", "eva", "orthogonal")
"""
Values of PEFT's `init_lora_weights` that leave the weights below the adapter as they were. Any other takes something out of
them, so that without that adapter they are nobody's.
"""


def fingerprint(folder: str | Path) -> str:
    """Differs from folder to folder, and from one writing of it to the next."""
    folder = Path(folder).absolute()
    files = [*sorted(folder.glob("*.safetensors")), *folder.glob("adapter_config.json")]
    written = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    return hashlib.blake2b(repr((str(folder), written)).encode(), digest_size=8).hexdigest()


def check_base(config: Any) -> None:
    """
    Args:
        config ([`~peft.PeftConfig`]):
            Of the adapter in training.

    Raises:
        ValueError: If the model without that adapter is not the one that training started from.
    """
    if getattr(config, "bias", "none") != "none":
        raise ValueError("The biases of the base model are trained, so it is no opponent any more. Use `bias='none'`.")
    init = getattr(config, "init_lora_weights", True)
    if init not in INTACT:
        raise ValueError(
            f"`init_lora_weights={init!r}` changes the weights below the adapter, so that without it they are no opponent. "
            "Use the default, or play against a snapshot from before the first step."
        )
