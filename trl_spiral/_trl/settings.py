"""Generation settings of a TRL trainer: sampling, tokenizer, chat template, and the number of games in flight."""

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
"""Sampling options in `generation_kwargs`, by their name in transformers and vLLM, with our name."""


def trainer_sampling(trainer: GRPOTrainer, evaluation: bool = False) -> Sampling:
    """
    Return how the trainer samples: its arguments, overridden by `generation_kwargs`, and in evaluation by
    `eval_sampling`.

    For a trainer that does not sample, such as [`~trl.SFTTrainer`], the defaults of [`~types.Sampling`].
    """
    args = trainer.args
    if not hasattr(trainer, "max_completion_length"):
        return Sampling()
    fields: dict[str, Any] = {
        # The trainer's temperature may change from batch to batch. Evaluation uses the configured one.
        "temperature": args.temperature if evaluation else trainer.temperature,
        "top_p": trainer.top_p,
        "top_k": trainer.top_k,
        "min_p": trainer.min_p,
        "repetition_penalty": trainer.repetition_penalty,
        "max_new_tokens": trainer.max_completion_length,
    }
    options = args.generation_kwargs or {}
    fields |= {_SAMPLING_NAMES[name]: value for name, value in options.items() if name in _SAMPLING_NAMES}
    if options.get("do_sample") is False:
        fields["temperature"] = 0.0
    if isinstance(stop := fields.get("stop", ()), str):
        stop = (stop,)
    fields["stop"] = tuple(stop or ())
    sampling = Sampling(**fields)
    # The configuration of a plain trainer has no `eval_sampling`.
    return replace(sampling, **(getattr(args, "eval_sampling", None) or {})) if evaluation else sampling


def vllm_options(trainer: GRPOTrainer) -> dict[str, Any]:
    """Return the options in `generation_kwargs` that are not in `Sampling`, for vLLM."""
    options = {
        name: value for name, value in (trainer.args.generation_kwargs or {}).items() if name not in _SAMPLING_NAMES
    }
    if trainer.args.vllm_structured_outputs_regex is not None:
        options["structured_outputs"] = {"regex": trainer.args.vllm_structured_outputs_regex}
    return {"stop_token_ids": list(trainer.eos_token_ids), **options}


def check_batching(args: Any) -> None:
    """
    Args:
        args ([`~trl.GRPOConfig`] or [`~transformers.TrainingArguments`]):
            Configuration of any trainer.

    Raises:
        ValueError: If it selects transformers' continuous batching, which has no seeds for single requests.
    """
    if getattr(args, "use_transformers_continuous_batching", False) and not args.use_vllm:
        raise ValueError(
            "`use_transformers_continuous_batching` cannot reproduce a reply and is slower than our own decoding "
            "loop; leave it off, or generate with vLLM: `use_vllm=True`."
        )


def most_in_flight(trainer: GRPOTrainer) -> int:
    """Return the limit of games in flight, also for a plain trainer, whose configuration has none."""
    return getattr(trainer.args, "games_in_flight", None) or MOST_IN_FLIGHT


def tokenizer_of(trainer: Any) -> Any:
    """Return the tokenizer of a TRL trainer."""
    return getattr(trainer, "_tokenizer", None) or trainer.processing_class


def appending_chat_template(tokenizer: Any) -> str | None:
    """
    Return a chat template that only appends, for conversations trained in one row; `None` to use the tokenizer's own.

    TRL has such variants of common templates. If it has none, the tokenizer's own is used, which
    [`~text.prompts.PromptRenderer`] refuses if it rewrites earlier replies.
    """
    from trl.chat_template_utils import get_training_chat_template, is_chat_template_prefix_preserving

    if tokenizer.chat_template is None or is_chat_template_prefix_preserving(tokenizer):
        return None
    try:
        template: str | None = get_training_chat_template(tokenizer)
    except ValueError:
        return None
    return template
