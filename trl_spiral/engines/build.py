"""
Build players from their names, and the engines that answer them.

`build_players` serves the command line and callbacks, `build_opponents` the trainer.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import find_adapter_config_file

from trl_spiral.engines.http.openai import BUDGETS, EndpointEngine
from trl_spiral.engines.local.second_copy import FrozenCopy
from trl_spiral.engines.local.transformers import TransformersEngine, generation_config
from trl_spiral.engines.policies import Router, SwappingEngine
from trl_spiral.extras import require_extra
from trl_spiral.games import Game
from trl_spiral.opponents import OpponentPool, Opponents, PoolSettings
from trl_spiral.opponents.pool import INDEX, POOL_FOLDER
from trl_spiral.players import EndpointPlayer, HumanPlayer, Player, PolicyPlayer
from trl_spiral.players.names import (
    PlayerName,
    parse_endpoint,
    parse_name,
    parse_opponents,
    scripted_player_for_games,
    short_names,
    unknown_name,
)
from trl_spiral.selfplay.referee import Engine
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import BASE, POOL, SELF, Sampling


_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_MODEL_FILES = ("config.json", "adapter_config.json")


def read_names(texts: Sequence[str]) -> list[PlayerName]:
    """
    Parse the names of players and look up paths. A pool's folder stands for all of its snapshots. Loads no weights.

    Args:
        texts (`Sequence[str]`):
            Names in any form that [`~players.names`] lists.

    Raises:
        ValueError: If a name is unknown or repeated.
    """
    names = [name for text in texts for name in _look_up(parse_name(text))]
    for text, count in Counter(name.text for name in names).items():
        if count > 1:
            raise ValueError(f"{text!r} is named twice. Name each player once.")
    return names


def read_name(text: str, option: str) -> PlayerName:
    """
    Like `read_names`, for an option that takes one player.

    Raises:
        ValueError: If the name is unknown, or a pool's folder with several snapshots.
    """
    names = read_names([text])
    if len(names) > 1:
        raise ValueError(
            f"`{option}` ({text}) must name one player, and it names {len(names)}. Choose {names[-1].text}."
        )
    return names[0]


def _look_up(name: PlayerName) -> list[PlayerName]:
    """Replace a path by the model or the snapshots that it names."""
    if name.kind != "path":
        return [name]
    folder, _, snapshot = name.text.partition("#")
    if (Path(folder) / INDEX).is_file():
        return _snapshots(OpponentPool(folder), folder, snapshot)
    if (path := Path(name.text)).is_dir():
        if not any((path / file).is_file() for file in _MODEL_FILES):
            inside = sorted(p for p in path.iterdir() if any((p / f).is_file() for f in ("config.json", INDEX)))
            hint = f"Did you mean {inside[-1]}?" if inside else "Give the folder that `save_pretrained` wrote."
            raise ValueError(f"{name.text} contains no model, no adapter and no pool of snapshots. {hint}")
        return [replace(name, kind="model", short=Path(os.path.abspath(path)).name)]
    if _HUB_ID.fullmatch(name.text):
        return [replace(name, kind="model", short=path.name)]
    if "/" in name.text:
        raise ValueError(f"There is no folder {name.text}, and no model on the Hub can have that name. Check it.")
    raise unknown_name(name.text, ", or a model's folder, its id on the Hub, or an endpoint")


def _snapshots(pool: OpponentPool, folder: str, snapshot: str) -> list[PlayerName]:
    names = [kept.name for kept in pool.snapshots]
    if snapshot and snapshot not in pool:
        raise ValueError(f"The pool in {folder} has no snapshot {snapshot!r}. It has {', '.join(names)}.")
    if not snapshot and not names:
        raise ValueError(f"The pool in {folder} is empty. Choose a pool with a snapshot.")
    return [PlayerName(f"{folder}#{n}", "snapshot", n, pool.path(n)) for n in ([snapshot] if snapshot else names)]


@dataclass(slots=True)
class BuiltPlayers:
    """
    Players by name, and the engines that answer them.

    Attributes:
        players (`dict[str, Player]`):
            In the order in which they were named.
        engines (`dict[str, Engine]`):
            By the policy that requests name. Several policies may share an engine.
    """

    players: dict[str, Player] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)

    def engine(self, default: Engine | None = None) -> Engine | None:
        """Combine all engines, with `default` for all other policies. Returns `default` if there are no engines."""
        if not self.engines:
            return default
        return Router(self.engines, default or next(iter(self.engines.values())))

    @property
    def in_flight(self) -> int:
        """Limit on concurrent games: 1 if a person plays."""
        return 1 if any(isinstance(player, HumanPlayer) for player in self.players.values()) else 256

    def close(self) -> None:
        """Close the connections to endpoints."""
        for engine in self.engines.values():
            if isinstance(engine, EndpointEngine):
                engine.close()


def build_players(
    names: Sequence[PlayerName],
    games: Sequence[Game],
    sampling: Sampling | None = None,
    prompt_style: str = "chat",
    tokenizer: str | None = None,
    device: Any = "cpu",
    endpoint_kwargs: Mapping[str, Any] | None = None,
) -> BuiltPlayers:
    """
    Build the named players and their engines. Cheap checks come first: models are loaded last.

    Args:
        names (`Sequence[PlayerName]`):
            From `read_names`.
        games (sequence of [`~games.Game`]):
            Games to play. Each scripted player must exist for each game.
        sampling ([`~types.Sampling`], *optional*):
            Sampling of models and endpoints.
        prompt_style (`str`, defaults to `"chat"`):
            See [`~text.prompts.PromptRenderer`].
        tokenizer (`str`, *optional*):
            Folder or Hub id of the tokenizer of pools' snapshots. Default: the one in the run's output folder or its
            newest checkpoint, or that of an adapter's base model.
        device (`torch.device`, defaults to CPU):
            Device of the models.
        endpoint_kwargs (`Mapping[str, Any]`, *optional*):
            Arguments of [`EndpointEngine`] for each endpoint, such as `api_key_env` and `timeout`.

    Raises:
        ValueError: If a scripted player does not play a game, or a model cannot be loaded.
    """
    sampling = sampling or Sampling()
    shown = short_names(names)
    built = BuiltPlayers(dict.fromkeys(shown.values()))  # fixes the order; all are filled below
    for name in names:
        short = shown[name.text]
        if name.kind == "human":
            built.players[short] = HumanPlayer()
        elif name.kind == "scripted":
            built.players[short] = scripted_player_for_games(short, games)
        elif endpoint := parse_endpoint(name.text):
            built.players[short] = EndpointPlayer(short, sampling)
            built.engines[short] = EndpointEngine(*endpoint, **endpoint_kwargs or {})
    pools: dict[Path, dict[str, Path]] = {}
    for name in names:
        if name.folder is not None:
            pools.setdefault(name.folder.parent, {})[name.text] = name.folder
    tokenizers = {pool: tokenizer or _tokenizer_of(pool, weights) for pool, weights in pools.items()}
    loaded: list[tuple[PolicyPlayer, Engine]] = []
    for pool, weights in pools.items():
        players, engine = _pool_players(weights, tokenizers[pool], sampling, prompt_style, device)
        loaded += [(player, engine) for player in players]
    loaded += [saved_player(name.text, sampling, prompt_style, device) for name in names if name.kind == "model"]
    for player, engine in loaded:
        player.name = shown[player.policy]
        built.players[player.name], built.engines[player.policy] = player, engine
    return built


def _tokenizer_of(pool: Path, weights: Mapping[str, Path]) -> str:
    """Find the tokenizer of a pool's snapshots, which contain none."""
    run = pool.resolve().parent
    checkpoints = sorted(run.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name), reverse=True)
    for place in (run, *checkpoints):
        if (place / "tokenizer_config.json").is_file():
            return str(place)
    adapter = next(iter(weights.values())) / "adapter_config.json"
    if adapter.is_file():
        return str(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"])
    raise ValueError(
        f"There is no tokenizer next to the pool in {pool}. Save one there, or name it with `--tokenizer`."
    )


def saved_player(
    path: str,
    sampling: Sampling,
    prompt_style: str = "chat",
    device: Any = "cpu",
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> tuple[PolicyPlayer, SwappingEngine]:
    """
    Load a model as a player called `path`, and the engine that answers it.

    Args:
        path (`str`):
            Folder or Hub id of a whole model, or of a LoRA adapter, whose configuration names its base model.
        sampling, prompt_style, device:
            As for `build_players`.
        chat_template_kwargs (`Mapping`, *optional*):
            Arguments of the chat template.

    Raises:
        ValueError: If the model or its tokenizer cannot be loaded.
    """
    model, tokenizer = _load(path, path, device)
    renderer = PromptRenderer(tokenizer, prompt_style, chat_template_kwargs=chat_template_kwargs)
    player = PolicyPlayer(renderer, sampling, policy=path)
    return player, _engine(model, tokenizer, lambda name: None, [path], resident=path)


def _pool_players(
    weights: Mapping[str, Path], tokenizer: str, sampling: Sampling, prompt_style: str, device: Any
) -> tuple[list[PolicyPlayer], SwappingEngine]:
    """Make a player for each policy in `weights`, which maps policies to folders, and the engine that they share."""
    model, read = _load(str(list(weights.values())[-1]), tokenizer, device)
    resident = FrozenCopy(model)
    engine = _engine(resident.model, read, lambda name: resident.load(weights[name]), list(weights))
    renderer = PromptRenderer(read, prompt_style)
    return [PolicyPlayer(renderer, sampling, policy=name) for name in weights], engine


def _engine(
    model: Any, tokenizer: Any, load: Callable[[str], None], names: Collection[str], resident: str | None = None
) -> SwappingEngine:
    inner = TransformersEngine(model, generation_config(model, tokenizer), tokenizer=tokenizer)
    return SwappingEngine(inner, load, names, resident)


def _load(path: str, tokenizer: str, device: Any) -> tuple[Any, Any]:
    """Load a model or an adapter on its base, and a tokenizer."""
    try:
        adapter = find_adapter_config_file(path)
        base = json.loads(Path(adapter).read_text())["base_model_name_or_path"] if adapter else None
        if base:
            require_extra("peft", "Loading a LoRA adapter")
        # `AutoModelForCausalLM` would load an adapter onto its base, but not as a PEFT model.
        model = AutoModelForCausalLM.from_pretrained(base or path)
        if base:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, path)
        read = AutoTokenizer.from_pretrained(tokenizer if not base or tokenizer != path else base, padding_side="left")
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(" :.") + "."
        raise ValueError(f"The model {path!r} cannot be loaded: {reason}") from error
    if read.pad_token is None:
        read.pad_token = read.eos_token
    return model.to(device).eval(), read


def build_opponents(args: Any, games: Sequence[Game], device: Any = "cpu") -> Opponents:
    """
    Build the players and engines that `SpiralConfig.opponents` describes.

    Args:
        args ([`SpiralConfig`]):
            Configuration of the run.
        games (sequence of [`~games.Game`]):
            Games to play. Each scripted player must exist for each game.
        device (`torch.device`, defaults to CPU):
            Device of models other than the policy's.

    Raises:
        ValueError: If a name is unknown, a game has no such player, or no game has a seat for an opponent.
    """
    shares = parse_opponents(args.opponents)
    others = [text for text in shares if text != SELF]
    if others and all(game.traits.seats == 1 for game in games):
        raise ValueError(
            f"`opponents` ({args.opponents!r}) would never be met: the policy has the only seat of "
            f"{', '.join(game.name for game in games)}. Leave {' and '.join(map(repr, others))} out, or add a game of "
            "two seats."
        )
    # Models keep their path as their name: metrics are logged under it.
    texts = [text for text in others if text not in (POOL, BASE)]
    names = [read_name(text, "opponents") for text in texts]
    names = [replace(name, short=name.text) if name.kind in ("model", "snapshot") else name for name in names]
    sampling = Sampling(  # the policy's, except for `generation_kwargs`
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k or 0,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        max_new_tokens=args.max_completion_length,
    )
    built = build_players(
        names, games, sampling, args.prompt_style, device=device, endpoint_kwargs=_endpoint_kwargs(args, names)
    )
    called = dict(zip(texts, built.players, strict=True))
    shares = {called.get(text, text): share for text, share in shares.items()}
    folder = Path(args.output_dir) / POOL_FOLDER
    keeps_pool = POOL in shares or BASE in shares
    pool = OpponentPool(folder, args.pool_capacity, PoolSettings.of(args.pool_kwargs).eviction) if keeps_pool else None
    return Opponents(shares, pool, args.matchmaking, built.players, built.engines)


def _endpoint_kwargs(args: Any, names: Sequence[PlayerName]) -> dict[str, Any]:
    """Check that players and ranks fit together, and return the arguments of this rank's endpoint engines."""
    if args.world_size > 1 and any(name.kind == "human" for name in names):
        raise ValueError(f"A person sits at one terminal, and there are {args.world_size} ranks. Use one.")
    options = dict(args.endpoint_kwargs or {})
    endpoints = [name.text for name in names if name.kind == "endpoint"]
    if not endpoints:
        return options
    if args.use_vllm and args.vllm_mode == "colocate" and args.vllm_tensor_parallel_size > 1:
        raise ValueError(
            f"{endpoints[0]} cannot be an opponent where ranks share an engine (`vllm_tensor_parallel_size` of "
            f"{args.vllm_tensor_parallel_size}): each rank would get another reply to the same request. Use 1."
        )
    return options | {budget: _budget_per_rank(options.get(budget), args.world_size) for budget in BUDGETS}


def _budget_per_rank(total: int | None, ranks: int) -> int | None:
    if total is not None and total < ranks:
        raise ValueError(f"An endpoint's budget of {total} cannot be shared by {ranks} ranks. Allow at least {ranks}.")
    return None if total is None else total // ranks
