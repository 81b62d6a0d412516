"""
Everything of TRL and transformers that is private or experimental, touched in this package alone.

`names.py` lists the names, which a test compares with what is installed. `engines.py` opens a trainer's engine, over its own
model (`transformers_engines.py`) or its vLLM (`vllm_engines.py`, `vllm_generation.py`), by what `settings.py` reads.
`state.py`, `sampler.py` and `temperature.py` reach into training itself. `written.py` filters text that TRL and transformers
write.
"""

from __future__ import annotations

from trl.trainer.utils import add_fused_lm_head

from trl_spiral._trl.engines import is_first_to_play, open_engine, ranks_per_engine, restore_weights
from trl_spiral._trl.sampler import EpochSampler
from trl_spiral._trl.settings import appending_chat_template, sampling_of, tokenizer_of
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
    "sampling_of",
    "saving_without_secrets",
    "set_temperature",
    "temperature_cells",
    "tokenizer_of",
]
