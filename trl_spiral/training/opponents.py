"""Opponents as a configuration names them, made: players, and engines for those that need one of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from trl_spiral.engines.http.openai import BUDGETS, EndpointEngine
from trl_spiral.engines.load import saved_player
from trl_spiral.games import Game
from trl_spiral.opponents import OpponentPool, Opponents, parse_opponents
from trl_spiral.opponents.guests import TAKEN, read_endpoint, scripted_guest, short_names
from trl_spiral.opponents.pool import POOL_FOLDER, Eviction
from trl_spiral.players import EndpointPlayer, HumanPlayer, Player
from trl_spiral.selfplay.referee import Engine
from trl_spiral.training.config import SpiralConfig
from trl_spiral.types import BASE, HUMAN, POOL, SELF, Sampling


def invite(args: SpiralConfig, games: Sequence[Game], device: Any = "cpu") -> Opponents:
    """
    The opponents that `args.opponents` names.

    Args:
        args ([`SpiralConfig`]):
            The run's configuration.
        games (sequence of [`~games.Game`]):
            What is played: a scripted player must know every one.
        device (`torch.device`, defaults to CPU):
            Where models other than the policy's are put.

    Raises:
        ValueError: If a name means nothing, a game has no such player, or no game has a seat for one.
    """
    named = parse_opponents(args.opponents)
    others = [name for name in named if name != SELF]
    if others and all(game.traits.seats == 1 for game in games):
        raise ValueError(
            f"`opponents` ({args.opponents!r}) would never be met: the policy has the only seat of "
            f"{', '.join(game.name for game in games)}. Leave {' and '.join(map(repr, others))} out, or add a game of two seats."
        )
    shares: dict[str, float] = {}
    players: dict[str, Player] = {}
    engines: dict[str, Engine] = {}
    models = [(name, endpoint[1]) for name in named if (endpoint := read_endpoint(name))]
    called = short_names(models, {*named, *TAKEN})
    for name, share in named.items():
        endpoint = read_endpoint(name)
        name = called.get(name, name)
        shares[name] = share
        if name in (SELF, POOL, BASE):
            continue
        if endpoint:
            if args.use_vllm and args.vllm_mode == "colocate" and args.vllm_tensor_parallel_size > 1:
                raise ValueError(
                    f"{name} cannot be an opponent where ranks share an engine (`vllm_tensor_parallel_size` of "
                    f"{args.vllm_tensor_parallel_size}): each would ask it for itself and be answered differently. Use 1."
                )
            players[name] = EndpointPlayer(name, _sampling(args))
            options: dict[str, Any] = {**(cast(dict[str, Any], args.endpoint_kwargs) or {})}
            shared = {budget: _share(options.get(budget), args.world_size) for budget in BUDGETS}
            engines[name] = EndpointEngine(*endpoint, **options | shared)
        elif "/" in name:
            players[name], engines[name] = saved_player(name, _sampling(args), args.prompt_style, device)
        elif name == HUMAN:
            if args.world_size > 1:
                raise ValueError(f"A person sits at one terminal, and there are {args.world_size} ranks. Use one.")
            players[name] = HumanPlayer()
        else:
            players[name] = scripted_guest(name, games)
    kept = POOL in shares or BASE in shares
    eviction = cast(Eviction, args.pool_eviction)
    pool = OpponentPool(Path(args.output_dir) / POOL_FOLDER, args.pool_capacity, eviction) if kept else None
    return Opponents(shares, pool, args.matchmaking, players, engines)


def _sampling(args: SpiralConfig) -> Sampling:
    """As the policy samples, but for `generation_kwargs`."""
    return Sampling(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k or 0,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        max_new_tokens=args.max_completion_length,
    )


def _share(total: int | None, ranks: int) -> int | None:
    """
    What each rank may spend.

    Raises:
        ValueError: If there is not enough for one each.
    """
    if total is None:
        return None
    if total < ranks:
        raise ValueError(
            f"An endpoint's budget of {total} cannot be shared by {ranks} ranks. Allow one each at least."
        )
    return total // ranks
