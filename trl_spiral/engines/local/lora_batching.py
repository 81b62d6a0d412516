"""
LoRA policies side by side in one batch: each row gets the adapter of its own policy, and weights are never swapped.

An adapter adds `B A x` to the output of a layer. The A's of all policies are stacked, and so are the B's. Two matrix
products then serve every row, and a mask between them keeps the ranks of the row's own policy. On a CPU, which is
bound by arithmetic, policies with many positions get products of their own instead.
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

from trl_spiral.engines.adapters import fingerprint
from trl_spiral.types import POLICY


if TYPE_CHECKING:
    from peft import PeftModel

BOUND_BY_ARITHMETIC = {"cpu"}
"""Devices on which skipping the ranks of other policies is worth more matrix products."""

Adapter = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""A of shape (rank, inputs) and B of shape (outputs, rank), scaling included, by layer name in a `PeftModel`."""


def obstacle(model: PeftModel) -> str | None:
    """Return the reason why a model's adapter cannot share a batch with others; `None` if it can."""
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
            return f"{name} is more than two matrices added to a linear layer"
    if mixing := _layers_that_mix_rows(model):
        return f"{mixing[0]} is given the positions of all rows as one list"
    return None


def _layers_that_mix_rows(model: PeftModel) -> list[str]:
    """
    Return the layers with an adapter whose input does not separate rows, such as experts.

    They are found by a forward pass of 2 rows of 3 positions. An expert that gets none of these positions is not
    found.
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
    """Return whether a PEFT layer only adds scaling times `B A x` to its base layer, which may be quantized."""
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
    """Return the layers that have an adapter, by name."""
    from peft.tuners.lora.layer import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def live_adapter(model: PeftModel) -> Adapter:
    """Return the current weights of the adapter in training."""
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
    Read an adapter that `save_pretrained` has written.

    Raises:
        ValueError: If the folder holds anything else, or an adapter with more than two matrices per layer.
    """
    from peft.utils.other import get_pattern_key
    from safetensors.torch import load_file

    config_file, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    if not config_file.is_file() or not weights.is_file():
        raise ValueError(
            f"{folder} holds no LoRA adapter (adapter_config.json and adapter_model.safetensors), and training is "
            "LoRA. Give opponents that are whole models their own engine."
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
        # PEFT matches these patterns, which may begin with `^`, with the name of the layer in the base model.
        alpha = patterns.get(get_pattern_key(patterns, name.removeprefix("base_model.model.")), config["lora_alpha"])
        adapter[name] = a, b * (alpha / (math.sqrt(len(a)) if config.get("use_rslora") else len(a)))
    if tensors or config.get("use_dora"):
        odd = next(iter(tensors), "DoRA")
        raise ValueError(f"{folder} has more than two LoRA matrices per layer ({odd}), and the policy does not.")
    return adapter


def read_adapters(
    folders: Mapping[str, Path | None], shelf: dict[tuple[Any, ...], Adapter]
) -> dict[str, Adapter | None]:
    """Read adapters by policy name. `shelf` caches those of the previous call, by fingerprint."""
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
    """Stacked matrices of all policies for one layer."""

    a: torch.Tensor  # (all ranks, inputs)
    b: torch.Tensor  # (outputs, all ranks)


class _Group(NamedTuple):
    """Rows served by the same two matrix products."""

    rows: torch.Tensor
    ranks: slice
    mask: torch.Tensor | None  # which ranks belong to a row; `None` if all do


class SideBySide:
    """
    The adapters of several policies, for models in which `obstacle` finds no problem.

    On exit from `installed` the model is unchanged: nothing is registered with it, and no module is replaced.

    Args:
        model ([`~peft.PeftModel`]):
            The model whose layers the adapters change.
        adapters (`Mapping[str, Adapter | None]`):
            Adapters by policy name; `None` for the base model.

    Raises:
        ValueError: If an adapter has a layer that the model's own adapter lacks, or one of another shape.
    """

    def __init__(self, model: PeftModel, adapters: Mapping[str, Adapter | None]) -> None:
        self._layers = lora_layers(model)
        self._places = {policy: place for place, policy in enumerate(adapters)}
        self._rows = 0
        self._groups: list[_Group] = []
        _check(self._layers, adapters)
        # A policy has the same number of columns in every layer, missing ones being zero, so one mask serves all
        # layers.
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
        """Names of the policies."""
        return list(self._places)

    def places(self, policies: Sequence[str]) -> torch.Tensor:
        """Return the number of the policy of each row, of shape (rows,), for `choose`."""
        return torch.tensor([self._places[policy] for policy in policies], device=self._owned.device)

    def choose(self, places: torch.Tensor, positions: int) -> None:
        """Set the policy of each row of the next forward pass, and the number of positions of each row."""
        self._rows = len(places)
        rest = torch.arange(len(places), device=places.device)
        self._groups = []
        if places.device.type in BOUND_BY_ARITHMETIC:
            # One position of a few rows is too little work for separate products: then only the most frequent policy
            # gets them.
            apart = places.unique().tolist() if positions > 1 else [int(places.mode().values)]
            for place in apart:
                rows = (places == place).nonzero()[:, 0]
                self._groups.append(_Group(rows, self._ranks[place], None))
                rest = rest[places[rest] != place]
        self._groups.append(_Group(rest, slice(None), self._owned[places[rest]][:, None]))
        self._groups = [group for group in self._groups if len(group.rows)]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, the model computes each row with the adapter that `choose` has set for it."""
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
        assert self._rows, "`choose` has not set the policies of these rows"
        if x.dim() != 3 or len(x) != self._rows:
            raise ValueError(
                f"A layer with an adapter is given a tensor of shape {tuple(x.shape)} for {self._rows} rows, so its "
                "positions cannot be assigned to rows. Leave this layer out of `target_modules`."
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
                    f"The adapter of {policy!r} changes {name}, and the one in training does not. Give both the "
                    "same `target_modules`."
                )
            if a.dim() < 2 or (a.shape[1], len(b)) != (layer.in_features, layer.out_features):
                whose = "is sharded" if policy == POLICY else "belongs to another model"
                raise ValueError(
                    f"The adapter of {policy!r} {whose}: for {name} it has {tuple(a.shape)} and {tuple(b.shape)}, and "
                    f"the layer maps {layer.in_features} inputs to {layer.out_features} outputs."
                )
