"""Colocated vLLM in the process of the test, and log-probabilities of its replies under the trainer's model."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch


# As in TRL (`VLLMGeneration._init_vllm`), but in float32: the tests compare log-probabilities to 1e-5.
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "logprobs_mode": "processed_logprobs",
    "max_model_len": 2048,
    "max_num_seqs": 16,
    # Chunked prefill fails on a CPU if requests have seeds.
    "enable_chunked_prefill": False,
    "max_num_batched_tokens": 4096,
    "seed": 0,
}


@contextmanager
def vllm_in_process(model_dir: str, **options: Any) -> Iterator[Any]:
    """
    Open a `vllm.LLM` in a `with` block, and clean up afterwards so that the process can open another.

    Args:
        model_dir (`str`):
            Folder with weights and tokenizer.
        **options:
            Options of `vllm.LLM` that extend or replace `OPTIONS`.
    """
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(model=model_dir, **{**OPTIONS, **options})
    try:
        yield llm
    finally:
        # vLLM creates the default group of torch.distributed, which would conflict with that of a later trainer.
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


@contextmanager
def trainer_with_vllm(make: Callable[[], Any]) -> Iterator[Any]:
    """
    Open a trainer that generates with vLLM in a `with` block, and clean up so that the process can open another.

    Args:
        make (`Callable`):
            Factory of the trainer.
    """
    from accelerate.state import AcceleratorState, PartialState
    from vllm.distributed import cleanup_dist_env_and_memory

    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            patch.setenv(name, "0")  # TRL sets them: restore them afterwards
            patch.delenv(name)
        trainer = None
        try:
            trainer = make()
            yield trainer
        finally:
            if trainer is None:
                pass
            elif trainer.vllm_mode == "colocate":
                trainer.vllm_generation.llm.llm_engine.engine_core.shutdown()
                del trainer.vllm_generation.llm
                gc.collect()
                cleanup_dist_env_and_memory()
            else:
                trainer.vllm_generation.vllm_client.close_communicator()
                trainer.vllm_generation.vllm_client.session.close()
            AcceleratorState._reset_state(reset_partial_state=True)
            PartialState._reset_state()


def weights_of(llm: Any) -> torch.nn.Module:
    """Return the module into which TRL loads weights."""
    return llm.llm_engine.model_executor.driver_worker.model_runner.model


def load(llm: Any, model: torch.nn.Module) -> None:
    """Load a model's weights into vLLM one by one, as TRL does. The prefix cache is kept."""
    for name, parameter in model.named_parameters():
        weights_of(llm).load_weights([(name, parameter.data)])


@torch.no_grad()
def trainer_logprobs(model: torch.nn.Module, prompt: Sequence[int], completion: Sequence[int]) -> list[float]:
    """Return the log-probability of each completion token under a transformers model, at temperature 1."""
    logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0].tolist()
