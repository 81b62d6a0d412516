"""The continuous-batching engine: right log-probabilities, weights seen as they change, and nothing left behind."""

import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare
from transformers import GenerationConfig, Qwen3ForCausalLM

from tests.helpers.precision import logprob_rounding
from trl_spiral.engines.local.continuous import ContinuousEngine
from trl_spiral.types import Request, Sampling


@pytest.fixture
def model(model_dir):
    return Qwen3ForCausalLM.from_pretrained(model_dir)


@pytest.fixture
def engine(model, tokenizer):
    options = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    engine = ContinuousEngine(model, options, version=3, max_rows=32, max_length=128)
    yield engine
    engine.close()


def some_requests(tokenizer, count=24):
    """Requests of several lengths, temperatures and limits."""
    prompt = tuple(tokenizer.encode("The board is empty. You are X. Choose a cell from [0] to [8]."))
    return [
        Request(prompt[i % 5 :], Sampling(temperature=(0.7, 1.0, 2.0)[i % 3], max_new_tokens=1 + i % 8), seed=i)
        for i in range(count)
    ]


def answer(engine, requests):
    """Replies in the order of the requests."""
    for ticket, request in enumerate(requests):
        engine.add(ticket, request)
    replies = {}
    while len(replies) < len(requests):
        replies |= dict(engine.step())
    return [replies[ticket] for ticket in range(len(requests))]


def assert_right(engine, model, requests, replies):
    """Log-probabilities are those of a forward pass at the request's temperature."""
    engine.suspend()  # while it runs, transformers 5.17 lets nobody else call the model
    training = model.training
    model.eval()
    for request, reply in zip(requests, replies, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *reply.completion_ids]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1] / request.sampling.temperature
        expected = logits.log_softmax(-1)[range(len(reply.completion_ids)), list(reply.completion_ids)]
        tolerance = logprob_rounding(model, request.sampling.temperature)
        assert list(reply.logprobs) == pytest.approx(expected.tolist(), abs=tolerance)
    model.train(training)


