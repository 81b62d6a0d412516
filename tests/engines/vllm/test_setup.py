"""
Behaviour of vLLM 0.31 that the package relies on, in a colocated engine and in a server.

Each test checks one fact. A test that fails after an upgrade of vLLM names the assumption to review.
"""

import random
import threading
import time

import pytest


pytestmark = pytest.mark.vllm

# In float32, the kernels of vLLM and transformers differ by about 2e-6. Other weights or a stale cache differ by more
# than 1.
SAME, OTHER = 1e-5, 1e-3  # upper bound for the same weights, lower bound for others
BLOCK = 128  # tokens in a block of vLLM's prefix cache on a CPU


def read(model_dir):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)


def changed(model_dir, seed=1):
    """Return the model with slightly different weights, as after further training."""
    import torch

    model = read(model_dir)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def prompts(number=4, length=200):
    """Return prompts longer than a block, without common prefixes."""
    rng = random.Random(0)
    return [[rng.randrange(3, 700) for _ in range(length)] for _ in range(number)]


def distance(model, prompt, completion, logprobs):
    """Return the largest difference between the log-probabilities of vLLM and of the trainer."""
    from tests.helpers.vllm_in_process import trainer_logprobs

    expected = trainer_logprobs(model, prompt, completion)
    return max(abs(ours - theirs) for ours, theirs in zip(expected, logprobs, strict=True))


class InProcess:
    """Queries a colocated engine and compares log-probabilities."""

    def __init__(self, llm):
        self.llm = llm

    def sampling(self, **more):
        from vllm import SamplingParams

        return SamplingParams(**{"max_tokens": 8, "logprobs": 0, "ignore_eos": True, "seed": 1, **more})

    def errors(self, models, adapters=None):
        """Return the distance of each row from its own model, and its number of cached prompt tokens."""
        rows = prompts(len(models))
        outputs = self.llm.generate(
            [{"prompt_token_ids": row} for row in rows], self.sampling(), lora_request=adapters, use_tqdm=False
        )
        errors = []
        for model, row, output in zip(models, rows, outputs, strict=True):
            completion = output.outputs[0]
            chosen = [
                entry[token].logprob for token, entry in zip(completion.token_ids, completion.logprobs, strict=True)
            ]
            errors.append(distance(model, row, list(completion.token_ids), chosen))
        return errors, [output.num_cached_tokens for output in outputs]

    def error(self, model):
        errors, cached = self.errors([model] * 4)
        return max(errors), max(cached)


@pytest.fixture(scope="class")
def engine(vllm_model_dir):
    from tests.helpers.vllm_in_process import vllm_in_process

    with vllm_in_process(vllm_model_dir) as llm:
        yield InProcess(llm)


class TestColocated:
    @pytest.fixture(autouse=True)
    def restored(self, engine, vllm_model_dir):
        from tests.helpers.vllm_in_process import load

        load(engine.llm, read(vllm_model_dir))
        assert engine.llm.reset_prefix_cache()

    def test_loaded_weights_give_the_trainers_logprobs(self, engine, vllm_model_dir):
        from tests.helpers.vllm_in_process import load

        model = changed(vllm_model_dir)
        before, _ = engine.error(model)
        load(engine.llm, model)
        engine.llm.reset_prefix_cache()
        after, _ = engine.error(model)

        assert model.config.tie_word_embeddings  # so the head must change, too
        assert before > OTHER
        assert after < SAME

    def test_a_prefix_cache_of_earlier_weights_gives_wrong_logprobs(self, engine, vllm_model_dir):
        from tests.helpers.vllm_in_process import load

        model = changed(vllm_model_dir)
        engine.error(read(vllm_model_dir))
        load(engine.llm, model)
        stale, cached = engine.error(model)
        dropped = engine.llm.reset_prefix_cache()
        fresh, cached_afterwards = engine.error(model)

        assert (stale > OTHER, cached) == (True, BLOCK)
        assert dropped
        assert (fresh < SAME, cached_afterwards) == (True, 0)

    def test_the_prefix_cache_stays_while_a_request_is_in_flight(self, engine, vllm_model_dir):
        model = read(vllm_model_dir)
        engine.error(model)
        inner = engine.llm.llm_engine
        inner.add_request("waits", {"prompt_token_ids": prompts(5)[4]}, engine.sampling(max_tokens=64))
        inner.step()
        dropped = engine.llm.reset_prefix_cache()
        goes_on = inner.has_unfinished_requests()
        while inner.has_unfinished_requests():
            inner.step()
        _, cached = engine.error(model)

        assert goes_on
        assert dropped is False
        assert cached == BLOCK


