"""
LoRA policies side by side in one batch: each row gets the adapter of its own policy, and no weights are ever switched.

An adapter adds `B A x` to what a layer computes. The A's of all policies are stacked and so are the B's, so that two matrix
products serve every row, and a mask between them leaves each row the ranks of its own policy. On a CPU, where it is arithmetic
that takes the time, policies with much to compute get products of their own instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from trl_spiral.engines.snapshots import fingerprint
from trl_spiral.types import POLICY


if TYPE_CHECKING:
    from peft import PeftModel

BOUND_BY_ARITHMETIC = {"cpu"}
"""Devices on which rows are better spared the ranks of other policies, at the price of more products."""

Adapter = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""A of shape (rank, inputs) and B of shape (outputs, rank), scaling included, by the name of the layer in a `PeftModel`."""


def obstacle(model: PeftModel) -> str | None:
    """Why a model's adapter cannot stand beside others in a batch; `None` if it can."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    config = model.peft_config[model.active_adapter]
    if config.peft_type.value != "LORA":
        return f"it is {config.peft_type.value}"
    if config.bias != "none":
        return "biases are trained"
    if config.target_parameters:
        return "it changes parameters that are no layers"
    for name, module in model.named_modules():
        if isinstance(module, AuxiliaryTrainingWrapper):
            return f"{name} is trained as a whole"
        if isinstance(module, BaseTunerLayer) and not _is_plain(module):
            return f"{name} is more than two matrices beside a linear layer"
    if mixing := _layers_that_mix_rows(model):
        return f"{mixing[0]} is given the positions of all rows as one list"
    return None


def _layers_that_mix_rows(model: PeftModel) -> list[str]:
    """
    Those with an adapter whose input does not tell rows apart, such as experts: found by a forward pass of 2 rows of 3
    positions. An expert that none of these is sent to is not found.
    """
    found: list[str] = []

    def look(name: str, layer: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        if given[0].shape[:-1] != (2, 3):
            found.append(name)

    hooks = [layer.register_forward_pre_hook(partial(look, name)) for name, layer in lora_layers(model).items()]
    try:
        with torch.no_grad():
            model(input_ids=torch.arange(6, device=model.device).reshape(2, 3))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _is_plain(layer: Any) -> bool:
    """Whether a PEFT layer computes what its base layer does, plus scaling times B A x. Quantized ones do, too."""
    from peft.tuners.lora.layer import LoraLayer

    return (
        isinstance(layer, LoraLayer)
        and isinstance(layer.get_base_layer(), (nn.Linear, Conv1D))
        and layer.base_layer is layer.get_base_layer()
        and not layer.lora_variant
        and not any(layer.lora_bias.values())
        and len(layer.active_adapters) == 1
    )


def lora_layers(model: PeftModel) -> dict[str, Any]:
    """Layers that have an adapter, by name."""
    from peft.tuners.lora.layer import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def live_adapter(model: PeftModel) -> Adapter:
    """The adapter in training, as it is now."""
    adapter = {}
    for name, layer in lora_layers(model).items():
        (active,) = layer.active_adapters
        if active not in layer.lora_A:
            continue
        a, b = layer.lora_A[active].weight.detach(), layer.lora_B[active].weight.detach()
        adapter[name] = a, b * layer.scaling[active]
    return adapter


def read_adapter(folder: Path) -> Adapter:
    """
    An adapter as `save_pretrained` has written it.

    Raises:
        ValueError: If the folder holds something else, or an adapter that is more than two matrices per layer.
    """
    from peft.utils.other import get_pattern_key
    from safetensors.torch import load_file

    config_file, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    if not config_file.is_file() or not weights.is_file():
        raise ValueError(
            f"{folder} holds no LoRA adapter (adapter_config.json and adapter_model.safetensors), and training is LoRA. "
            "Give opponents that are whole models an engine of their own."
        )
    config = json.loads(config_file.read_text())
    tensors = load_file(weights)
    adapter = {}
    for key in [key for key in tensors if key.endswith(".lora_A.weight")]:
        name = key.removesuffix(".lora_A.weight")
        a, b = tensors.pop(key), tensors.pop(f"{name}.lora_B.weight", None)
        if b is None or b.shape[1] != len(a):
            raise ValueError(f"{folder} has no B that fits the A of {name}. Remove the snapshot.")
        patterns = config.get("alpha_pattern") or {}
        # PEFT matches them, which may begin with `^`, with the name of the layer in the base model.
        alpha = patterns.get(get_pattern_key(patterns, name.removeprefix("base_model.model.")), config["lora_alpha"])
        adapter[name] = a, b * (alpha / (math.sqrt(len(a)) if config.get("use_rslora") else len(a)))
    if tensors or config.get("use_dora"):
        odd = next(iter(tensors), "DoRA")
        raise ValueError(f"{folder} has more than two LoRA matrices per layer ({odd}), and the policy has not.")
    return adapter


def read_adapters(
    folders: Mapping[str, Path | None], shelf: dict[tuple[Any, ...], Adapter]
) -> dict[str, Adapter | None]:
    """Adapters by policy name. `shelf` holds those that were read the last time and are not read again."""
    prints = {name: None if folder is None else fingerprint(folder) for name, folder in folders.items()}
    found = {
        prints[name]: shelf.get(prints[name]) or read_adapter(Path(folder))
        for name, folder in folders.items()
        if folder is not None
    }
    shelf.clear()
    shelf.update(found)
    return {name: None if mark is None else found[mark] for name, mark in prints.items()}


@dataclass(frozen=True)
class _Stack:
    """All policies' matrices of one layer."""

    a: torch.Tensor  # (all ranks, inputs)
    b: torch.Tensor  # (outputs, all ranks)


