"""State of a TRL trainer in mid-run: generation cycle, logging window, optimizer, and table of completions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LambdaLR


if TYPE_CHECKING:
    from transformers import Trainer
    from trl import GRPOTrainer


def cycle_state(trainer: GRPOTrainer) -> dict[str, Any]:
    """Return the trainer's state in its generation cycle and logging window, which TRL's checkpoints lack."""
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
        # TRL writes these to another file, after the checkpoint is complete. We do not read that file.
        "entropy": [trainer.entropy_coef, trainer._last_world_entropy],
        "training": trainer.model.training,  # selects the metrics of the entry at the end of training
    }


def restore_cycle(trainer: GRPOTrainer, state: dict[str, Any]) -> None:
    """Restore the state that `cycle_state` has returned."""
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
    trainer.model.train(state["training"])
    trainer._tr_loss.fill_(state["loss"])
    trainer._globalstep_last_logged = state["last_logged"]
    trainer._total_loss_scalar = state["total_loss"]
    if trainer.use_adaptive_entropy:
        trainer.entropy_coef, trainer._last_world_entropy = state["entropy"]


_HYPERPARAMETERS = ("initial_lr", "betas", "eps", "weight_decay")


def hyperparameters(trainer: GRPOTrainer) -> list[dict[str, Any]]:
    """Return the settings of the optimizer, one dictionary for each group of parameters."""
    groups = trainer.optimizer.param_groups
    return [{name: group[name] for name in _HYPERPARAMETERS if name in group} for group in groups]


def apply_hyperparameters(trainer: GRPOTrainer, fresh: list[dict[str, Any]]) -> None:
    """
    Restore the settings of the optimizer and the scheduler that loading a checkpoint has overwritten.

    If they are equal, no number changes.
    """
    groups, scheduler = trainer.optimizer.param_groups, trainer.lr_scheduler
    for number, (group, settings) in enumerate(zip(groups, fresh, strict=True)):
        before = group.get("initial_lr")
        group.update(settings)
        if isinstance(scheduler, LambdaLR):
            # As the scheduler computes it, because the schedule may have changed too.
            group["lr"] = group["initial_lr"] * scheduler.lr_lambdas[number](scheduler.last_epoch)
        elif before and before != group["initial_lr"]:
            group["lr"] *= group["initial_lr"] / before
    if all("initial_lr" in group for group in groups):
        rates = {"base_lrs": [group["initial_lr"] for group in groups], "_last_lr": [group["lr"] for group in groups]}
        scheduler.load_state_dict({**scheduler.state_dict(), **rates})


@contextmanager
def after_trainer_state(trainer: GRPOTrainer, work: Callable[[], object]) -> Iterator[None]:
    """Call `work` on rank 0 after a checkpoint's `trainer_state.json` is written, before the push and the rotation."""
    state = trainer.state

    def save_to_json(path: str) -> None:
        type(state).save_to_json(state, path)
        if trainer.is_world_process_zero():
            work()

    state.save_to_json = save_to_json
    try:
        yield
    finally:
        del state.save_to_json


def log_columns(trainer: GRPOTrainer) -> dict[str, Any]:
    """Return the columns of TRL's completions table by name. Each contains the latest batch of all ranks."""
    logs = trainer._logs
    columns = {name: logs[name] for name in ("prompt", "completion", "advantages")}
    columns |= {f"rewards/{name}": values for name, values in logs["rewards"].items()}
    return columns | {f"extra/{name}": values for name, values in logs["extra"].items()}


def generates_batches(trainer: Trainer) -> bool:
    """Return whether a trainer generates the batches that it trains on, as `GRPOTrainer` does."""
    return hasattr(trainer, "_buffered_inputs")


def generation_cycle(trainer: GRPOTrainer) -> int:
    """Return the number of the generation batch of the latest micro-step."""
    cycle: int = (trainer._step - 1) // (trainer.args.steps_per_generation * trainer.num_iterations)
    return cycle


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """
    Counts over this rank's generation batch.

    Attributes:
        rows (`int`):
            Rows of the batch.
        cut_off (`int`):
            Rows at the token limit without an end-of-turn token. TRL's own `clipped_ratio` also counts replies that
            end with a stop string.
        trained_tokens (`int`):
            Tokens that are not masked and whose advantage is not 0.
    """

    rows: int
    cut_off: int
    trained_tokens: int


def count_batch(trainer: GRPOTrainer, longest: int) -> BatchCounts:
    """Return the counts of the trainer's current batch. `longest` is the token limit of a reply."""
    rows = cut_off = tokens = 0
    pad, ends = trainer._tokenizer.pad_token_id, trainer.eos_token_ids
    for batch in trainer._buffered_inputs:
        ids, advantages = batch["completion_ids"], batch["advantages"]
        written = batch["completion_mask"] * batch.get("tool_mask", 1)
        ended = torch.isin(ids, torch.tensor(list(ends), device=ids.device)).any(1)
        rows += len(ids)
        cut_off += int((((ids != pad).sum(1) >= longest) & ~ended).sum())
        tokens += int((written * (advantages if advantages.dim() == 2 else advantages[:, None])).count_nonzero())
    return BatchCounts(rows, cut_off, tokens)


def latest_rewards(trainer: GRPOTrainer) -> list[float]:
    """Return the weighted rewards of the latest batch of all ranks. A missing reward counts as 0."""
    columns = trainer._logs["rewards"].values()
    weights = trainer.reward_weights.tolist()
    return [
        sum(weight * reward for weight, reward in zip(weights, row, strict=False) if math.isfinite(reward))
        for row in zip(*columns, strict=False)
    ]


def has_no_gradient(model: torch.nn.Module) -> bool:
    """Return whether all gradients on this rank are 0. False if DeepSpeed hides them."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    shards = (gradient.to_local() if hasattr(gradient, "to_local") else gradient for gradient in gradients)
    return bool(gradients) and not any(bool(shard.any()) for shard in shards)


def replace_log(trainer: GRPOTrainer, column: str, values: list[Any]) -> None:
    """Replace the newest entries of a column of TRL's completions table, one per row of the latest batch."""
    entries = trainer._logs[column]
    for _ in range(min(len(values), len(entries))):
        entries.pop()
    entries.extend(values)
