"""Models from disk or the Hub that answer without a trainer."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import find_adapter_config_file

from trl_spiral.engines.local.second_copy import FrozenCopy
from trl_spiral.engines.local.transformers import TransformersEngine, generation_config
from trl_spiral.engines.swapping import PhasedEngine
from trl_spiral.extras import require_extra
from trl_spiral.opponents.pool import OpponentPool
from trl_spiral.players import PolicyPlayer
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import Sampling


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def saved_player(
    path: str,
    sampling: Sampling,
    prompt_style: str = "chat",
    device: Any = "cpu",
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> tuple[PolicyPlayer, PhasedEngine]:
    """
    A model as a player of the name `path`, and the engine that answers it.

    Args:
        path (`str`):
            Folder or Hub id of a whole model, or of a LoRA adapter, whose configuration names its base model.
        sampling ([`~types.Sampling`]):
            How replies are drawn.
        prompt_style (`str`, defaults to `"chat"`):
            See [`~text.prompts.PromptRenderer`].
        device (`torch.device`, defaults to CPU):
            Where the model is put.
        chat_template_kwargs (`Mapping`, *optional*):
            Passed on to the chat template.

    Raises:
        ValueError: If there is no such model, or no tokenizer with it.
    """
    model, tokenizer = _load(path, path, device)
    renderer = PromptRenderer(tokenizer, prompt_style, chat_template_kwargs=chat_template_kwargs)
    player = PolicyPlayer(renderer, sampling, policy=path)
    return player, _engine(model, tokenizer, lambda name: None, [path], resident=path)


def pool_players(
    pool: OpponentPool,
    tokenizer: str,
    sampling: Sampling,
    prompt_style: str = "chat",
    device: Any = "cpu",
) -> tuple[list[PolicyPlayer], PhasedEngine]:
    """
    The snapshots of a pool as players, oldest first, and the engine that answers all of them. It needs no trainer.

    Args:
        pool ([`~opponents.OpponentPool`]):
            Its folder holds adapters or whole models, all of one architecture.
        tokenizer (`str`):
            Folder or Hub id of the model that was trained, whose tokenizer it is.
        sampling, prompt_style, device:
            As for `saved_player`.

    Raises:
        ValueError: If the pool is empty, or what its snapshots are based on cannot be loaded.
    """
    if not len(pool):
        raise ValueError(f"The pool in {pool.folder} is empty: there is nobody to play.")
    newest = pool.snapshots[-1]
    model, read = _load(str(pool.path(newest.name)), tokenizer, device)
    resident = FrozenCopy(model)
    names = [snapshot.name for snapshot in pool.snapshots]
    renderer = PromptRenderer(read, prompt_style)
    engine = _engine(resident.model, read, lambda name: resident.load(pool.path(name)), names)
    return [PolicyPlayer(renderer, sampling, policy=name) for name in names], engine


def _engine(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    load: Callable[[str], None],
    names: Collection[str],
    resident: str | None = None,
) -> PhasedEngine:
    inner = TransformersEngine(model, generation_config(model, tokenizer), tokenizer=tokenizer)
    return PhasedEngine(inner, load, names, resident)


def _load(path: str, tokenizer: str, device: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    try:
        adapter = find_adapter_config_file(path)
        base = json.loads(Path(adapter).read_text())["base_model_name_or_path"] if adapter else None
        if base:
            require_extra("peft", "Loading a LoRA adapter")
        # `AutoModelForCausalLM` loads an adapter onto its base by itself, but not as a PEFT model.
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
