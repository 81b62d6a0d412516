"""vLLM inside the test's own process, as TRL's colocate mode has it, and what the trainer makes of its replies."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch


# As TRL builds it (`VLLMGeneration._init_vllm`), but in float32: the tests compare log-probabilities to 1e-5.
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "logprobs_mode": "processed_logprobs",
    "max_model_len": 2048,
    "max_num_seqs": 16,
    # A prompt that is read in two parts fails on a CPU where requests have seeds.
    "enable_chunked_prefill": False,
    "max_num_batched_tokens": 4096,
    "seed": 0,
}


@contextmanager
def vllm_in_process(model_dir: str, **options: Any) -> Iterator[Any]:
    """
    A `vllm.LLM` for the length of a `with` block, and afterwards a process in which another can be made.

    Args:
        model_dir (`str`):
            Folder with weights and tokenizer.
        **options:
            Options of `vllm.LLM` beside, or in place of, `OPTIONS`.
    """
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(model=model_dir, **{**OPTIONS, **options})
    try:
        yield llm
    finally:
        # vLLM makes torch.distributed's default group of its own, which would stand in the way of a later trainer.
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


@contextmanager
def trainer_with_vllm(make: Callable[[], Any]) -> Iterator[Any]:
    """
    A trainer that generates with vLLM, for the length of a `with` block, and afterwards a process for another.

    Args:
        make (`Callable`):
            Makes the trainer.
    """
    from accelerate.state import AcceleratorState, PartialState
    from vllm.distributed import cleanup_dist_env_and_memory

    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            patch.setenv(name, "0")  # TRL sets them, and they must be gone afterwards
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
    """The module that TRL loads weights into, where vLLM runs in this process."""
    return llm.llm_engine.model_executor.driver_worker.model_runner.model


def load(llm: Any, model: torch.nn.Module) -> None:
    """Gives vLLM a model's weights, one by one as TRL does it. Leaves the prefix cache alone."""
    for name, parameter in model.named_parameters():
        weights_of(llm).load_weights([(name, parameter.data)])


@torch.no_grad()
def trainer_logprobs(model: torch.nn.Module, prompt: Sequence[int], completion: Sequence[int]) -> list[float]:
    """Log-probability of each completion token under a transformers model, at temperature 1."""
    logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0].tolist()
