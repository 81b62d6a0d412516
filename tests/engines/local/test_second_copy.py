"""The second copy of the model: sharing, loading and errors."""

import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM

from tests.helpers.lora_policies import lora_model
from tests.helpers.precision import logprob_rounding
from trl_spiral.engines.local.second_copy import FrozenCopy


IDS = torch.arange(30)[None] + 20


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def changed(model_dir, folder, dtype=torch.float32, **kwargs):
    """Save a model with other weights than the one in `model_dir` to a folder, and return it."""
    model = Qwen3ForCausalLM.from_pretrained(model_dir)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.to(dtype).save_pretrained(folder, **kwargs)
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


class TestWholeWeights:
    def test_it_has_the_weights_of_the_snapshot_loaded_last(self, model_dir, tmp_path):
        model = Qwen3ForCausalLM.from_pretrained(model_dir)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        others = [changed(model_dir, tmp_path / name) for name in "ab"]
        second = FrozenCopy(model)
        for name, other in [*zip("ab", others, strict=True), ("a", others[0])]:
            second.load(tmp_path / name)
            assert torch.equal(logits(second.model), logits(other))

        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert not any(parameter.requires_grad for parameter in second.model.parameters())

    def test_shards_and_other_dtypes_are_read(self, model_dir, tmp_path):
        other = changed(model_dir, tmp_path, dtype=torch.bfloat16, max_shard_size="10KB")
        assert (tmp_path / "model.safetensors.index.json").is_file()
        second = FrozenCopy(Qwen3ForCausalLM.from_pretrained(model_dir))
        second.load(tmp_path)

        assert second.model.dtype == torch.float32
        assert torch.equal(logits(second.model), logits(other))

    @pytest.mark.parametrize(
        "change, complaint",
        [
            (lambda tensors: tensors.pop("model.norm.weight"), "it lacks model.norm.weight"),
            (lambda tensors: tensors.update(extra=torch.ones(2)), "it holds extra, which the model lacks"),
            (
                lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}),
                r"model.norm.weight of shape \[3\], and the model's shape is \[16\]",
            ),
        ],
        ids=["missing", "unexpected", "misshaped"],
    )
    def test_a_snapshot_of_another_model_is_refused_before_anything_is_loaded(
        self, change, complaint, model_dir, tmp_path
    ):
        changed(model_dir, tmp_path)
        tensors = load_file(tmp_path / "model.safetensors")
        change(tensors)
        save_file(tensors, tmp_path / "model.safetensors")
        model = Qwen3ForCausalLM.from_pretrained(model_dir)
        second = FrozenCopy(model)
        with pytest.raises(ValueError, match=complaint):
            second.load(tmp_path)

        assert torch.equal(logits(second.model), logits(model.eval()))

    def test_a_folder_without_a_snapshot_is_refused(self, model_dir, tmp_path):
        second = FrozenCopy(Qwen3ForCausalLM.from_pretrained(model_dir))

        with pytest.raises(ValueError, match="has no model.safetensors"):
            second.load(tmp_path)
        with pytest.raises(ValueError, match="Only LoRA leaves the base model intact"):
            second.load(None)

    def test_a_forward_bound_to_the_original_model_is_not_copied(self, model_dir, tmp_path):
        other = changed(model_dir, tmp_path)
        model = Qwen3ForCausalLM.from_pretrained(model_dir).eval()
        forward = model.forward
        model.forward = lambda *args, **kwargs: forward(*args, **kwargs)  # like TRL's fused loss
        second = FrozenCopy(model)
        second.load(tmp_path)

        assert torch.equal(logits(second.model), logits(other))

    def test_sharded_weights_are_refused(self, model_dir):
        model = Qwen3ForCausalLM.from_pretrained(model_dir)
        model.model.norm.weight.ds_id = 0  # as ZeRO-3 marks sharded parameters

        with pytest.raises(ValueError, match="sharded .ZeRO-3 or FSDP., .* Train plain LoRA, or let vLLM generate"):
            FrozenCopy(model)


class TestAdapters:
    @pytest.mark.parametrize(
        "changes", [{}, dict(use_dora=True), dict(modules_to_save=["norm"])], ids=["plain", "dora", "saved"]
    )
    def test_only_the_adapter_is_copied_and_the_model_is_unchanged(self, changes, model_dir, tmp_path):
        others = {}
        for name in "ab":
            model = lora_model(model_dir, **changes)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.add_(0.1 * torch.randn_like(parameter))
            model.save_pretrained(tmp_path / name)
            others[name] = PeftModel.from_pretrained(
                Qwen3ForCausalLM.from_pretrained(model_dir), tmp_path / name
            ).eval()
        others[None] = Qwen3ForCausalLM.from_pretrained(model_dir).eval()
        policy = lora_model(model_dir, **changes)
        flags = {name: parameter.requires_grad for name, parameter in policy.named_parameters()}
        own = logits(policy.eval())
        second = FrozenCopy(policy)
        for name in ["a", None, "b", "a"]:
            second.load(tmp_path / name if name else None)
            rounding = logprob_rounding(others[name])
            assert (logits(second.model) - logits(others[name])).abs().max() < rounding
            assert name is None or (logits(others[name]) - logits(others[None])).abs().max() > 10 * rounding

        assert torch.equal(logits(policy), own)
        assert {name: parameter.requires_grad for name, parameter in policy.named_parameters()} == flags
        mine = {parameter.data_ptr() for parameter in policy.parameters()}
        copied = [p for p in second.model.parameters() if p.data_ptr() not in mine]
        assert sum(p.numel() for p in copied) == sum(p.numel() for p in policy.parameters() if p.requires_grad)

    def test_an_adapter_of_another_shape_is_refused(self, model_dir, tmp_path):
        lora_model(model_dir, r=3).save_pretrained(tmp_path)
        second = FrozenCopy(lora_model(model_dir))

        with pytest.raises(ValueError, match=r"lora_.\.weight of shape \[.*3.*\], and the model's shape is \[.*8"):
            second.load(tmp_path)

    def test_a_folder_without_an_adapter_is_refused(self, model_dir, tmp_path):
        second = FrozenCopy(lora_model(model_dir))
        with pytest.raises(ValueError, match="has no adapter_model.safetensors"):
            second.load(tmp_path)
        lora_model(model_dir).save_pretrained(tmp_path)
        shutil.copy(tmp_path / "adapter_config.json", tmp_path / "config.json")

        with pytest.raises(ValueError, match="has no model.safetensors"):
            FrozenCopy(Qwen3ForCausalLM.from_pretrained(model_dir)).load(tmp_path)

    def test_the_base_model_is_refused_if_its_biases_are_trained(self, model_dir):
        with pytest.raises(ValueError, match="biases of the base model are trained"):
            FrozenCopy(lora_model(model_dir, bias="all")).load(None)

    def test_the_base_model_is_refused_if_the_adapter_changes_its_weights(self, model_dir):
        with pytest.raises(ValueError, match="`init_lora_weights='pissa'` changes the weights below the adapter"):
            FrozenCopy(lora_model(model_dir, init_lora_weights="pissa")).load(None)
