"""
Names in TRL and transformers that are private, or that we use beyond their documentation.

`tests/_trl/test_names.py` compares them with the installed versions, so that a new release fails one clear test and
not a run.
"""

from __future__ import annotations


TRL_ATTRIBUTES = (
    "_step",
    "_buffered_inputs",
    "_metrics",
    "_logs",
    "generation_config",
    "generation_kwargs",
    "_tokenizer",
    "entropy_coef",
    "_last_world_entropy",
    "eos_token_ids",
    "rollout_func",
    "max_completion_length",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "ref_model",
    "reward_weights",
    "num_generations",
    "log_completions",
)
"""Attributes of `GRPOTrainer` that are read or restored."""

VLLM_ATTRIBUTES = ("vllm_generation", "_last_loaded_step")
"""Attributes of `GRPOTrainer` with vLLM that are read or restored."""

VLLM_GENERATION_ATTRIBUTES = ("mode", "llm", "vllm_client", "enable_sleep_mode", "_llm_weights_sleeping", "_dist")
"""Attributes of TRL's `VLLMGeneration` that are read or set."""

TRAINER_ATTRIBUTES = ("_tr_loss", "_globalstep_last_logged", "_total_loss_scalar")
"""Attributes of `transformers.Trainer` that are restored: the loss that has not been logged yet."""

OVERRIDDEN = {
    "_generate_and_score_completions": ("self", "inputs"),
    "save_model": ("self", "output_dir", "_internal_call"),
    "_save_checkpoint": ("self", "model", "trial"),
    "_push_from_checkpoint": ("self", "checkpoint_folder"),
    "_compute_loss": ("self", "model", "inputs"),
    "_get_per_token_logps_and_entropies": (
        *("self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
        *("compute_entropy", "compute_aux_loss", "pixel_values", "image_grid_thw", "num_images"),
        *("pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes", "token_type_ids"),
        *("mm_token_type_ids", "image_position_ids"),
    ),
    "_save_rng_state": ("self", "output_dir"),
    "_load_rng_state": ("self", "checkpoint"),
    "_load_optimizer_and_scheduler": ("self", "checkpoint"),
    "_run_epoch": (
        *("self", "model", "epoch", "train_dataloader", "steps_in_epoch", "num_update_steps_per_epoch", "trial"),
        *("ignore_keys_for_eval", "start_time", "resume_from_checkpoint", "epochs_trained"),
        "steps_trained_in_current_epoch",
    ),
    "_finalize_training": ("self", "trial", "num_train_samples", "start_time"),
    "log": ("self", "logs", "start_time"),
    "create_model_card": ("self", "model_name", "dataset_name", "tags"),
}
"""Methods that `SpiralTrainer` overrides, with their parameters."""

OVERRIDDEN_BY_ALGORITHMS = {
    "_get_train_sampler": ("self", "dataset"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_tokenize_prompts": ("self", "prompts"),
    "_get_tool_suffix_ids": ("self", "tool_messages"),
}
"""Methods that `AlgorithmMixin` overrides beyond those of `AdvantageMixin`, which `SpiralTrainer` shares."""
