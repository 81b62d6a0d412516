"""LoRA policies in one batch, against each adapter alone in PEFT's own forward pass."""

import copy
import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3ForCausalLM,
)

from tests.helpers.lora_policies import LORA, OWN_TOKEN, SNAPSHOT_LORAS, asked_of, lora_model, save_base, say
from tests.helpers.precision import in_double, logprob_rounding
from trl_spiral.engines.local import decoding
from trl_spiral.engines.local import lora_batching as adapters_module
from trl_spiral.engines.local.lora_batching import SideBySide, live_adapter, obstacle, read_adapter, read_adapters
from trl_spiral.engines.local.transformers import TransformersEngine
from trl_spiral.types import BASE, POLICY, Request, Sampling


ENDLESS = GenerationConfig(eos_token_id=10**6, pad_token_id=0)


@pytest.fixture(scope="module")
def speakers(model_dir, tmp_path_factory):
    """Folders of a base model and of adapters that each say their own token, and the model in training."""
    torch.manual_seed(0)
    folders = {name: tmp_path_factory.mktemp(name) for name in [BASE, *SNAPSHOT_LORAS]}
    save_base(Qwen3ForCausalLM.from_pretrained(model_dir), folders[BASE])
    for name, changes in SNAPSHOT_LORAS.items():
        model = lora_model(folders[BASE], **changes)
        say(model, OWN_TOKEN[name])
        model.save_pretrained(folders[name])
    model = lora_model(folders[BASE])
    say(model, OWN_TOKEN[POLICY])
    return folders, model.eval()


@pytest.fixture(scope="module", params=["qwen", "gpt2"])
def strangers(request, model_dir, tokenizer, tmp_path_factory):
    """Like `speakers`, with random adapters on models with flat distributions, so that every difference shows."""
    torch.manual_seed(1)
    base = tmp_path_factory.mktemp("base")
    layers = {"qwen": "all-linear", "gpt2": ["c_attn", "c_proj"]}[request.param]
    if request.param == "gpt2":
        # It has `Conv1D` layers and absolute positions.
        shape = dict(n_positions=256, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
        GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape)).save_pretrained(base)
        model_class = GPT2LMHeadModel
    else:
        Qwen3ForCausalLM.from_pretrained(model_dir).save_pretrained(base)
        model_class = Qwen3ForCausalLM
    models = {BASE: model_class.from_pretrained(base).eval()}
    folders = {BASE: None}
    shapes = {
        "a": dict(r=2),
        "b": dict(r=7, use_rslora=True),
        "c": dict(alpha_pattern={"c_proj|q_proj": 3}),
        "d": dict(alpha_pattern={r"^(model\.layers|transformer\.h)\.1\..*": 3}),
        POLICY: {},
    }
    for name, changes in shapes.items():
        config = LoraConfig(**{**LORA, "init_lora_weights": False, "target_modules": layers, **changes})
        config.fan_in_fan_out = request.param == "gpt2"
        model = get_peft_model(model_class.from_pretrained(base), config).eval()
        for parameter in model.parameters():
            parameter.data *= 0.5 if parameter.requires_grad else 1.0
        if name == POLICY:
            models[name] = model
        else:
            folders[name] = tmp_path_factory.mktemp(name)
            model.save_pretrained(folders[name])
            models[name] = PeftModel.from_pretrained(model_class.from_pretrained(base), folders[name]).eval()
    return models, folders


@pytest.fixture(scope="module")
def exact(strangers):
    """Like `strangers`, in float64, so that the other rows of a batch change no token."""
    models, folders = strangers
    return {name: in_double(copy.deepcopy(model)) for name, model in models.items()}, folders


def side_by_side(model, folders):
    return SideBySide(model, {POLICY: live_adapter(model), **read_adapters(folders, {})})


def play_all(engine, requests, at_once=64):
    """Return replies in the order of the requests, with `at_once` in flight."""
    replies, added = {}, 0
    while len(replies) < len(requests):
        while added < len(requests) and added - len(replies) < at_once:
            engine.add(added, requests[added])
            added += 1
        replies |= dict(engine.step())
    return [replies[ticket] for ticket in range(len(requests))]


