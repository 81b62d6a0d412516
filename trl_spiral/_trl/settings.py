"""What any trainer of TRL's generates with: its tokenizer and chat template, how it samples, and how many games at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trl_spiral.selfplay.settings import MOST_IN_FLIGHT
from trl_spiral.types import Sampling


if TYPE_CHECKING:
    from trl import GRPOTrainer


_SAMPLING_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "stop": "stop",
    "stop_strings": "stop",
}
"""What `generation_kwargs` may say of a reply, by transformers' and by vLLM's name, and our name of it."""


def sampling_of(trainer: GRPOTrainer, evaluation: bool = False) -> Sampling:
    """
    How the trainer samples: its arguments, over them `generation_kwargs`, and in evaluation `eval_sampling`.

    A trainer that does not sample, such as [`~trl.SFTTrainer`], has the defaults of [`~types.Sampling`].
    """
    args = trainer.args
    if not hasattr(trainer, "max_completion_length"):
        return Sampling()
    said: dict[str, Any] = {
        # The trainer's own may move from batch to batch; evaluation is at the configured one.
        "temperature": args.temperature if evaluation else trainer.temperature,
        "top_p": trainer.top_p,
        "top_k": trainer.top_k,
        "min_p": trainer.min_p,
        "repetition_penalty": trainer.repetition_penalty,
        "max_new_tokens": trainer.max_completion_length,
    }
    options = args.generation_kwargs or {}
    said |= {_SAMPLING_NAMES[name]: value for name, value in options.items() if name in _SAMPLING_NAMES}
    if options.get("do_sample") is False:
        said["temperature"] = 0.0
    if isinstance(stop := said.get("stop", ()), str):
        stop = (stop,)
    said["stop"] = tuple(stop or ())
    sampling = Sampling(**said)
    # A plain trainer's configuration has no sampling of its own for evaluation.
    return replace(sampling, **(getattr(args, "eval_sampling", None) or {})) if evaluation else sampling


def vllm_options(trainer: GRPOTrainer) -> dict[str, Any]:
    """What `generation_kwargs` says beyond our own `Sampling`, for vLLM."""
    options = {
        name: value for name, value in (trainer.args.generation_kwargs or {}).items() if name not in _SAMPLING_NAMES
    }
    if trainer.args.vllm_structured_outputs_regex is not None:
        options["structured_outputs"] = {"regex": trainer.args.vllm_structured_outputs_regex}
    return {"stop_token_ids": list(trainer.eos_token_ids), **options}


def most_in_flight(trainer: GRPOTrainer) -> int:
    # A plain trainer's configuration does not say.
    return getattr(trainer.args, "games_in_flight", None) or MOST_IN_FLIGHT


def tokenizer_of(trainer: Any) -> Any:
    """The tokenizer of any trainer of TRL's."""
    return getattr(trainer, "_tokenizer", None) or trainer.processing_class


def appending_chat_template(tokenizer: Any) -> str | None:
    """
    A chat template that only ever appends, for conversations trained in one row; `None` if the tokenizer's own does.

    TRL knows such variants of common templates. Where it knows none, the tokenizer's own is used, and
    [`~text.prompts.PromptRenderer`] refuses it if it rewrites earlier replies.
    """
    from trl.chat_template_utils import get_training_chat_template, is_chat_template_prefix_preserving

    if tokenizer.chat_template is None or is_chat_template_prefix_preserving(tokenizer):
        return None
    try:
        template: str | None = get_training_chat_template(tokenizer)
    except ValueError:
        return None
    return template
