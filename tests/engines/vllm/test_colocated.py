"""The engine of a colocated vLLM, compared with a transformers model of the same weights."""

import pytest

from trl_spiral.types import POLICY, Request, Sampling


pytestmark = [
    pytest.mark.vllm,
    # vLLM 0.31 passes a deprecated argument to xgrammar 0.2, in the thread that compiles a constraint.
    pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated:DeprecationWarning"),
]

# In float32, the kernels of vLLM and transformers differ by about 2e-6.
SAME = 1e-5
LONG = Sampling(max_new_tokens=24)


@pytest.fixture(scope="module")
def llm(vllm_model_dir):
    from tests.helpers.vllm_in_process import vllm_in_process

    with vllm_in_process(vllm_model_dir, block_size=32, max_num_seqs=8) as llm:
        yield llm


@pytest.fixture(scope="module")
def model(vllm_model_dir):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(vllm_model_dir, dtype=torch.float32).eval()


@pytest.fixture
def engine(llm):
    from trl_spiral.engines.vllm.colocated import VLLMEngine

    return VLLMEngine(llm, version=7)


@pytest.fixture(scope="module")
def prompts(tokenizer, seen):
    from trl_spiral.text.prompts import PromptRenderer

    renderer = PromptRenderer(tokenizer)
    return [renderer.prompt(observation) for observation, _ in seen[::40]]


def answers(engine, requests):
    """Return all replies in the order of the requests."""
    for ticket, request in enumerate(requests):
        engine.add(ticket, request)
    replies = {}
    while len(replies) < len(requests):
        replies.update(engine.step())
    return [replies[ticket] for ticket in range(len(requests))]


