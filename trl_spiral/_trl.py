"""
Everything of TRL and transformers that is private or experimental, touched in this module alone.

`tests/test_trl_seams.py` compares the names below with what is installed, so that a new release fails one clear test
rather than a run.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from accelerate.utils import broadcast_object_list, is_peft_model
from transformers import GenerationConfig
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.models.utils import unwrap_model_for_generation
from trl.trainer import grpo_trainer

from trl_spiral.engines.adapters import SideBySide, live_adapter, obstacle, read_adapters
from trl_spiral.engines.continuous import ContinuousEngine
from trl_spiral.engines.frozen import FrozenCopy
from trl_spiral.engines.http import ServerEngine
from trl_spiral.engines.memory import rows_that_fit
from trl_spiral.engines.phases import PhasedEngine
from trl_spiral.engines.router import Router
from trl_spiral.engines.snapshots import check_base
from trl_spiral.engines.transformers import TransformersEngine, generation_config
from trl_spiral.engines.vllm import VLLMEngine, load_weights, lora_request
from trl_spiral.engines.vllm_lora import (
    adapter_of_zeros,
    check_adapter,
    check_lora_config,
    is_adapter,
    load_into_server,
    save_adapter,
    scratch_folder,
)
from trl_spiral.rollout import Engine
from trl_spiral.types import POLICY, Sampling


if TYPE_CHECKING:
    from trl import GRPOTrainer


Found = TypeVar("Found")

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
    "use_transformers_continuous_batching",
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
"""The same, where vLLM generates."""

VLLM_GENERATION_ATTRIBUTES = ("mode", "llm", "vllm_client", "enable_sleep_mode", "_llm_weights_sleeping", "_dist")
"""Attributes of TRL's `VLLMGeneration` that are read or set."""

TRAINER_ATTRIBUTES = ("_tr_loss", "_globalstep_last_logged", "_total_loss_scalar")
"""Attributes of `transformers.Trainer` that are restored: the loss that has not been logged yet."""