class TestReplies:
    @pytest.mark.parametrize("share_prefixes", [True, False])
    def test_every_policy_says_its_own_token_and_no_other(self, speakers, share_prefixes, monkeypatch):
        monkeypatch.setattr(decoding, "SHARED_POSITIONS", 1)
        folders, model = speakers
        adapters = side_by_side(model, {**folders, BASE: None})
        engine = TransformersEngine(model, ENDLESS, 5, adapters=adapters, share_prefixes=share_prefixes)
        requests = asked_of(OWN_TOKEN, count=250)
        replies = play_all(engine, requests)
        metrics = engine.metrics()

        for request, reply in zip(requests, replies, strict=True):
            assert set(reply.completion_ids) == {OWN_TOKEN[request.policy]}
            assert len(reply.completion_ids) == request.sampling.max_new_tokens
            assert reply.version == (5 if request.policy == POLICY else 0)
        assert metrics["weight_switches"] == 0.0
        assert (metrics["shared_prompt_share"] > 0.3) is share_prefixes
        assert engine.metrics() == {"weight_switches": 0.0}

    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    @pytest.mark.parametrize("devices", [{"cpu"}, set()], ids=["most apart", "all stacked"])
    def test_log_probabilities_are_those_of_each_adapter_alone(self, exact, temperature, devices, monkeypatch):
        monkeypatch.setattr(decoding, "SHARED_POSITIONS", 1)
        monkeypatch.setattr(adapters_module, "BOUND_BY_ARITHMETIC", devices)
        models, folders = exact
        engine = TransformersEngine(models[POLICY], ENDLESS, adapters=side_by_side(models[POLICY], folders))
        requests = asked_of(models, count=100, temperature=temperature)
        tolerance = max(logprob_rounding(model, temperature) for model in models.values())

        apart = []
        for request, reply in zip(requests, play_all(engine, requests), strict=True):
            ids = torch.tensor([[*request.prompt_ids, *reply.completion_ids]])
            expected = {}
            for name, model in models.items():
                with torch.no_grad():
                    logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].double() / temperature
                expected[name] = logits.log_softmax(-1).gather(-1, ids[0, len(request.prompt_ids) :, None])[:, 0]
            logprobs = torch.tensor(reply.logprobs, dtype=torch.double)
            assert (logprobs - expected.pop(request.policy)).abs().max() < tolerance
            if len(logprobs) < 24:
                continue  # single tokens may be equally likely by chance
            apart += [(logprobs - others).abs().max().item() for others in expected.values()]
        # So the adapter of another policy would be detected.
        assert min(apart) > 100 * tolerance

    def test_a_reply_is_the_same_alone_and_among_other_policies(self, exact):
        models, folders = exact
        requests = asked_of(models, count=60)

        def engine():
            return TransformersEngine(models[POLICY], ENDLESS, adapters=side_by_side(models[POLICY], folders))

        together = play_all(engine(), requests)
        for request, reply in list(zip(requests, together, strict=True))[:20]:
            (alone,) = play_all(engine(), [request])
            assert alone.completion_ids == reply.completion_ids

    def test_requests_can_be_dropped_in_flight(self, speakers):
        folders, model = speakers
        engine = TransformersEngine(model, ENDLESS, adapters=side_by_side(model, folders | {BASE: None}))
        requests = asked_of(OWN_TOKEN, count=120)
        replies = {}
        for ticket, request in enumerate(requests):
            engine.add(ticket, request)
            if ticket % 10 == 9:
                engine.abort([ticket - 9, ticket - 4])
                replies |= dict(engine.step())
        live = {ticket for ticket in range(120) if ticket % 10 not in (0, 5)}
        while not live <= replies.keys():
            replies |= dict(engine.step())

        for ticket in live:
            assert set(replies[ticket].completion_ids) == {OWN_TOKEN[requests[ticket].policy]}

    @pytest.mark.parametrize("devices", [{"cpu"}, set()], ids=["most apart", "all stacked"])
    def test_mixed_precision_is_as_exact_as_in_peft(self, strangers, devices, monkeypatch):
        monkeypatch.setattr(adapters_module, "BOUND_BY_ARITHMETIC", devices)
        models, folders = strangers
        adapters = side_by_side(models[POLICY], folders)
        names = list(models)
        ids = torch.tensor([asked_of(models, count=5)[0].prompt_ids] * len(names))
        with torch.no_grad():
            unrounded = torch.cat([models[name](input_ids=ids[:1]).logits for name in names])
            with torch.autocast("cpu", dtype=torch.bfloat16):
                with adapters.installed():
                    adapters.choose(adapters.places(names), ids.shape[1])
                    together = models[POLICY](input_ids=ids).logits
                alone = torch.cat([models[name](input_ids=ids[:1]).logits for name in names])

        # The error of bfloat16 depends on the order of operations, but its size does not.
        assert (together - unrounded).abs().max() < 3 * (alone - unrounded).abs().max()
        assert together.dtype == alone.dtype

    def test_an_unknown_policy_is_refused(self, speakers):
        folders, model = speakers
        engine = TransformersEngine(model, ENDLESS, adapters=side_by_side(model, {"step-1": folders["step-1"]}))

        with pytest.raises(
            ValueError, match="names the policy 'base', and this engine holds \\['policy', 'step-1'\\]"
        ):
            engine.add(0, Request((1, 2), policy=BASE))

    def test_a_single_lora_model_gets_the_positions_of_its_tokens(self, exact):
        model = exact[0][POLICY]
        requests = asked_of([POLICY], count=100)

        for request, reply in zip(requests, play_all(TransformersEngine(model, ENDLESS), requests), strict=True):
            ids = torch.tensor([[*request.prompt_ids, *reply.completion_ids]])
            with torch.no_grad():
                logprobs = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].log_softmax(-1)
            expected = logprobs.gather(-1, ids[0, len(request.prompt_ids) :, None])[:, 0]
            assert reply.logprobs == pytest.approx(expected.tolist(), abs=logprob_rounding(model))


