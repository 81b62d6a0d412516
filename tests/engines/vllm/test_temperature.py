"""
An adaptive temperature with a vLLM server: TRL sends it with every request.

The server returns log-probabilities after the temperature (`--logprobs-mode processed_logprobs`), from which the
temperature follows. `test_distribution.py` compares them with the frequencies of replies. Colocate mode is tested
in `tests/algorithms/test_temperature.py`.
"""

import pytest

from tests.algorithms.test_temperature import make, plain
from trl_spiral import AlgorithmTrainer


pytestmark = pytest.mark.vllm

BASE = 0.9  # not 1.0, which is the default of a server
# Rewards of 0 and 1 deviate by 0.5 at most. So the temperature is at least 1.35 from the second batch on.
REFERENCE_STD = 0.75
MIN_ADAPTED = BASE * REFERENCE_STD / 0.5
FLOAT32 = 1e-5  # sampler against trainer, in nats, as in `test_training.py`


class Recording(AlgorithmTrainer):
    """Records the temperature of each batch, and largest log-probability errors at the base and this temperature."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.training_temperature = None  # temperature in training, kept during evaluation
        self.trained, self.evaluated = [], []

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.training_temperature = self.temperature
        mask = output["completion_mask"].bool()
        sampled = output["sampling_per_token_logps"][mask]
        at_base, at_adapted = (
            (plain(self.model, output, temperature)[mask] - sampled).abs().max().item()
            for temperature in (BASE, self.training_temperature)
        )
        batches = self.trained if self.model.training else self.evaluated
        batches.append((self.training_temperature, at_base, at_adapted))
        return output


@pytest.fixture(scope="module")
def trainer(vllm_model_dir, server, tmp_path_factory):
    from trl.generation import vllm_generation
    from vllm_on_cpu.trainer import GlooVLLMClient

    from tests.helpers.vllm_in_process import trainer_with_vllm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_generation, "VLLMClient", GlooVLLMClient)

        def make_trainer():
            return make(
                vllm_model_dir,
                tmp_path_factory.mktemp("run"),
                Recording,
                use_vllm=True,
                vllm_mode="server",
                vllm_server_base_url=server.base_url,
                temperature=BASE,
                temperature_ref_std=REFERENCE_STD,
                # Batches at steps 0, 4 and 8. Evaluation during the second, at an adapted temperature, and at the end.
                eval_strategy="steps",
                eval_steps=6,
            )

        with trainer_with_vllm(make_trainer) as trainer:
            trainer.train()
            yield trainer


class TestServer:
    def test_samples_at_the_adapted_temperature(self, trainer):
        (first, *_), *adapted = trainer.trained

        assert first == BASE
        assert len(adapted) == 2  # before and after the first evaluation
        assert all(temperature >= MIN_ADAPTED for temperature, _, _ in adapted)
        assert all(at_adapted < FLOAT32 for _, _, at_adapted in trainer.trained)
        assert all(at_base > 0.1 for _, at_base, _ in adapted)

    def test_evaluates_at_the_base_temperature(self, trainer):
        assert len(trainer.evaluated) == 4  # two evaluations of two batches
        assert all(temperature >= MIN_ADAPTED for temperature, _, _ in trainer.evaluated)
        assert all(at_base < FLOAT32 for _, at_base, _ in trainer.evaluated)
        assert all(at_adapted > 0.1 for _, _, at_adapted in trainer.evaluated)

    @pytest.mark.parametrize("prefix", ["", "eval_"])
    def test_the_trainer_scores_at_the_same_temperature(self, trainer, prefix):
        metric = f"{prefix}sampling/sampling_logp_difference/max"  # TRL's own
        differences = [entry[metric] for entry in trainer.state.log_history if metric in entry]

        assert len(differences) == (2 if prefix else 3)
        assert max(differences) < FLOAT32
