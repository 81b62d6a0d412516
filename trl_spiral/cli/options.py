"""Arguments that several commands share: games, and how models are loaded and sampled."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_spiral.games import Game, get_game
from trl_spiral.types import Sampling


if TYPE_CHECKING:
    from trl_spiral.engines.build import BuiltPlayers

CONTESTANT = (
    "a model's folder (whole or LoRA adapter), its id on the Hub, a snapshot (run/opponents#step-40), an endpoint "
    "(https://host/v1#model), or random, minimax, equilibrium, mcts-200"
)
"""Names of players, for help texts."""

IN_FLIGHT = dict(type=int, default=128, help="most replies generated at once (default: %(default)s)")
"""The option `--in-flight`."""


def add_contestant_arguments(parser: argparse.ArgumentParser, temperature: float) -> None:
    """Add the arguments of how contestants are loaded and sampled."""
    group = add_model_arguments(parser, temperature, 1024, "token limit of a reply; longer replies forfeit")
    group.add_argument("--tokenizer", help="of pools' snapshots (default: the run's, from the folder of the pool)")
    group.add_argument(
        "--api-key-env",
        default="OPENAI_API_KEY",
        help="environment variable with the endpoints' key, '' for none (default: %(default)s)",
    )
    group.add_argument(
        "--timeout", type=float, default=120.0, help="seconds for one reply of an endpoint (default: %(default)s)"
    )


def add_model_arguments(parser: argparse.ArgumentParser, temperature: float, max_new_tokens: int, limit: str) -> Any:
    """
    Add the arguments of how models are loaded and sampled, for `read_sampling` and `read_device`.

    Args:
        parser (`argparse.ArgumentParser`):
            Parser of the command.
        temperature, max_new_tokens:
            Defaults.
        limit (`str`):
            Help of `--max-new-tokens`.

    Returns:
        The group of these arguments.
    """
    group = parser.add_argument_group("models")
    group.add_argument(
        "--temperature", type=float, default=temperature, help="temperature of the models (default: %(default)s)"
    )
    group.add_argument("--max-new-tokens", type=int, default=max_new_tokens, help=f"{limit} (default: %(default)s)")
    group.add_argument("--prompt-style", default="chat", help="style of the prompts (default: %(default)s)")
    group.add_argument("--device", help="device of the models (default: cuda if available, else cpu)")
    return group


def read_sampling(args: argparse.Namespace) -> Sampling:
    """Return how replies are sampled. Raises `ValueError` if a number is out of range."""
    at_least_one("--max-new-tokens", args.max_new_tokens)
    if args.temperature < 0.0:
        raise ValueError(f"`--temperature` ({args.temperature}) must not be negative. Use `0` for greedy decoding.")
    return Sampling(temperature=args.temperature, max_new_tokens=args.max_new_tokens)


def read_device(args: argparse.Namespace) -> str:
    """Return the device of the models. Raises `ValueError` if torch cannot use it."""
    import torch

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises the latter
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"`--device` ({device}) cannot be used: {reason}. Use `cpu`, or leave it out.") from error
    return device


def playable_games(names: Sequence[str]) -> list[Game]:
    """
    Return the games with these names, each once.

    Raises:
        ValueError: If a game is unknown.
        RuntimeError: If a game cannot be played on this machine.
    """
    games = [get_game(name) for name in dict.fromkeys(names)]
    for game in games:
        game.check()
    return games


def write_json(path: Path, content: Any) -> None:
    """Write plain values to a file, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def at_least_one(name: str, value: int) -> None:
    """Raise `ValueError` if a number is below 1."""
    if value < 1:
        raise ValueError(f"`{name}` ({value}) must be at least 1.")


def check_names_one(name: str, value: str) -> None:
    """Raise `ValueError` if an argument names several players, as the folder of a pool does."""
    from trl_spiral.engines.build import read_name

    read_name(value, name)


def open_contestants(args: argparse.Namespace, names: Sequence[str], games: Sequence[Game]) -> BuiltPlayers:
    """
    Return the named players, with models loaded as the arguments say.

    Raises:
        ValueError: If an argument is out of range, or as `build_players` does.
    """
    sampling, device = read_sampling(args), read_device(args)
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
