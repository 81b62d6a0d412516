"""Checks before any weights are loaded, and arguments of a colocated vLLM."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from trl_spiral import _trl
from trl_spiral.distributed import lock_on_rank_zero
from trl_spiral.engines.vllm.lora import check_lora_config, largest_rank
from trl_spiral.lock import FolderLock
from trl_spiral.opponents import OpponentPool
from trl_spiral.opponents.pool import POOL_FOLDER
from trl_spiral.selfplay.settings import MOST_IN_FLIGHT
from trl_spiral.training.checkpoint import MARKER
from trl_spiral.training.config import SpiralConfig


def colocate_kwargs(
    model: str | PreTrainedModel, args: SpiralConfig, adapters: int | None = None, peft_config: Any = None
) -> dict[str, Any]:
    """
    Return arguments of a colocated vLLM in addition to TRL's. `args.vllm_engine_kwargs` overrides all of them.

    TRL passes no dtype, so vLLM would run float32 weights in bfloat16.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]):
            The model to train.
        args ([`SpiralConfig`]):
            The trainer's configuration.
        adapters (`int`, *optional*):
            Most adapters of opponents in one rollout, if the policy is served as an adapter.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Configuration of the adapter in training, unless the model already has it.
    """
    if not args.use_vllm or args.vllm_mode != "colocate":
        return {}
    if args.bf16 or args.fp16:
        dtype = "bfloat16" if args.bf16 else "float16"
    else:
        wanted = (args.model_init_kwargs or {}).get("dtype", "float32") if isinstance(model, str) else model.dtype
        dtype = str(wanted).removeprefix("torch.")
    rows = args.per_device_train_batch_size * args.steps_per_generation * args.vllm_tensor_parallel_size
    kwargs = {
        "dtype": dtype,
        # Turns of a game share the start of their prompts, and games their rules.
        "enable_prefix_caching": True,
        "max_num_seqs": args.games_in_flight or min(rows, MOST_IN_FLIGHT),
    }
    if args.use_cpu:
        # Blocks of 128, the default on a CPU, are longer than most prompts, so the prefix cache would never hit.
        # Compiling takes longer than it saves. Chunked prefill fails with seeded requests (vLLM 0.31).
        kwargs |= {
            "block_size": 32,
            "enforce_eager": True,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(4096, args.vllm_max_model_length or 32768),
        }
    if adapters is not None:
        config = lora_config(model, peft_config)
        assert config is not None, "adapters are served where one is trained"
        kwargs |= {
            "enable_lora": True,
            # One per opponent, the policy's, and zeros for the base model, which a CPU needs. With fewer, rows wait.
            "max_loras": adapters + 2,
            "max_lora_rank": largest_rank(config.r),
        }
    return kwargs | (args.vllm_engine_kwargs or {})


def lora_config(model: str | PreTrainedModel, peft_config: Any) -> Any:
    """Return the configuration of the adapter to train: the given one or the model's; `None` for whole weights."""
    if peft_config is None and not isinstance(model, str) and is_peft_model(model):
        return model.peft_config[model.active_adapter]
    return peft_config


def check_run(
    args: SpiralConfig, model: str | PreTrainedModel, peft_config: Any = None, has_snapshots: bool = False
) -> FolderLock | None:
    """
    Make all checks that need no weights, and lock the output folder. Every rank must call it.

    Args:
        args, model, peft_config, has_snapshots:
            As for `check_vllm`.

    Returns:
        `FolderLock`, *optional*: As `reserve_output_dir`.
    """
    check_world_size(args)
    lock = reserve_output_dir(args)
    check_sharding(args)
    check_reference(args, lora_config(model, peft_config))
    check_vllm(args, model, peft_config, has_snapshots)
    return lock


