"""The games of a trainer, and its policy as a player. The only module here that reads attributes of trainers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from trl_spiral import _trl
from trl_spiral.engines.http.openai import BUDGETS
from trl_spiral.games import Game, get_game
from trl_spiral.players import PolicyPlayer
from trl_spiral.rollout_func import SelfPlayRollout
from trl_spiral.selfplay.batch import Batch
from trl_spiral.selfplay.schedule import check_lists_moves
from trl_spiral.text.prompts import PromptRenderer


if TYPE_CHECKING:
    from transformers import Trainer

T = TypeVar("T")


# ---- self-play of the trainer ----
def rollout_of(trainer: Trainer) -> SelfPlayRollout | None:
    """Return the self-play of a trainer; `None` if it plays no games."""
    rollout = getattr(trainer, "rollout_func", None)
    return rollout if isinstance(rollout, SelfPlayRollout) else None


def latest_batch(trainer: Trainer) -> Batch:
    """Return the latest batch of self-play on this rank; an empty one if the trainer plays no games."""
    rollout = rollout_of(trainer)
    return rollout.batch if rollout is not None else Batch()


def episodes_started(trainer: Trainer) -> int:
    """Return the number of training episodes that this rank has started."""
    rollout = rollout_of(trainer)
    return rollout.collector.episodes if rollout is not None else 0


def prompt_style_of(trainer: Trainer) -> str:
    """Return the prompt style of the trainer's self-play, or `"chat"`."""
    rollout = rollout_of(trainer)
    return rollout.settings.prompt_style if rollout is not None else "chat"


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


# ---- the policy as a player ----
def evaluation_player(
    trainer: Trainer,
    temperature: float | None = None,
    prompt_style: str | None = None,
    max_new_tokens: int | None = None,
) -> PolicyPlayer:
    """
    Return the trainer's policy as a player that is prompted and sampled as in the trainer's own evaluation.

    Prompts, sampling, `sample_unit` and `constrain_moves` are the trainer's, except for what is given here.

    Args:
        trainer ([`~transformers.Trainer`]):
            Any trainer.
        temperature (`float`, *optional*):
            Replaces the trainer's temperature.
        prompt_style (`str`, *optional*):
            Replaces the trainer's prompt style. With a named style each move has a prompt of its own, whatever the
            `sample_unit`.
        max_new_tokens (`int`, *optional*):
            Replaces the trainer's token limit of a reply.
    """
    given = {"temperature": temperature, "max_new_tokens": max_new_tokens}
    sampling = replace(
        _trl.trainer_sampling(trainer, evaluation=True),
        **{name: value for name, value in given.items() if value is not None},
    )
    rollout = rollout_of(trainer)
    return PolicyPlayer(
        renderer_of(trainer, prompt_style),
        sampling,
        conversation=(
            rollout is not None and rollout.settings.sample_unit == "trajectory" and prompt_style in (None, "chat")
        ),
        constrain_moves=rollout is not None and rollout.settings.constrain_moves,
    )


def training_player(trainer: Trainer) -> PolicyPlayer:
    """Return the trainer's policy as a player that is prompted and sampled as in training."""
    rollout = rollout_of(trainer)
    return rollout.player(trainer) if rollout else PolicyPlayer(renderer_of(trainer), _trl.trainer_sampling(trainer))


def renderer_of(trainer: Trainer, prompt_style: str | None = None) -> PromptRenderer:
    """Return the renderer of the trainer's prompts, or of the trainer's messages in another style."""
    rollout = rollout_of(trainer)
    if rollout is not None and prompt_style in (None, rollout.settings.prompt_style):
        return rollout.player(trainer).renderer
    return PromptRenderer(
        _trl.tokenizer_of(trainer),
        prompt_style or "chat",
        getattr(trainer, "chat_template", None),  # TRL sets it if the tokenizer's own template does not fit
        getattr(trainer.args, "chat_template_kwargs", None),
    )


def grading_temperatures(
    trainer: Trainer, given: float | Sequence[float] | None = None, exact: bool = True
) -> tuple[float, ...]:
    """
    Return the temperatures to grade at: the given ones or, by default, the trainer's in evaluation and in training.

    Raises:
        ValueError: If grades are exact and a temperature is not above 0.
    """
    if given is None:
        given = tuple(
            dict.fromkeys(_trl.trainer_sampling(trainer, evaluation).temperature for evaluation in (True, False))
        )
    temperatures = (given,) if isinstance(given, float | int) else tuple(given)
    if exact and min(temperatures) <= 0.0:
        raise ValueError(
            f"A temperature to grade at ({min(temperatures)}) must be above 0: exact grades need the probability of "
            "every move. Give the callback another temperature."
        )
    return temperatures


def endpoint_kwargs_of(trainer: Trainer) -> dict[str, Any]:
    """Return the trainer's arguments of endpoints, without its budget."""
    found = getattr(trainer.args, "endpoint_kwargs", None) or {}
    return {name: value for name, value in found.items() if name not in BUDGETS}


def resume_of(trainer: Trainer) -> dict[str, Any] | None:
    """Return the record of the resume that this process began with; `None` if it did not, or does not record it."""
    return getattr(trainer, "resumed", None)


# ---- ranks ----
def engine_group(trainer: Trainer) -> tuple[int, int]:
    """
    Return the index of this rank's engine, and the number of engines.

    Each engine does a share of the work. Ranks that share an engine must send it the same requests.
    """
    sharing = _trl.ranks_per_engine(trainer)
    return trainer.accelerator.process_index // sharing, trainer.accelerator.num_processes // sharing


def share_of(trainer: Trainer, problems: Sequence[T]) -> tuple[dict[int, T], bool]:
    """
    Return the problems of this rank by their place among all, and whether this rank keeps the replies.

    Among ranks that share an engine, only the first keeps them.
    """
    group, groups = engine_group(trainer)
    share = {number: problem for number, problem in enumerate(problems) if number % groups == group}
    return share, trainer.accelerator.process_index % _trl.ranks_per_engine(trainer) == 0


def check_can_play(trainer: Trainer, prompt_style: str | None = None, alone: bool = False) -> None:
    """
    Check that the trainer's model can play. Call it when training begins, so that a run does not fail at its end.

    Args:
        trainer ([`~transformers.Trainer`]):
            Any trainer.
        prompt_style (`str`, *optional*):
            As for `renderer_of`.
        alone (`bool`, defaults to `False`):
            Whether the first rank runs the model without the others.

    Raises:
        ValueError: If the model cannot generate, its prompts cannot be rendered, or its shards cannot be gathered.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not model.can_generate():
        raise ValueError(
            f"The trainer's model ({type(model).__name__}) cannot generate text, so it cannot play. Leave out the "
            "callbacks that let it play, or train a model with a language-modelling head."
        )
    renderer_of(trainer, prompt_style)
    if trainer.is_fsdp_enabled and (alone or not getattr(trainer, "use_vllm", False)):
        raise ValueError(
            "FSDP shards the weights, and ranks that play do not run the model in step, so they cannot gather them. "
            "Let vLLM generate if the trainer supports it, and grade sampled replies (`games=100`, `samples=100`) "
            "instead of exact probabilities."
        )
    zero3 = trainer.is_deepspeed_enabled and trainer.accelerator.state.deepspeed_plugin.zero_stage == 3
    if alone and zero3 and trainer.accelerator.num_processes > 1:
        raise ValueError(
            "Exact grades run the model on the first rank alone, and ZeRO-3 shards its weights over all ranks. Grade "
            "sampled replies (`games=100`, `samples=100`), or shard less (ZeRO-2)."
        )
