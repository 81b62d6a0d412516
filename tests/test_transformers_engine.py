"""The transformers engine against plain forward passes: what it samples, how likely that was, and when it stops."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy.stats import chi2
from toy_games import SumGame
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, Qwen3ForCausalLM

from trl_spiral import PolicyPlayer, play, referee
from trl_spiral.engines import TransformersEngine
from trl_spiral.engines.scoring import reply_logprobs
from trl_spiral.games import get_game
from trl_spiral.prompts import PromptRenderer
from trl_spiral.rollout import Start
from trl_spiral.types import Request, Sampling


@pytest.fixture(scope="module")
def qwen(model_dir):
    return Qwen3ForCausalLM.from_pretrained(model_dir).eval()


@pytest.fixture(scope="module")
def gpt2(tokenizer):
    """Learned absolute positions, which a wrong offset of left padding changes; rotary ones hardly notice."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=len(tokenizer), n_positions=256, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5
        )
        return GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="module")
def end(tokenizer):
    return tokenizer.eos_token_id


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
    """Replies in the order of the requests."""
    engine = TransformersEngine(model, generation_config, **arguments)
    for ticket, request in enumerate(requests):
        engine.add(ticket, request)
    replies = {}
    while len(replies) < len(requests):
        replies |= dict(engine.step())
    return [replies[ticket] for ticket in range(len(requests))]


