"""The transformers engine against plain forward passes: sampling, log-probabilities and ends of replies."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy.stats import chi2
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3ForCausalLM,
)

from tests.helpers.precision import in_double, logprob_rounding
from tests.helpers.toy_games import SumGame
from trl_spiral import PolicyPlayer, play, referee
from trl_spiral.engines.local import decoding
from trl_spiral.engines.local.scoring import reply_logprobs
from trl_spiral.engines.local.transformers import TransformersEngine
from trl_spiral.games import get_game
from trl_spiral.selfplay.referee import Start
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import Request, Sampling


# All models compute in float64, so that the other rows of a batch change no token.


@pytest.fixture(scope="module")
def qwen(model_dir):
    return in_double(Qwen3ForCausalLM.from_pretrained(model_dir).eval())


@pytest.fixture(scope="module")
def gpt2(tokenizer):
    """A model with learned absolute positions, which are sensitive to a wrong offset of left padding."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=len(tokenizer), n_positions=256, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5
        )
        return in_double(GPT2LMHeadModel(config).eval())


@pytest.fixture(scope="module")
def mistral(tokenizer):
    """A model with a sliding window of 16 tokens, shorter than any prompt here."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = MistralConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            sliding_window=16,
            initializer_range=0.5,
        )
        return in_double(MistralForCausalLM(config).eval())


@pytest.fixture(scope="module")
def end(tokenizer):
    return tokenizer.eos_token_id


UNLUCKY = 1e-6
"""Smallest accepted p-value. A machine with other rounding draws another sample, which may be an unlikely one."""

ENDLESS = GenerationConfig(eos_token_id=10**6, pad_token_id=0)
"""The end-of-turn token never occurs, so each reply reaches its limit."""


@pytest.fixture(scope="module")
def endless():
    return ENDLESS


@pytest.fixture(scope="module")
def generation_config(tokenizer):
    return GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)


@pytest.fixture(scope="module")
def prompts(tokenizer, seen):
    """Sixty-four prompts of many lengths."""
    renderer = PromptRenderer(tokenizer)
    different = sorted({renderer.prompt(observation) for observation, _ in seen}, key=lambda ids: (len(ids), ids))
    return random.Random(0).sample(different, 64)


def answer(model, generation_config, requests, **arguments):
    """Return replies in the order of the requests."""
    engine = TransformersEngine(model, generation_config, **arguments)
    for ticket, request in enumerate(requests):
        engine.add(ticket, request)
    replies = {}
    while len(replies) < len(requests):
        replies |= dict(engine.step())
    return [replies[ticket] for ticket in range(len(requests))]


def answer_in_turn(model, generation_config, requests, at_once, **arguments):
    """Return replies in the order of the requests, with `at_once` in flight: most are admitted while others decode."""
    engine = TransformersEngine(model, generation_config, **arguments)
    for ticket in range(at_once):
        engine.add(ticket, requests[ticket])
    replies, added, steps = {}, at_once, 0
    while len(replies) < len(requests):
        done = engine.step()
        assert done
        replies |= dict(done)
        steps += 1
        for ticket in range(added, min(added + len(done), len(requests))):
            engine.add(ticket, requests[ticket])
            added += 1
    return [replies[ticket] for ticket in range(len(requests))], steps, engine.metrics()


def of_many_lengths(prompts, count=64, shortest=1, **sampling):
    """Return requests with different token limits. One in five has 40, and others overtake it."""
    return [
        Request(
            prompts[i % len(prompts)],
            Sampling(max_new_tokens=40 if i % 5 == 0 else shortest + i % 7, **sampling),
            seed=i,
        )
        for i in range(count)
    ]


def assert_same(model, replies, others, temperature=1.0):
    tolerance = logprob_rounding(model, temperature)
    for one, other in zip(replies, others, strict=True):
        assert one.completion_ids == other.completion_ids
        assert one.finish_reason == other.finish_reason
        assert one.logprobs == pytest.approx(other.logprobs, abs=tolerance)


def forward(model, prompt, completion=()):
    """Return logits for each token of a completion, and for the next one, from one forward pass without padding."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 :].double()


