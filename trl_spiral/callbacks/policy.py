"""The policy of a trainer as a player."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trl_spiral import _trl
from trl_spiral.players import PolicyPlayer
from trl_spiral.prompts import PromptRenderer


if TYPE_CHECKING:
    from transformers import Trainer


def evaluation_player(trainer: Trainer, temperature: float) -> PolicyPlayer:
    """The trainer's policy as a player at another temperature."""
    sampling = replace(_trl.sampling_of(trainer), temperature=temperature)
    return PolicyPlayer(renderer_of(trainer), sampling, name="policy")


def policy_player(trainer: Trainer) -> PolicyPlayer:
    """The trainer's policy as a player, as it plays in training."""
    rollout = getattr(trainer, "rollout", None)
    return rollout.player(trainer) if rollout else PolicyPlayer(renderer_of(trainer), _trl.sampling_of(trainer))


def renderer_of(trainer: Trainer) -> PromptRenderer:
    """Prompts as the trainer's own configuration has them, where it has any."""
    style = getattr(trainer.args, "prompt_style", "chat")
    kwargs = getattr(trainer.args, "chat_template_kwargs", None)
    return PromptRenderer(_trl.tokenizer_of(trainer), style, chat_template_kwargs=kwargs)
