"""
The undocumented parts of TRL and transformers that we use, compared with the installed versions.

If one of these tests fails after an update, see `trl_spiral/_trl/`, and its `names.py` first.
"""

import inspect
import re
from pathlib import Path

import pytest
import transformers
import trl
from accelerate.utils import gather_object
from trl import GRPOTrainer
from trl.generation import vllm_generation
from trl.models.utils import unwrap_model_for_generation
from trl.trainer import grpo_trainer

from tests.helpers.training_runs import RecordingTrainer, config, games
from trl_spiral import SpiralTrainer, _trl
from trl_spiral._trl import vllm_engines
from trl_spiral._trl.names import (
    OVERRIDDEN,
    OVERRIDDEN_BY_ALGORITHMS,
    TRAINER_ATTRIBUTES,
    TRL_ATTRIBUTES,
    VLLM_ATTRIBUTES,
    VLLM_GENERATION_ATTRIBUTES,
)
from trl_spiral._trl.vllm_generation import SpiralVLLMGeneration
from trl_spiral.algorithms import AlgorithmMixin
from trl_spiral.training.base_trainer import AdvantageMixin
from trl_spiral.training.logprobs import SampledLogprobsMixin


FOLDER = Path(_trl.__file__).parent
SEAM = {str(path.relative_to(FOLDER)): path.read_text() for path in sorted(FOLDER.rglob("*.py"))}
GRPO = inspect.getsource(GRPOTrainer)
TRAINER = inspect.getsource(transformers.Trainer)


@pytest.fixture(scope="module")
def trainer(model_dir, tmp_path_factory):
    trainer = RecordingTrainer(
        model_dir, config(tmp_path_factory.mktemp("seams"), max_steps=1, logging_steps=2), games=games(["Sum-v0"])
    )
    trainer.train()
    return trainer


class TestAttributes:
    @pytest.mark.parametrize("name", TRL_ATTRIBUTES)
    def test_of_trl_are_set_and_used_in_trl(self, name, trainer):
        assert re.search(rf"self\.{name}\b.* = ", GRPO) or re.search(rf"self\.{name} = ", TRAINER)
        assert len(re.findall(rf"self\.{name}\b", GRPO)) >= 2
        assert name in vars(trainer)

    @pytest.mark.parametrize("name", TRAINER_ATTRIBUTES)
    def test_of_transformers_are_set_in_its_training_loop(self, name, trainer):
        assert re.search(rf"self\.{name} [+]?= ", TRAINER)
        assert name in vars(trainer)

    @pytest.mark.parametrize("name", VLLM_ATTRIBUTES)
    def test_of_trl_are_set_for_vllm(self, name):
        assert re.search(rf"self\.{name} = ", GRPO)

    @pytest.mark.parametrize("name", VLLM_GENERATION_ATTRIBUTES)
    def test_of_vllm_generation_are_set_and_used_in_trl(self, name):
        source = inspect.getsource(vllm_generation.VLLMGeneration)

        assert re.search(rf"self\.{name} = ", source)
        assert len(re.findall(rf"self\.{name}\b", source)) >= 2

    @pytest.mark.parametrize("name", ["_iter_named_params", "_fix_param_name_to_vllm", "_init_vllm", "sync_weights"])
    def test_methods_of_vllm_generation_exist(self, name):
        assert inspect.isfunction(getattr(vllm_generation.VLLMGeneration, name))

    def test_a_log_in_mid_step_suppresses_the_next_one(self):
        # So `callbacks.log.log_separately` restores it.
        assert "control.should_log = False" in inspect.getsource(transformers.trainer_callback.CallbackHandler.on_log)

    @pytest.mark.parametrize("module", SEAM)
    def test_no_others_are_used_here(self, module):
        # Private attributes of a trainer.
        private = set(re.findall(r"\btrainer\.(_\w+)", SEAM[module]))

        assert private <= {*TRL_ATTRIBUTES, *TRAINER_ATTRIBUTES, *VLLM_ATTRIBUTES}

    def test_have_the_saved_contents(self, trainer):
        assert trainer._step == 1
        assert len(trainer._buffered_inputs) == trainer.args.steps_per_generation
        assert set(trainer._metrics) == {"train", "eval"}
        assert {"prompt", "completion", "rewards", "advantages", "extra"} <= set(trainer._logs)
        # All rows of one batch fit into the table, so its newest entries can be replaced.
        assert trainer._logs["prompt"].maxlen == trainer.args.generation_batch_size


