"""The policy of a trainer as a player."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from trl_spiral import _trl
from trl_spiral.players import PolicyPlayer
from trl_spiral.prompts import PromptRenderer


if TYPE_CHECKING:
    from transformers import Trainer

T = TypeVar("T")


def evaluation_player(trainer: Trainer, temperature: float, prompt_style: str | None = None) -> PolicyPlayer:
    """The trainer's policy as a player at another temperature."""
    sampling = replace(_trl.sampling_of(trainer), temperature=temperature)
    return PolicyPlayer(renderer_of(trainer, prompt_style), sampling, name="policy")


def policy_player(trainer: Trainer) -> PolicyPlayer:
    """The trainer's policy as a player, as it plays in training."""
    # A plain trainer may play by ours, or by a roll-out function of the user's own.
    player = getattr(getattr(trainer, "rollout_func", None), "player", None)
    return player(trainer) if player else PolicyPlayer(renderer_of(trainer), _trl.sampling_of(trainer))


def renderer_of(trainer: Trainer, prompt_style: str | None = None) -> PromptRenderer:
    """Prompts in the style given or, by default, as the trainer's self-play has them, if it plays."""
    style = prompt_style or getattr(getattr(trainer, "rollout_func", None), "prompt_style", "chat")
    kwargs = getattr(trainer.args, "chat_template_kwargs", None)
    return PromptRenderer(_trl.tokenizer_of(trainer), style, chat_template_kwargs=kwargs)


def share_of(trainer: Trainer, problems: Sequence[T]) -> tuple[dict[int, T], bool]:
    """
    Problems that this rank asks, by their place among all, and whether it keeps the replies: ranks that share an engine
    have to ask it the same, and the first of them keeps what it says.
    """
    rank, sharing = trainer.accelerator.process_index, _trl.ranks_per_engine(trainer)
    group, groups = rank // sharing, trainer.accelerator.num_processes // sharing
    return {
        number: problem for number, problem in enumerate(problems) if number % groups == group
    }, rank % sharing == 0


def check_can_play(trainer: Trainer, prompt_style: str | None = None, alone: bool = False) -> None:
    """
    To be called when training begins: what is wrong would otherwise show when it ends.

    Args:
        trainer ([`~transformers.Trainer`]):
            Whose model is to play.
        prompt_style (`str`, *optional*):
            As for `renderer_of`.
        alone (`bool`, defaults to `False`):
            Whether the first rank runs the model by itself.

    Raises:
        ValueError: If the model cannot write, its prompts cannot be rendered, or its shards cannot be gathered.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not model.can_generate():
        raise ValueError(
            f"The trainer's model ({type(model).__name__}) cannot write, so it cannot play. Leave out the callbacks that "
            "let it, or train a model with a language-modelling head."
        )
    renderer_of(trainer, prompt_style)
    if trainer.is_fsdp_enabled and (alone or not getattr(trainer, "use_vllm", False)):
        raise ValueError(
            "FSDP shards the weights, and ranks that play do not run the model alike, so they cannot gather them. Let vLLM "
            "generate, where the trainer can, and grade by replies that are drawn (`games=100`, `samples=100`) rather than exactly."
        )
    zero3 = trainer.is_deepspeed_enabled and trainer.accelerator.state.deepspeed_plugin.zero_stage == 3
    if alone and zero3 and trainer.accelerator.num_processes > 1:
        raise ValueError(
            "Exact grades run the model on the first rank alone, and ZeRO-3 has spread its weights over all. Grade by "
            "replies that are drawn (`games=100`, `samples=100`), or shard less (ZeRO-2)."
        )
