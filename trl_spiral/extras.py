"""Optional dependencies, and the extras of `trl-spiral` that install them."""

from __future__ import annotations

from importlib.util import find_spec


EXTRAS = {
    "lm_eval": "eval",
    "math_verify": "eval",
    "matplotlib": "plots",
    "open_spiel": "eval",
    "peft": "peft",
    "pyspiel": "eval",
    "scipy": "eval",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "vllm": "vllm",
    "wandb": "wandb",
}
"""Extra of each optional package, by the name under which it is imported."""


def require_extra(package: str, purpose: str) -> None:
    """
    Check that an optional package is installed.

    Args:
        package (`str`):
            Name under which it is imported, one of `EXTRAS`.
        purpose (`str`):
            Subject of the error message, such as "Loading a LoRA adapter".

    Raises:
        ImportError: If it is not installed. The message names the extra.
    """
    if find_spec(package) is None:
        raise ImportError(_sentence(package, purpose))


def explain_missing(error: BaseException) -> str | None:
    """Return one sentence with the extra of the package that an import did not find; `None` for other errors."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return _sentence(package, "This") if package in EXTRAS else None


def _sentence(package: str, purpose: str) -> str:
    command = f"pip install trl-spiral[{EXTRAS[package]}]"
    return f"{purpose} needs {package}, which is not installed. Install it with `{command}`."
