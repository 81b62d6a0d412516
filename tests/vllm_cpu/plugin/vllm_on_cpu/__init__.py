"""
What vLLM 0.31 lacks on a CPU for reinforcement learning, for the tests alone: weights that can change, and a way in.

* Its CPU build packs the weights of linear layers at start-up and drops the parameters, so `load_weights` fails with
  `'Parameter' object has no attribute 'weight_loader'`, and a tied `lm_head` goes on computing with its old pack.
  `register` keeps them as parameters.
* TRL streams weights to a server over NCCL, which needs GPUs. `register` gives vLLM a weight-transfer engine named
  "gloo", and `trainer.use_gloo` gives TRL a client that speaks to it. The HTTP side stays vLLM's and TRL's own.

vLLM loads this module in each of its processes, so nothing heavy is imported before it is needed.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """The plugin: called by vLLM, more than once in some processes. Does nothing where vLLM runs on a GPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return

    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.layers import utils

    # Layers import the function when they are built, so replacing it in its module reaches all of them.
    utils.dispatch_cpu_unquantized_gemm = keep_parameters
    if "gloo" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("gloo", "vllm_on_cpu.server", "GlooEngine")


def keep_parameters(layer: Any, remove_weight: bool) -> None:
    """Stands in for vLLM's packing of a linear layer: computes with the parameter as it is at each call."""
    from torch.nn.functional import linear

    layer.cpu_linear = linear
