"""Many policies in one roll-out, opened by a trainer: each request is answered by its own policy."""

import pytest
import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import Qwen3ForCausalLM

from tests.helpers.lora_policies import LORA, OWN_TOKEN, asked_of, lora_model, save_base, say
from tests.helpers.training_runs import RecordingTrainer, config, games, lora
from trl_spiral import _trl
from trl_spiral.types import BASE, POLICY, Request


SNAPSHOTS = ["step-1", "step-2", "step-3"]


@pytest.fixture(scope="module")
def base(model_dir, tokenizer, tmp_path_factory):
    """Folder of a model that says its own token."""
    folder = tmp_path_factory.mktemp("base")
    save_base(Qwen3ForCausalLM.from_pretrained(model_dir), folder)
    tokenizer.save_pretrained(folder)
    return folder


def taught(base, name, changes):
    """Return a model that says the token of a policy: by a LoRA adapter, or by its weights if `changes` is `None`."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM.from_pretrained(base) if changes is None else lora_model(base, **changes)
    say(model, OWN_TOKEN[name])
    return model


@pytest.fixture(scope="module")
def folders(base, tokenizer, tmp_path_factory):
    """Snapshots by kind of training: whole weights, LoRA, and LoRA that cannot share a batch (DoRA)."""
    made = {}
    for kind, changes in {"whole": None, "lora": {}, "dora": dict(use_dora=True)}.items():
        made[kind] = {name: tmp_path_factory.mktemp(f"{kind}-{name}") for name in [POLICY, *SNAPSHOTS]}
        for name, folder in made[kind].items():
            taught(base, name, changes).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return made


def trainer_of(base, folders, kind, output_dir, **changes):
    """Return a trainer whose model says the token of `POLICY`."""
    settings = {"lora": {}, "dora": dict(use_dora=True)}.get(kind)
    trainer = RecordingTrainer(
        str(base if settings is not None else folders[kind][POLICY]),
        config(output_dir, max_completion_length=24, **changes),
        games=games(["Sum-v0"]),
        peft_config=None if settings is None else lora(**{**LORA, **settings}),
    )
    if settings is not None:
        model = PeftModel.from_pretrained(Qwen3ForCausalLM.from_pretrained(base), folders[kind][POLICY])
        set_peft_model_state_dict(trainer.model, get_peft_model_state_dict(model))
    trainer.model.train()
    trainer.generation_config.eos_token_id = 10**6  # so that each reply reaches its limit
    return trainer


def ask(engine, policies, count=150, at_once=64):
    """Check that requests of all policies are answered by their own. Returns the engine's metrics."""
    requests = asked_of(policies, count)
    waiting, added, answered = {}, 0, 0
    while answered < count:
        while added < count and len(waiting) < at_once:
            waiting[added] = requests[added]
            engine.add(added, requests[added])
            added += 1
        for ticket, reply in engine.step():
            request = waiting.pop(ticket)
            assert set(reply.completion_ids) == {OWN_TOKEN[request.policy]}
            assert len(reply.completion_ids) == request.sampling.max_new_tokens
            answered += 1
    return engine.metrics()


WAYS = {
    "side by side": ("lora", {}),
    "side by side, mixed precision": ("lora", dict(bf16=True)),
    "a copy of the adapter": ("dora", {}),
    "a copy of the adapter, mixed precision": ("dora", dict(bf16=True)),
    "a copy of the model": ("whole", {}),
    "a copy of the model, mixed precision": ("whole", dict(bf16=True)),
}


class TestOpenEngine:
    @pytest.mark.parametrize("way", WAYS)
    def test_each_reply_comes_from_the_requested_policy(self, way, base, folders, tmp_path):
        kind, changes = WAYS[way]
        trainer = trainer_of(base, folders, kind, tmp_path, **changes)
        snapshots = {name: folders[kind][name] for name in SNAPSHOTS}
        if kind != "whole":
            snapshots[BASE] = None
        before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        flags = [parameter.requires_grad for parameter in trainer.model.parameters()]
        switches = []
        # Alone first, then with opponents, then with fewer of them, then with all.
        for names in ([], list(snapshots), SNAPSHOTS[:1], list(snapshots)):
            with _trl.open_engine(trainer, {name: snapshots[name] for name in names}) as engine:
                metrics = ask(engine, [POLICY, *names])
            switches.append(metrics.get("weight_switches"))

        # All policies are asked at once, and each may be loaded more than once, which depends on the engine. Without
        # others to load there is no metric, and adapters in the same batch are never loaded.
        if "side by side" in way:
            assert switches == [None, 0.0, 0.0, 0.0]
        else:
            assert switches[0] is None
            assert switches[2] <= 1
            assert switches[1] >= len(snapshots) - 1
        assert [parameter.requires_grad for parameter in trainer.model.parameters()] == flags
        after = trainer.model.state_dict()
        assert list(after) == list(before)
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
        assert trainer.model.training

    @pytest.mark.parametrize("kind", ["lora", "whole"])
    def test_changed_weights_affect_only_the_policy(self, kind, base, folders, tmp_path):
        trainer = trainer_of(base, folders, kind, tmp_path)
        snapshots = {"step-1": folders[kind]["step-1"]}
        with _trl.open_engine(trainer, snapshots) as engine:
            ask(engine, [POLICY, *snapshots])
        say(trainer.model, 310)

        with _trl.open_engine(trainer, snapshots) as engine:
            ask(engine, snapshots)
            engine.add(0, Request((1, 2, 3)))
            ((_, reply),) = engine.step()
        assert set(reply.completion_ids) == {310}

    def test_an_opponent_of_the_wrong_kind_is_refused(self, base, folders, tmp_path):
        whole = trainer_of(base, folders, "whole", tmp_path)
        with pytest.raises(ValueError, match="has no model.safetensors"):
            with _trl.open_engine(whole, {"step-1": folders["lora"]["step-1"]}) as engine:
                ask(engine, ["step-1"])
        with pytest.raises(ValueError, match="Only LoRA leaves the base model intact"):
            with _trl.open_engine(whole, {BASE: None}) as engine:
                ask(engine, [BASE])
        drained = RecordingTrainer(
            str(base), config(tmp_path), games=games(["Sum-v0"]), peft_config=lora(init_lora_weights="pissa")
        )
        with pytest.raises(ValueError, match="changes the weights below the adapter, so that without it they are no"):
            with _trl.open_engine(drained, {BASE: None}):
                pass
        with pytest.raises(ValueError, match="holds no LoRA adapter"):
            with _trl.open_engine(trainer_of(base, folders, "lora", tmp_path), {"a": folders["whole"]["step-1"]}):
                pass