class TestBatching:
    @pytest.mark.parametrize("name", ["qwen", "gpt2"])
    def test_a_reply_is_the_same_alone_and_among_others(self, name, request, generation_config, prompts):
        model = request.getfixturevalue(name)
        sampling = Sampling(temperature=2.0, max_new_tokens=12)
        requests = [Request(prompt, sampling, seed=seed) for seed, prompt in enumerate(prompts)]
        together = answer(model, generation_config, requests)
        backwards = answer(model, generation_config, requests[::-1], max_rows=7)[::-1]
        alone = [answer(model, generation_config, [request])[0] for request in requests]

        assert_same(model, together, alone, temperature=2.0)
        assert_same(model, backwards, alone, temperature=2.0)
        assert len({len(reply.completion_ids) for reply in alone}) > (1 if name == "qwen" else 0)

    @pytest.mark.parametrize("name", ["qwen", "gpt2"])
    @pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
    def test_logprobs_are_those_of_one_forward_pass(self, name, temperature, request, generation_config, prompts):
        model = request.getfixturevalue(name)
        sampling = Sampling(temperature=temperature, top_k=20, max_new_tokens=12)
        requests = [Request(prompt, sampling, seed=seed) for seed, prompt in enumerate(prompts)]

        for asked, reply in zip(requests, answer(model, generation_config, requests), strict=True):
            # Not filtered: `top_k` affects the drawn tokens, not the recorded log-probabilities.
            logits = forward(model, asked.prompt_ids, reply.completion_ids)[:-1] / (temperature or 1.0)
            expected = logits.log_softmax(-1)[range(len(reply.completion_ids)), list(reply.completion_ids)]
            tolerance = logprob_rounding(model, temperature or 1.0)
            assert list(reply.logprobs) == pytest.approx(expected.tolist(), abs=tolerance)

    def test_prompts_of_one_length_need_no_padding(self, qwen, generation_config, prompts):
        # `generate` then drops the attention mask, which the decoding loop needs.
        equal = [tuple(prompt[:20]) for prompt in prompts[:8]]
        replies = answer(qwen, generation_config, [Request(p, Sampling(max_new_tokens=6), seed=1) for p in equal])

        assert [reply.completion_ids for reply in replies] == [
            answer(qwen, generation_config, [Request(p, Sampling(max_new_tokens=6), seed=1)])[0].completion_ids
            for p in equal
        ]

    def test_dropping_finished_rows_changes_no_token(self, qwen, generation_config, prompts, end):
        sampling = Sampling(temperature=2.0, max_new_tokens=12)
        requests = [Request(p, sampling, seed=seed) for seed, p in enumerate(prompts)]
        dropped = answer(qwen, generation_config, requests)
        # Without an end-of-turn token, no row finishes early. Cut by hand, the replies must be the same.
        endless = GenerationConfig(eos_token_id=10**6, pad_token_id=generation_config.pad_token_id)
        kept = answer(qwen, endless, requests)

        assert len({len(reply.completion_ids) for reply in dropped}) >= 3
        for short, long in zip(dropped, kept, strict=True):
            assert len(long.completion_ids) == 12
            tokens = long.completion_ids
            cut = tokens.index(end) + 1 if end in tokens else 12
            assert short.completion_ids == tokens[:cut]
            assert short.logprobs == pytest.approx(long.logprobs[:cut], abs=logprob_rounding(qwen, 2.0))

    def test_requests_with_different_sampling_are_decoded_separately(self, qwen, generation_config, prompts):
        greedy, drawn = Sampling(temperature=0.0, max_new_tokens=1), Sampling(max_new_tokens=1)
        requests = [Request(p, greedy if i % 2 else drawn, seed=i) for i, p in enumerate(prompts[:8])]
        engine = TransformersEngine(qwen, generation_config)
        for ticket, request in enumerate(requests):
            engine.add(ticket, request)
        engine.abort([2])

        assert sorted(ticket for ticket, _ in engine.step()) == [0, 4, 6]
        assert sorted(ticket for ticket, _ in engine.step()) == [1, 3, 5, 7]


