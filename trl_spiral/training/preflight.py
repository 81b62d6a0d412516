"""What a trainer makes sure of before it loads any weights, and what it tells a vLLM that it starts."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from trl_spiral import _trl
from trl_spiral.distributed import lock_together
from trl_spiral.engines.vllm.lora import check_lora_config, largest_rank
from trl_spiral.lock import FolderLock
from trl_spiral.opponents import OpponentPool
from trl_spiral.opponents.pool import POOL_FOLDER
from trl_spiral.training.checkpoint import MARKER
from trl_spiral.training.config import SpiralConfig


def colocate_kwargs(
    model: str | PreTrainedModel, args: SpiralConfig, adapters: int | None = None, peft_config: Any = None
) -> dict[str, Any]:
    """
    What a colocated vLLM is told beyond what TRL tells it. `args.vllm_engine_kwargs` overrides all of it.

    TRL gives no dtype, so that vLLM would run float32 weights in bfloat16 while the trainer does not.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]):
            The model to be trained.
        args ([`SpiralConfig`]):
            The trainer's.
        adapters (`int`, *optional*):
            Most adapters of opponents in one roll-out, where the policy is served as an adapter beside them.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Of the adapter in training, unless the model has it already.
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
        # Turns of a game share their beginnings, and games their rules.
        "enable_prefix_caching": True,
        "max_num_seqs": args.games_in_flight or min(rows, _trl.MOST_IN_FLIGHT),
    }
    if args.use_cpu:
        # Blocks of 128, the default there, are longer than most prompts: nothing would be found again. Compiling takes
        # longer than it saves. And a prompt that is read in two parts fails where requests have seeds (vLLM 0.31).
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
            # One at a time each, and the policy's, and zeros for the base model, which a CPU needs. With fewer, rows wait.
            "max_loras": adapters + 2,
            "max_lora_rank": largest_rank(config.r),
        }
    return kwargs | (args.vllm_engine_kwargs or {})


def lora_config(model: str | PreTrainedModel, peft_config: Any) -> Any:
    """Of the adapter that will be trained: the one given, or the model's own; `None` where whole weights are."""
    if peft_config is None and not isinstance(model, str) and is_peft_model(model):
        return model.peft_config[model.active_adapter]
    return peft_config


def check_sharding(args: SpiralConfig) -> None:
    """
    Raises:
        ValueError: If the model is sharded in a way that no rank can generate from alone.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true") and not args.use_vllm:
        raise ValueError(
            "FSDP shards the weights and transformers cannot gather them for a roll-out, in which ranks generate "
            "unequally. Generate with vLLM: `use_vllm=True`."
        )


def check_vllm(
    args: SpiralConfig, model: str | PreTrainedModel = "", peft_config: Any = None, has_snapshots: bool = False
) -> None:
    """
    Args:
        args ([`SpiralConfig`]):
            The trainer's.
        model (`str` or [`~transformers.PreTrainedModel`], *optional*):
            The model to be trained.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Of the adapter in training, unless the model has it already.
        has_snapshots (`bool`, defaults to `False`):
            Whether snapshots of the policy, or the base model, will be opponents.

    Raises:
        ImportError: If vLLM is to generate, or to be asked, and is not installed.
        ValueError: If it cannot answer for snapshots of such a policy.
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
    Args:
        args ([`SpiralConfig`]):
            The trainer's.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Of the adapter in training, if there is one.

    Raises:
        ValueError: If the reference of an adapter is to follow it: that is the model without the adapter, which stays.
    """
    if args.sync_ref_model and peft_config is not None:
        raise ValueError(
            "`sync_ref_model` needs a reference model of its own, and with an adapter (`use_peft`) the reference is the model "
            "without it. Add `--sync_ref_model False`, or train whole weights."
        )


def check_world_size(args: SpiralConfig) -> None:
    """
    Raises:
        ValueError: If the launcher started more processes than the trainer sees: each would train a world of its own
            and all would write to one output folder.
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
    return lock_together(args.output_dir, args.process_index == 0)


def check_output_dir(output_dir: str) -> None:
    """
    Raises:
        ValueError: If nothing can be written to `output_dir`.
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
    Args:
        args ([`SpiralConfig`]):
            Of a run that starts anew.
        pool ([`~opponents.OpponentPool`], *optional*):
            Its pool; by default the one in its output folder.

    Raises:
        ValueError: If the pool holds snapshots of a run that could be resumed.
    """
    pool = OpponentPool(Path(args.output_dir) / POOL_FOLDER) if pool is None else pool
    inside = Path(args.output_dir).resolve() in pool.folder.resolve().parents
    if pool.has_own and (not inside or any(Path(args.output_dir).glob(f"*/{MARKER}"))):
        raise ValueError(
            f"{pool.folder} holds snapshots of an earlier run. Go on with that one by `resume_from_checkpoint`, or choose "
            "another `output_dir`. `pool_from_checkpoints` takes its snapshots over into a pool of their own."
        )


def load_tokenizer(model: str | PreTrainedModel, args: SpiralConfig) -> PreTrainedTokenizerBase:
    """
    The model's tokenizer, loaded before its weights so that what is wrong shows early.

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
        # Some of these messages go on for a page: their first line, as a sentence.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(" :.") + "."
        where = "has no readable tokenizer" if os.path.isdir(name) else "is neither a folder nor a model on the Hub"
        raise ValueError(f"The model {name!r} {where}: {reason}") from error
