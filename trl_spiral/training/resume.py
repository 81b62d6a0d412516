"""
The effect of a setting that differs from the checkpoint's when a run is resumed.

A checkpoint's marker contains the settings of the run that wrote it. A resume *applies* a new value, *warns* that it
mixes with results of the former one, or *refuses* it because the checkpoint contains something that only fits the
former one: the batch in use, the state of the optimizer, the place in the order of prompts. A setting in no list
warns.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Set
from typing import Any

from trl_spiral.text.printable import get_logger


logger = get_logger(__name__)

REFUSED = {
    # The checkpoint contains the batch in use, divided into steps, and its log-probabilities.
    "the batch in use": """
        world_size per_device_train_batch_size gradient_accumulation_steps steps_per_generation generation_batch_size
        num_iterations num_generations sample_unit kl_term use_vllm vllm_importance_sampling_correction
        vllm_tensor_parallel_size auto_find_batch_size""",
    "the state of the optimizer": "optim optim_args optim_target_modules distributed_type",
    "weights that only fit that": "adapter model",
    "the state of the estimator": "estimator",
    "the state of the curriculum": "curriculum",
    # Games and prompts depend on the seed and the number of earlier ones.
    "the place in the order of games and prompts": """
        seed data_seed train_dataset shuffle_dataset dataloader_drop_last train_sampling_strategy length_column_name
        accelerator_config""",
}
"""Settings that a resume refuses, by the part of the checkpoint that only fits the former value."""

WARNED = """
    games games_per_start opponents baseline_per_opponent estimator_arguments prompt_style
    chat_template filter_zero_advantages winner_learns_from_forfeit forfeit
    pool_dtype algorithm reward_functions base_model dtype bf16 fp16 tf32 use_cpu sync_ref_model reinforce_baseline
    constrain_moves priming_games"""
"""Settings that a resume applies with a warning: rows, baselines, ratings or weights come from the former value."""

APPLIED = """
    max_steps num_train_epochs learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps weight_decay adam_beta1
    adam_beta2 adam_epsilon max_grad_norm average_tokens_across_devices label_smoothing_factor neftune_noise_alpha
    activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs
    torch_compile torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config use_cache
    full_determinism ignore_data_skip load_best_model_at_end metric_for_best_model greater_is_better
    restore_callback_states_from_checkpoint model_init_kwargs router_aux_loss_coef disable_dropout
    cast_lm_head_to_fp32 max_completion_length pad_to_multiple_of temperature top_p top_k min_p generation_kwargs
    chat_template_kwargs repetition_penalty cache_implementation vllm_mode vllm_model_impl
    vllm_structured_outputs_regex vllm_max_model_length vllm_engine_kwargs use_transformers_continuous_batching
    transformers_continuous_batching_config use_transformers_paged max_tool_calling_iterations beta epsilon delta
    epsilon_high sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
    importance_sampling_level reward_weights multi_objective_aggregation scale_rewards loss_type
    mask_truncated_completions ref_model_mixup_alpha ref_model_sync_steps top_entropy_quantile entropy_coef
    use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target
    vllm_importance_sampling_mode vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
    vllm_importance_sampling_cap off_policy_mask_threshold use_bias_correction_kl game_weights opening_moves
    max_draw_retries games_in_flight matchmaking pool_every pool_start pool_capacity pool_eviction pool_rating_games
    pool_repair endpoint_kwargs gpg_min_useful gpg_max_resamples reinforce_baseline_decay
    temperature_ref_std temperature_min temperature_max"""
"""Settings that take effect at the first step of the resumed run."""

HARMLESS = """
    output_dir logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter
    include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to run_name project
    trackio_space_id trackio_bucket_id trackio_static_space_id eval_strategy eval_steps eval_delay
    per_device_eval_batch_size prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object
    eval_accumulation_steps include_for_metrics batch_eval_metrics bf16_full_eval fp16_full_eval save_only_model
    save_strategy save_steps save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token
    hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision torch_empty_cache_steps
    dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names
    ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout debug
    skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint local_rank trust_remote_code
    num_generations_eval ds3_gather_for_generation vllm_enable_sleep_mode vllm_server_base_url vllm_server_host
    vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization log_completions log_multimodal
    num_completions_to_print log_unique_prompts log_completions_hub_repo eval_sampling"""
"""Settings without an effect on training. They are not compared."""

AS_OBJECTS = """
    advantage_estimator advantage_kwargs pool_kwargs fsdp fsdp_config deepspeed parallelism_config"""
"""Settings that are compared through the objects made from them: the estimator, the pool and the sharding."""

_LEFT_OUT = {*HARMLESS.split(), *AS_OBJECTS.split()}
_HELD = {name: held for held, names in REFUSED.items() for name in names.split()}
_APPLIED = set(APPLIED.split())
_REMEDIES = {
    "world_size": "launch with `--num_processes {0}`",
    "kl_term": "keep `beta` at zero, or above it",
}
_OTHER_STATE = ("reduce_lr_on_plateau", "greedy")
"""Schedulers with another kind of state than the others."""


def settings_of(args: Any, **others: Any) -> dict[str, Any]:
    """
    Return the settings that change numbers, as plain values.

    Args:
        args (`TrainingArguments`):
            The trainer's configuration.
        others:
            Further settings by name. They replace those of `args`.
    """
    fields = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    return {
        name: plain(value) for name, value in {**fields, **others}.items() if name in others or name not in _LEFT_OUT
    }


def plain(value: Any) -> Any:
    """Return a value for JSON: the value itself, or a digest if it is long or may contain a secret."""
    text = _json(value)
    return digest(value) if "://" in text or len(text) > 300 or isinstance(value, dict) else json.loads(text)


def digest(value: Any) -> str:
    """Return a digest, which is equal for equal values."""
    return f"#{hashlib.blake2b(_json(value).encode(), digest_size=8).hexdigest()}"


def _json(value: Any) -> str:
    # Without the addresses of objects, which differ between processes.
    return json.dumps(value, default=lambda thing: re.sub(r" at 0x[0-9a-f]+", "", str(thing)), sort_keys=True)


def describe(thing: Any) -> tuple[str | None, list[str]]:
    """
    Return the name of an object's class or of a function, and the arguments of the object.

    Only arguments that are attributes of the same name are found. Text is replaced by a digest.
    """
    if thing is None or inspect.isroutine(thing):
        return getattr(thing, "__qualname__", None), []
    kept = {name: getattr(thing, name) for name in inspect.signature(type(thing)).parameters if hasattr(thing, name)}
    numbers = int | float | None
    return type(thing).__qualname__, [
        f"{name}={value if isinstance(value, numbers) else digest(sorted(value) if isinstance(value, Set) else value)}"
        for name, value in sorted(kept.items())
        if isinstance(value, numbers | str | tuple | list | Set)
    ]


def check_settings(
    checkpoint: object, before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """
    Compare the settings of a resumed run with those that its checkpoint was written with, and log what changes.

    Args:
        checkpoint (`str` or `Path`):
            The checkpoint, for messages.
        before, now (`Mapping[str, Any]`):
            What `settings_of` returned then and returns now.

    Returns:
        `dict[str, tuple]`: For each setting that changes, the former value and the new one.

    Raises:
        ValueError: If one of them is refused.
    """
    names = sorted({*before, *now})
    changed = {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}
    for name, held in {**_HELD, **_held_at_times(before, now)}.items():
        if name in changed:
            former, new = changed[name]
            remedy = _REMEDIES.get(name, f"set `{name}` to {{0!r}}").format(former)
            raise ValueError(
                f"{checkpoint} was written with `{name}={former!r}` and this run has {new!r}. It contains {held}: "
                f"{remedy}, or start a new run with {checkpoint} as its model."
            )
    applied = {name: values for name, values in changed.items() if name in _APPLIED}
    if applied:
        logger.info("Resuming from %s with %s.", checkpoint, _listed(applied))
    if mixed := {name: values for name, values in changed.items() if name not in applied}:
        logger.warning(
            "Resuming from %s with %s. The content of the checkpoint comes from the former value.",
            checkpoint,
            _listed(mixed),
        )
    return changed


def _held_at_times(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return settings that are refused because of another one, and the part of the checkpoint that does not fit."""
    schedulers = {before.get("lr_scheduler_type"), now.get("lr_scheduler_type")}
    held: dict[str, str] = {}
    if not schedulers.isdisjoint(_OTHER_STATE):
        held |= dict.fromkeys(("lr_scheduler_type", "learning_rate"), "the state of the scheduler")
    if now.get("distributed_type") == "DEEPSPEED":
        held["learning_rate"] = "the state of DeepSpeed's optimizer"
    if before.get("use_adaptive_entropy") and now.get("use_adaptive_entropy"):
        held["entropy_coef"] = "the coefficient that the controller has reached"
    return held


def _listed(changed: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"`{name}={now!r}` instead of {before!r}" for name, (before, now) in changed.items())