@pytest.fixture(scope="class")
def adapters(vllm_model_dir, tmp_path_factory):
    """The PEFT model and the folder of each adapter. "zero" changes nothing."""
    import torch
    from peft import LoraConfig, get_peft_model

    made = {}
    for seed, (name, scale) in enumerate([("one", 0.1), ("two", 0.1), ("zero", 0.0)]):
        config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            model = get_peft_model(read(vllm_model_dir), config)
            for parameter_name, parameter in model.named_parameters():
                if "lora_B" in parameter_name:
                    parameter.copy_(scale * torch.randn_like(parameter))
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        made[name] = (model.eval(), str(folder))
    return made


class TestAdapters:
    """Adapters in an engine with two slots, compared with PEFT."""

    @pytest.fixture(scope="class")
    @classmethod
    def llm(cls, vllm_model_dir):
        from tests.helpers.vllm_in_process import vllm_in_process

        with vllm_in_process(vllm_model_dir, enable_lora=True, max_loras=2, max_lora_rank=8) as llm:
            yield llm

    @pytest.fixture
    def ask(self, llm, vllm_model_dir, adapters):
        """Request one row per name (`None`: the base), and return the distance of each row from its model."""
        from vllm.lora.request import LoRARequest

        models = {None: read(vllm_model_dir), **{name: model for name, (model, _) in adapters.items()}}
        requests = {
            name: LoRARequest(name, number, folder) for number, (name, (_, folder)) in enumerate(adapters.items(), 1)
        }

        def ask(*names):
            llm.reset_prefix_cache()
            return InProcess(llm).errors([models[name] for name in names], [requests.get(name) for name in names])[0]

        return ask

    def test_rows_without_an_adapter_are_wrong_once_all_slots_have_been_used(self, ask, llm):
        fresh = ask("one", None)  # requires a new engine without earlier requests
        ask("one", "two")
        full = ask("one", None)
        llm.llm_engine.remove_lora(2)
        emptied = ask("one", None)

        # On a CPU, the kernel of vLLM 0.31 takes -1 ("no adapter") for an index and adds the adapter of the last slot.
        assert max(fresh) < SAME
        assert full[0] < SAME
        assert full[1] > OTHER
        assert emptied[1] > OTHER

    def test_adapters_in_one_batch_give_the_logprobs_of_peft(self, ask):
        assert max(ask("one", "two", "one")) < SAME

    def test_an_adapter_of_zeros_gives_the_logprobs_of_the_base(self, ask):
        assert max(ask("one", "zero", "two", "zero")) < SAME


