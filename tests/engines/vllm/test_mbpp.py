"""Grading at MBPP where vLLM writes the programs."""

import json

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from tests.helpers.code_models import MBPP
from trl_spiral.sandbox import TrialResult


pytestmark = pytest.mark.vllm


class Unused:
    """What is tested here is who writes."""

    def judge(self, trials):
        return [TrialResult(True) for _ in trials]


class TestMBPPCallback:
    def test_vllm_writes_what_the_model_itself_writes(self, vllm_model_dir, tmp_path):
        from transformers import AutoTokenizer, Qwen3ForCausalLM

        from tests.helpers.lora_policies import OWN_TOKEN, make_sayable, say
        from tests.helpers.vllm_in_process import trainer_with_vllm
        from trl_spiral.callbacks import MBPPCallback

        # Each token has a probability of almost 1. vLLM's kernels round differently, which could change a near tie.
        model_dir = str(tmp_path / "model")
        model = Qwen3ForCausalLM.from_pretrained(vllm_model_dir)
        make_sayable(model)
        say(model, OWN_TOKEN["policy"])
        model.save_pretrained(model_dir)
        tokenizer = AutoTokenizer.from_pretrained(vllm_model_dir)
        tokenizer.save_pretrained(model_dir)

        def make(folder, **settings):
            config = GRPOConfig(
                output_dir=str(folder),
                max_steps=1,
                per_device_train_batch_size=2,
                num_generations=2,
                max_completion_length=8,
                learning_rate=0.0,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
                model_init_kwargs={"dtype": "float32"},
                **settings,
            )
            rows = Dataset.from_list([{"prompt": "Count."}] * 4)
            trainer = GRPOTrainer(model_dir, reward_funcs=lambda **_: [0.0, 0.0], args=config, train_dataset=rows)
            trainer.add_callback(MBPPCallback(trainer, MBPP, sandbox=Unused()))
            return trainer

        make(tmp_path / "plain").train()
        colocated = dict(use_vllm=True, vllm_mode="colocate", vllm_max_model_length=1024)
        with trainer_with_vllm(lambda: make(tmp_path / "vllm", **colocated)) as trainer:
            trainer.train()

        plain, vllm = (
            json.loads((tmp_path / name / "mbpp_eval" / "step0.json").read_text())["problems"]
            for name in ("plain", "vllm")
        )
        assert plain == vllm
        assert tokenizer.decode([OWN_TOKEN["policy"]] * 8).strip() in json.dumps(vllm, ensure_ascii=False)
        assert len(vllm) == 5