class TestOverriddenMethods:
    @pytest.mark.parametrize("name", OVERRIDDEN)
    def test_have_the_expected_parameters(self, name):
        assert tuple(inspect.signature(getattr(GRPOTrainer, name)).parameters) == OVERRIDDEN[name]
        assert getattr(SpiralTrainer, name) is not getattr(GRPOTrainer, name)

    def test_are_all_listed(self):
        # Documented methods, of documented parameters.
        public = {"__init__", "train", "evaluate", "evaluation_loop", "training_step"}
        ours = {
            owner: {
                name for name, value in vars(owner).items() if inspect.isfunction(value) and hasattr(GRPOTrainer, name)
            }
            - public
            for owner in (SpiralTrainer, SampledLogprobsMixin, AdvantageMixin, AlgorithmMixin)
        }

        assert ours[SpiralTrainer] | ours[SampledLogprobsMixin] | ours[AdvantageMixin] == set(OVERRIDDEN)
        assert ours[AlgorithmMixin] == set(OVERRIDDEN_BY_ALGORITHMS)

    @pytest.mark.parametrize("name", OVERRIDDEN_BY_ALGORITHMS)
    def test_of_algorithms_have_the_expected_parameters(self, name):
        expected = OVERRIDDEN_BY_ALGORITHMS[name]

        assert tuple(inspect.signature(getattr(GRPOTrainer, name)).parameters) == expected

    def test_random_state_is_saved_before_the_push_and_the_rotation(self):
        source = inspect.getsource(transformers.Trainer._save_checkpoint)
        order = [
            source.index(call)
            for call in (
                "self.save_model(",
                "self._save_optimizer_and_scheduler(",
                "self._save_rng_state(",
                "self.state.save_to_json(",
                "self._push_from_checkpoint(",
                "rotate_checkpoints(",
            )
        ]

        assert order == sorted(order)

    def test_the_loss_is_divided_as_in_our_override(self):
        source = inspect.getsource(transformers.Trainer._finalize_training)
        assert "self._total_loss_scalar / max(num_steps_trained, 0.001)" in source
        assert 'metrics["train_loss"] = train_loss' in source


class TestRollouts:
    def test_rollout_func_is_called_and_read_as_expected(self):
        source = inspect.getsource(GRPOTrainer._generate)

        assert "self.rollout_func(prompts, self)" in source
        assert 'extra_fields.pop("env_mask", None)' in source
        assert 'required_keys = {"prompt_ids", "completion_ids", "logprobs"}' in source

    def test_old_logprobs_and_advantages_are_read_under_the_names_we_replace(self):
        source = inspect.getsource(GRPOTrainer._compute_loss)

        assert 'inputs.get("old_per_token_logps")' in source
        assert "if advantages.dim() == 1:" in source
        assert 'completion_mask * inputs["tool_mask"]' in source

    def test_unwrapping_accepts_our_arguments(self):
        assert {"gather_deepspeed3_params", "generation_kwargs", "gradient_checkpointing_kwargs"} <= set(
            inspect.signature(unwrap_model_for_generation).parameters
        )
        assert list(inspect.signature(gather_object).parameters) == ["object"]

    def test_the_installed_version_is_supported(self):
        assert trl.__version__.startswith("1.16.")


class TestVLLMGeneration:
    """Properties of TRL that `SpiralVLLMGeneration` relies on."""

    SOURCE = inspect.getsource(vllm_generation)

    def test_is_made_by_the_trainer_under_the_replaced_name(self):
        assert "self.vllm_generation = VLLMGeneration(" in GRPO
        assert grpo_trainer.VLLMGeneration is vllm_generation.VLLMGeneration
        with _trl.own_vllm_generation({}, patience=1.0):
            assert grpo_trainer.VLLMGeneration.func is SpiralVLLMGeneration
        assert grpo_trainer.VLLMGeneration is vllm_generation.VLLMGeneration

    def test_makes_its_engine_with_keywords_under_the_replaced_name(self):
        assert re.search(r"self\.llm = LLM\(\n\s+model=", self.SOURCE)

    @pytest.mark.parametrize("name", ["_init_vllm", "sync_weights"])
    def test_has_the_overridden_methods(self, name):
        assert list(inspect.signature(getattr(vllm_generation.VLLMGeneration, name)).parameters) == ["self"]

    def test_merges_the_adapter_only_while_it_lists_weights(self):
        # So an override of that method separates the base weights from the adapter.
        listing = inspect.getsource(vllm_generation.VLLMGeneration._iter_named_params)
        merged = len(re.findall(r"\bmerge_adapter\b", self.SOURCE))

        assert merged >= 1
        assert len(re.findall(r"\bmerge_adapter\b", listing)) == merged

    def test_ignores_the_result_of_dropping_the_prefix_cache(self):
        # Once TRL checks it, our check can be removed.
        assert "            self.llm.reset_prefix_cache()\n" in self.SOURCE
        assert "            self.vllm_client.reset_prefix_cache()\n" in self.SOURCE

    def test_sleeps_as_in_our_roll_out(self):
        source = inspect.getsource(vllm_generation.VLLMGeneration.generate)

        for line in ('self.llm.wake_up(tags=["kv_cache"])', "self.llm.sleep(level=2)"):
            assert line in source
            assert line.replace("self.", "generation.") in inspect.getsource(vllm_engines)
