"""Fingerprints of adapters, and the check of their base model."""

import os

import pytest
from peft import LoraConfig

from trl_spiral.engines.adapters import check_base, fingerprint


class TestFingerprint:
    @pytest.mark.parametrize("name", ["model.safetensors", "adapter_model.safetensors", "adapter_config.json"])
    def test_changes_when_a_file_is_written_again(self, name, tmp_path):
        file = tmp_path / name
        file.write_bytes(b"1")
        before = fingerprint(tmp_path)
        assert fingerprint(str(tmp_path)) == before
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))

        assert fingerprint(tmp_path) != before

    def test_differs_from_folder_to_folder(self, tmp_path):
        for name in "ab":
            (tmp_path / name).mkdir()

        assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b")


class TestBase:
    @pytest.mark.parametrize("init", [True, False, "gaussian", "orthogonal"])
    def test_is_intact_with_plain_lora(self, init):
        check_base(LoraConfig(init_lora_weights=init))

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            (dict(init_lora_weights="pissa"), "`init_lora_weights='pissa'` changes the weights below the adapter"),
            (dict(init_lora_weights="olora"), "`init_lora_weights='olora'` changes the weights below the adapter"),
            (dict(bias="lora_only"), "biases of the base model are trained"),
        ],
        ids=str,
    )
    def test_is_refused_if_training_has_changed_it(self, changes, complaint):
        with pytest.raises(ValueError, match=complaint):
            check_base(LoraConfig(**changes))
