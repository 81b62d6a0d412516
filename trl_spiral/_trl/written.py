"""Filters for text that TRL and transformers write: configuration files, and the table of completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import trl.trainer.grpo_trainer as grpo

from trl_spiral.text.printable import block, map_strings
from trl_spiral.text.secrets import is_secret_name, redact_all


_SAVES = ContextVar("saves", default=False)


class WithoutSecrets:
    """Mixin of configurations that keeps secrets from trackers, and from files under [`saving_without_secrets`]."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for trackers such as TensorBoard and W&B."""
        settings: dict[str, Any] = redact_all(super().to_dict())  # type: ignore[misc]  # of `TrainingArguments`
        return settings

    def __getstate__(self) -> dict[str, Any]:
        if not _SAVES.get():
            return vars(self)  # a copy, or a process of the same run, needs all of it
        return {name: None if is_secret_name(name) else redact_all(value) for name, value in vars(self).items()}


@contextmanager
def saving_without_secrets() -> Iterator[None]:
    """Inside, configurations are pickled without secrets. transformers pickles them as `training_args.bin`."""
    before = _SAVES.set(True)
    try:
        yield
    finally:
        _SAVES.reset(before)


@contextmanager
def printing_safely() -> Iterator[None]:
    """Inside, the table of completions that TRL prints passes our filter. Rich keeps most control characters."""
    printed = grpo.print_prompt_completions_sample

    def filtered(prompts: Iterable[Any], completions: Iterable[Any], *args: Any, extra: dict[str, Any]) -> None:
        columns = {name: list(values) for name, values in extra.items()}
        shown = map_strings([list(prompts), list(completions), columns], block)
        printed(*shown[:2], *args, extra=shown[2])

    grpo.print_prompt_completions_sample = filtered
    try:
        yield
    finally:
        grpo.print_prompt_completions_sample = printed
