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
LOWEST_MOVED = BASE * REFERENCE_STD / 0.5
FLOAT32 = 1e-5  # sampler against trainer, in nats, as in `test_vllm_training.py`


class Recording(AlgorithmTrainer):
    """Notes of every batch how far, at the worst token, the server is from what anybody would compute."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.moved = None  # where training has the temperature, also while evaluation has another
        self.trained, self.evaluated = [], []

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.moved = self.temperature
        mask = output["completion_mask"].bool()
        sampled = output["sampling_per_token_logps"][mask]
        at_base, at_moved = (
            (plain(self.model, output, temperature)[mask] - sampled).abs().max().item()
            for temperature in (BASE, self.moved)
        )
        (self.trained if self.model.training else self.evaluated).append((self.moved, at_base, at_moved))
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
                # Batches at steps 0, 4 and 8. Evaluation during the second, with an adapted temperature, and last.
                eval_strategy="steps",
                eval_steps=6,
            )

        with trainer_with_vllm(make_trainer) as trainer:
            trainer.train()
            yield trainer


class TestServer:
    def test_samples_at_the_temperature_to_which_it_has_moved(self, trainer):
        (first, *_), *moved = trainer.trained

        assert first == BASE
        assert len(moved) == 2  # before and after the first evaluation
        assert all(temperature >= LOWEST_MOVED for temperature, _, _ in moved)
        assert all(at_moved < FLOAT32 for _, _, at_moved in trainer.trained)
        assert all(at_base > 0.1 for _, at_base, _ in moved)

    def test_evaluates_at_the_base_value_in_between(self, trainer):
        assert len(trainer.evaluated) == 4  # two evaluations of two batches
        assert all(temperature >= LOWEST_MOVED for temperature, _, _ in trainer.evaluated)
        assert all(at_base < FLOAT32 for _, at_base, _ in trainer.evaluated)
        assert all(at_moved > 0.1 for _, _, at_moved in trainer.evaluated)

    @pytest.mark.parametrize("prefix", ["", "eval_"])
    def test_is_scored_at_the_same(self, trainer, prefix):
        metric = f"{prefix}sampling/sampling_logp_difference/max"  # TRL's own
        differences = [entry[metric] for entry in trainer.state.log_history if metric in entry]

        assert len(differences) == (2 if prefix else 3)
        assert max(differences) < FLOAT32
