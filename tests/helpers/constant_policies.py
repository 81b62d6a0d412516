"""
Policies that are told apart by what they say: each a copy of one model, or an adapter of it, that says one token for ever.

In a crowd of requests, a reply with any other token in it was written by another policy's weights.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.helpers.teaching import train_until
from trl_spiral.types import POLICY, Reply, Request, Sampling


TOKENS = (100, 200, 300, 400, 500, 600)
"""What the parrots say: ordinary tokens of the tests' tokenizer."""

IN_FLIGHT = 64
"""Requests at the same time."""


def sharpen(model_dir: str, folder: Path) -> str:
    """The model with sixteen times its logits: so sure of everything that a small adapter can make it sure of one token."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        model.model.norm.weight *= 16
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_dir).save_pretrained(folder)
    return str(folder)


def read(model_dir: str) -> Any:
    """A model in float32."""
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


def leads(model: Any, token: int, rows: torch.Tensor) -> torch.Tensor:
    """Return how far a token's logit is above any other's, after each position of rows of token ids."""
    logits = model(rows).logits
    others = torch.arange(logits.shape[-1]) != token
    return logits[..., token] - logits[..., others].amax(-1)


def teach(model: Any, token: int) -> None:
    """
    Train what is trainable until the model says the token after anything.

    Its logit then leads by 1, far above rounding: float32 moves these logits by less than 1e-2. Parrots answer greedily.
    """
    rng = random.Random(token)

    def rows(number: int) -> torch.Tensor:
        return torch.tensor([[rng.choice((token, rng.randrange(3, 700))) for _ in range(48)] for _ in range(number)])

    def loss() -> torch.Tensor:
        return -model(rows(8)).logits.log_softmax(-1)[..., token].mean()

    exam = rows(32)
    trainable = [p for p in model.parameters() if p.requires_grad]
    train_until(lambda: leads(model, token, exam).min() > 1.0, loss, trainable, learning_rate=0.03)


def crowd(policies: Sequence[str], sampled: Sequence[str] = (), number: int = 192) -> list[Request]:
    """
    Requests of all policies in no order, of many lengths, so that rows join and leave; all ask the same few prompts, so
    that whatever is cached for one is at hand for the others.

    Args:
        policies (sequence of `str`):
            Who is asked.
        sampled (sequence of `str`, defaults to none):
            Those of them whose replies are drawn at random; the others' are the likeliest.
        number (`int`, defaults to `192`):
            Requests in all.
    """
    rng = random.Random(0)
    prompts = [tuple(rng.randrange(3, 700) for _ in range(length)) for length in (40, 70, 100, 101)]
    requests = []
    for seed in range(number):
        policy = policies[seed] if seed < len(policies) else rng.choice(policies)
        sampling = Sampling(1.0 if policy in sampled else 0.0, max_new_tokens=rng.randint(2, 12))
        requests.append(Request(rng.choice(prompts), sampling, policy, seed))
    return requests


def answers(engine: Any, requests: Sequence[Request]) -> list[Reply]:
    """All replies, by the order of the requests, `IN_FLIGHT` of which wait at a time."""
    replies: dict[int, Reply] = {}
    todo = list(enumerate(requests))[::-1]
    while len(replies) < len(requests):
        while todo and len(requests) - len(todo) - len(replies) < IN_FLIGHT:
            engine.add(*todo.pop())
        replies.update(engine.step())
    return [replies[ticket] for ticket in range(len(requests))]


@torch.no_grad()
def check(
    requests: Sequence[Request],
    replies: Sequence[Reply],
    tokens: Mapping[str, int],
    models: Mapping[str, Any],
    version: int,
) -> None:
    """
    Asserts that every reply is its own policy's.

    Args:
        requests, replies:
            What was asked and answered.
        tokens (`Mapping[str, int]`):
            What each parrot says, by policy name.
        models (`Mapping[str, Callable]`):
            By policy name, what gives logits for token ids: a model, or what calls one with an adapter.
        version (`int`):
            That of the weights in training.
    """
    assert {request.policy for request in requests} == set(models)
    for request, reply in zip(requests, replies, strict=True):
        said = set(reply.completion_ids)
        if request.policy in tokens:
            assert said == {tokens[request.policy]}, (request.policy, said)
        ids = torch.tensor([[*request.prompt_ids, *reply.completion_ids]])
        table = models[request.policy](ids).logits[0, len(request.prompt_ids) - 1 : -1].log_softmax(-1)
        own = table.gather(-1, torch.tensor(reply.completion_ids)[:, None])[:, 0].tolist()
        # float32, sixteenfold: see `sharpen`.
        assert reply.logprobs == pytest.approx(own, abs=1e-4), request.policy
        assert reply.version == (version if request.policy == POLICY else 0)
