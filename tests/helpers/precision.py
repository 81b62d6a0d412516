"""
Bounds on rounding in tests, and models with almost no rounding.

Two ways to compute the same number round differently, for example a reply alone and in a batch. So do the kernels of
different processors. Tests that compare numbers take their tolerance from here. Tests that compare sampled tokens use
models in float64, whose rounding is too small to change a token.
"""

import math
from functools import partial

import torch
from torch.nn.functional import rms_norm


def rounding(terms: float, scale: float, dtype: torch.dtype = torch.float32) -> float:
    """
    Return a bound on the difference that rounding makes between two ways to compute the same number.

    Each of `terms` operations is off by a relative `eps / 2` at most, in either direction. The errors add up like a
    random walk, to a standard deviation below `sqrt(terms) * eps / 2 * scale` (Higham, Accuracy and Stability of
    Numerical Algorithms, 2.8). The difference of two such results has `sqrt(2)` times that. Ten standard deviations
    leave room for errors that are not independent.

    Args:
        terms (`float`):
            Length of the longest chain of operations that leads to the number.
        scale (`float`):
            Size of the largest intermediate result.
        dtype (`torch.dtype`, defaults to `torch.float32`):
            The precision of the computation.
    """
    return 10 * math.sqrt(2 * terms) * torch.finfo(dtype).eps / 2 * scale


def logprob_rounding(model, temperature: float = 1.0, positions: int = 256) -> float:
    """
    Return a bound on the difference that rounding makes in the log-probability of a token.

    The chain of operations runs through the matrices and the attention of every layer, and the output matrix. The
    scale is the largest possible logit: the last norm gives a vector of known length, and a logit is its product with
    a row of the output matrix (Cauchy-Schwarz). The log-softmax is always in float32: a sum over the vocabulary, whose
    logarithm has its relative error, and a difference of logits.

    Args:
        model (`PreTrainedModel` or `PeftModel`):
            The model, which ends with a norm and an output matrix.
        temperature (`float`, defaults to `1.0`):
            Divisor of the logits.
        positions (`int`, defaults to `256`):
            Maximum number of tokens that a token attends to.
    """
    hidden, output = model.config.hidden_size, model.get_output_embeddings().weight
    norm = [module for module in model.modules() if "Norm" in type(module).__name__][-1]
    largest = norm.weight.abs().max() * math.sqrt(hidden) * output.norm(dim=-1).max()
    scale = largest.item() / temperature
    # Queries, scores, values, outputs and gates sum over the hidden units, and the MLP has up to four times as many.
    terms = model.config.num_hidden_layers * (9 * hidden + positions) + hidden
    return rounding(terms, scale, model.dtype) + rounding(len(output), 1.0) + rounding(2, scale)


def in_double(model):
    """
    Let a model compute in float64 throughout, and return it.

    `double` alone is not enough: norms and rotary embeddings of transformers always compute in float32.
    """
    model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_norm, module)
        elif type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = partial(_rotary, module)
    return model


def _norm(module, hidden_states):
    return rms_norm(hidden_states, module.weight.shape, module.weight, module.variance_epsilon)


def _rotary(module, hidden_states, position_ids):
    size = 2 * len(module.inv_freq)
    exponents = torch.arange(0, size, 2, dtype=torch.double) / size
    angles = position_ids[..., None] * module.config.rope_parameters["rope_theta"] ** -exponents
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()
