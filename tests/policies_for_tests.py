"""Policies that can be told apart: each says a token of its own, and nothing else, with a probability of nearly one."""

import random

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3ForCausalLM

from trl_spiral.types import BASE, POLICY, Request, Sampling


LORA = dict(r=8, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
"""How the adapter in training is shaped."""

SNAPSHOT_LORAS = {
    "step-1": dict(r=4, lora_alpha=32),
    "step-2": dict(r=3, lora_alpha=8, use_rslora=True),
    "step-3": dict(target_modules=["down_proj", "v_proj", "o_proj"]),
    "step-4": dict(rank_pattern={"down_proj": 16}, alpha_pattern={"o_proj": 5, "layers.1.mlp.down_proj": 24}),
}
"""How those of snapshots differ from it."""

OWN_TOKEN = {BASE: 299, POLICY: 300, "step-1": 301, "step-2": 302, "step-3": 303, "step-4": 304}
"""What each policy says."""


def teach(model, token, learning_rate=0.01):
    """Lets a model say one token after anything, itself included."""
    rng = random.Random(token)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=learning_rate)
    for _ in range(600):
        lengths = [rng.randrange(1, 40) for _ in range(16)]
        rows = [[rng.randrange(model.config.vocab_size) for _ in range(n)] + [token] * (40 - n) for n in lengths]
        least = model(input_ids=torch.tensor(rows)).logits.log_softmax(-1)[..., token]
        loss = -least.mean() - least.min()
        optimizer.zero_grad()
        loss.backward()
        if least.min() > -5e-4:
            return
        optimizer.step()
    raise AssertionError(f"the model has not learned to say {token} alone: {least.min().item()}")


def save_base(model, folder):
    """A base model that says its own token. Loud, so that an adapter can talk it into any other."""
    with torch.no_grad():
        model.model.norm.weight *= 40
    teach(model, OWN_TOKEN[BASE])
    model.save_pretrained(folder)


def lora_model(base_folder, **changes):
    """A LoRA model with an adapter that is not yet taught anything, but is not zero either."""
    model = Qwen3ForCausalLM.from_pretrained(base_folder)
    return get_peft_model(model, LoraConfig(**{**LORA, "init_lora_weights": False, **changes}))


def asked_of(policies, count, temperature=1.0):
    """Requests of all policies in random order. Prompts begin alike, and one reply in five is long."""
    rng = random.Random(count)
    beginning = tuple(range(20, 44))
    requests = []
    for number in range(count):
        prompt = (*beginning, *(rng.randrange(10, 250) for _ in range(rng.randrange(1, 24))))
        length = 24 if number % 5 == 0 else rng.randrange(1, 8)
        sampling = Sampling(temperature=temperature, max_new_tokens=length)
        requests.append(Request(prompt, sampling, rng.choice(list(policies)), seed=number))
    return requests
