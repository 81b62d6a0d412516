"""
Weight updates and weight transfer for vLLM 0.31 on a CPU, for tests only.

* The CPU build packs the weights of linear layers at startup and drops the parameters. So `load_weights` fails with
  `'Parameter' object has no attribute 'weight_loader'`, and a tied `lm_head` keeps its old packed weights. `register`
  keeps them as parameters.
* TRL sends weights to a server over NCCL, which needs GPUs. `register` adds a weight-transfer engine named "gloo" to
  vLLM, and `trainer.use_gloo` a client for it to TRL. The HTTP endpoints of vLLM and TRL are unchanged.

vLLM loads this module in each of its processes, so heavy imports are inside functions.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Register the plugin. vLLM calls this more than once in some processes. On a GPU, it does nothing."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return

    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.layers import utils

    # Layers import the function when they are built, so a replacement in its module affects all of them.
    utils.dispatch_cpu_unquantized_gemm = keep_parameters
    if "gloo" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("gloo", "vllm_on_cpu.server", "GlooEngine")


def keep_parameters(layer: Any, remove_weight: bool) -> None:
    """Replace vLLM's packing of a linear layer: each call computes with the current parameter."""
    from torch.nn.functional import linear

    layer.cpu_linear = linear