class TestAdmission:
    @pytest.mark.parametrize("name", ["qwen", "gpt2", "mistral"])
    def test_a_reply_does_not_depend_on_when_it_is_admitted(self, name, request, endless, prompts):
        model = request.getfixturevalue(name)
        requests = of_many_lengths(prompts, temperature=1.5)
        alone = [answer(model, endless, [request])[0] for request in requests]
        in_turn, steps, _ = answer_in_turn(model, endless, requests, at_once=16)

        assert_same(model, in_turn, alone, temperature=1.5)
        assert [len(reply.completion_ids) for reply in alone] == [r.sampling.max_new_tokens for r in requests]
        assert {reply.finish_reason for reply in alone} == {"length"}
        # If every batch were decoded to its end before the next, long replies would delay all others four times.
        assert steps > 20

    def test_a_static_cache_admits_no_rows_until_it_is_empty(self, qwen, endless, prompts):
        static = GenerationConfig(**{**endless.to_dict(), "cache_implementation": "static"})
        requests = of_many_lengths(prompts, count=30)
        replies, _, _ = answer_in_turn(qwen, static, requests, at_once=10)

        assert_same(qwen, replies, answer(qwen, endless, requests))

    def test_replies_are_returned_as_they_are_done(self, qwen, endless, prompts):
        engine = TransformersEngine(qwen, endless)
        for ticket, limit in enumerate([9, 1, 4, 4]):
            engine.add(ticket, Request(prompts[ticket], Sampling(max_new_tokens=limit), seed=ticket))

        assert [[ticket for ticket, _ in engine.step()] for _ in range(3)] == [[1], [2, 3], [0]]

    def test_requests_wait_until_they_are_a_share_of_the_rows_in_flight(self, qwen, endless, prompts):
        engine = TransformersEngine(qwen, endless)
        for ticket in range(16):
            engine.add(ticket, Request(prompts[ticket], Sampling(max_new_tokens=6 if ticket < 12 else 2), seed=ticket))
        first = [ticket for ticket, _ in engine.step()]
        # A quarter of the twelve in flight is three.
        engine.add(16, Request(prompts[16], Sampling(max_new_tokens=1), seed=16))
        engine.add(17, Request(prompts[17], Sampling(max_new_tokens=1), seed=17))
        second = [ticket for ticket, _ in engine.step()]

        assert first == [12, 13, 14, 15]
        assert second == list(range(12))
        assert [ticket for ticket, _ in engine.step()] == [16, 17]

    def test_no_more_rows_are_in_flight_than_allowed(self, qwen, endless, prompts):
        requests = of_many_lengths(prompts, count=40) + of_many_lengths(prompts, count=40, temperature=0.0)
        replies, _, _ = answer_in_turn(qwen, endless, requests, at_once=80, max_rows=6)

        assert_same(qwen, replies, [answer(qwen, endless, [request])[0] for request in requests])

    def test_unused_columns_are_removed(self, qwen, endless, prompts):
        engine = TransformersEngine(qwen, endless)
        short, long = prompts[0][-10:], prompts[1] * 3
        engine.add(0, Request(long, Sampling(max_new_tokens=2)))
        engine.add(1, Request(short, Sampling(max_new_tokens=9), seed=1))
        engine.step()
        (group,) = engine._groups.values()

        # Two tokens written, of which the last is fed next and not yet cached.
        assert group.batch._cache.get_seq_length() == len(short) + 1
        whole = answer(qwen, endless, [Request(short, Sampling(max_new_tokens=9), seed=1)])
        assert_same(qwen, [reply for _, reply in engine.step()], whole)

    def test_requests_can_be_aborted_in_flight(self, qwen, endless, prompts):
        requests = [Request(p, Sampling(max_new_tokens=2 + 10 * (i > 3)), seed=i) for i, p in enumerate(prompts[:12])]
        engine = TransformersEngine(qwen, endless)
        for ticket, request in enumerate(requests):
            engine.add(ticket, request)
        assert sorted(ticket for ticket, _ in engine.step()) == [0, 1, 2, 3]
        engine.abort([5, 7, 99])
        engine.add(5, requests[0])  # its ticket is free again

        replies = {}
        while len(replies) < 7:
            replies |= dict(engine.step())
        assert sorted(replies) == [4, 5, 6, 8, 9, 10, 11]
        asked = [requests[0 if ticket == 5 else ticket] for ticket in sorted(replies)]
        assert_same(qwen, [replies[t] for t in sorted(replies)], answer(qwen, endless, asked))

    def test_all_rows_in_flight_can_be_aborted(self, qwen, endless, prompts):
        engine = TransformersEngine(qwen, endless)
        engine.add(0, Request(prompts[0], Sampling(max_new_tokens=1)))
        engine.add(1, Request(prompts[1], Sampling(max_new_tokens=9)))
        engine.step()
        engine.abort([1])
        engine.add(2, Request(prompts[2], Sampling(max_new_tokens=3)))

        alone = answer(qwen, endless, [Request(prompts[2], Sampling(max_new_tokens=3))])
        assert_same(qwen, [dict(engine.step())[2]], alone)

    def test_a_model_without_a_cache_is_refused(self, tokenizer, generation_config, prompts):
        config = MambaConfig(vocab_size=len(tokenizer), hidden_size=16, state_size=4, num_hidden_layers=1)
        engine = TransformersEngine(MambaForCausalLM(config).eval(), generation_config)
        engine.add(0, Request(prompts[0]))

        with pytest.raises(ValueError, match="MambaForCausalLM gives `generate` no cache from which"):
            engine.step()


