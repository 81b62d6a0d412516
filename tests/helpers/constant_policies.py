"""
Policies that repeat one token each: copies of one model, or adapters of it.

Among many requests, a reply with any other token was written by the weights of another policy.
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
"""Tokens that the policies repeat: ordinary tokens of the tests' tokenizer."""

IN_FLIGHT = 64
"""Maximum number of concurrent requests."""


def sharpen(model_dir: str, folder: Path) -> str:
    """Save the model with sixteen times its logits, so that a small adapter can make one token certain."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        model.model.norm.weight *= 16
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_dir).save_pretrained(folder)
    return str(folder)


def read(model_dir: str) -> Any:
    """Load a model in float32."""
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


def leads(model: Any, token: int, rows: torch.Tensor) -> torch.Tensor:
    """Return the lead of a token's logit over all others, after each position of rows of token ids."""
    logits = model(rows).logits
    others = torch.arange(logits.shape[-1]) != token
    return logits[..., token] - logits[..., others].amax(-1)


def teach(model: Any, token: int) -> None:
    """
    Train the trainable parameters until the model generates the token after any prompt.

    Its logit then leads by 1, far above rounding errors of these logits in float32 (less than 1e-2). Replies are
    greedy.
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
    Return requests to all policies, in random order and of many lengths, so that rows join and leave.

    All have one of the same few prompts, so that a cache shared between policies would be detected.

    Args:
        policies (sequence of `str`):
            Policies of the requests.
        sampled (sequence of `str`, defaults to none):
            Policies with random replies. Others reply greedily.
        number (`int`, defaults to `192`):
            Total requests.
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
    """Return replies in the order of the requests, with `IN_FLIGHT` requests at a time."""
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
    Assert that every reply comes from its own policy.

    Args:
        requests, replies:
            Requests and their replies.
        tokens (`Mapping[str, int]`):
            Token of each constant policy, by policy name.
        models (`Mapping[str, Callable]`):
            Functions from token ids to logits, by policy name.
        version (`int`):
            Version of the weights in training.
    """
    assert {request.policy for request in requests} == set(models)
    for request, reply in zip(requests, replies, strict=True):
        said = set(reply.completion_ids)
        if request.policy in tokens:
            assert said == {tokens[request.policy]}, (request.policy, said)
        ids = torch.tensor([[*request.prompt_ids, *reply.completion_ids]])
        table = models[request.policy](ids).logits[0, len(request.prompt_ids) - 1 : -1].log_softmax(-1)
        own = table.gather(-1, torch.tensor(reply.completion_ids)[:, None])[:, 0].tolist()
        # float32 rounding, times sixteen: see `sharpen`.
        assert reply.logprobs == pytest.approx(own, abs=1e-4), request.policy
        assert reply.version == (version if request.policy == POLICY else 0)
