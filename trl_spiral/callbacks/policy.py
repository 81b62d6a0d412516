"""The games of a trainer, and its policy as a player that is asked as the trainer asks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from trl_spiral import _trl
from trl_spiral.games import Game, get_game
from trl_spiral.players import PolicyPlayer
from trl_spiral.rollout_func import SelfPlayRollout
from trl_spiral.selfplay.schedule import check_lists_moves
from trl_spiral.text.prompts import PromptRenderer


if TYPE_CHECKING:
    from transformers import Trainer

T = TypeVar("T")


def rollout_of(trainer: Trainer) -> SelfPlayRollout | None:
    """Return the self-play of a trainer; `None` if it plays no games."""
    rollout = getattr(trainer, "rollout_func", None)
    return rollout if isinstance(rollout, SelfPlayRollout) else None


def games_of(
    trainer: Trainer, games: str | Game | Sequence[str | Game] | None = None, option: str = "games"
) -> list[Game]:
    """
    Return the games to play: the given ones or, by default, those that the trainer plays.

    Args:
        trainer ([`~transformers.Trainer`]):
            Any trainer.
        games (`str`, [`~games.Game`] or a sequence of them, *optional*):
            Games or their names.
        option (`str`, defaults to `"games"`):
            Name of the argument, for the error message.

    Raises:
        ValueError: If no game is given and the trainer plays none, if a game is unknown, or if the trainer constrains
            moves and a game does not list its legal moves.
        RuntimeError: If a game cannot be played on this machine.
    """
    rollout = rollout_of(trainer)
    if games is None:
        if rollout is None:
            raise ValueError(
                f"`{option}` is missing, and this trainer plays no games of its own. Name a game, such as "
                "'TicTacToe-v0'."
            )
        return list(rollout.played)
    listed = [games] if isinstance(games, str | Game) else games
    found = [get_game(one) if isinstance(one, str) else one for one in listed]
    for game in found:
        game.check()
        if rollout is not None and rollout.settings.constrain_moves:
            check_lists_moves(game, "constrain_moves")
    return found


def evaluation_player(
    trainer: Trainer,
    temperature: float | None = None,
    prompt_style: str | None = None,
    max_new_tokens: int | None = None,
) -> PolicyPlayer:
    """
    Return the trainer's policy as a player that is asked as in the trainer's own evaluation.

    Prompts, sampling, `sample_unit` and `constrain_moves` are the trainer's, except for what is given here.

    Args:
        trainer ([`~transformers.Trainer`]):
            Any trainer.
        temperature (`float`, *optional*):
            Replaces the trainer's temperature.
        prompt_style (`str`, *optional*):
            Replaces the trainer's prompt style. A named style asks for one move at a time, whatever the `sample_unit`.
        max_new_tokens (`int`, *optional*):
            Replaces the trainer's longest reply.
    """
    given = {"temperature": temperature, "max_new_tokens": max_new_tokens}
    sampling = replace(
        _trl.sampling_of(trainer, evaluation=True),
        **{name: value for name, value in given.items() if value is not None},
    )
    rollout = rollout_of(trainer)
    return PolicyPlayer(
        renderer_of(trainer, prompt_style),
        sampling,
        conversation=rollout is not None
        and rollout.settings.sample_unit == "trajectory"
        and prompt_style in (None, "chat"),
        constrain_moves=rollout is not None and rollout.settings.constrain_moves,
    )


def grading_temperatures(
    trainer: Trainer, given: float | Sequence[float] | None = None, exact: bool = True
) -> tuple[float, ...]:
    """
    Return the temperatures to grade at: the given ones or, by default, the trainer's in evaluation and in training.

    Raises:
        ValueError: If exact grades are to be given at a temperature that is not above 0.
    """
    if given is None:
        given = tuple(dict.fromkeys(_trl.sampling_of(trainer, evaluation).temperature for evaluation in (True, False)))
    temperatures = (given,) if isinstance(given, float | int) else tuple(given)
    if exact and min(temperatures) <= 0.0:
        raise ValueError(
            f"A temperature to grade at ({min(temperatures)}) must be above 0: exact grades need the probability of "
            "every move. Give the callback another temperature."
        )
    return temperatures


def policy_player(trainer: Trainer) -> PolicyPlayer:
    """Return the trainer's policy as a player, as it plays in training."""
    rollout = rollout_of(trainer)
    return rollout.player(trainer) if rollout else PolicyPlayer(renderer_of(trainer), _trl.sampling_of(trainer))


def renderer_of(trainer: Trainer, prompt_style: str | None = None) -> PromptRenderer:
    """Return the renderer of the trainer's prompts, or of the trainer's messages in another style."""
    rollout = rollout_of(trainer)
    if rollout is not None and prompt_style in (None, rollout.settings.prompt_style):
        return rollout.player(trainer).renderer
    return PromptRenderer(
        _trl.tokenizer_of(trainer),
        prompt_style or "chat",
        getattr(trainer, "chat_template", None),  # which TRL sets where the tokenizer's own does not fit
        getattr(trainer.args, "chat_template_kwargs", None),
    )


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