class OverHTTP:
    """Queries a server and compares log-probabilities."""

    def __init__(self, server):
        import requests

        self.server = server
        self.session = requests.Session()

    def post(self, path, **body):
        return self.session.post(self.server.base_url + path, json=body)

    def complete(self, prompt, **more):
        """Return the token ids and log-probabilities of one completion, and its whole JSON object."""
        body = {"prompt": prompt, "max_tokens": 8, "logprobs": 0, "return_token_ids": True, "seed": 1, **more}
        answer = self.post("/v1/completions", **body)
        assert answer.ok, answer.text
        choice = answer.json()["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"], choice

    def error(self, model):
        return max(distance(model, prompt, *self.complete(prompt, ignore_eos=True)[:2]) for prompt in prompts())

    def metric(self, name):
        """Return the first value with a name in `/metrics`."""
        lines = self.session.get(f"{self.server.base_url}/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(name)).split()[-1])


@pytest.fixture(scope="module")
def http(fresh_server):
    asking = OverHTTP(fresh_server)
    yield asking
    asking.session.close()


@pytest.fixture
def client(http, vllm_model_dir):
    """A trainer's client. Restores the initial weights of the server afterwards."""
    from vllm_on_cpu.trainer import GlooVLLMClient

    client = GlooVLLMClient(base_url=http.server.base_url)
    yield client
    if client.communicator is not None:
        client.update_model_params(read(vllm_model_dir))
        client.reset_prefix_cache()
    client.close_communicator()
    client.session.close()


class TestServer:
    @pytest.mark.parametrize("trainer", ["first", "second"])
    def test_weights_sent_over_gloo_give_the_trainers_logprobs(self, http, client, vllm_model_dir, trainer):
        model = changed(vllm_model_dir, seed={"first": 1, "second": 2}[trainer])
        before = http.error(model)
        client.init_communicator()
        client.update_model_params(model)
        client.reset_prefix_cache()
        after = http.error(model)

        assert before > OTHER
        assert after < SAME

    def test_the_prefix_cache_stays_while_a_request_is_in_flight(self, http):
        long = threading.Thread(target=http.complete, args=([5, 6, 7],), kwargs=dict(max_tokens=1500, ignore_eos=True))
        long.start()
        while http.metric("vllm:num_requests_running") == 0:
            time.sleep(0.02)
        refused = http.post("/reset_prefix_cache")
        was_running = long.is_alive()
        long.join()
        done = http.post("/reset_prefix_cache")

        assert was_running
        assert (refused.status_code, refused.json()) == (200, {"success": False})
        assert done.json() == {"success": True}

    def test_a_restarted_server_has_its_initial_weights_until_they_are_sent_again(self, http, client, vllm_model_dir):
        model = changed(vllm_model_dir, seed=3)
        client.init_communicator()
        client.update_model_params(model)
        first_boot = http.metric("process_start_time_seconds")
        http.server.restart()
        restarted = http.error(model)
        client.init_communicator()
        client.update_model_params(model)
        client.reset_prefix_cache()
        sent_again = http.error(model)

        assert http.metric("process_start_time_seconds") > first_boot
        assert restarted > OTHER
        assert sent_again < SAME


@pytest.fixture(scope="module")
def prompt(seen, tokenizer):
    """A position in tic-tac-toe. The model replies with four tokens: `\\boxed{`, a move, `}`, end of turn."""
    from trl_spiral.text.prompts import PromptRenderer

    return list(PromptRenderer(tokenizer).prompt(seen[0][0]))


class TestReplies:
    """Fields of the replies of `/v1/completions`."""

    def test_the_end_of_turn_token_and_its_logprob_are_included(self, http, prompt, tokenizer):
        ids, logprobs, choice = http.complete(prompt, max_tokens=64)

        assert ids[-1] == tokenizer.eos_token_id
        assert len(logprobs) == len(ids)
        assert choice["finish_reason"] == "stop"
        assert choice["prompt_token_ids"] == prompt

    def test_the_tokens_of_a_stop_text_are_included(self, http, prompt, tokenizer):
        ids, logprobs, choice = http.complete(prompt, max_tokens=64, stop=["}"], include_stop_str_in_output=True)

        assert tokenizer.decode(ids).endswith("}")
        assert len(logprobs) == len(ids)
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "}")

    def test_replies_depend_on_their_seed_and_not_on_other_rows(self, http, prompt):
        from concurrent.futures import ThreadPoolExecutor

        def ask(seed):
            return http.complete(prompt, seed=seed, ignore_eos=True, max_tokens=20, temperature=2.0)[0]

        with ThreadPoolExecutor(8) as together:
            batched = list(together.map(ask, range(8)))
        alone = [ask(seed) for seed in range(8)]

        assert batched == alone
        assert len({tuple(ids) for ids in alone}) == 8

    @pytest.mark.parametrize(
        "sampling",
        [{"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}, {"repetition_penalty": 1.5}],
        ids=lambda sampling: next(iter(sampling)),
    )
    def test_logprobs_include_temperature_penalty_and_filters(self, http, prompt, vllm_model_dir, sampling):
        """TRL requires `processed_logprobs`. With a filter, they differ from the log-probabilities of the policy."""
        import torch
        from transformers.generation import logits_process as processors

        makers = {
            "temperature": processors.TemperatureLogitsWarper,
            "top_k": processors.TopKLogitsWarper,
            "top_p": processors.TopPLogitsWarper,
            "min_p": processors.MinPLogitsWarper,
            "repetition_penalty": processors.RepetitionPenaltyLogitsProcessor,
        }
        ((name, value),) = sampling.items()
        ids, logprobs, _ = http.complete(prompt, ignore_eos=True, max_tokens=12, **sampling)
        sequence = torch.tensor([prompt + ids])
        with torch.no_grad():
            logits = read(vllm_model_dir)(sequence).logits[0]
        expected = [
            makers[name](value)(sequence[:, :end], logits[end - 1 : end]).log_softmax(-1)[0, sequence[0, end]].item()
            for end in range(len(prompt), len(prompt) + len(ids))
        ]

        assert logprobs == pytest.approx(expected, abs=SAME)

    def test_a_constrained_reply_ends_in_one_of_the_moves(self, http, prompt):
        regex = r"[^\\]{0,40}\\boxed\{(\[3\]|\[7\])\}"
        texts = [
            http.complete(prompt, seed=seed, max_tokens=256, temperature=2.0, structured_outputs={"regex": regex})[2][
                "text"
            ]
            for seed in range(8)
        ]

        assert {text[text.index("\\") :] for text in texts} == {r"\boxed{[3]}", r"\boxed{[7]}"}

    def test_unsupported_requests_get_status_4xx_with_a_message(self, http):
        too_long = http.post("/v1/completions", prompt=[5] * 2040, max_tokens=100)
        unknown_model = http.post("/v1/completions", prompt=[5], model="nobody")

        assert (too_long.status_code, unknown_model.status_code) == (400, 404)
        assert "maximum context length is 2048" in too_long.json()["error"]["message"]
        assert "does not exist" in unknown_model.json()["error"]["message"]
