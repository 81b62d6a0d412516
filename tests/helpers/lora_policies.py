"""Distinguishable policies: each generates its own token with a probability of almost 1."""

import random

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3ForCausalLM

from trl_spiral.types import BASE, POLICY, Request, Sampling


LORA = dict(r=8, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
"""Settings of the adapter in training."""

SNAPSHOT_LORAS = {
    "step-1": dict(r=4, lora_alpha=32),
    "step-2": dict(r=3, lora_alpha=8, use_rslora=True),
    "step-3": dict(target_modules=["down_proj", "v_proj", "o_proj"]),
    "step-4": dict(rank_pattern={"down_proj": 16}, alpha_pattern={"o_proj": 5, "layers.1.mlp.down_proj": 24}),
}
"""Differing settings of the snapshots' adapters."""

OWN_TOKEN = {BASE: 299, POLICY: 300, "step-1": 301, "step-2": 302, "step-3": 303, "step-4": 304}
"""Token of each policy."""


_SLOT = {299: 1, 300: 2, 301: 3, 302: 4, 303: 5, 304: 6, 310: 7, 311: 8}
"""Hidden dimension of each token that a policy can be made to generate."""

_CONSTANT, _LOUD, _ADAPTED, _BASE = 30.0, 16.0, 800.0, 100.0
"""Sizes of the constant in every embedding, of a token's slot, and of the outputs of an adapter and the base model."""


@torch.no_grad()
def make_sayable(model):
    """Set the embeddings so that the attention of the last layer determines the generated token."""
    table = model.get_input_embeddings().weight
    table[:, 0] = _CONSTANT  # much more than the layers add, so that dimension 0 of each norm's result is constant
    for token, slot in _SLOT.items():
        table[token, 1:] = 0.0
        table[token, slot] = _LOUD


@torch.no_grad()
def say(model, token, size=_ADAPTED):
    """
    Set the last attention so that the model generates one token after any prompt.

    Values read the constant, and the output writes it into the token's slot, for any attention weights. Its logit then
    leads by about 50, so any other token has a probability of 1e-18. An adapter writes eight times as much as the
    base.
    """
    layers = [module for name, module in model.named_modules() if name.endswith("layers")]
    attention = layers[0][-1].self_attn
    heads = torch.zeros(attention.o_proj.in_features)
    heads[:: attention.head_dim] = 1.0 / (attention.o_proj.in_features // attention.head_dim)
    read, slot = torch.zeros(2, model.config.hidden_size)
    read[0], slot[_SLOT[token]] = 1.0, size
    write = torch.zeros(attention.v_proj.out_features)
    write[:: attention.head_dim] = 1.0
    _map(attention.v_proj, read, write)
    _map(attention.o_proj, heads, slot)


def _map(layer, read, write):
    """Set a layer, or its adapter in training, to the outer product of two vectors."""
    if not hasattr(layer, "lora_A"):
        layer.weight[:] = torch.outer(write, read)
        return
    (name,) = layer.active_adapters
    down, up = layer.lora_A[name].weight, layer.lora_B[name].weight
    down[0], up[:, 0] = read, write / layer.scaling[name]
    if name in layer.lora_magnitude_vector:  # DoRA stores the norm of each row of the whole matrix separately
        whole = layer.get_base_layer().weight + layer.scaling[name] * up @ down
        layer.lora_magnitude_vector[name].weight[:] = whole.norm(dim=1)


def save_base(model, folder):
    """Save a base model that generates its own token."""
    make_sayable(model)
    say(model, OWN_TOKEN[BASE], _BASE)
    model.save_pretrained(folder)


def lora_model(base_folder, **changes):
    """Return a LoRA model with a random adapter."""
    model = Qwen3ForCausalLM.from_pretrained(base_folder)
    return get_peft_model(model, LoraConfig(**{**LORA, "init_lora_weights": False, **changes}))


def a_prompt(rng):
    """Return a random prompt. All prompts share a prefix."""
    return (*range(20, 44), *(rng.randrange(10, 250) for _ in range(rng.randrange(1, 24))))


def asked_of(policies, count, temperature=1.0):
    """Return requests of all policies in random order. One reply in five is long."""
    rng = random.Random(count)
    requests = []
    for number in range(count):
        prompt = a_prompt(rng)
        length = 24 if number % 5 == 0 else rng.randrange(1, 8)
        sampling = Sampling(temperature=temperature, max_new_tokens=length)
        requests.append(Request(prompt, sampling, rng.choice(list(policies)), seed=number))
    return requests
