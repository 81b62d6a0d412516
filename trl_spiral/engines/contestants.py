"""Players as a command line names them, made without a trainer, and the engines that answer them, each opened once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trl_spiral.engines.http.openai import EndpointEngine
from trl_spiral.engines.load import pool_players, saved_player
from trl_spiral.engines.policies import Router
from trl_spiral.games import Game
from trl_spiral.opponents import OpponentPool
from trl_spiral.opponents.guests import read_endpoint, scripted_guest, short_names
from trl_spiral.opponents.pool import INDEX
from trl_spiral.opponents.snapshots import Snapshot
from trl_spiral.opponents.spec import HUMAN
from trl_spiral.players import EndpointPlayer, HumanPlayer, Player
from trl_spiral.players.names import check_scripted_name
from trl_spiral.selfplay.referee import Engine
from trl_spiral.types import Sampling


_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Named:
    """
    Whom a text names.

    Attributes:
        whole (`str`):
            The text that names this one alone.
        kind (`str`):
            `"scripted"`, `"human"`, `"endpoint"`, `"model"` or `"snapshot"`.
        short (`str`):
            What it is called where nobody else is called so.
        folder (`Path`, *optional*):
            Of a snapshot's pool.
    """

    whole: str
    kind: Literal["scripted", "human", "endpoint", "model", "snapshot"]
    short: str
    folder: Path | None = None


def read_names(texts: Sequence[str]) -> list[Named]:
    """
    Whom each text names; a pool's folder names all its snapshots. Nothing is loaded.

    Args:
        texts (`Sequence[str]`):
            Each a scripted player (`random`, `minimax`, `mcts-200`), `human`, an endpoint (`https://host/v1#model`), a
            folder or Hub id of a model or LoRA adapter, a pool's folder, or one of its snapshots
            (`run/opponents#step-40`).

    Raises:
        ValueError: If a text names nobody, or somebody comes twice.
    """
    named = [one for text in texts for one in _read(text)]
    for place, one in enumerate(named):
        if one.whole in [other.whole for other in named[:place]]:
            raise ValueError(f"{one.whole!r} is named twice. A player needs to be named once.")
    return named


def _read(text: str) -> list[Named]:
    # Before folders: one called `random` is `./random`.
    try:
        check_scripted_name(text)
        return [Named(text, "scripted", text)]
    except ValueError as error:
        nobody = f"{str(error)[:-1]}, or a model's folder, its id on the Hub, or an endpoint."
    if text == HUMAN:
        return [Named(text, "human", text)]
    if endpoint := read_endpoint(text):
        return [Named(text, "endpoint", endpoint[1])]
    folder, _, snapshot = text.partition("#")
    if (Path(folder) / INDEX).is_file():
        pool = OpponentPool(folder)
        if snapshot and snapshot not in pool:
            raise ValueError(
                f"The pool in {folder} has no snapshot {snapshot!r}. It has "
                f"{', '.join(s.name for s in pool.snapshots)}."
            )
        names = [snapshot] if snapshot else [kept.name for kept in pool.snapshots]
        if not names:
            raise ValueError(f"The pool in {folder} is empty: there is nobody to play.")
        return [Named(f"{folder}#{name}", "snapshot", name, Path(folder)) for name in names]
    path = Path(text)
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
            inside = sorted(p for p in path.iterdir() if any((p / f).is_file() for f in ("config.json", INDEX)))
            hint = f"Did you mean {inside[-1]}?" if inside else "Give the folder that `save_pretrained` wrote."
            raise ValueError(f"{text} holds no model, no adapter and no pool of snapshots. {hint}")
        return [Named(text, "model", Path(os.path.abspath(path)).name)]
    if _HUB_ID.fullmatch(text):
        return [Named(text, "model", path.name)]
    if "/" in text:
        raise ValueError(f"There is no folder {text}, and no model on the Hub can be called that. Look for a slip.")
    raise ValueError(nobody)


@dataclass(slots=True)
class Contestants:
    """
    Players by name, and what answers them.

    Attributes:
        players (`dict[str, Player]`):
            In the order in which they were named.
        engines (`dict[str, Engine]`):
            By the policy that requests name; one engine may stand under several.
    """

    players: dict[str, Player] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)

    def engine(self, default: Engine | None = None) -> Engine | None:
        """All engines as one, with `default` for all other policies; `None` if nobody asks one."""
        if not self.engines:
            return default
        return Router(self.engines, default or next(iter(self.engines.values())))

    @property
    def in_flight(self) -> int:
        """Most games at once: one where a person plays."""
        return 1 if any(isinstance(player, HumanPlayer) for player in self.players.values()) else 256

    def close(self) -> None:
        """Hangs up on endpoints."""
        for engine in self.engines.values():
            if hasattr(engine, "close"):
                engine.close()


def make_contestants(
    texts: Sequence[str],
    games: Sequence[Game],
    sampling: Sampling | None = None,
    prompt_style: str = "chat",
    tokenizer: str | None = None,
    device: Any = "cpu",
    endpoint_kwargs: Mapping[str, Any] | None = None,
) -> Contestants:
    """
    The players that texts name. What is wrong with a text is said before any model is loaded.

    Args:
        texts (`Sequence[str]`):
            See `read_names`.
        games (sequence of [`~games.Game`]):
            What is to be played: a scripted player must know every one.
        sampling ([`~types.Sampling`], *optional*):
            How models' replies are drawn.
        prompt_style (`str`, defaults to `"chat"`):
            See [`~text.prompts.PromptRenderer`].
        tokenizer (`str`, *optional*):
            Folder or Hub id of the tokenizer of pools' snapshots; by default that of the run, which is beside the pool
            once it has ended or has a checkpoint, or of an adapter's base model.
        device (`torch.device`, defaults to CPU):
            Where models are put.
        endpoint_kwargs (`Mapping[str, Any]`, *optional*):
            Arguments of [`EndpointEngine`] for each endpoint, such as `api_key_env` and `timeout`.

    Raises:
        ValueError: If a text names nobody, a game has no such player, or a model cannot be loaded.
    """
    sampling = sampling or Sampling()
    named = read_names(texts)
    called = short_names([(one.whole, one.short) for one in named])
    made = Contestants(dict.fromkeys(called.values()))  # type: ignore[arg-type]  # all are filled below, in this order
    for one in named:
        name = called[one.whole]
        if one.kind == "human":
            made.players[name] = HumanPlayer()
        elif one.kind == "scripted":
            made.players[name] = scripted_guest(name, games)
        elif endpoint := read_endpoint(one.whole):
            made.players[name] = EndpointPlayer(name, sampling)
            made.engines[name] = EndpointEngine(*endpoint, **endpoint_kwargs or {})
    pools = {one.folder: [other for other in named if other.folder == one.folder] for one in named if one.folder}
    read = {folder: tokenizer or _tokenizer_beside(folder, chosen) for folder, chosen in pools.items()}
    for folder, chosen in pools.items():
        pool = _Chosen(folder, [one.whole for one in chosen])
        players, engine = pool_players(pool, read[folder], sampling, prompt_style, device)
        for player in players:
            made.engines[player.policy] = engine
            player.name = called[player.policy]
            made.players[player.name] = player
    for one in named:
        if one.kind == "model":
            player, made.engines[one.whole] = saved_player(one.whole, sampling, prompt_style, device)
            player.name = called[one.whole]
            made.players[player.name] = player
    return made


class _Chosen(OpponentPool):
    """Some of a pool's snapshots, under names that no other pool's have: `folder#name`."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__(folder)
        self._names = names

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        return tuple(replace(self[name.rpartition("#")[2]], name=name) for name in self._names)

    def path(self, name: str) -> Path:
        return super().path(name.rpartition("#")[2])


def _tokenizer_beside(folder: Path, chosen: Sequence[Named]) -> str:
    """Where the tokenizer of a pool's snapshots is, which hold none themselves."""
    run = folder.resolve().parent
    checkpoints = sorted(run.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name), reverse=True)
    for place in (run, *checkpoints):
        if (place / "tokenizer_config.json").is_file():
            return str(place)
    adapter = folder / chosen[0].short / "adapter_config.json"
    if adapter.is_file():
        return str(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"])
    raise ValueError(
        f"No tokenizer is beside the pool in {folder}. Name the model that was trained by `--tokenizer`, whose it is."
    )