OVERRIDDEN = {
    "_generate_and_score_completions": ("self", "inputs"),
    "_save_checkpoint": ("self", "model", "trial"),
    "_compute_loss": ("self", "model", "inputs"),
    "_get_per_token_logps_and_entropies": (
        *("self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
        *("compute_entropy", "compute_aux_loss", "pixel_values", "image_grid_thw", "num_images"),
        *("pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes", "token_type_ids"),
        *("mm_token_type_ids", "image_position_ids"),
    ),
    "_save_rng_state": ("self", "output_dir"),
    "_load_rng_state": ("self", "checkpoint"),
    "log": ("self", "logs", "start_time"),
    "create_model_card": ("self", "model_name", "dataset_name", "tags"),
}
"""Methods that `SpiralTrainer` overrides, with their parameters."""

OVERRIDDEN_BY_ALGORITHMS = {
    "_get_train_sampler": ("self", "dataset"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
}
"""Methods that `AlgorithmMixin` overrides beyond those of `AdvantageMixin`, which `SpiralTrainer` shares."""


class SpiralVLLMGeneration(VLLMGeneration):  # type: ignore[misc]  # TRL's types are not read
    """
    TRL's vLLM generation, with what TRL does not say to a colocated engine, and weights that are synced or refused.

    Args:
        engine_kwargs (`dict[str, Any]`):
            More arguments of [`vllm.LLM`] in colocate mode; they override TRL's.
        patience (`float`):
            Seconds for which a server may fail before it is given up.
        adapters (`bool`, defaults to `False`):
            Whether vLLM keeps the base weights and serves the policy as one adapter among others. TRL merges it into the
            weights that it syncs, on which a snapshot's adapter would be policy and snapshot in one.
        args, kwargs:
            As in [`~trl.generation.vllm_generation.VLLMGeneration`].

    Attributes:
        policy_adapter (`Path`, *optional*):
            With `adapters`, the folder of the adapter in training as of the last sync.
        snapshots (`Mapping[str, Path | None]`):
            Other adapters that a server was given last, by policy name.

    Raises:
        ValueError: If the adapter in training cannot be served beside others.
        RuntimeError: If the server does not take it.
    """

    _renewals = count()  # over all trainers of the process, which share a folder

    def __init__(
        self, *args: Any, engine_kwargs: dict[str, Any], patience: float, adapters: bool = False, **kwargs: Any
    ) -> None:
        self.engine_kwargs = engine_kwargs
        self.patience = patience
        self.adapters = adapters
        self.policy_adapter: Path | None = None
        self.snapshots: Mapping[str, Path | None] = {}
        self.boot_id: str | None = None
        self._base_synced_to: str | None = None  # the boot that holds the base weights
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        if self.adapters:
            self._check_adapters()
        llm: Any = getattr(vllm_generation, "LLM", None)  # TRL has none where vLLM is not installed, and says so
        vllm_generation.LLM = lambda **kwargs: llm(**kwargs | self.engine_kwargs)
        try:
            super()._init_vllm()
        finally:
            vllm_generation.LLM = llm
        if self.mode == "server":
            self.boot_id = _found_by_rank_zero(self._find_boot_id, self.accelerator.is_main_process)
        if self.mode == "server" and self.adapters:
            # Tried now, so that a server that takes no adapters is found before the first roll-out.
            self._renew_adapter()
            self.serve({})

    def sync_weights(self) -> None:
        """
        Gives the engine the trainer's weights and sees to it that nothing computed from older ones is left.

        Every rank must call it. A server that was started again since the last time is connected to again. With
        `adapters`, a server is given the base weights and no adapter yet: see `serve`.

        Raises:
            RuntimeError: If requests are in flight, or vLLM does not drop its prefix cache.
            ConnectionError: If the server cannot be reached.
        """
        if self.mode == "colocate":
            if waiting := self.llm.llm_engine.get_num_unfinished_requests():
                raise RuntimeError(
                    f"Weights cannot change while {waiting} requests are in flight: their replies would be written by "
                    "both. Finish or abort them first."
                )
            if not self.adapters or self._base_synced_to is None:
                super().sync_weights()
                self._base_synced_to = "this process"
            if self.adapters:
                self._renew_adapter()
            dropped = self.llm.reset_prefix_cache()
        else:
            main = self.accelerator.is_main_process
            # Noted before: a server that is started again from here on will be found to be another. All ranks are told,
            # since all gather what is sharded.
            boot = _found_by_rank_zero(self._find_boot_id, main)
            if main and boot != self.boot_id:
                self.vllm_client.close_communicator()
                self.vllm_client.init_communicator(device=self.accelerator.device)
            if not self.adapters or boot != self._base_synced_to:
                super().sync_weights()
                self._base_synced_to = boot
            if self.adapters:
                self._renew_adapter()
            dropped = _found_by_rank_zero(self._server_drops_prefix_cache, main)
        if not dropped:
            raise RuntimeError(
                "vLLM declined to drop its prefix cache after its weights had changed, as it does while requests are in "
                "flight. Let nobody else use the engine during training."
            )
        if self.mode == "server":
            # So that no rank asks before the weights are there.
            self.accelerator.wait_for_everyone()
            self.boot_id = boot

    def serve(self, snapshots: Mapping[str, Path | None]) -> dict[str, str]:
        """
        Gives a server the policy's adapter, these snapshots', and no others. Every rank must call it.

        Args:
            snapshots (`Mapping[str, Path | None]`):
                Folders of adapters by policy name, `None` for the base model.

        Returns:
            `dict[str, str]`: What the server calls each, by policy name.

        Raises:
            RuntimeError: If the server does not take one.
            ConnectionError: On rank 0, if the server cannot be reached.
        """
        self.snapshots = dict(snapshots)

        def load() -> dict[str, str]:
            assert self.policy_adapter is not None, "there is one from the start"
            self._find_boot_id()  # which waits for a server that is on its way back
            # Zeros for the base model: a vLLM on a CPU gives rows without an adapter that of another, and a server does
            # not say what it runs on.
            folders = {
                policy: adapter_of_zeros(self.policy_adapter) if folder is None else Path(folder)
                for policy, folder in {POLICY: self.policy_adapter, **snapshots}.items()
            }
            return load_into_server(base_url(self), folders)

        return _found_by_rank_zero(load, self.accelerator.is_main_process)

    def _check_adapters(self) -> None:
        """Raises `ValueError`, before an engine is made, where the adapter in training cannot be served as one."""
        check_lora_config(self.model.peft_config[self.model.active_adapter])
        if self._dist.is_fsdp:
            raise ValueError(
                "FSDP shards the adapter in training, and here it is served from a file that each rank writes. Use "
                "DeepSpeed, or plain data parallelism, to train against adapters."
            )
        if self.enable_sleep_mode:
            raise ValueError(
                "`vllm_enable_sleep_mode` throws away the weights on which adapters are served. Leave it off, and give "
                "vLLM less memory by `vllm_gpu_memory_utilization`."
            )

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As TRL's, but of the base weights alone, as they are without any adapter, where adapters are served."""
        if not self.adapters:
            yield from super()._iter_named_params()
            return
        for name, parameter in self.model.named_parameters():
            if self.model.prefix not in name:  # that of PEFT's own parameters
                with self._dist.gather_params([parameter]):
                    name = name.removeprefix("base_model.model.").replace(".base_layer", "")
                    yield self._fix_param_name_to_vllm(name), parameter.data

    def _renew_adapter(self) -> None:
        """Writes the adapter in training to a new folder: under the name of an old one, vLLM would find the old one."""
        old = self.policy_adapter
        folder = scratch_folder() / f"{POLICY}-{next(self._renewals)}"
        adapter = [parameter for name, parameter in self.model.named_parameters() if self.model.prefix in name]
        with self._dist.gather_params(adapter):
            if self.mode == "colocate":
                self.policy_adapter = save_adapter(self.model, folder)
            else:
                main = self.accelerator.is_main_process
                saved = _found_by_rank_zero(lambda: save_adapter(self.model, folder), main)
                self.policy_adapter = saved if main else None
        if old is not None:
            if self.mode == "colocate":
                # It is the last that was used, and would be the last to make room for others.
                self.llm.llm_engine.remove_lora(lora_request(POLICY, old).lora_int_id)
            shutil.rmtree(old)

    def _find_boot_id(self) -> str:
        with ServerEngine(base_url(self), patience=self.patience) as engine:
            return engine.boot_id()

    def _server_drops_prefix_cache(self) -> bool:
        """Asks until the server has dropped it: requests that were aborted take it a moment to forget."""
        for pause in (0.0, 0.1, 0.5, 2.0):
            time.sleep(pause)
            answer = self.vllm_client.session.post(f"{base_url(self)}/reset_prefix_cache")
            # Before vLLM 0.26 the answer was empty.
            if answer.ok and (not answer.content or answer.json().get("success")):
                return True
        return False


def _found_by_rank_zero(find: Callable[[], Found], is_main_process: bool) -> Found:
    """
    What rank 0 finds, on every rank. Every rank must call it, and none is left waiting where it fails.

    Raises:
        RuntimeError: On every rank but the first, if it fails there; the first raises what it raised.
    """
    failure: Exception | None = None
    told: list[Any] = [None, ""]
    if is_main_process:
        try:
            told[0] = find()
        except Exception as error:
            failure = error
            told[1] = f"{type(error).__name__}: {error}"
    broadcast_object_list(told, from_process=0)
    if failure is not None:
        raise failure
    found, reason = told
    if reason:
        raise RuntimeError(f"Rank 0 has failed, and this rank stops with it: {reason}")
    result: Found = found
    return result


def base_url(generation: VLLMGeneration) -> str:
    """Where the server is, in server mode."""
    return (generation.server_base_url or f"http://{generation.server_host}:{generation.server_port}").rstrip("/")


PATIENCE = 30.0
"""Seconds for which a server may fail under a plain trainer, whose configuration does not say."""


@contextmanager
def own_vllm_generation(engine_kwargs: dict[str, Any], patience: float, adapters: bool = False) -> Iterator[None]:
    """Within it, a [`~trl.GRPOTrainer`] that is made generates by `SpiralVLLMGeneration`."""
    theirs = grpo_trainer.VLLMGeneration
    grpo_trainer.VLLMGeneration = partial(
        SpiralVLLMGeneration, engine_kwargs=engine_kwargs, patience=patience, adapters=adapters
    )
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = theirs


@contextmanager
def open_engine(trainer: GRPOTrainer, snapshots: Mapping[str, Path | None] | None = None) -> Iterator[Engine]:
    """
    The engine that the trainer's arguments name, with the trainer's weights, for as long as the context lasts.

    Every rank must enter it, whether it plays or not: weights may have to be gathered or synced.

    Args:
        trainer ([`~trl.GRPOTrainer`]):
            Whose weights answer as `POLICY`.
        snapshots (`Mapping[str, Path | None]`, *optional*):
            Folders of other policies, by policy name: LoRA adapters or whole weights. `None` for the base model of a LoRA
            run, without any adapter.
    """
    if not getattr(trainer, "use_vllm", False):  # an `SFTTrainer` has no such thing
        opened = _transformers_engine(trainer, snapshots or {})
    else:
        _check_snapshots(trainer, snapshots or {})
        if trainer._last_loaded_step != trainer.state.global_step:
            # TRL has done so before a roll-out, and has not before a callback.
            trainer.vllm_generation.sync_weights()
            trainer._last_loaded_step = trainer.state.global_step
        opened = (_server_engine if trainer.vllm_mode == "server" else _colocated_engine)(trainer, snapshots or {})
    with opened as engine:
        yield engine


def restore_weights(trainer: GRPOTrainer, engine: Engine) -> None:
    """Gives a server that was started again the trainer's weights, and its adapters. Every rank must call it."""
    assert isinstance(engine, ServerEngine), "no other engine loses its weights"
    generation = trainer.vllm_generation
    generation.sync_weights()
    engine.boot = generation.boot_id
    if generation.adapters:
        engine.adapters = generation.serve(generation.snapshots)


def ranks_per_engine(trainer: GRPOTrainer) -> int:
    """How many ranks share one engine, all of which must ask it the same: vLLM's tensor parallelism."""
    shared = getattr(trainer, "use_vllm", False) and trainer.vllm_mode == "colocate"
    return trainer.vllm_tensor_parallel_size if shared else 1


def is_first_to_play(trainer: GRPOTrainer) -> bool:
    """Whether this rank belongs to the first engine: the one that plays where one is enough."""
    first: bool = trainer.accelerator.process_index < ranks_per_engine(trainer)
    return first


WHOLE_WEIGHTS_BEHIND_A_SERVER = (
    "A vLLM server holds one set of whole weights, so it cannot answer for snapshots of them. Train LoRA, generate with "
    '`vllm_mode="colocate"`, or serve the opponent by a server of its own, as an endpoint.'
)


def _check_snapshots(trainer: GRPOTrainer, snapshots: Mapping[str, Path | None]) -> None:
    """Raises `ValueError` if the trainer's vLLM cannot answer for one of them."""
    generation = trainer.vllm_generation
    adapters = getattr(generation, "adapters", False)  # a plain trainer's does not say
    for name, folder in snapshots.items():
        if adapters and folder is not None and not is_adapter(folder):
            raise ValueError(
                f"The snapshot {name!r} in {folder} holds whole weights, and this run trains an adapter, beside which vLLM "
                "serves adapters alone. Take it out of the pool, or serve it as an endpoint."
            )
        if adapters and folder is not None:
            check_adapter(folder)
        if not adapters and (folder is None or is_adapter(folder)):
            raise ValueError(
                f"The snapshot {name!r} is an adapter, or the base model without one, and this trainer gives vLLM whole "
                "weights, an adapter merged into them, on which it would be wrong. Use `SpiralTrainer` with LoRA and a "
                "pool from the start, or give the folder of whole weights."
            )
    if snapshots and not adapters and trainer.vllm_mode == "server":
        raise ValueError(WHOLE_WEIGHTS_BEHIND_A_SERVER)
    if snapshots and not adapters and (generation._dist.is_zero3 or generation._dist.is_fsdp):
        raise ValueError(
            "Sharded weights must be gathered by all ranks at once, and each rank puts opponents' weights in their place "
            "when its own games ask for it. Train LoRA against snapshots, or do not shard (ZeRO-2 at most)."
        )


@contextmanager
def _colocated_engine(trainer: GRPOTrainer, snapshots: Mapping[str, Path | None]) -> Iterator[Engine]:
    """The colocated vLLM, awake."""
    generation = trainer.vllm_generation
    if generation.enable_sleep_mode:
        if generation._llm_weights_sleeping:
            generation.sync_weights()
        generation.llm.wake_up(tags=["kv_cache"])
    options = _vllm_options(trainer)
    try:
        if getattr(generation, "adapters", False):
            adapters = {POLICY: generation.policy_adapter, **snapshots}
            yield VLLMEngine(generation.llm, trainer._last_loaded_step, options, adapters)
        elif snapshots:
            yield from _colocated_phases(trainer, snapshots, options)
        else:
            yield VLLMEngine(generation.llm, trainer._last_loaded_step, options)
    finally:
        if generation.enable_sleep_mode:
            # As TRL does: the weights are discarded, and pushed again before the next roll-out.
            generation.llm.sleep(level=2)
            generation._llm_weights_sleeping = True


def _colocated_phases(
    trainer: GRPOTrainer, snapshots: Mapping[str, Path | None], options: dict[str, Any]
) -> Iterator[PhasedEngine]:
    """
    The colocated vLLM with whole weights that are put in place of one another, the policy's again at the end. That last time
    comes after the engine was asked for its metrics, so it is one more than `weight_switches` tells.
    """
    generation, step = trainer.vllm_generation, trainer._last_loaded_step

    def load(policy: str) -> None:
        # What TRL takes for weights that were never synced: should the roll-out break off, the next will sync them.
        trainer._last_loaded_step = -1
        if policy == POLICY:
            # No collective, since the weights are not sharded: other ranks switch at other times.
            generation.sync_weights()
            trainer._last_loaded_step = step
        else:
            folder = snapshots[policy]
            assert folder is not None, "checked before"
            load_weights(generation.llm, folder)

    engine = VLLMEngine(generation.llm, step, options)
    phases = PhasedEngine(engine, load, {POLICY, *snapshots}, resident=POLICY)
    yield phases
    if phases.resident != POLICY:
        load(POLICY)


@contextmanager
def _server_engine(trainer: GRPOTrainer, snapshots: Mapping[str, Path | None]) -> Iterator[ServerEngine]:
    """The vLLM server, through connections of this rank's own."""
    generation = trainer.vllm_generation
    if not isinstance(generation, SpiralVLLMGeneration):
        # A plain trainer's: its first rank alone has synced, and nobody has noted which boot of the server.
        trainer.accelerator.wait_for_everyone()
    with ServerEngine(
        base_url(generation),
        version=trainer._last_loaded_step,
        extra=_vllm_options(trainer),
        boot=getattr(generation, "boot_id", None),
        adapters=generation.serve(snapshots) if getattr(generation, "adapters", False) else None,
        max_in_flight=_most_in_flight(trainer),
        patience=getattr(generation, "patience", PATIENCE),
    ) as engine:
        yield engine


def _most_in_flight(trainer: GRPOTrainer) -> int:
    # A plain trainer's configuration does not say.
    return getattr(trainer.args, "games_in_flight", None) or MOST_IN_FLIGHT


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


def _vllm_options(trainer: GRPOTrainer) -> dict[str, Any]:
    """What `generation_kwargs` says beyond our own `Sampling`, for vLLM."""
    options = {
        name: value for name, value in (trainer.args.generation_kwargs or {}).items() if name not in _SAMPLING_NAMES
    }
    if trainer.args.vllm_structured_outputs_regex is not None:
        options["structured_outputs"] = {"regex": trainer.args.vllm_structured_outputs_regex}
    return {"stop_token_ids": list(trainer.eos_token_ids), **options}


@contextmanager
def _transformers_engine(trainer: GRPOTrainer, snapshots: Mapping[str, Path | None]) -> Iterator[Engine]:
    """
    The engine over the trainer's own model, and where opponents cannot share a batch with it, over a second copy.

    The model is unwrapped, ZeRO-3 shards are gathered once around the whole roll-out, and dropout is off.
    """
    training = trainer.model.training
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            # A trainer that does not sample names none of these.
            gather_deepspeed3_params=getattr(trainer.args, "ds3_gather_for_generation", True),
            generation_kwargs=getattr(trainer, "generation_kwargs", None),
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model,
        trainer.accelerator.autocast(),
    ):
        model.eval()
        try:
            if snapshots:
                with _engine_of_several(trainer, model, snapshots) as engine:
                    yield engine
            else:
                with _policy_engine(trainer, model, _rows_that_fit(trainer, model)) as engine:
                    yield engine
        finally:
            model.train(training)


@contextmanager
def _engine_of_several(trainer: GRPOTrainer, model: Any, snapshots: Mapping[str, Path | None]) -> Iterator[Engine]:
    """Adapters side by side in one batch where they can be, and otherwise snapshots in turn beside the policy."""
    continuous = _batches_continuously(trainer)
    if None in snapshots.values() and is_peft_model(model):
        check_base(model.peft_config[model.active_adapter])
    adapters = None
    if is_peft_model(model) and obstacle(model) is None:
        adapters = read_adapters(snapshots, _shelves.setdefault(trainer, {}))
    if adapters is not None and not continuous:
        side_by_side = SideBySide(model, {POLICY: live_adapter(model), **adapters})
        yield _plain_engine(trainer, model, _rows_that_fit(trainer, model), side_by_side)
        return
    second = _second_copy(trainer, model)
    rows = _rows_that_fit(trainer, model, engines=2)
    opponents: Engine
    if adapters is not None:
        # The continuous-batching manager has the policy's own model to itself.
        opponents = _plain_engine(trainer, second.model, rows, SideBySide(second.model, adapters))
    else:
        opponents = PhasedEngine(
            _plain_engine(trainer, second.model, rows),
            load=lambda name: second.load(snapshots[name]),
            policies=snapshots,
            # Nobody, though somebody's weights are there: a resumed run finds nobody's, and must take the same turns.
            resident=None,
        )
    with _policy_engine(trainer, model, rows) as policy:
        yield Router({POLICY: policy}, default=opponents)


def _rows_that_fit(trainer: GRPOTrainer, model: Any, engines: int = 1) -> int:
    tokens = engines * (sampling_of(trainer).max_new_tokens + PROMPT_ROOM)
    return rows_that_fit(model, tokens, _most_in_flight(trainer))


def _plain_engine(
    trainer: GRPOTrainer, model: Any, rows: int, adapters: SideBySide | None = None
) -> TransformersEngine:
    return TransformersEngine(
        model,
        _generation_config_of(trainer, model),
        trainer.state.global_step,
        adapters=adapters,
        max_rows=rows,
        tokenizer=tokenizer_of(trainer),
    )


def _generation_config_of(trainer: Any, model: Any) -> GenerationConfig:
    """The trainer's own or, where it does not sample, what any trainer of TRL's would sample with."""
    config: GenerationConfig | None = getattr(trainer, "generation_config", None)
    if config is not None:
        return config
    return generation_config(model, tokenizer_of(trainer))


def _batches_continuously(trainer: Any) -> bool:
    """Whether the trainer generates by transformers' continuous batching."""
    return bool(getattr(trainer, "use_transformers_continuous_batching", False))


@contextmanager
def _policy_engine(trainer: GRPOTrainer, model: Any, rows: int) -> Iterator[Engine]:
    """The engine of the weights in training alone."""
    if not _batches_continuously(trainer):
        yield _plain_engine(trainer, model, rows)
        return
    # The one that the trainer has had from its first roll-out on: making it costs seconds.
    engine = _continuous_engines.get(trainer)
    if engine is None:
        engine = _continuous_engines[trainer] = ContinuousEngine(
            model,
            trainer.generation_config,
            max_rows=rows,
            max_length=trainer.max_completion_length + PROMPT_ROOM,
            options=trainer.args.transformers_continuous_batching_config,
        )
    engine.version = trainer.state.global_step
    try:
        yield engine
    finally:
        engine.suspend()


def _second_copy(trainer: GRPOTrainer, model: Any) -> FrozenCopy:
    """The one that the trainer has had since it first met an opponent."""
    if trainer not in _second_copies:
        if getattr(trainer.args, "cast_lm_head_to_fp32", False):
            raise ValueError(
                "`cast_lm_head_to_fp32` ties the last layer to the model in training, and opponents that cannot share a "
                "batch with the policy need a copy of it. Leave it off, train plain LoRA, or let vLLM generate."
            )
        if (engine := _continuous_engines.get(trainer)) is not None:
            engine.close()  # it hangs on the model, threads and all, and nobody can copy those
        _second_copies[trainer] = FrozenCopy(model)
    return _second_copies[trainer]


_second_copies: WeakKeyDictionary[Any, FrozenCopy] = WeakKeyDictionary()

_shelves: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
"""Adapters that were read from their folders for the latest roll-out."""

_continuous_engines: WeakKeyDictionary[Any, ContinuousEngine] = WeakKeyDictionary()

MOST_IN_FLIGHT = 512
"""Most games under way at once, where nobody says how many."""

PROMPT_ROOM = 2048
"""Tokens that a prompt may have where memory is planned before any was seen."""


def tokenizer_of(trainer: Any) -> Any:
    """The tokenizer of any trainer of TRL's."""
    return getattr(trainer, "_tokenizer", None) or trainer.processing_class


def sampling_of(trainer: GRPOTrainer, evaluation: bool = False) -> Sampling:
    """
    How the trainer samples: its arguments, over them `generation_kwargs`, and in evaluation `eval_sampling`.

    A trainer that does not sample, such as [`~trl.SFTTrainer`], has the defaults of [`~types.Sampling`].
    """
    args = trainer.args
    if not hasattr(trainer, "max_completion_length"):
        return Sampling()
    said: dict[str, Any] = {
        "temperature": trainer.temperature,
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


def cycle_state(trainer: GRPOTrainer) -> dict[str, Any]:
    """Where the trainer is in its generation cycle and logging window, which no checkpoint of TRL's own holds."""
    logs = trainer._logs
    return {
        "step": trainer._step,
        "buffered_inputs": trainer._buffered_inputs,
        "metrics": {name: list(values) for name, values in trainer._metrics["train"].items()},
        "logs": {
            **{name: list(logs[name]) for name in ("prompt", "completion", "advantages")},
            "rewards": {name: list(values) for name, values in logs["rewards"].items()},
            "extra": {name: list(values) for name, values in logs["extra"].items()},
        },
        "loss": trainer._tr_loss.item(),
        "last_logged": trainer._globalstep_last_logged,
        "total_loss": trainer._total_loss_scalar,
        # TRL writes these after the checkpoint is whole, and takes a file that is missing for a new start.
        "entropy": [trainer.entropy_coef, trainer._last_world_entropy],
    }


def restore_cycle(trainer: GRPOTrainer, state: dict[str, Any]) -> None:
    """Puts back what `cycle_state` gave."""
    device = trainer.accelerator.device
    trainer._step = state["step"]
    buffered = state["buffered_inputs"]
    if buffered is not None:
        buffered = [
            {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
            for batch in buffered
        ]
    trainer._buffered_inputs = buffered
    trainer._metrics["train"].clear()
    trainer._metrics["train"].update({name: list(values) for name, values in state["metrics"].items()})
    for name in ("prompt", "completion", "advantages"):
        trainer._logs[name].clear()
        trainer._logs[name].extend(state["logs"][name])
    for group in ("rewards", "extra"):
        trainer._logs[group].clear()
        for name, values in state["logs"][group].items():
            trainer._logs[group][name].extend(values)
    trainer._tr_loss.fill_(state["loss"])
    trainer._globalstep_last_logged = state["last_logged"]
    trainer._total_loss_scalar = state["total_loss"]
    trainer.entropy_coef, trainer._last_world_entropy = state["entropy"]


def replace_log(trainer: GRPOTrainer, column: str, values: list[Any]) -> None:
    """Replaces the newest entries of a column of TRL's completions table, one per row of the latest batch."""
    entries = trainer._logs[column]
    for _ in range(min(len(values), len(entries))):
        entries.pop()
    entries.extend(values)


class EpochSampler(torch.utils.data.Sampler):  # type: ignore[misc]  # torch's types are not read
    """
    TRL's order of prompts, with that of each epoch a function of its number.

    TRL draws one order after the other from one generator, which no checkpoint holds: a run that is resumed in its second epoch
    goes through the first one's order again.

    Args:
        sampler (`Sampler`):
            TRL's, which shuffles by a generator.
        seed (`int`):
            That of the first epoch; the next one's is one more.
        epoch (`Callable`):
            Tells how many epochs are over, part of one included.
    """

    def __init__(self, sampler: Any, seed: int, epoch: Callable[[], float]) -> None:
        self.sampler = sampler
        self.seed = seed
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.sampler.generator.manual_seed(self.seed + int(self.epoch()))
        yield from self.sampler

    def __len__(self) -> int:
        return len(self.sampler)


def log_columns(trainer: GRPOTrainer) -> dict[str, Any]:
    """The columns of TRL's completions table by name, each of which holds the latest batch of all ranks."""
    logs = trainer._logs
    columns = {name: logs[name] for name in ("prompt", "completion", "advantages")}
    columns |= {f"rewards/{name}": values for name, values in logs["rewards"].items()}
    return columns | {f"extra/{name}": values for name, values in logs["extra"].items()}


def temperature_cells(trainer: GRPOTrainer) -> list[Any]:
    """
    Where the models that a trainer scores with keep their temperature: TRL builds it into their forward pass.

    To be called before training, which may wrap that forward pass into others.

    Raises:
        RuntimeError: If it is not found, since then the loss would go by another temperature than sampling.
    """
    return [_temperature_cell(model) for model in (trainer.model, trainer.ref_model) if model is not None]


def _temperature_cell(model: Any) -> Any:
    while hasattr(model, "module"):  # as several processes wrap a reference model
        model = model.module
    forward = (model.get_base_model() if is_peft_model(model) else model).forward
    while forward is not None:
        function = getattr(forward, "__func__", forward)
        names = function.__code__.co_freevars if hasattr(function, "__code__") else ()
        if "temperature" in names:
            return function.__closure__[names.index("temperature")]
        forward = getattr(function, "__wrapped__", None)
    raise RuntimeError(
        f"The temperature at which {type(model).__name__} scores replies was not found: TRL builds it into the model by "
        "`add_fused_lm_head`. Leave `temperature_ref_std` out, and report the version of TRL."
    )


def set_temperature(trainer: GRPOTrainer, temperature: float, cells: list[Any]) -> None:
    """Sets every copy of the temperature that TRL made: that it samples with, and those that it scores with."""
    trainer.temperature = temperature
    if trainer.use_vllm:
        trainer.vllm_generation.temperature = temperature
    else:
        trainer.generation_config.temperature = temperature
        trainer.generation_kwargs["temperature"] = temperature
    for cell in cells:
        cell.cell_contents = temperature


def appending_chat_template(tokenizer: Any) -> str | None:
    """
    A chat template that only ever appends, for conversations trained in one row; `None` if the tokenizer's own does.

    TRL knows such variants of common templates. Where it knows none, the tokenizer's own is used, and
    [`~prompts.PromptRenderer`] refuses it if it rewrites earlier replies.
    """
    from trl.chat_template_utils import get_training_chat_template, is_chat_template_prefix_preserving

    if tokenizer.chat_template is None or is_chat_template_prefix_preserving(tokenizer):
        return None
    try:
        template: str | None = get_training_chat_template(tokenizer)
    except ValueError:
        return None
    return template