def check_sharding(args: SpiralConfig) -> None:
    """
    Check that each rank can generate alone.

    Raises:
        ValueError: If the model is sharded by FSDP, and vLLM does not generate.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true") and not args.use_vllm:
        raise ValueError(
            "FSDP shards the weights, and transformers cannot gather them for a rollout, in which ranks generate "
            "independently. Generate with vLLM: `use_vllm=True`."
        )


def check_vllm(
    args: SpiralConfig, model: str | PreTrainedModel = "", peft_config: Any = None, has_snapshots: bool = False
) -> None:
    """
    Check that vLLM, if it is used, is installed and can serve the opponents.

    Args:
        args ([`SpiralConfig`]):
            The trainer's configuration.
        model (`str` or [`~transformers.PreTrainedModel`], *optional*):
            The model to train.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Configuration of the adapter in training, unless the model already has it.
        has_snapshots (`bool`, defaults to `False`):
            Whether snapshots of the policy, or the base model, are opponents.

    Raises:
        ImportError: If vLLM is used and not installed.
        ValueError: If it cannot serve snapshots of such a policy.
    """
    if args.use_vllm and importlib.util.find_spec("vllm") is None:
        raise ImportError(
            "`use_vllm` is set and vLLM is not installed. Install it with `pip install trl-spiral[vllm]`, or leave "
            "`use_vllm` off."
        )
    if not args.use_vllm or not has_snapshots:
        return
    if (config := lora_config(model, peft_config)) is not None:
        check_lora_config(config)
    elif args.vllm_mode == "server":
        raise ValueError(_trl.WHOLE_WEIGHTS_BEHIND_A_SERVER)


def check_reference(args: SpiralConfig, peft_config: Any) -> None:
    """
    Check that `sync_ref_model` has a reference model to change.

    Args:
        args ([`SpiralConfig`]):
            The trainer's configuration.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Configuration of the adapter in training, if there is one.

    Raises:
        ValueError: If an adapter is trained. Its reference is the model without the adapter, which does not change.
    """
    if args.sync_ref_model and peft_config is not None:
        raise ValueError(
            "`sync_ref_model` needs a separate reference model, and with an adapter (`use_peft`) the reference is the "
            "model without it. Add `--sync_ref_model False`, or train whole weights."
        )


def check_world_size(args: SpiralConfig) -> None:
    """
    Check that the processes that the launcher started form one world.

    Raises:
        ValueError: If the trainer sees fewer of them. Each would train alone, and all would write to one output
        folder.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != args.world_size:
        raise ValueError(
            f"The launcher started {launched} processes and the trainer sees {args.world_size}. On a machine without "
            "accelerators, add `--use_cpu` to the training arguments so that the processes form one world."
        )


def reserve_output_dir(args: SpiralConfig) -> FolderLock | None:
    """
    Check and lock the output folder. Every rank must call it.

    Returns:
        `FolderLock`, *optional*: The lock on rank 0, which holds while it is referenced.

    Raises:
        ValueError: If nothing can be written to the folder, or another process holds it.
    """
    check_output_dir(args.output_dir)
    return lock_on_rank_zero(args.output_dir, args.process_index == 0)


def check_output_dir(output_dir: str) -> None:
    """
    Check that `output_dir` is writable.

    Raises:
        ValueError: If it is not.
    """
    probe = Path(output_dir) / f".write_test_{os.getpid()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"Cannot write to the output folder {output_dir!r} ({error.strerror}). Choose another `output_dir`."
        ) from error


def check_fresh_pool(args: SpiralConfig, pool: OpponentPool | None = None) -> None:
    """
    Check that the pool of a new run is empty.

    Args:
        args ([`SpiralConfig`]):
            The trainer's configuration.
        pool ([`~opponents.OpponentPool`], *optional*):
            The pool. Default: the one in the output folder.

    Raises:
        ValueError: If the pool contains snapshots of a run that could be resumed.
    """
    pool = OpponentPool(Path(args.output_dir) / POOL_FOLDER) if pool is None else pool
    inside = Path(args.output_dir).resolve() in pool.folder.resolve().parents
    if pool.has_own and (not inside or any(Path(args.output_dir).glob(f"*/{MARKER}"))):
        raise ValueError(
            f"{pool.folder} contains snapshots of an earlier run. Continue that run with `resume_from_checkpoint`, or "
            "choose another `output_dir`. `pool_from_checkpoints` copies its snapshots into a new pool."
        )


def load_tokenizer(model: str | PreTrainedModel, args: SpiralConfig) -> PreTrainedTokenizerBase:
    """
    Load the model's tokenizer.

    Raises:
        ValueError: If there is no such model.
    """
    name = model if isinstance(model, str) else model.config._name_or_path
    revision = (args.model_init_kwargs or {}).get("revision") if isinstance(model, str) else None
    try:
        return AutoTokenizer.from_pretrained(
            name,
            revision=revision,
            padding_side="left",
            truncation_side="left",
            trust_remote_code=args.trust_remote_code,
        )
    except (OSError, ValueError) as error:
        # Some of these messages have many lines. Use the first one, as a sentence.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(" :.") + "."
        where = "has no readable tokenizer" if os.path.isdir(name) else "is neither a folder nor a model on the Hub"
        raise ValueError(f"The model {name!r} {where}: {reason}") from error