class TestContinuousEngine:
    def test_replies_are_as_asked_and_as_likely_as_it_says(self, engine, model, tokenizer):
        requests = some_requests(tokenizer)
        replies = answer(engine, requests)

        assert_right(engine, model, requests, replies)
        for request, reply in zip(requests, replies, strict=True):
            ended = reply.completion_ids[-1] == tokenizer.eos_token_id
            assert reply.finish_reason == ("stop" if ended else "length")
            assert ended or len(reply.completion_ids) == request.sampling.max_new_tokens
            assert tokenizer.eos_token_id not in reply.completion_ids[:-1]
            assert reply.version == 3
        assert engine.metrics() == {"new_tokens": sum(len(reply.completion_ids) for reply in replies)}
        assert engine.metrics() == {"new_tokens": 0.0}

    def test_weights_changed_between_rollouts_are_seen(self, engine, model, tokenizer):
        requests = some_requests(tokenizer)
        answer(engine, requests)
        engine.suspend()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.2)
        engine.version = 4
        replies = answer(engine, requests)

        assert_right(engine, model, requests, replies)
        assert {reply.version for reply in replies} == {4}

    def test_it_gives_back_what_it_borrows(self, engine, model, tokenizer):
        model.train()
        before = torch.random.get_rng_state(), model.config._attn_implementation
        answer(engine, some_requests(tokenizer))
        assert not model.training
        engine.suspend()

        assert model.training
        assert torch.equal(torch.random.get_rng_state(), before[0])
        assert model.config._attn_implementation == before[1]
        # The generation thread has ended; the one that is left waits for the main thread to end.
        assert not any("_run_generation_loop" in thread.name for thread in threading.enumerate())

    def test_tokens_are_drawn_at_the_temperature_asked_for(self, engine, model, tokenizer):
        prompt = some_requests(tokenizer)[0].prompt_ids[:8]
        replies = answer(engine, [Request(prompt, Sampling(temperature=2.0, max_new_tokens=1))] * 1500)
        engine.suspend()
        counts = Counter(reply.completion_ids[0] for reply in replies)
        with torch.no_grad():
            probabilities = (model(torch.tensor([prompt])).logits[0, -1] / 2.0).double().softmax(-1).tolist()

        # Tokens that are expected fewer than five times share one bin, as Pearson's test wants it.
        common = [token for token, p in enumerate(probabilities) if p * 1500 >= 5]
        observed = [counts[token] for token in common]
        expected = [probabilities[token] * 1500 for token in common]
        observed.append(1500 - sum(observed))
        expected.append(1500 - sum(expected))
        assert len(common) > 5
        # Draws cannot be seeded: once in a million runs, this fails by bad luck.
        assert chisquare(observed, expected).pvalue > 1e-6

    def test_requests_can_be_dropped_in_flight(self, engine, model, tokenizer):
        requests = some_requests(tokenizer)
        for ticket, request in enumerate(requests):
            engine.add(ticket, request)
        engine.abort([3, 4, 99])
        engine.add(3, requests[0])  # its ticket is free again
        replies = {}
        while len(replies) < len(requests) - 1:
            replies |= dict(engine.step())

        assert sorted(replies) == [ticket for ticket in range(len(requests)) if ticket != 4]
        tickets = sorted(replies)
        assert_right(engine, model, [requests[0 if t == 3 else t] for t in tickets], [replies[t] for t in tickets])

    def test_a_failing_manager_is_loud(self, engine, model, tokenizer, monkeypatch):
        def broken(*args, **kwargs):
            raise ArithmeticError("weights went astray")

        requests = some_requests(tokenizer)
        with monkeypatch.context() as patch:
            patch.setattr(model, "forward", broken)
            with pytest.raises(RuntimeError, match="manager failed: weights went astray"):
                answer(engine, requests)

        # And it starts anew once the fault is mended.
        assert_right(engine, model, requests, answer(engine, requests))

    def test_a_script_that_dies_with_it_running_ends(self, model_dir):
        script = (
            "from transformers import GenerationConfig, Qwen3ForCausalLM\n"
            "from trl_spiral.engines.local.continuous import ContinuousEngine\n"
            "from trl_spiral.types import Request\n"
            f"model = Qwen3ForCausalLM.from_pretrained({model_dir!r})\n"
            "engine = ContinuousEngine(model, GenerationConfig(eos_token_id=1), max_rows=4, max_length=300)\n"
            "engine.add(0, Request((5, 6, 7)))\n"
            "engine.step()\n"
            "raise SystemExit(3)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], timeout=300, capture_output=True)

        assert done.returncode == 3, done.stderr.decode()


class TestRefusals:
    @pytest.mark.parametrize(
        "sampling",
        [
            Sampling(temperature=0.0),
            Sampling(top_p=0.9),
            Sampling(top_k=5),
            Sampling(min_p=0.1),
            Sampling(repetition_penalty=1.1),
            Sampling(stop=("}",)),
        ],
        ids=str,
    )
    def test_sampling_that_it_cannot_do(self, sampling, engine):
        with pytest.raises(ValueError, match="at a temperature above zero and nothing else, and a request asks for"):
            engine.add(0, Request((1, 2), replace(sampling, max_new_tokens=4)))

    def test_requests_that_it_cannot_answer(self, engine):
        with pytest.raises(ValueError, match="names the policy 'best', and this engine holds the current one only"):
            engine.add(0, Request((1, 2), policy="best"))
        with pytest.raises(ValueError, match="constrained to 1 legal moves, .* vLLM"):
            engine.add(0, Request((1, 2), legal_moves=("[0]",)))
        with pytest.raises(ValueError, match="empty prompt"):
            engine.add(0, Request(()))
        with pytest.raises(ValueError, match=r"may grow to 258 tokens, more than `max_length` \(128\)"):
            engine.add(0, Request((1, 2)))

    def test_options_that_it_cannot_honour(self, model):
        with pytest.raises(ValueError, match="no stop texts, and the generation options name \\['x'\\]"):
            ContinuousEngine(model, GenerationConfig(stop_strings=["x"]))
        with pytest.raises(ValueError, match="is given {'allow_block_sharing': True}, and replies are right with"):
            ContinuousEngine(model, GenerationConfig(), options={"page_size": 64, "allow_block_sharing": True})
        with pytest.raises(ValueError, match=r"cannot honour \['SuppressTokensLogitsProcessor'\]"):
            ContinuousEngine(model, GenerationConfig(eos_token_id=1, suppress_tokens=[4])).add(0, Request((1, 2)))

        assert model.config._attn_implementation == "sdpa"
