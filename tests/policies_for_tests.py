"""Policies that can be told apart: each says one token of its own, with a probability that is 1 for all purposes."""

import random

import torch
from peft import LoraConfig, get_peft_model
from teaching import train_until
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


LEAD = 30.0
"""
Least lead of a taught token's logit over any other's.

One of 1,000 others then comes up once in `e**30 / 1000`, or 1e10, tokens. A hundred thousand are drawn here.
"""


def leads(model, token, rows):
    """Return how far a token's logit is above any other's, after each position of rows of token ids."""
    logits = model(input_ids=rows).logits.float()
    others = torch.arange(logits.shape[-1]) != token
    return logits[..., token] - logits[..., others].amax(-1)


def teach(model, token, longest=64, learning_rate=0.03):
    """Train a model until it says one token after anything, itself included, in float32 and in bfloat16."""
    rng = random.Random(token)

    def rows(number):
        """Half of them random tokens, half prompts as in `asked_of`, and then the token itself."""
        vocabulary, most = model.config.vocab_size, longest - 24
        read = [[rng.randrange(vocabulary) for _ in range(rng.randrange(1, most))] for _ in range(number // 2)]
        read += [a_prompt(rng) for _ in range(number // 2)]
        return torch.tensor([[*text, *[token] * (longest - len(text))] for text in read])

    exam = rows(64)

    def reached():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = leads(model, token, exam).min()
        return min(rounded, leads(model, token, exam).min()) > LEAD

    def loss():
        # Of the lead itself: the loss of the probability is flat long before.
        short = (2 * LEAD - leads(model, token, rows(16))).relu()
        return short.mean() + short.max()

    train_until(reached, loss, [p for p in model.parameters() if p.requires_grad], learning_rate)


def save_base(model, folder):
    """Save a base model that says its own token. It is loud, so that an adapter can make it say any other."""
    with torch.no_grad():
        model.model.norm.weight *= 160
    teach(model, OWN_TOKEN[BASE])
    model.save_pretrained(folder)


def lora_model(base_folder, **changes):
    """A LoRA model with an adapter that is not yet taught anything, but is not zero either."""
    model = Qwen3ForCausalLM.from_pretrained(base_folder)
    return get_peft_model(model, LoraConfig(**{**LORA, "init_lora_weights": False, **changes}))


def a_prompt(rng):
    """Return a random prompt. All begin alike."""
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
