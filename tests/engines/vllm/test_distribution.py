"""All generation modes sample moves with the probabilities of a forward pass, in 20 positions."""

from collections import Counter

import pytest

from trl_spiral.types import Request, Sampling


pytestmark = pytest.mark.vllm

POSITIONS, SAMPLES = 20, 400
# Correct samplers fall below this p-value in one of a thousand comparisons. There are 80, with fixed seeds.
MIN_P_VALUE = 1e-3
SAMPLING = Sampling(temperature=0.9, max_new_tokens=8)


@pytest.fixture(scope="module")
def requests(tokenizer, seen):
    """Requests for each position, each with its own seed."""
    from trl_spiral.text.prompts import PromptRenderer

    renderer = PromptRenderer(tokenizer)
    prompts = list(dict.fromkeys(renderer.prompt(observation) for observation, _ in seen))
    chosen = prompts[:: len(prompts) // POSITIONS][:POSITIONS]
    return [
        Request(prompt, SAMPLING, seed=1000 * place + n) for place, prompt in enumerate(chosen) for n in range(SAMPLES)
    ]


@pytest.fixture(scope="module")
def moves(requests, vllm_model_dir, fresh_server):
    """Counts of each reply, by generation mode and position."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    from tests.helpers.vllm_in_process import vllm_in_process
    from trl_spiral.engines.http.vllm_server import ServerEngine
    from trl_spiral.engines.local.transformers import TransformersEngine
    from trl_spiral.engines.vllm.colocated import VLLMEngine

    def ask(engine):
        for ticket, request in enumerate(requests):
            engine.add(ticket, request)
        counts = [Counter() for _ in range(POSITIONS)]
        answered = 0
        while answered < len(requests):
            for ticket, reply in engine.step():
                counts[ticket // SAMPLES][reply.completion_ids] += 1
                answered += 1
        return counts

    model = AutoModelForCausalLM.from_pretrained(vllm_model_dir, dtype=torch.float32).eval()
    config = GenerationConfig(
        pad_token_id=model.config.pad_token_id, eos_token_id=model.config.eos_token_id, do_sample=True
    )
    found = {"transformers": ask(TransformersEngine(model, config))}
    with vllm_in_process(vllm_model_dir, max_num_seqs=128) as llm:
        found["vLLM"] = ask(VLLMEngine(llm))
    with ServerEngine(fresh_server.base_url) as engine:
        found["vLLM server"] = ask(engine)
    return found


def p_value(first, second):
    """Return the p-value of a chi-square test that both tables have one distribution. Rare replies are pooled."""
    from scipy.stats import chi2_contingency

    common = [reply for reply in first if first[reply] + second[reply] >= 20]
    table = [[counts[reply] for reply in common] for counts in (first, second)]
    rest = [counts.total() - sum(row) for counts, row in zip((first, second), table, strict=True)]
    if sum(rest):
        table = [[*row, other] for row, other in zip(table, rest, strict=True)]
    return chi2_contingency(table).pvalue if len(table[0]) > 1 else 1.0


class TestMoves:
    @pytest.mark.parametrize("mode", ["vLLM", "vLLM server"])
    def test_have_the_frequencies_of_transformers(self, mode, moves):
        for position in range(POSITIONS):
            assert p_value(moves["transformers"][position], moves[mode][position]) > MIN_P_VALUE

    @pytest.mark.parametrize("mode", ["transformers", "vLLM", "vLLM server"])
    def test_have_the_probabilities_of_a_forward_pass(self, mode, moves, requests, vllm_model_dir):
        import torch
        from scipy.stats import chisquare
        from transformers import AutoModelForCausalLM

        from trl_spiral.engines.local.scoring import reply_logprobs

        model = AutoModelForCausalLM.from_pretrained(vllm_model_dir, dtype=torch.float32).eval()
        for position, counts in enumerate(moves[mode]):
            replies = [reply for reply, _ in counts.most_common(30)]
            prompt = requests[position * SAMPLES].prompt_ids
            likely = (
                reply_logprobs(model, [prompt] * len(replies), replies, [SAMPLING.temperature])[:, 0].exp().tolist()
            )
            kept = [(counts[reply], SAMPLES * p) for reply, p in zip(replies, likely, strict=True) if SAMPLES * p >= 5]
            seen = [count for count, _ in kept] + [SAMPLES - sum(count for count, _ in kept)]
            expected = [p for _, p in kept] + [SAMPLES - sum(p for _, p in kept)]
            if expected[-1] < 5:  # too few for a separate class
                seen[-2:], expected[-2:] = [sum(seen[-2:])], [sum(expected[-2:])]
            assert chisquare(seen, expected).pvalue > MIN_P_VALUE

    def test_detect_another_temperature(self, moves, requests, vllm_model_dir):
        """The tests above fail for 0.3 in place of 0.9, except in positions with nearly uniform moves."""
        import torch
        from transformers import AutoModelForCausalLM

        from trl_spiral.engines.local.scoring import reply_logprobs

        model = AutoModelForCausalLM.from_pretrained(vllm_model_dir, dtype=torch.float32).eval()
        detected = 0
        for position, counts in enumerate(moves["vLLM"]):
            replies = [reply for reply, _ in counts.most_common(30)]
            prompt = requests[position * SAMPLES].prompt_ids
            other = reply_logprobs(model, [prompt] * len(replies), replies, [0.3])[:, 0].exp().tolist()
            imagined = Counter({reply: round(SAMPLES * p) for reply, p in zip(replies, other, strict=True)})
            detected += p_value(counts, imagined) < MIN_P_VALUE
        assert detected > POSITIONS / 2