class _Group(NamedTuple):
    """Rows that are served by the same two products."""

    rows: torch.Tensor
    ranks: slice
    mask: torch.Tensor | None  # which ranks are a row's own, where it is not all of them


class SideBySide:
    """
    The adapters of several policies, for models that `obstacle` finds nothing wrong with.

    The model is as it was whenever `installed` has been left: nothing is registered with it, and no module is replaced.

    Args:
        model ([`~peft.PeftModel`]):
            Whose layers they belong to.
        adapters (`Mapping[str, Adapter | None]`):
            Adapters by policy name; `None` for the base model.

    Raises:
        ValueError: If an adapter has a layer that the model's own has not, or of another shape.
    """

    def __init__(self, model: PeftModel, adapters: Mapping[str, Adapter | None]) -> None:
        self._layers = lora_layers(model)
        self._places = {policy: place for place, policy in enumerate(adapters)}
        self._rows = 0
        self._groups: list[_Group] = []
        _check(self._layers, adapters)
        # Every policy has as many columns in every layer, so that one mask does for all: what is missing is zero.
        ranks = [max((len(a) for a, _ in (adapter or {}).values()), default=0) for adapter in adapters.values()]
        ends = list(accumulate(ranks))
        self._ranks = [slice(end - rank, end) for rank, end in zip(ranks, ends, strict=True)]
        owners = torch.repeat_interleave(torch.arange(len(ranks)), torch.tensor(ranks))
        self._owned = owners == torch.arange(len(ranks))[:, None]  # (policies, all ranks)
        self._stacks = {
            name: _stack(layer, [(adapter or {}).get(name) for adapter in adapters.values()], ranks)
            for name, layer in self._layers.items()
        }
        some = next(iter(self._stacks.values())).a
        self._owned = self._owned.to(some.device, some.dtype)

    @property
    def policies(self) -> list[str]:
        """Whose adapters these are."""
        return list(self._places)

    def places(self, policies: Sequence[str]) -> torch.Tensor:
        """What `choose` is told of rows of these policies, of shape (rows,)."""
        return torch.tensor([self._places[policy] for policy in policies], device=self._owned.device)

    def choose(self, places: torch.Tensor, positions: int) -> None:
        """Says whose rows the next forward pass will see, and how many positions of each."""
        self._rows = len(places)
        rest = torch.arange(len(places), device=places.device)
        self._groups = []
        if places.device.type in BOUND_BY_ARITHMETIC:
            # A single position of a few rows is too little to be worth products of its own: only the most frequent policy
            # gets them then.
            apart = places.unique().tolist() if positions > 1 else [int(places.mode().values)]
            for place in apart:
                rows = (places == place).nonzero()[:, 0]
                self._groups.append(_Group(rows, self._ranks[place], None))
                rest = rest[places[rest] != place]
        self._groups.append(_Group(rest, slice(None), self._owned[places[rest]][:, None]))
        self._groups = [group for group in self._groups if len(group.rows)]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within it, the model computes each row with the adapter that was chosen for it."""
        before = {name: vars(layer).get("forward") for name, layer in self._layers.items()}
        try:
            for name, layer in self._layers.items():
                vars(layer)["forward"] = partial(self._forward, layer.base_layer, self._stacks[name])
            yield
        finally:
            self._rows = 0
            for name, layer in self._layers.items():
                if before[name] is None:
                    vars(layer).pop("forward", None)
                else:
                    vars(layer)["forward"] = before[name]

    def _forward(self, base: nn.Module, stack: _Stack, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        assert self._rows, "nobody has said whose rows these are"
        if x.dim() != 3 or len(x) != self._rows:
            raise ValueError(
                f"A layer with an adapter is given a tensor of shape {tuple(x.shape)} for {self._rows} rows, so that it "
                "cannot be told whose positions are whose. Leave this layer out of `target_modules`."
            )
        result = base(x, *args, **kwargs)
        x = x.to(stack.a.dtype)
        for rows, ranks, mask in self._groups:
            low = linear(x[rows], stack.a[ranks])
            added = linear(low if mask is None else low * mask, stack.b[:, ranks])
            result.index_add_(0, rows, added.to(result.dtype))
        return result


def _stack(layer: Any, matrices: Sequence[tuple[torch.Tensor, torch.Tensor] | None], ranks: Sequence[int]) -> _Stack:
    (active,) = layer.active_adapters
    like = layer.lora_A[active].weight if active in layer.lora_A else next(iter(layer.lora_A.values())).weight
    a = like.new_zeros(sum(ranks), layer.in_features)
    b = like.new_zeros(layer.out_features, sum(ranks))
    first = 0
    for rank, pair in zip(ranks, matrices, strict=True):
        if pair is not None:
            last = first + len(pair[0])
            a[first:last], b[:, first:last] = pair
        first += rank
    return _Stack(a, b)


def _check(layers: Mapping[str, Any], adapters: Mapping[str, Adapter | None]) -> None:
    for policy, adapter in adapters.items():
        for name, (a, b) in (adapter or {}).items():
            layer = layers.get(name)
            if layer is None:
                raise ValueError(
                    f"The adapter of {policy!r} changes {name}, and the one in training does not. Give both the same "
                    "`target_modules`."
                )
            if a.dim() < 2 or (a.shape[1], len(b)) != (layer.in_features, layer.out_features):
                whose = "is sharded" if policy == POLICY else "belongs to another model"
                raise ValueError(
                    f"The adapter of {policy!r} {whose}: for {name} it has {tuple(a.shape)} and {tuple(b.shape)}, and the "
                    f"layer takes {layer.in_features} inputs to {layer.out_features} outputs."
                )