class TestPrefixes:
    @pytest.mark.parametrize("name", ["qwen", "gpt2"])
    def test_a_common_prefix_is_read_once(self, name, request, endless, prompts, monkeypatch):
        monkeypatch.setattr(decoding, "SHARED_POSITIONS", 1)
        model = request.getfixturevalue(name)
        beginning = prompts[0][:30]
        requests = of_many_lengths([beginning + prompt[-(5 + i % 20) :] for i, prompt in enumerate(prompts)])
        shared, _, metrics = answer_in_turn(model, endless, requests, at_once=32)
        whole, _, others = answer_in_turn(model, endless, requests, at_once=32, share_prefixes=False)

        assert_same(model, shared, whole)
        assert_same(model, shared, [answer(model, endless, [request])[0] for request in requests])
        assert metrics["shared_prompt_share"] > 0.5
        assert others["shared_prompt_share"] == 0.0

    def test_equal_prompts_keep_one_token_to_read(self, qwen, endless, prompts, monkeypatch):
        monkeypatch.setattr(decoding, "SHARED_POSITIONS", 1)
        requests = [Request(prompts[0], Sampling(max_new_tokens=3), seed=seed) for seed in range(5)]
        requests.append(Request((*prompts[0], prompts[0][0]), Sampling(max_new_tokens=3), seed=5))

        whole = answer(qwen, endless, requests, share_prefixes=False)
        assert_same(qwen, answer(qwen, endless, requests), whole)