class TestTheModelInTraining:
    def test_it_is_unchanged_bit_for_bit(self, speakers, tmp_path):
        folders, _ = speakers
        torch.manual_seed(2)
        model = lora_model(folders[BASE])
        other = lora_model(folders[BASE])
        other.load_state_dict(model.state_dict())

        def seen(one):
            flags = {name: parameter.requires_grad for name, parameter in one.named_parameters()}
            attributes = {name: sorted(vars(module)) for name, module in one.named_modules()}
            return list(one.state_dict()), flags, attributes, one.active_adapter

        play_all(
            TransformersEngine(model.eval(), ENDLESS), asked_of([POLICY], count=1)
        )  # PEFT's `generate` leaves traces
        before = seen(model)
        engine = TransformersEngine(model, ENDLESS, adapters=side_by_side(model, {"a": folders["step-1"]}))
        play_all(engine, asked_of([POLICY, "a"], count=40))
        engine.add(0, Request((1, 2), Sampling(max_new_tokens=5)))
        engine.add(1, Request((1, 2), Sampling(max_new_tokens=1)))
        engine.step()  # a row stays in flight

        assert seen(model) == before
        for one in (model, other):
            optimizer = torch.optim.SGD([p for p in one.parameters() if p.requires_grad], lr=0.1)
            one.train()
            ids = torch.arange(40).reshape(2, 20)
            one(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
        model.save_pretrained(tmp_path / "model")
        other.save_pretrained(tmp_path / "other")
        name = "adapter_model.safetensors"
        assert (tmp_path / "model" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()

    def test_an_error_leaves_it_unchanged(self, speakers):
        folders, model = speakers
        adapters = side_by_side(model, {"a": folders["step-1"]})
        with pytest.raises(ZeroDivisionError), adapters.installed():
            raise ZeroDivisionError

        assert not any("forward" in vars(module) for module in model.modules())

    def test_a_replaced_forward_is_restored(self, speakers):
        folders, model = speakers
        layer = model.base_model.model.model.layers[0].mlp.down_proj
        layer.forward = theirs = layer.forward  # as accelerate's hooks do
        try:
            with side_by_side(model, {"a": folders["step-1"]}).installed():
                assert layer.forward is not theirs

            assert layer.forward is theirs
        finally:
            del layer.forward

    def test_the_live_adapter_has_the_current_weights(self, speakers):
        folders, _ = speakers
        model = lora_model(folders[BASE]).eval()
        requests = asked_of([POLICY], count=8)
        say(model, 310)
        first = play_all(TransformersEngine(model, ENDLESS, adapters=side_by_side(model, {})), requests)
        say(model, 311)
        second = play_all(TransformersEngine(model, ENDLESS, adapters=side_by_side(model, {})), requests)

        assert {token for reply in first for token in reply.completion_ids} == {310}
        assert {token for reply in second for token in reply.completion_ids} == {311}


class TestFolders:
    def test_they_are_read_again_only_after_a_change(self, speakers, tmp_path, monkeypatch):
        folders, model = speakers
        reads = []
        monkeypatch.setattr(
            adapters_module, "read_adapter", lambda folder: reads.append(folder.name) or read_adapter(folder)
        )
        for name in ("a", "b"):
            model.save_pretrained(tmp_path / name)
        shelf = {}
        given = {name: tmp_path / name for name in ("a", "b")}
        read_adapters({**given, BASE: None}, shelf)
        again = read_adapters({**given, BASE: None}, shelf)
        assert reads == ["a", "b"]
        assert again[BASE] is None
        tensors = load_file(tmp_path / "b" / "adapter_model.safetensors")
        (tmp_path / "b" / "adapter_model.safetensors").unlink()
        save_file({name: tensor + 1 for name, tensor in tensors.items()}, tmp_path / "b" / "adapter_model.safetensors")
        newer = read_adapters({"b": tmp_path / "b"}, shelf)

        assert reads == ["a", "b", "b"]
        name = next(iter(newer["b"]))
        assert torch.equal(newer["b"][name][0], again["b"][name][0] + 1)
        assert len(shelf) == 1  # the other was not requested

    def test_anything_but_an_adapter_is_refused(self, speakers, tmp_path):
        folders, model = speakers
        with pytest.raises(ValueError, match="holds no LoRA adapter"):
            read_adapter(folders[BASE])

        model.save_pretrained(tmp_path)
        file = tmp_path / "adapter_model.safetensors"
        tensors = load_file(file)
        save_file({**tensors, "base_model.model.model.norm.weight": torch.ones(16)}, file)
        with pytest.raises(ValueError, match="more than two LoRA matrices per layer \\(base_model.model.model.norm"):
            read_adapter(tmp_path)
        name = next(name for name in tensors if name.endswith("lora_B.weight"))
        save_file({key: tensor for key, tensor in tensors.items() if key != name}, file)
        with pytest.raises(ValueError, match="has no B that fits the A of base_model"):
            read_adapter(tmp_path)
        save_file(tensors, file)
        config = json.loads((tmp_path / "adapter_config.json").read_text())
        (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
        with pytest.raises(ValueError, match="\\(DoRA\\)"):
            read_adapter(tmp_path)

    def test_an_adapter_of_other_layers_is_refused(self, speakers):
        folders, _ = speakers
        model = lora_model(folders[BASE], target_modules=["down_proj", "v_proj"])

        with pytest.raises(ValueError, match="The adapter of 'a' changes .*proj, and the one in training does not"):
            side_by_side(model, {"a": folders["step-1"]})

    def test_an_adapter_of_another_model_is_refused(self, speakers):
        folders, model = speakers
        adapter = read_adapter(folders["step-1"])
        name, (a, b) = next(iter(adapter.items()))

        with pytest.raises(ValueError, match="The adapter of 'a' belongs to another model: for .* it has \\(4, 33\\)"):
            SideBySide(model, {"a": {**adapter, name: (torch.cat([a, a[:, :1]], dim=1), b)}})


class TestObstacles:
    @pytest.mark.parametrize(
        "changes, why",
        [
            ({}, None),
            (dict(use_rslora=True, rank_pattern={"q_proj": 3}), None),
            (dict(use_dora=True), "more than two matrices"),
            (dict(modules_to_save=["norm"]), "norm is trained as a whole"),
            (dict(bias="lora_only"), "biases are trained"),
            (
                dict(target_modules=["embed_tokens", "q_proj"], ensure_weight_tying=True),
                "embed_tokens is more than two",
            ),
            (
                dict(target_modules=["q_proj"], target_parameters=["mlp.down_proj.weight"]),
                "parameters that are no layers",
            ),
        ],
        ids=str,
    )
    def test_adapters_that_cannot_share_a_batch_are_detected(self, speakers, changes, why):
        folders, _ = speakers
        found = obstacle(lora_model(folders[BASE], **changes))

        assert (found is None) if why is None else (why in found)

    def test_layers_that_get_all_rows_as_one_list_are_detected(self):
        # Its shared expert gets one list, and its attention does not.
        shape = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=99)
        experts = dict(
            num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, shared_expert_intermediate_size=8
        )
        model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**shape, **experts, max_position_embeddings=64)).eval()
        attention = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"]))
        assert obstacle(attention) is None
        found = obstacle(get_peft_model(attention.unload(), LoraConfig(target_modules=["q_proj", "down_proj"])))

        assert "shared_expert.down_proj is given the positions of all rows as one list" in found

    def test_positions_that_belong_to_no_row_are_refused(self, speakers):
        folders, model = speakers
        adapters = side_by_side(model, {"a": folders["step-1"]})
        with adapters.installed():
            adapters.choose(adapters.places([POLICY, "a"]), 3)
            layer = model.base_model.model.model.layers[0].mlp.down_proj
            with pytest.raises(ValueError, match="given a tensor of shape \\(6, 32\\) for 2 rows"):
                layer(torch.zeros(6, 32))