def expected_logprobs(model, request, reply):
    import torch

    ids = torch.tensor([[*request.prompt_ids, *reply.completion_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1]
    table = (logits / (request.sampling.temperature or 1.0)).log_softmax(-1)
    return table.gather(-1, torch.tensor(reply.completion_ids)[:, None])[:, 0].tolist()


class TestVLLMEngine:
    @pytest.mark.parametrize("temperature", [0.6, 1.0, 0.0])
    def test_returns_the_logprobs_of_sampled_tokens(self, temperature, engine, model, prompts):
        requests = [
            Request(prompt, Sampling(temperature, max_new_tokens=16), seed=seed) for seed, prompt in enumerate(prompts)
        ]
        for request, reply in zip(requests, answers(engine, requests), strict=True):
            assert reply.logprobs == pytest.approx(expected_logprobs(model, request, reply), abs=SAME)
            assert reply.version == 7

    def test_replies_depend_on_their_seed_and_not_on_other_rows(self, engine, prompts):
        requests = [Request(prompt, LONG, seed=seed) for seed, prompt in enumerate(prompts)]
        together = answers(engine, requests)
        alone = [answers(engine, [request])[0] for request in requests]

        assert [reply.completion_ids for reply in together] == [reply.completion_ids for reply in alone]
        assert len({reply.completion_ids for reply in together}) > 1

    def test_accepts_more_requests_than_it_runs_at_once(self, engine, prompts):
        replies = answers(engine, [Request(prompts[0], LONG, seed=seed) for seed in range(40)])

        assert len(replies) == 40
        assert engine.metrics()["running"] > 8

    def test_returns_finished_replies_before_the_rest(self, engine, prompts):
        engine.add(1, Request(prompts[0], Sampling(max_new_tokens=64), seed=1))
        engine.add(2, Request(prompts[1], Sampling(max_new_tokens=1), seed=2))

        assert [ticket for ticket, _ in engine.step()] == [2]
        engine.abort([1])

    def test_reports_truncated_replies(self, engine, prompts, tokenizer):
        short, long = answers(
            engine, [Request(prompts[0], Sampling(max_new_tokens=n, temperature=0.0)) for n in (1, 64)]
        )

        assert (short.finish_reason, long.finish_reason) == ("length", "stop")
        assert long.completion_ids[-1] == tokenizer.eos_token_id

    @pytest.mark.parametrize(
        "sampling",
        [Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(min_p=1.0), Sampling(temperature=0.0)],
        ids=["top_k", "top_p", "min_p", "temperature"],
    )
    def test_applies_filters_that_leave_one_token(self, sampling, engine, model, prompts):
        import torch

        requests = [Request(prompts[0], sampling, seed=seed) for seed in range(4)]
        firsts = {reply.completion_ids[0] for reply in answers(engine, requests)}
        with torch.no_grad():
            likeliest = model(torch.tensor([prompts[0]])).logits[0, -1].argmax().item()

        assert firsts == {likeliest}

    def test_applies_a_repetition_penalty_like_transformers(self, engine, model, prompts):
        import torch
        from transformers import RepetitionPenaltyLogitsProcessor

        penalty = RepetitionPenaltyLogitsProcessor(3.0)
        sampling = Sampling(temperature=0.0, max_new_tokens=8, repetition_penalty=3.0)
        for prompt, reply in zip(prompts, answers(engine, [Request(p, sampling) for p in prompts]), strict=True):
            ids = torch.tensor([[*prompt, *reply.completion_ids]])
            with torch.no_grad():
                logits = model(ids).logits[0]
            for position, token in enumerate(reply.completion_ids, start=len(prompt)):
                scores = penalty(ids[:, :position], logits[position - 1 : position].clone())
                assert scores.argmax().item() == token

    def test_includes_the_stop_text_in_the_reply(self, engine, prompts, tokenizer):
        request = Request(prompts[0], Sampling(temperature=0.0, max_new_tokens=64, stop=("boxed{",)))
        (reply,) = answers(engine, [request])

        assert reply.finish_reason == "stop"
        assert tokenizer.decode(reply.completion_ids).endswith("boxed{")
        assert len(reply.logprobs) == len(reply.completion_ids)

    def test_passes_options_to_vllm(self, llm, prompts, tokenizer):
        from trl_spiral.engines.vllm.colocated import VLLMEngine

        (reply,) = answers(VLLMEngine(llm, options={"ignore_eos": True}), [Request(prompts[0], LONG)])
        assert len(reply.completion_ids) == LONG.max_new_tokens

        (reply,) = answers(
            VLLMEngine(llm, options={"structured_outputs": {"regex": "[0-9]+"}}), [Request(prompts[0], LONG)]
        )
        assert tokenizer.decode(reply.completion_ids, skip_special_tokens=True).isdigit()

    def test_constrains_replies_to_legal_moves(self, engine, prompts, tokenizer):
        from trl_spiral.text.replies import extract_move

        requests = [Request(prompts[0], LONG, seed=seed, legal_moves=("[9]", "[0]")) for seed in range(16)]
        replies = [reply for reply in answers(engine, requests) if reply.finish_reason == "stop"]

        assert len(replies) >= 8
        assert {
            extract_move(tokenizer.decode(reply.completion_ids, skip_special_tokens=True)) for reply in replies
        } <= {
            "[9]",
            "[0]",
        }

    def test_returns_the_logprobs_of_constrained_sampling(self, engine, model, prompts):
        request = Request(prompts[0], LONG, seed=3, legal_moves=("[9]",))
        (reply,) = answers(engine, [request])
        free = expected_logprobs(model, request, reply)

        # A constraint removes tokens, so the remaining tokens have a higher probability.
        assert all(ours >= theirs - SAME for ours, theirs in zip(reply.logprobs, free, strict=True))
        assert max(ours - theirs for ours, theirs in zip(reply.logprobs, free, strict=True)) > 0.1

    def test_drops_aborted_requests(self, engine, llm, prompts):
        for ticket in range(3):
            engine.add(ticket, Request(prompts[0], LONG))
        engine.abort([0, 1, 2, 99])

        assert not llm.llm_engine.has_unfinished_requests()
        assert llm.reset_prefix_cache()
        assert len(answers(engine, [Request(prompts[0], LONG)])) == 1

    def test_reuses_cached_prefixes(self, engine, llm, prompts):
        llm.reset_prefix_cache()
        prompt = max(prompts, key=len)
        assert len(prompt) > 32  # a block
        answers(engine, [Request(prompt, LONG)])
        assert engine.metrics()["cached_prompt_share"] == 0.0
        answers(engine, [Request(prompt, LONG)])

        assert engine.metrics()["cached_prompt_share"] == pytest.approx((len(prompt) - 1) // 32 * 32 / len(prompt))

    def test_refuses_requests_for_unknown_policies(self, engine, prompts):
        with pytest.raises(ValueError, match="names the policy 'elder', and this engine holds \\['policy'\\]"):
            engine.add(0, Request(prompts[0], LONG, policy="elder"))

    @pytest.mark.parametrize("length", [0, 2048])
    def test_refuses_a_prompt_without_room_for_a_reply(self, length, engine):
        with pytest.raises(ValueError, match=f"A prompt of {length} tokens must have at least one and leave room"):
            engine.add(0, Request((5,) * length, LONG))


@pytest.fixture(scope="module")
def folders(vllm_model_dir, tmp_path_factory):
    """Folders of two adapters that change the output of the model."""
    import torch
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    from tests.helpers.training_runs import lora

    folders = {}
    for seed, name in enumerate(("older", "oldest")):
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(vllm_model_dir, dtype=torch.float32)
        adapted = get_peft_model(base, lora(init_lora_weights=False))
        folders[name] = str(tmp_path_factory.mktemp(name))
        adapted.save_pretrained(folders[name])
    return folders


class TestAdapters:
    """Snapshots as adapters, in the same batch as the policy."""

    def test_each_policy_replies_with_its_own_weights(self, vllm_model_dir, folders, model, prompts):
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        from tests.helpers.vllm_in_process import vllm_in_process
        from trl_spiral.engines.vllm.colocated import VLLMEngine

        models = {POLICY: model}
        for name, folder in folders.items():
            base = AutoModelForCausalLM.from_pretrained(vllm_model_dir, dtype=torch.float32)
            models[name] = PeftModel.from_pretrained(base, folder).eval()
        requests = [
            Request(prompt, LONG, policy=policy, seed=seed)
            for seed, prompt in enumerate(prompts)
            for policy in (POLICY, "older", "oldest")
        ]
        # One slot for each adapter, and one for the rows of the policy.
        with vllm_in_process(vllm_model_dir, enable_lora=True, max_loras=3, max_lora_rank=8) as llm:
            replies = answers(VLLMEngine(llm, adapters=folders), requests)

        for request, reply in zip(requests, replies, strict=True):
            assert reply.logprobs == pytest.approx(expected_logprobs(models[request.policy], request, reply), abs=SAME)
            others = [expected_logprobs(models[name], request, reply) for name in models if name != request.policy]
            for other in others:
                assert max(abs(a - b) for a, b in zip(reply.logprobs, other, strict=True)) > 0.01

    @pytest.fixture(scope="class")
    @classmethod
    def crowded(cls, vllm_model_dir):
        """An engine with slots for two adapters."""
        from tests.helpers.vllm_in_process import vllm_in_process

        with vllm_in_process(vllm_model_dir, enable_lora=True, max_loras=2, max_lora_rank=8, block_size=32) as llm:
            yield llm

    @pytest.fixture(scope="class")
    @classmethod
    def peft(cls, vllm_model_dir, folders, model):
        """The base model and the PEFT model of each adapter, by name."""
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        models = {"base": model}
        for name, folder in folders.items():
            base = AutoModelForCausalLM.from_pretrained(vllm_model_dir, dtype=torch.float32)
            models[name] = PeftModel.from_pretrained(base, folder).eval()
        return models

    def test_adapters_beyond_the_slots_wait(self, crowded, folders, peft, prompts):
        from trl_spiral.engines.vllm.colocated import VLLMEngine

        # Two adapters and the base model (an adapter of zeros on a CPU), as five policies.
        names = {"older": "older", "oldest": "oldest", "base": "base", POLICY: "oldest", "again": "older"}
        engine = VLLMEngine(crowded, adapters={name: folders.get(folder) for name, folder in names.items()})
        requests = [
            Request(prompt, LONG, policy=policy, seed=seed) for seed, prompt in enumerate(prompts) for policy in names
        ]
        assert len(requests) > 16
        for request, reply in zip(requests, answers(engine, requests), strict=True):
            expected = expected_logprobs(peft[names[request.policy]], request, reply)
            assert reply.logprobs == pytest.approx(expected, abs=SAME), request.policy
        assert engine.metrics()["weight_switches"] == 0

    def test_adapters_share_no_prefix_cache(self, crowded, folders, peft, prompts):
        import os
        import shutil

        from trl_spiral.engines.vllm.colocated import VLLMEngine

        request = Request(max(prompts, key=len) * 2, LONG)
        assert crowded.reset_prefix_cache()

        def ask(folder):
            engine = VLLMEngine(crowded, adapters={POLICY: folder})
            (reply,) = answers(engine, [request])
            return reply, engine.metrics()["cached_prompt_share"]

        ask(folders["older"])
        again, cached = ask(folders["older"])
        other, cached_by_another = ask(folders["oldest"])
        # Other weights at the same path, which vLLM would not read again by itself.
        shutil.copytree(folders["oldest"], f"{folders['older']}-copy")
        before, _ = ask(f"{folders['older']}-copy")
        shutil.copytree(folders["older"], f"{folders['older']}-copy", dirs_exist_ok=True)
        os.utime(f"{folders['older']}-copy/adapter_model.safetensors")
        replaced, cached_by_same_path = ask(f"{folders['older']}-copy")

        assert cached > 0.5
        assert (cached_by_another, cached_by_same_path) == (0.0, 0.0)
        for reply, name in ((again, "older"), (other, "oldest"), (before, "oldest"), (replaced, "older")):
            assert reply.logprobs == pytest.approx(expected_logprobs(peft[name], request, reply), abs=SAME)
