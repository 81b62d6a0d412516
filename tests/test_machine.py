"""Defaults by machine, and the precedence of explicit settings."""

import pytest
from trl import GRPOConfig, ModelConfig, TrlParser

from trl_spiral import machine
from trl_spiral.machine import Device, explicit, is_set, parse_for_platform, platform_defaults, this_device


RECIPE = dict(per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=2)

CPU = Device("cpu")
T4 = Device("cuda", (7, 5), 14.6)
V100 = Device("cuda", (7, 0), 31.7)
A100 = Device("cuda", (8, 0), 39.4)
A10 = Device("cuda", (8, 6), 22.1)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)


@pytest.fixture
def parse(monkeypatch, tmp_path):
    """Parse a command line on a device, with a YAML file and the environment variables of a launcher."""

    def run(device, *arguments, yaml="", recipe=RECIPE, **environment):
        monkeypatch.setattr(machine, "this_device", lambda: device)
        # This machine has no GPU, and transformers would refuse bf16.
        monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "config.yaml").write_text(yaml or "{}")
        line = [*arguments, "--config", str(tmp_path / "config.yaml"), "--output_dir", str(tmp_path)]
        (args,) = parse_for_platform(TrlParser(GRPOConfig), line, recipe)
        return args

    return run


def precision(args):
    return "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"


class TestPlatformDefaults:
    @pytest.mark.parametrize(
        ("device", "bf16", "fp16", "batch"),
        [
            (A100, True, False, (8, 2)),
            (A10, True, False, (4, 4)),
            (V100, False, True, (4, 4)),
            # 14.6 GiB of 39 would fit three of eight rows; halving gives two.
            (T4, False, True, (2, 8)),
            # An old GPU with 48 GB: half the batch at most.
            (Device("cuda", (7, 5), 47.5), False, True, (4, 4)),
            # With unknown memory, only the capability counts.
            (Device("cuda", (7, 0)), False, True, (4, 4)),
            (Device("cuda", (8, 0)), True, False, (8, 2)),
            (Device("cuda", (8, 0), 0.0), True, False, (1, 16)),
        ],
    )
    def test_of_a_gpu_depend_on_capability_and_memory(self, device, bf16, fp16, batch):
        settings = platform_defaults(RECIPE, device=device)

        assert (settings["bf16"], settings["fp16"]) == (bf16, fp16)
        assert (settings["per_device_train_batch_size"], settings["gradient_accumulation_steps"]) == batch
        assert "use_cpu" not in settings

    def test_without_an_accelerator_are_float32_on_the_cpu(self):
        assert platform_defaults(RECIPE, device=CPU) == {**RECIPE, "use_cpu": True, "bf16": False, "fp16": False}

    def test_leave_other_accelerators_to_trl(self):
        assert platform_defaults(RECIPE, device=Device("mps")) == RECIPE

    def test_divide_a_batch_only_without_remainder(self):
        settings = platform_defaults({"per_device_train_batch_size": 6}, device=T4)

        assert (settings["per_device_train_batch_size"], settings["gradient_accumulation_steps"]) == (3, 2)

    @pytest.mark.parametrize(
        ("device", "given", "batch"), [(A100, {}, 8), (T4, {}, 2), (T4, {"num_generations": 4}, 4)]
    )
    def test_divide_the_evaluation_batch_down_to_a_group(self, device, given, batch):
        recipe = {**RECIPE, "per_device_eval_batch_size": 8}

        assert platform_defaults(recipe, given, device)["per_device_eval_batch_size"] == batch

    @pytest.mark.parametrize(("offline", "expected"), [(True, "none"), (False, "wandb")])
    def test_report_to_none_if_the_hub_is_offline(self, monkeypatch, offline, expected):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)

        assert platform_defaults({"report_to": "wandb"}, device=CPU)["report_to"] == expected

    def test_do_not_contain_settings_that_were_given(self):
        given = {"fp16": True, "per_device_train_batch_size": 16}
        settings = platform_defaults(RECIPE, given, T4)

        assert settings == {"bf16": False, "gradient_accumulation_steps": 2, "num_generations": 2}


