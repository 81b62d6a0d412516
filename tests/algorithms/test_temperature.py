"""The adaptive temperature, and every copy of it in TRL."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

from tests.helpers.training_runs import history, lora
from trl_spiral import AlgorithmConfig, AlgorithmTrainer, _trl
from trl_spiral.algorithms.temperature import adapted


BOUNDS = (0.6, 2.0)
PROMPTS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


def small_first_token(completion_ids, **kwargs):
    """A reward that differs within some groups and not within others."""
    return [float(ids[0] % 2) for ids in completion_ids]


def make(model, output_dir, trainer_class=AlgorithmTrainer, peft_config=None, **changes):
    """Return a trainer with sixteen rows per batch, used twice: a cycle is four optimizer steps."""
    settings = dict(
        output_dir=str(output_dir),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        steps_per_generation=2,
        num_iterations=2,
        num_generations=4,
        max_steps=10,
        max_completion_length=4,
        learning_rate=1e-3,
        temperature_ref_std=0.4,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    return trainer_class(
        model=model,
        reward_funcs=small_first_token,
        args=AlgorithmConfig(**{**settings, **changes}),
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        eval_dataset=Dataset.from_dict({"prompt": PROMPTS[:4]}),
        peft_config=peft_config,
    )


def plain(model, inputs, temperature):
    """Return the log-probabilities of a batch's replies, computed directly."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    width = inputs["completion_ids"].size(1)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1].float()
    return (logits / temperature).log_softmax(-1).gather(2, inputs["completion_ids"][..., None])[..., 0]


def scored(trainer, model, inputs):
    """Return TRL's log-probabilities."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    with torch.no_grad():
        return trainer._get_per_token_logps_and_entropies(model, ids, mask, inputs["completion_ids"].size(1))[0]


def check_scores(trainer, model, inputs, temperature, tolerance=1e-5):
    mask = inputs["completion_mask"].bool()
    expected, found = plain(model, inputs, temperature)[mask], scored(trainer, model, inputs)[mask]

    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


class Watching(AlgorithmTrainer):
    """Records the temperature of every batch, and checks each loss against it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.sampled_at = []
        self.losses = 0
        self.evaluated_at = []

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        now = self.generation_config.temperature
        assert now == self.temperature == self.generation_kwargs["temperature"]
        if self.model.training:
            self.sampled_at.append((now, self._rewards.std(unbiased=False).item()))
        else:
            self.evaluated_at.append(now)
            check_scores(self, self.model, output, now)
        return output

    def _compute_loss(self, model, inputs):
        if model.training:
            self.losses += 1
            check_scores(self, model, inputs, self.sampled_at[-1][0])
        return super()._compute_loss(model, inputs)


class TestAdapted:
    @pytest.mark.parametrize(
        ("rewards", "expected"),
        [
            ([0.0, 1.0], 0.8),  # the deviation is 0.5, the reference 0.4
            ([0.0, 0.8], 1.0),
            ([0.0, 0.0, 0.0, 1.0], 0.4 / 0.1875**0.5),
            ([0.0, 1.0, float("nan")], 0.8),
            ([0.0, 1.0, float("inf"), -float("inf")], 0.8),
            ([0.0, 10.0], 0.6),
            ([0.5, 0.51], 2.0),
            ([0.1, 0.1, 0.1], 2.0),  # no deviation
            ([float("nan")], 1.0),  # no finite rewards
        ],
    )
    def test_is_the_clipped_formula(self, rewards, expected):
        assert adapted(1.0, 0.4, torch.tensor(rewards), BOUNDS) == pytest.approx(expected, rel=1e-6)

    def test_of_binary_rewards_with_a_reference_of_one_stays_at_the_bound(self):
        # The reason for the parameter.
        for ones in range(1, 8):
            assert adapted(1.0, 1.0, torch.tensor([1.0] * ones + [0.0] * (8 - ones)), BOUNDS) == 2.0