class TestMetrics:
    def test_they_count_passes_tokens_and_padding(self, qwen, endless, prompts):
        engine = TransformersEngine(qwen, endless)
        assert engine.metrics() == {}
        engine.add(0, Request(prompts[0][:10], Sampling(max_new_tokens=1)))
        engine.add(1, Request(prompts[0][:6], Sampling(max_new_tokens=4)))
        engine.step()
        engine.step()
        metrics = engine.metrics()

        assert metrics["new_tokens"] == 5
        # Four passes: one for two rows, three for one. At most two rows were in flight.
        assert metrics["occupancy"] == (2 + 1 + 1 + 1) / 4 / 2
        # Two rows of ten positions, four of them padding, and three single tokens.
        assert metrics["padding_share"] == 4 / 23
        assert metrics["shared_prompt_share"] == 0.0
        assert engine.metrics() == {}

    def test_copied_positions_are_not_padding(self, qwen, endless, prompts, monkeypatch):
        monkeypatch.setattr(decoding, "SHARED_POSITIONS", 1)
        engine = TransformersEngine(qwen, endless)
        engine.add(0, Request((*prompts[0][:8], 1, 2), Sampling(max_new_tokens=1)))
        engine.add(1, Request((*prompts[0][:8], 3), Sampling(max_new_tokens=1)))
        engine.step()

        # Eight positions once, and two rows of two, one of them padding.
        assert engine.metrics() == {
            "occupancy": 1.0,
            "padding_share": 1 / 12,
            "new_tokens": 2.0,
            "shared_prompt_share": 8 / 19,
        }


