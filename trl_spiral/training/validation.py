"""Checks of a new `SpiralConfig`. Each raises a `ValueError` that names the rule, the value and a remedy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from trl_spiral._trl import check_batching
from trl_spiral.games import check_game
from trl_spiral.opponents import get_scheme
from trl_spiral.players.names import check_scripted_name, parse_opponents
from trl_spiral.selfplay.curriculum import game_shares
from trl_spiral.training.options import make_estimator
from trl_spiral.types import BASE, HUMAN, POOL, SELF


if TYPE_CHECKING:
    from trl_spiral.training.config import SpiralConfig


def check_games(args: SpiralConfig) -> None:
    """Check the games, their weights and returns, and the number of processes."""
    for name in args.games:
        check_game(name)
    if not args.games:
        raise ValueError("`games` is empty: name at least one game.")
    if args.game_weights is not None:
        game_shares(args.games, args.game_weights)
    if len(args.forfeit) not in (1, 2):
        raise ValueError(
            f"`forfeit` ({args.forfeit}) must be one or two numbers: the return of the seat at fault and that of the "
            "others, such as [-1.5, 0.5]."
        )
    if args.num_generations is None or args.num_generations < 2:
        raise ValueError(
            f"`num_generations` ({args.num_generations}) must be at least 2, as TRL requires. Self-play has no "
            "groups, so leave it at 2."
        )
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1 and not args.use_cpu and _has_no_accelerator():
        raise ValueError(
            f"The launcher started {world_size} processes, and without an accelerator each of them would train "
            "alone. Add `--use_cpu` to train on the CPU together."
        )


def check_opponents(args: SpiralConfig) -> None:
    """Check the opponents, and how often snapshots are taken."""
    shares = parse_opponents(args.opponents)
    for name in shares:
        # An address or a folder, which contain a slash, is checked when the opponents are made.
        if name not in (SELF, POOL, BASE, HUMAN) and "/" not in name:
            check_scripted_name(name)
    get_scheme(args.matchmaking)
    if POOL not in shares and args.matchmaking != type(args).matchmaking:
        raise ValueError(
            f"`matchmaking` ({args.matchmaking!r}) chooses among snapshots, and `opponents` ({args.opponents!r}) "
            "contains no pool. Add it, as in 'self:0.5,pool:0.5'."
        )
    for name in ("pool_every", "pool_capacity"):
        if getattr(args, name) < 1:
            raise ValueError(f"`{name}` ({getattr(args, name)}) must be at least 1.")


def check_advantages(args: SpiralConfig) -> None:
    """Check the estimator and the settings of self-play."""
    if args.scale_rewards != "none":
        raise ValueError(
            f"`scale_rewards` ({args.scale_rewards!r}) must be 'none': the trainer replaces the advantages that TRL "
            "scales, so it would have no effect. Leave it out."
        )
    make_estimator(args.advantage_estimator, cast(dict[str, Any] | None, args.advantage_kwargs))
    _ = args.self_play  # checks its values


def check_generation(args: SpiralConfig) -> None:
    """Check options of generation against each other."""
    check_batching(args)
    if args.vllm_engine_kwargs and not (args.use_vllm and args.vllm_mode == "colocate"):
        raise ValueError(
            "`vllm_engine_kwargs` are for an engine that the trainer starts: `use_vllm` with `vllm_mode='colocate'`. "
            "For a server, pass these flags to the command that starts it."
        )
    options = args.generation_kwargs or {}
    if fixed := sorted({"seed", "n", "logprobs", "temperature"} & set(options)):
        raise ValueError(
            f"`generation_kwargs` must not set {fixed[0]!r}: every reply has its own seed, derived from `seed`, one "
            "log-probability per token, and the `temperature` that the loss uses."
        )
    correcting = args.use_vllm and args.vllm_importance_sampling_correction
    if args.constrain_moves and not correcting:
        raise ValueError(
            "`constrain_moves` needs `use_vllm` and `vllm_importance_sampling_correction`: the constraint changes the "
            "distribution of replies, which only vLLM reports and only this correction accounts for."
        )
    if args.constrain_moves and args.vllm_structured_outputs_regex is not None:
        raise ValueError(
            "`constrain_moves` and `vllm_structured_outputs_regex` both constrain a reply. Choose one of them."
        )
    harmless = {"max_tokens", "max_new_tokens", "stop", "stop_strings", "ignore_eos"}
    filtered = args.top_p < 1.0 or args.top_k > 0 or args.min_p or args.repetition_penalty != 1.0
    shaped = set(options) - harmless or args.vllm_structured_outputs_regex is not None
    if args.use_vllm and not correcting and (filtered or shaped):
        raise ValueError(
            "vLLM's log-probabilities of filtered sampling (`top_p`, `top_k`, `min_p`, `repetition_penalty`, a regex, "
            "`generation_kwargs`) are not the policy's. Leave `vllm_importance_sampling_correction` on, or sample "
            "unfiltered."
        )


def _has_no_accelerator() -> bool:
    import torch

    return torch.accelerator.current_accelerator(check_available=True) is None
