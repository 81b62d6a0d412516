"""
The only package that uses private or experimental parts of TRL and transformers.

`names.py` lists the names, which a test compares with the installed versions. `engines.py` opens a trainer's engine,
over its own model (`transformers_engines.py`) or its vLLM (`vllm_engines.py`, `vllm_generation.py`), with the settings
that `settings.py` reads. `state.py`, `sampler.py` and `temperature.py` access the training loop. `written.py` filters
text that TRL and transformers write.
"""

from __future__ import annotations

from trl.trainer.utils import add_fused_lm_head

from trl_spiral._trl.engines import is_first_to_play, open_engine, ranks_per_engine, restore_weights
from trl_spiral._trl.sampler import EpochSampler
from trl_spiral._trl.settings import appending_chat_template, check_batching, tokenizer_of, trainer_sampling
from trl_spiral._trl.state import (
    after_trainer_state,
    apply_hyperparameters,
    count_batch,
    cycle_state,
    generates_batches,
    generation_cycle,
    has_no_gradient,
    hyperparameters,
    latest_rewards,
    log_columns,
    replace_log,
    restore_cycle,
)
from trl_spiral._trl.temperature import set_temperature, temperature_cells
from trl_spiral._trl.vllm_engines import WHOLE_WEIGHTS_BEHIND_A_SERVER
from trl_spiral._trl.vllm_generation import own_vllm_generation
from trl_spiral._trl.written import WithoutSecrets, printing_safely, saving_without_secrets


__all__ = [
    "EpochSampler",
    "WHOLE_WEIGHTS_BEHIND_A_SERVER",
    "WithoutSecrets",
    "add_fused_lm_head",
    "after_trainer_state",
    "appending_chat_template",
    "apply_hyperparameters",
    "check_batching",
    "count_batch",
    "cycle_state",
    "generates_batches",
    "generation_cycle",
    "has_no_gradient",
    "hyperparameters",
    "is_first_to_play",
    "latest_rewards",
    "log_columns",
    "open_engine",
    "own_vllm_generation",
    "printing_safely",
    "ranks_per_engine",
    "replace_log",
    "restore_cycle",
    "restore_weights",
    "saving_without_secrets",
    "set_temperature",
    "temperature_cells",
    "tokenizer_of",
    "trainer_sampling",
]
