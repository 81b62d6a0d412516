"""Arguments that several commands share: what is played, and how models are loaded and asked."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trl_spiral.games import Game, get_game
from trl_spiral.types import Sampling


if TYPE_CHECKING:
    from trl_spiral.engines.build import BuiltPlayers

CONTESTANT = (
    "a model's folder (whole or LoRA adapter), its id on the Hub, a snapshot (run/opponents#step-40), an endpoint "
    "(https://host/v1#model), or random, minimax, equilibrium, mcts-200"
)
"""What may be named, for help texts."""


def add_contestant_arguments(parser: argparse.ArgumentParser, temperature: float) -> None:
    """Arguments of how contestants are loaded and asked."""
    group = add_model_arguments(parser, temperature, 1024, "longest reply; longer ones forfeit")
    group.add_argument("--tokenizer", help="of pools' snapshots (default: the run's, beside the pool)")
    group.add_argument(
        "--api-key-env",
        default="OPENAI_API_KEY",
        help="environment variable with the endpoints' key, '' for none (default: %(default)s)",
    )
    group.add_argument(
        "--timeout", type=float, default=120.0, help="seconds for one reply of an endpoint (default: %(default)s)"
    )


def add_model_arguments(parser: argparse.ArgumentParser, temperature: float, max_new_tokens: int, longest: str) -> Any:
    """Arguments of how models are loaded and asked; `sampling_of` and `device_of` read them. Returns their group, for more."""
    group = parser.add_argument_group("models")
    group.add_argument(
        "--temperature", type=float, default=temperature, help="at which models reply (default: %(default)s)"
    )
    group.add_argument("--max-new-tokens", type=int, default=max_new_tokens, help=f"{longest} (default: %(default)s)")
    group.add_argument("--prompt-style", default="chat", help="how prompts are written (default: %(default)s)")
    group.add_argument("--device", help="where models are put (default: cuda if there is one, else cpu)")
    return group


def sampling_of(args: argparse.Namespace) -> Sampling:
    """How replies are drawn. Raises `ValueError` if a number is out of range."""
    at_least_one("--max-new-tokens", args.max_new_tokens)
    if args.temperature < 0.0:
        raise ValueError(
            f"`--temperature` ({args.temperature}) must not be negative. Use `0` for the likeliest reply."
        )
    return Sampling(temperature=args.temperature, max_new_tokens=args.max_new_tokens)


def device_of(args: argparse.Namespace) -> str:
    """Where models are put. Raises `ValueError` if torch cannot use it."""
    import torch

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # of torch without CUDA, the latter
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"`--device` ({device}) cannot be used: {reason}. Use `cpu`, or leave it out.") from error
    return device


def read_games(names: Sequence[str]) -> list[Game]:
    """The games called so. Raises `ValueError` if there is none, and `RuntimeError` if one cannot be played on this machine."""
    games = [get_game(name) for name in dict.fromkeys(names)]
    for game in games:
        game.check()
    return games


def at_least_one(name: str, value: int) -> None:
    """Raises `ValueError` if a number leaves nothing to play."""
    if value < 1:
        raise ValueError(f"`{name}` ({value}) must be at least 1: nothing would be played.")


def check_is_one(name: str, value: str) -> None:
    """Raise `ValueError` if an argument names several players, as a pool's folder does."""
    from trl_spiral.engines.build import read_name

    read_name(value, name)


def open_contestants(args: argparse.Namespace, names: Sequence[str], games: Sequence[Game]) -> BuiltPlayers:
    """
    The players that are named, with models loaded as the arguments say.

    Raises:
        ValueError: If an argument is out of range, or as `build_players` does.
    """
    sampling, device = sampling_of(args), device_of(args)
    from trl_spiral.engines.build import build_players, read_names

    return build_players(
        read_names(names),
        games,
        sampling,
        prompt_style=args.prompt_style,
        tokenizer=args.tokenizer,
        device=device,
        endpoint_kwargs={"api_key_env": args.api_key_env, "timeout": args.timeout},
    )