class TestOptions:
    """Options of `generate`: those that need more than the scores of a row are refused."""

    def test_suppressed_tokens_are_never_drawn(self, gpt2, generation_config, prompts):
        base = GenerationConfig(**{**generation_config.to_dict(), "suppress_tokens": list(range(40, 60))})
        requests = of_many_lengths(prompts[:10], count=30, shortest=5)
        in_turn, _, _ = answer_in_turn(gpt2, base, requests, at_once=10)

        assert_same(gpt2, in_turn, [answer(gpt2, base, [request])[0] for request in requests])
        assert not {token for reply in in_turn for token in reply.completion_ids} & set(range(40, 60))
        assert in_turn != answer_in_turn(gpt2, generation_config, requests, at_once=10)[0]

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            (dict(no_repeat_ngram_size=2), "NoRepeatNGramLogitsProcessor"),
            (dict(min_new_tokens=5), "MinLengthLogitsProcessor and MinNewTokensLengthLogitsProcessor"),
            (dict(begin_suppress_tokens=[5, 6, 7]), "SuppressTokensAtBeginLogitsProcessor"),
            (dict(exponential_decay_length_penalty=(3, 1.5)), "ExponentialDecayLengthPenalty"),
            (dict(forced_eos_token_id=9), "ForcedEOSTokenLogitsProcessor"),
            (dict(sequence_bias=[[[11], 4.0]]), "SequenceBiasLogitsProcessor"),
            (dict(max_time=0.0), "MaxTimeCriteria"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_options_that_need_more_than_scores_are_refused(self, options, name, gpt2, generation_config, prompts):
        base = GenerationConfig(**{**generation_config.to_dict(), **options})

        with pytest.raises(ValueError, match=f"cannot apply {name}; .* or let vLLM generate"):
            answer(gpt2, base, [Request(prompts[0], Sampling(max_new_tokens=8))])

    def test_a_repetition_penalty_is_refused(self, gpt2, generation_config, prompts):
        with pytest.raises(ValueError, match="cannot apply RepetitionPenaltyLogitsProcessor; .* or let vLLM generate"):
            answer(gpt2, generation_config, [Request(prompts[0], Sampling(repetition_penalty=1.8))])


class TestSampling:
    def test_replies_depend_on_the_seed_alone(self, qwen, generation_config, prompts):
        torch.manual_seed(1)
        requests = [Request(prompts[0], Sampling(temperature=2.0, max_new_tokens=8), seed=seed) for seed in range(20)]
        first = answer(qwen, generation_config, requests)
        torch.manual_seed(2)
        state = torch.random.get_rng_state(), random.getstate()
        again = answer(qwen, generation_config, requests)

        assert first == again
        assert len({reply.completion_ids for reply in first}) > 15
        # And neither global generator is touched.
        assert torch.equal(state[0], torch.random.get_rng_state()) and state[1] == random.getstate()

    def test_temperature_zero_takes_the_most_likely_token(self, qwen, generation_config, prompts):
        sampling = Sampling(temperature=0.0, max_new_tokens=8)
        requests = [Request(prompt, sampling, seed=seed) for seed, prompt in enumerate(prompts[:16])]

        for asked, reply in zip(requests, answer(qwen, generation_config, requests), strict=True):
            logits = forward(qwen, asked.prompt_ids, reply.completion_ids)[:-1]
            assert logits.argmax(-1).tolist() == list(reply.completion_ids)

    def test_frequencies_agree_with_probabilities(self, qwen, generation_config, prompts):
        draws = 4000
        sampling = Sampling(temperature=2.5, max_new_tokens=1)
        requests = [Request(prompts[0], sampling, seed=seed) for seed in range(draws)]
        counts = Counter(reply.completion_ids[0] for reply in answer(qwen, generation_config, requests))
        probabilities = (forward(qwen, prompts[0])[0] / 2.5).softmax(-1).tolist()

        # Tokens that are expected fewer than five times share one bin, as Pearson's test wants it.
        common = [token for token, p in enumerate(probabilities) if p * draws >= 5]
        observed = [counts[token] for token in common]
        expected = [probabilities[token] * draws for token in common]
        observed.append(draws - sum(observed))
        expected.append(draws - sum(expected))
        statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
        assert len(common) > 10
        assert chi2.sf(statistic, len(observed) - 1) > UNLUCKY

    def test_the_second_token_follows_the_first(self, qwen, generation_config, prompts):
        draws = 3000
        sampling = Sampling(temperature=1.5, max_new_tokens=2)
        requests = [Request(prompts[0], sampling, seed=seed) for seed in range(draws)]
        replies = answer(qwen, generation_config, requests)
        first = Counter(reply.completion_ids[0] for reply in replies).most_common(1)[0][0]
        seconds = Counter(r.completion_ids[1] for r in replies if r.completion_ids[0] == first)
        total = seconds.total()
        probabilities = (forward(qwen, (*prompts[0], first))[0] / 1.5).softmax(-1).tolist()

        common = [token for token, p in enumerate(probabilities) if p * total >= 5]
        observed, expected = [seconds[t] for t in common], [probabilities[t] * total for t in common]
        observed.append(total - sum(observed))
        expected.append(total - sum(expected))
        statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
        assert total > 200
        assert chi2.sf(statistic, len(observed) - 1) > UNLUCKY

    @pytest.mark.parametrize(
        "sampling",
        [
            Sampling(top_k=3),
            Sampling(top_p=0.6),
            Sampling(min_p=0.2),
            Sampling(top_k=5, temperature=3.0),
            Sampling(top_p=0.5, temperature=2.0),
        ],
        ids=str,
    )
    def test_filters_keep_exactly_the_allowed_tokens(self, sampling, qwen, generation_config, prompts):
        prompt, sampling = prompts[0], replace(sampling, max_new_tokens=1)
        requests = [Request(prompt, sampling, seed=seed) for seed in range(600)]
        drawn = Counter(reply.completion_ids[0] for reply in answer(qwen, generation_config, requests))
        probabilities = (forward(qwen, prompt)[0] / sampling.temperature).softmax(-1)
        ranked = probabilities.argsort(descending=True).tolist()
        allowed = set(ranked)
        if sampling.top_k:
            allowed &= set(ranked[: sampling.top_k])
        if sampling.top_p < 1.0:
            before = [sum(probabilities[ranked[:rank]].tolist()) for rank in range(len(ranked))]
            allowed &= {token for token, mass in zip(ranked, before, strict=True) if mass < sampling.top_p}
        if sampling.min_p:
            allowed &= {t for t in ranked if probabilities[t] >= sampling.min_p * probabilities.max()}

        kept = sum(probabilities[token].item() for token in allowed)
        assert set(drawn) <= allowed
        for token in allowed:
            p = probabilities[token].item() / kept
            assert drawn[token] == pytest.approx(600 * p, abs=5 * math.sqrt(600 * p * (1 - p)) + 1e-9)


class TestStopping:
    def test_ends_at_the_end_of_turn_or_the_limit(self, qwen, generation_config, prompts, end):
        sampling = Sampling(temperature=2.0, max_new_tokens=4)
        requests = [Request(p, sampling, seed=seed) for seed, p in enumerate(prompts)]
        replies = answer(qwen, generation_config, requests)

        assert {reply.finish_reason for reply in replies} == {"stop", "length"}
        for reply in replies:
            tokens = reply.completion_ids
            assert end not in tokens[:-1]
            # A reply whose fourth token is the end of its turn is whole.
            assert reply.finish_reason == ("stop" if tokens[-1] == end else "length")
            assert len(tokens) == 4 or tokens[-1] == end
        assert any(len(r.completion_ids) == 4 and r.finish_reason == "stop" for r in replies)

    def test_any_of_several_end_tokens_ends_a_reply(self, qwen, generation_config, prompts, end, tokenizer):
        # Llama 3 and Gemma have two.
        two = GenerationConfig(eos_token_id=[end, tokenizer.encode("[4]")[0]], pad_token_id=tokenizer.pad_token_id)
        replies = answer(qwen, two, [Request(p, Sampling(max_new_tokens=8), seed=s) for s, p in enumerate(prompts)])

        last = Counter(reply.completion_ids[-1] for reply in replies if reply.finish_reason == "stop")
        assert set(last) == set(two.eos_token_id)

    def test_lengths_may_differ_between_requests(self, qwen, generation_config, prompts):
        requests = [Request(p, Sampling(max_new_tokens=2 + i % 3), seed=i) for i, p in enumerate(prompts[:9])]
        replies = answer(qwen, generation_config, requests)

        assert all(len(r.completion_ids) <= q.sampling.max_new_tokens for q, r in zip(requests, replies, strict=True))

    def test_stop_strings_end_a_reply_and_belong_to_it(self, qwen, generation_config, prompts, tokenizer):
        sampling = Sampling(temperature=1.5, max_new_tokens=12, stop=("]}", "5"))
        requests = [Request(p, sampling, seed=seed) for seed, p in enumerate(prompts)]
        free = [replace(q, sampling=replace(sampling, stop=())) for q in requests]
        replies, _, _ = answer_in_turn(qwen, generation_config, requests, at_once=16, tokenizer=tokenizer)

        stopped = 0
        for reply, whole in zip(replies, answer(qwen, generation_config, free), strict=True):
            texts = [tokenizer.decode(whole.completion_ids[: i + 1]) for i in range(len(whole.completion_ids))]
            cut = next((i for i, text in enumerate(texts) if "]}" in text or "5" in text), None)
            stopped += cut is not None
            assert reply.completion_ids == whole.completion_ids[: None if cut is None else cut + 1]
            assert reply.finish_reason == (whole.finish_reason if cut is None else "stop")
        assert 10 < stopped < len(prompts)

    def test_a_stop_string_in_the_prompt_does_not_end_a_reply(self, qwen, endless, tokenizer):
        prompt = tuple(tokenizer.encode("\\boxed{[4]"))
        request = Request(prompt, Sampling(max_new_tokens=6, stop=("{[4]",)))
        (reply,) = answer(qwen, endless, [request], tokenizer=tokenizer)

        assert len(reply.completion_ids) == 6 or "{[4]" in tokenizer.decode(reply.completion_ids)

    def test_the_base_options_may_have_stop_strings(self, qwen, generation_config, prompts, tokenizer):
        base = GenerationConfig(**{**generation_config.to_dict(), "stop_strings": "]"})
        requests = [Request(p, Sampling(max_new_tokens=12, stop=("5",)), seed=seed) for seed, p in enumerate(prompts)]
        texts = [tokenizer.decode(r.completion_ids) for r in answer(qwen, base, requests, tokenizer=tokenizer)]

        assert sum(text.endswith("]") for text in texts) > 10
        assert not any("]" in text[:-1] or "5" in text[:-2] for text in texts)

    def test_stop_strings_without_a_tokenizer_are_refused(self, qwen, generation_config):
        with pytest.raises(ValueError, match="stop at \\['x'\\], and this engine has no tokenizer"):
            TransformersEngine(qwen, generation_config).add(0, Request((1, 2), Sampling(stop=("x",))))
        with pytest.raises(ValueError, match="stop at \\['x'\\]"):
            TransformersEngine(qwen, GenerationConfig(stop_strings=["x"], pad_token_id=0))


class TestPolicies:
    def test_replies_of_the_policy_have_its_version(self, qwen, generation_config, prompts):
        (reply,) = answer(qwen, generation_config, [Request(prompts[0], Sampling(max_new_tokens=2))], version=7)

        assert reply.version == 7

    def test_an_unknown_policy_is_refused(self, qwen, generation_config):
        engine = TransformersEngine(qwen, generation_config)

        with pytest.raises(ValueError, match="names the policy 'best', and this engine holds \\['policy'\\]"):
            engine.add(0, Request((1, 2), policy="best"))

    def test_groups_with_different_sampling_take_turns(self, qwen, endless, prompts):
        engine = TransformersEngine(qwen, endless)
        limits = [1, 2, 3, 1, 2, 3]
        for ticket, limit in enumerate(limits):
            temperature = 1.0 if ticket < 3 else 0.5
            engine.add(ticket, Request(prompts[ticket], Sampling(temperature, max_new_tokens=limit)))

        assert [ticket for _ in range(6) for ticket, _ in engine.step()] == [0, 3, 1, 4, 2, 5]

    def test_legal_moves_are_refused(self, qwen, generation_config):
        with pytest.raises(ValueError, match="constrained to 2 legal moves, .* vLLM"):
            TransformersEngine(qwen, generation_config).add(0, Request((1, 2), legal_moves=("[0]", "[1]")))

    def test_an_empty_prompt_is_refused(self, qwen, generation_config):
        with pytest.raises(ValueError, match="empty prompt"):
            TransformersEngine(qwen, generation_config).add(0, Request(()))


class TestGames:
    def test_an_episode_does_not_depend_on_the_other_games(self, qwen, generation_config, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer), Sampling(max_new_tokens=8))
        names = [get_game("TicTacToe-v0"), SumGame(), get_game("PigDice-v0-50")]

        def episodes(numbers, in_flight):
            starts = [Start(names[n % 3], (player, player), seed=n, play_seed=n, counter=n) for n in numbers]
            engine = TransformersEngine(qwen, generation_config)
            return {e.counter: e.moves for e in play(map(referee, starts), engine, in_flight)}

        together = episodes(range(12), 12)
        assert together == episodes(range(12), 3)
        assert {5: together[5]} == episodes([5], 1)
        assert len(together[5]) > 10


class TestScoring:
    @pytest.mark.parametrize("name", ["qwen", "gpt2"])
    def test_the_score_of_a_reply_is_the_sum_over_its_tokens(self, name, request, prompts, tokenizer):
        model = request.getfixturevalue(name)
        renderer = PromptRenderer(tokenizer)
        replies = [
            renderer.reply(["\\boxed{[4]}", "[8]", "I take the corner: \\boxed{[0]}"][i % 3]) for i in range(20)
        ]
        temperatures = (1.0, 0.5, 2.0)
        model.train()
        scored = reply_logprobs(model, prompts[:20], replies, temperatures, batch_size=6)

        assert model.training
        model.eval()
        assert scored.shape == (20, 3)
        for row, (prompt, reply) in enumerate(zip(prompts, replies, strict=False)):
            logits = forward(model, prompt, reply)[:-1]
            for column, temperature in enumerate(temperatures):
                logprobs = (logits / temperature).log_softmax(-1)[range(len(reply)), list(reply)]
                tolerance = len(reply) * logprob_rounding(model, temperature)
                assert scored[row, column].item() == pytest.approx(logprobs.sum().item(), abs=tolerance)