@pytest.fixture(scope="module")
def trainer(model_dir, tmp_path_factory):
    trainer = make(
        model_dir,
        tmp_path_factory.mktemp("run"),
        Watching,
        beta=0.01,
        temperature=0.9,
        eval_strategy="steps",
        eval_steps=3,
    )
    trainer.train()
    return trainer


class TestTraining:
    def test_adapts_to_the_rewards_of_the_previous_batch(self, trainer):
        temperatures, deviations = zip(*trainer.sampled_at, strict=True)
        expected = [min(max(0.9 * 0.4 / deviation, 0.6), 2.0) if deviation else 2.0 for deviation in deviations]

        assert len(temperatures) == 3
        assert temperatures[0] == 0.9
        assert list(temperatures[1:]) == pytest.approx(expected[:-1], rel=1e-5)
        assert len(set(temperatures)) > 1
        assert [entry["temperature"] for entry in trainer.state.log_history if "temperature" in entry] == list(
            temperatures
        )

    def test_scores_every_batch_at_its_sampling_temperature(self, trainer):
        # Checked by the log-probabilities of each of the ten losses: see `Watching`. Evaluation interrupts two cycles.
        assert trainer.losses == 10

    def test_evaluates_at_the_base_temperature(self, trainer):
        assert set(trainer.evaluated_at) == {0.9}
        assert len(trainer.evaluated_at) >= 3

    def test_scores_the_reference_at_the_same_temperature(self, trainer):
        check_scores(trainer, trainer.ref_model, trainer._buffered_inputs[0], trainer.temperature)


class TestCopies:
    @pytest.mark.parametrize("kind", ["whole", "adapter", "bfloat16"])
    def test_are_all_set(self, kind, model_dir, tmp_path):
        trainer = make(
            model_dir,
            tmp_path,
            peft_config=lora() if kind == "adapter" else None,
            bf16=kind == "bfloat16",
            max_steps=1,
        )
        trainer.train()
        trainer.model.eval()
        inputs = trainer._buffered_inputs[0]
        tolerance = 0.05 if kind == "bfloat16" else 1e-5
        for temperature in (0.7, 1.9):
            _trl.set_temperature(trainer, temperature, trainer._temperature_cells)

            check_scores(trainer, trainer.model, inputs, temperature, tolerance)
        mask = inputs["completion_mask"].bool()
        apart = plain(trainer.model, inputs, 0.7)[mask] - plain(trainer.model, inputs, 1.9)[mask]
        assert apart.abs().max() > 0.2

    def test_sampling_uses_them(self, model_dir, tmp_path):
        trainer = make(model_dir, tmp_path, max_steps=1)
        trainer.train()
        prompts = [trainer.processing_class(text)["input_ids"] for text in PROMPTS]
        trainer.model.eval()
        _trl.set_temperature(trainer, 1e-4, trainer._temperature_cells)
        found, _ = trainer._generate_single_turn(prompts, None, {}, 1)

        # At this temperature, sampling takes the most probable token.
        for prompt, reply in zip(prompts, found, strict=True):
            ids = torch.tensor([prompt + reply])
            with torch.no_grad():
                likeliest = trainer.model(ids).logits[0, len(prompt) - 1 : -1].argmax(-1)
            assert reply == likeliest.tolist()

    def test_that_are_not_found_end_the_run(self, model_dir):
        trainer = SimpleNamespace(model=AutoModelForCausalLM.from_pretrained(model_dir), ref_model=None)

        with pytest.raises(
            RuntimeError, match="The temperature at which Qwen3ForCausalLM scores replies was not found"
        ):
            _trl.temperature_cells(trainer)


