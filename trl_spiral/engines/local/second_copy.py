"""A second copy of the model, never trained, for opponents that cannot share a batch with the policy."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import is_peft_model
from torch.distributed.tensor import DTensor

from trl_spiral.engines.adapters import check_base


if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FrozenCopy:
    """
    A copy of a model, with the weights of the snapshot that was loaded last.

    For a LoRA model only the adapter is copied, and the frozen tensors are shared.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The policy, unwrapped, between two steps of training.

    Raises:
        ValueError: If its weights are sharded.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        if any(_is_sharded(parameter) for parameter in model.parameters()):
            raise ValueError(
                "The weights are sharded (ZeRO-3 or FSDP), and opponents that cannot share a batch with the policy "
                "need a whole second copy of them. Train plain LoRA, or let vLLM generate."
            )
        self._is_peft = is_peft_model(model)
        frozen = [p for p in model.parameters() if not p.requires_grad] if self._is_peft else []
        memo = {id(tensor): tensor for tensor in [*frozen, *(model.buffers() if self._is_peft else ())]}
        self.model = copy.deepcopy(model, memo).eval()
        for module in self.model.modules():
            # TRL's fused loss is a `forward` bound to the original model, and would compute with its weights.
            vars(module).pop("forward", None)
        self._freeze()

    def load(self, folder: Path | None) -> None:
        """
        Load the weights of a snapshot.

        Args:
            folder (`Path`, *optional*):
                Folder that `save_pretrained` wrote: an adapter if the model has one, else whole weights. `None` for a
                LoRA model without its adapter.

        Raises:
            ValueError: If the names and shapes of the tensors differ from the model's, or training has changed the
                base model.
        """
        if not self._is_peft:
            if folder is None:
                raise ValueError("Only LoRA leaves the base model intact. Pass a folder, as for any other snapshot.")
            _load_whole(self.model, folder)
        elif folder is None:
            check_base(self.model.peft_config[self.model.active_adapter])
            self.model.base_model.disable_adapter_layers()
        else:
            self.model.base_model.enable_adapter_layers()
            _load_adapter(self.model, folder)
        self._freeze()

    def _freeze(self) -> None:
        # This includes shared tensors, which PEFT unfreezes when it disables modules that are trained as a whole.
        self.model.requires_grad_(False)


def _is_sharded(parameter: torch.Tensor) -> bool:
    return hasattr(parameter, "ds_id") or isinstance(parameter, DTensor) or hasattr(parameter, "_is_flat_param")


def _load_whole(model: PreTrainedModel, folder: Path) -> None:
    places = _places(folder, "model")
    mine = model.state_dict()
    # Tied weights are saved under one of their names.
    aliases: dict[tuple[int, torch.Size], set[str]] = {}
    for name, tensor in mine.items():
        aliases.setdefault((tensor.data_ptr(), tensor.shape), set()).add(name)
    missing = next((min(names) for names in aliases.values() if not names & places.keys()), None)
    _compare(folder, missing, {name: shape for name, (_, shape) in places.items()}, mine)
    with torch.no_grad():
        for name, tensor in _tensors(places):
            mine[name].copy_(tensor)


def _load_adapter(model: Any, folder: Path) -> None:
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    places = _places(folder, "adapter_model")
    mine = get_peft_model_state_dict(model, save_embedding_layers=False)
    frozen = model.state_dict()  # PEFT saves embeddings with adapters that are fitted to them
    places = {name: place for name, place in places.items() if name in mine or name not in frozen}
    missing = next((name for name in mine if name not in places), None)
    _compare(folder, missing, {name: shape for name, (_, shape) in places.items()}, mine)
    set_peft_model_state_dict(model, dict(_tensors(places)), adapter_name=model.active_adapter)


def _places(folder: Path, stem: str) -> dict[str, tuple[Path, list[int]]]:
    """Return file and shape of every tensor in a folder."""
    from safetensors import safe_open

    index = Path(folder) / f"{stem}.safetensors.index.json"
    files = {f"{stem}.safetensors"}
    if index.is_file():
        files = set(json.loads(index.read_text())["weight_map"].values())
    places = {}
    for path in [Path(folder) / name for name in sorted(files)]:
        if not path.is_file():
            raise ValueError(
                f"{folder} has no {path.name}. A snapshot is what `save_pretrained` writes: an adapter if training is "
                "LoRA, else whole weights. Remove it from the pool, or give other opponents their own engine."
            )
        with safe_open(path, "pt") as stored:
            places |= {name: (path, stored.get_slice(name).get_shape()) for name in stored.keys()}
    return places


def _compare(
    folder: Path, missing: str | None, shapes: Mapping[str, list[int]], mine: Mapping[str, torch.Tensor]
) -> None:
    problem = f"lacks {missing}" if missing else None
    for name, shape in shapes.items():
        if name not in mine:
            problem = f"holds {name}, which the model lacks"
        elif list(mine[name].shape) != shape:
            problem = f"holds {name} of shape {shape}, and the model's shape is {list(mine[name].shape)}"
    if problem:
        raise ValueError(f"The snapshot in {folder} is of another model: it {problem}. Remove it from the pool.")


def _tensors(places: Mapping[str, tuple[Path, list[int]]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors one at a time, by name."""
    from safetensors import safe_open

    for path in dict.fromkeys(path for path, _ in places.values()):
        with safe_open(path, "pt") as stored:
            for name in places:
                if places[name][0] == path:
                    yield name, stored.get_tensor(name)