class TestParseForPlatform:
    def test_uses_the_precision_of_the_machine_by_default(self, parse):
        assert precision(parse(A100)) == "bf16"
        assert precision(parse(T4)) == "fp16"
        assert precision(parse(CPU)) == "fp32" and parse(CPU).use_cpu

    @pytest.mark.parametrize("device", [CPU, T4, A100])
    def test_arguments_override_environment_overrides_yaml_overrides_machine(self, parse, device):
        by_yaml = parse(device, yaml="fp16: true")
        by_environment = parse(device, yaml="fp16: true", ACCELERATE_MIXED_PRECISION="bf16")
        by_argument = parse(device, "--fp16", "True", yaml="bf16: true", ACCELERATE_MIXED_PRECISION="bf16")

        assert [precision(args) for args in (by_yaml, by_environment, by_argument)] == ["fp16", "bf16", "fp16"]

    def test_a_disabled_precision_gives_float32(self, parse):
        assert precision(parse(T4, "--fp16=False")) == "fp32"
        assert precision(parse(A100, "--bf16", "False")) == "fp32"

    def test_a_cpu_on_a_machine_with_a_gpu_uses_float32(self, parse):
        chosen, launched = parse(A100, "--use_cpu"), parse(A100, ACCELERATE_USE_CPU="true")

        assert chosen.use_cpu and launched.use_cpu
        assert precision(chosen) == precision(launched) == "fp32"

    def test_default_variables_of_a_launcher_are_ignored(self, parse):
        args = parse(A100, ACCELERATE_MIXED_PRECISION="no", ACCELERATE_USE_CPU="False")

        assert precision(args) == "bf16" and not args.use_cpu

    @pytest.mark.parametrize("how", ["argument", "yaml"])
    def test_an_explicit_batch_size_is_not_divided(self, parse, how):
        if how == "argument":
            args = parse(T4, "--per_device_train_batch_size", "16")
        else:
            args = parse(T4, yaml="per_device_train_batch_size: 16")

        assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (16, 2)

    def test_an_explicit_tracker_is_kept_offline(self, parse, monkeypatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

        assert parse(CPU, "--report_to", "tensorboard").report_to == ["tensorboard"]

    def test_keeps_whole_groups_in_an_evaluation_batch(self, parse):
        recipe = {**RECIPE, "per_device_eval_batch_size": 8}

        assert parse(T4, "--num_generations", "4", recipe=recipe).per_device_eval_batch_size == 4
        assert parse(T4, "--per_device_eval_batch_size", "16", recipe=recipe).per_device_eval_batch_size == 16


class TestIsSet:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["--model_name_or_path", "q"],
            ["--model_name_or_path=q"],
            ["--model-name-or-path", "q"],
            ["--model-name-or-path=q"],
            ["--config", "YAML", "--seed", "1"],
        ],
    )
    def test_in_every_spelling_on_the_command_line_and_in_yaml(self, arguments, tmp_path):
        (tmp_path / "c.yaml").write_text("model_name_or_path: q\n")
        arguments = [argument.replace("YAML", str(tmp_path / "c.yaml")) for argument in arguments]
        parser = TrlParser((GRPOConfig, ModelConfig))

        assert is_set(parser, arguments, "model_name_or_path")
        assert not is_set(parser, arguments, "output_dir")

    def test_false_for_settings_without_a_value(self, tmp_path):
        (tmp_path / "c.yaml").write_text("seed: 1\nmodel_name_or_path: null\n")
        arguments = ["--config", str(tmp_path / "c.yaml"), "--run_name", "--model_name_or_path is not set".title()]

        assert not is_set(TrlParser((GRPOConfig, ModelConfig)), arguments, "model_name_or_path")


class TestExplicit:
    def test_returns_the_value_of_the_command_line_before_the_file(self, tmp_path):
        (tmp_path / "c.yaml").write_text("output_dir: filed\nseed: 1\n")
        parser = TrlParser((GRPOConfig, ModelConfig))
        arguments = ["--config", str(tmp_path / "c.yaml"), "--seed", "2"]

        assert [explicit(parser, arguments, name) for name in ("seed", "output_dir", "run_name")] == [2, "filed", None]


class TestThisDevice:
    @pytest.fixture
    def two_gpus(self, monkeypatch):
        import torch

        class Properties:
            major, minor, total_memory = 8, 0, 40 * 2**30

        class Older:
            major, minor, total_memory = 7, 5, 16 * 2**30

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: [Properties, Older][index])

    def test_is_the_gpu_of_the_rank(self, two_gpus, monkeypatch):
        monkeypatch.setenv("LOCAL_RANK", "1")

        assert this_device() == Device("cuda", (7, 5), 16.0)

    def test_is_the_cpu_without_an_accelerator(self, monkeypatch):
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)

        assert this_device() == CPU