def forward(model, prompt, completion=()):
    """Logits for each token of a completion, and for the one after it, from one forward pass without padding."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 :].double()


class TestBatching:
    @pytest.mark.parametrize("name", ["qwen", "gpt2"])
    def test_a_reply_is_the_same_alone_and_among_others(self, name, request, generation_config, prompts):
        model = request.getfixturevalue(name)
        requests = [Request(prompt, Sampling(max_new_tokens=12), seed=seed) for seed, prompt in enumerate(prompts)]
        together = answer(model, generation_config, requests)
        backwards = answer(model, generation_config, requests[::-1], max_rows=7)[::-1]
        alone = [answer(model, generation_config, [request])[0] for request in requests]

        for one, other, third in zip(alone, together, backwards, strict=True):
            assert one.completion_ids == other.completion_ids == third.completion_ids
            assert one.finish_reason == other.finish_reason
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert len({len(reply.completion_ids) for reply in alone}) > (1 if name == "qwen" else 0)

    @pytest.mark.parametrize("name", ["qwen", "gpt2"])
    @pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
    def test_logprobs_are_those_of_one_forward_pass(self, name, temperature, request, generation_config, prompts):
        model = request.getfixturevalue(name)
        sampling = Sampling(temperature=temperature, top_k=20, max_new_tokens=12)
        requests = [Request(prompt, sampling, seed=seed) for seed, prompt in enumerate(prompts)]

        for asked, reply in zip(requests, answer(model, generation_config, requests), strict=True):
            # Nothing filtered: `top_k` shapes what is drawn, not what is recorded.
            logits = forward(model, asked.prompt_ids, reply.completion_ids)[:-1] / (temperature or 1.0)
            expected = logits.log_softmax(-1)[range(len(reply.completion_ids)), list(reply.completion_ids)]
            assert list(reply.logprobs) == pytest.approx(expected.tolist(), abs=1e-5)

    def test_prompts_of_one_length_need_no_padding(self, qwen, generation_config, prompts):
        # `generate` then drops the attention mask, which the decoding loop must not trip over.
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
        # Where the end-of-turn token is one that never comes, no row ever finishes early; cut by hand, the replies must be the same.
        endless = GenerationConfig(eos_token_id=10**6, pad_token_id=generation_config.pad_token_id)
        kept = answer(qwen, endless, requests)

        assert len({len(reply.completion_ids) for reply in dropped}) >= 3
        for short, long in zip(dropped, kept, strict=True):
            assert len(long.completion_ids) == 12
            tokens = long.completion_ids
            cut = tokens.index(end) + 1 if end in tokens else 12
            assert short.completion_ids == tokens[:cut]
            assert short.logprobs == pytest.approx(long.logprobs[:cut], abs=1e-5)

    def test_requests_of_different_sampling_are_answered_apart(self, qwen, generation_config, prompts):
        greedy, drawn = Sampling(temperature=0.0, max_new_tokens=6), Sampling(max_new_tokens=6)
        requests = [Request(p, greedy if i % 2 else drawn, seed=i) for i, p in enumerate(prompts[:8])]
        engine = TransformersEngine(qwen, generation_config)
        for ticket, request in enumerate(requests):
            engine.add(ticket, request)
        engine.abort([2])

        assert sorted(ticket for ticket, _ in engine.step()) == [0, 4, 6]
        assert sorted(ticket for ticket, _ in engine.step()) == [1, 3, 5, 7]


class TestSampling:
    def test_seeds_matter_and_nothing_else_does(self, qwen, generation_config, prompts):
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

    def test_temperature_zero_takes_the_likeliest_token(self, qwen, generation_config, prompts):
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
        assert chi2.sf(statistic, len(observed) - 1) > 0.01

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
        assert chi2.sf(statistic, len(observed) - 1) > 0.01

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
    def test_filters_let_through_what_they_should_and_all_of_it(self, sampling, qwen, generation_config, prompts):
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

    def test_a_repetition_penalty_bears_on_what_was_read_and_written(self, gpt2, generation_config, prompts):
        prompt = prompts[0]
        sampling = Sampling(temperature=0.0, repetition_penalty=1.8, max_new_tokens=24)
        (reply,) = answer(gpt2, generation_config, [Request(prompt, sampling)])

        written = []
        for token in reply.completion_ids:
            logits = forward(gpt2, prompt, written)[-1]
            for seen in {*prompt, *written}:
                logits[seen] = logits[seen] / 1.8 if logits[seen] > 0 else logits[seen] * 1.8
            assert token == logits.argmax().item()
            written.append(token)
        plain = answer(gpt2, generation_config, [Request(prompt, replace(sampling, repetition_penalty=1.0))])[0]
        assert plain.completion_ids != reply.completion_ids


class TestStopping:
    def test_ends_at_the_end_of_turn_or_the_limit(self, qwen, generation_config, prompts, end):
        requests = [Request(p, Sampling(max_new_tokens=4), seed=seed) for seed, p in enumerate(prompts)]
        replies = answer(qwen, generation_config, requests)

        assert {reply.finish_reason for reply in replies} == {"stop", "length"}
        for reply in replies:
            tokens = reply.completion_ids
            assert end not in tokens[:-1]
            # A reply whose fourth token is the end of its turn is whole.
            assert reply.finish_reason == ("stop" if tokens[-1] == end else "length")
            assert len(tokens) == 4 or tokens[-1] == end
        assert any(len(r.completion_ids) == 4 and r.finish_reason == "stop" for r in replies)

    def test_any_of_several_ends_will_do(self, qwen, generation_config, prompts, end, tokenizer):
        # Llama 3 and Gemma have two.
        two = GenerationConfig(eos_token_id=[end, tokenizer.encode("[4]")[0]], pad_token_id=tokenizer.pad_token_id)
        replies = answer(qwen, two, [Request(p, Sampling(max_new_tokens=8), seed=s) for s, p in enumerate(prompts)])

        last = Counter(reply.completion_ids[-1] for reply in replies if reply.finish_reason == "stop")
        assert set(last) == set(two.eos_token_id)

    def test_lengths_may_differ_between_requests(self, qwen, generation_config, prompts):
        requests = [Request(p, Sampling(max_new_tokens=2 + i % 3), seed=i) for i, p in enumerate(prompts[:9])]
        replies = answer(qwen, generation_config, requests)

        assert all(len(r.completion_ids) <= q.sampling.max_new_tokens for q, r in zip(requests, replies, strict=True))


class TestPolicies:
    def test_each_request_is_answered_by_its_own_weights(self, qwen, gpt2, generation_config, prompts):
        sampling = Sampling(max_new_tokens=6)
        requests = [Request(p, sampling, "old" if i % 2 else "policy", i) for i, p in enumerate(prompts[:12])]
        replies = answer(qwen, generation_config, requests, snapshots={"old": gpt2}, version=7)

        for asked, reply in zip(requests, replies, strict=True):
            model = gpt2 if asked.policy == "old" else qwen
            alone = answer(model, generation_config, [Request(asked.prompt_ids, sampling, seed=asked.seed)])[0]
            assert reply.completion_ids == alone.completion_ids
            assert reply.version == (0 if asked.policy == "old" else 7)

    def test_an_unknown_one_is_refused(self, qwen, generation_config):
        engine = TransformersEngine(qwen, generation_config)

        with pytest.raises(ValueError, match="names the policy 'best', and this engine holds \\['policy'\\]"):
            engine.add(0, Request((1, 2), policy="best"))

    def test_an_empty_prompt_is_refused(self, qwen, generation_config):
        with pytest.raises(ValueError, match="empty prompt"):
            TransformersEngine(qwen, generation_config).add(0, Request(()))


class TestGames:
    def test_an_episode_is_the_same_whatever_is_played_beside_it(self, qwen, generation_config, tokenizer):
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
    def test_a_reply_is_worth_the_sum_of_its_tokens(self, name, request, prompts, tokenizer):
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
                assert scored[row, column].item() == pytest.approx(logprobs.sum().item(), abs=1e-4)