class TestResume:
    @pytest.mark.parametrize(
        "changes",
        [
            # Saved in the middle of a cycle. The temperature of the next cycle differs.
            dict(algorithm="grpo"),
            # The updated reference scores the third batch, which is used from the ninth step on.
            dict(algorithm="dr_grpo", beta=0.05, sync_ref_model=True, ref_model_sync_steps=2, max_steps=10),
            dict(
                algorithm="reinforce",
                reinforce_baseline="ema",
                num_iterations=1,
                gradient_accumulation_steps=2,
            ),
            dict(
                algorithm="gpg",
                gpg_min_useful=1.0,
                gpg_max_resamples=2,
                num_iterations=1,
                gradient_accumulation_steps=2,
            ),
        ],
        ids=lambda changes: changes["algorithm"],
    )
    def test_continues_as_an_uninterrupted_run(self, changes, model_dir, tmp_path):
        changes = {"max_steps": 8, "save_strategy": "steps", "save_steps": 3, **changes}
        whole = make(model_dir, tmp_path, **changes)
        whole.train()
        resumed = make(model_dir, tmp_path / "resumed", **changes)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))

        assert history(resumed) == history(whole)
        assert resumed._own_state() == whole._own_state()
        state = torch.load(tmp_path / "checkpoint-3" / "algorithm_state_0.pt")
        assert state["temperature"][0] != state["temperature"][1]
        if changes["algorithm"] == "reinforce":
            assert state["baseline"]["average"] > 0
        if changes["algorithm"] == "gpg":
            assert state["drawn"] > 0


class TestConfig:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            (dict(temperature_ref_std=0.0), r"`temperature_ref_std` \(0.0\) must be above 0 and finite"),
            (dict(temperature_ref_std=float("nan")), r"`temperature_ref_std` \(nan\) must be above 0 and finite"),
            (dict(temperature_ref_std=float("inf")), r"`temperature_ref_std` \(inf\) must be above 0 and finite"),
            (dict(temperature_max=float("inf")), r"`temperature_max` \(inf\), which must be finite"),
            (dict(temperature=0.5), r"`temperature` \(0.5\) must lie between `temperature_min` \(0.6\)"),
            (dict(temperature_min=0.0), r"`temperature_min` \(0.0\), which must be above 0"),
            (
                dict(temperature_min=0.5, temperature_ref_std=None),
                r"`temperature_min` \(0.5\) has no effect without `temperature_ref_std`",
            ),
            (
                dict(temperature_max=1.5, temperature_ref_std=None),
                r"`temperature_max` \(1.5\) has no effect without `temperature_ref_std`",
            ),
            (dict(generation_kwargs={"temperature": 1.0}), "`generation_kwargs` must not set 'temperature'"),
        ],
    )
    def test_refuses_bad_options(self, changes, sentence, tmp_path):
        with pytest.raises(ValueError, match=sentence):
            AlgorithmConfig(str(tmp_path), **{"temperature_ref_std": 0.4, **changes}, use_cpu=True, bf16=False)

    def test_has_bounds_only_if_it_adapts(self, tmp_path):
        adapts, stays = (
            AlgorithmConfig(str(tmp_path), temperature_ref_std=std, use_cpu=True, bf16=False) for std in (0.4, None)
        )

        assert (adapts.temperature_min, adapts.temperature_max) == BOUNDS
        assert (stays.temperature_min, stays.temperature_max) == (None, None)

    def test_is_constant_by_default(self, model_dir, tmp_path):
        trainer = make(model_dir, tmp_path, temperature_ref_std=None, max_steps=5)
        trainer.train()

        assert trainer.temperature == 1.0
        assert not any("temperature" in entry for entry in trainer.state.log_history)


@pytest.mark.vllm
class TestVLLM:
    def test_samples_at_the_temperature_of_the_trainer(self, vllm_model_dir, tmp_path):
        from tests.helpers.vllm_in_process import trainer_with_vllm

        def make_trainer():
            return make(
                vllm_model_dir, tmp_path, use_vllm=True, vllm_mode="colocate", vllm_max_model_length=64, max_steps=10
            )

        with trainer_with_vllm(make_trainer) as trainer:
            trainer.train()
        logged = [entry for entry in trainer.state.log_history if "temperature" in entry]

        assert len({entry["temperature"] for entry in logged}) > 1
        # TRL's own metric. Its colocated engine uses bfloat16. At another temperature they differ by tenths.
        assert max(entry["sampling/sampling_logp_difference/mean"] for entry in logged) < 2e-2
