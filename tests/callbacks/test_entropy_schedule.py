import pytest
from transformers import TrainerCallback

from tests.helpers.training_runs import RecordingTrainer, config, games
from trl_spiral.callbacks import EntropyScheduleCallback


class Coefficients(TrainerCallback):
    """The coefficient of each step."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.seen = []

    def on_step_end(self, args, state, control, **kwargs):
        self.seen.append(self.trainer.entropy_coef)


def make(model_dir, folder, **changes):
    return RecordingTrainer(model_dir, config(folder, **changes), games=games(["Sum-v0"]))


class TestEntropySchedule:
    @pytest.mark.parametrize(("end", "expected"), [(0.0, [0.4, 0.3, 0.2, 0.1]), (0.8, [0.4, 0.5, 0.6, 0.7])])
    def test_is_linear(self, end, expected, model_dir, tmp_path):
        trainer = make(model_dir, tmp_path, entropy_coef=0.4, max_steps=4)
        coefficients = Coefficients(trainer)
        trainer.add_callback(EntropyScheduleCallback(trainer, end=end))
        trainer.add_callback(coefficients)
        trainer.train()

        assert coefficients.seen == pytest.approx(expected)

    @pytest.mark.parametrize("changes", [{}, {"entropy_coef": 0.1, "use_adaptive_entropy": True}])
    def test_needs_a_fixed_coefficient_above_zero(self, changes, model_dir, tmp_path):
        trainer = make(model_dir, tmp_path, **changes)

        with pytest.raises(ValueError, match=r"The schedule to `end` \(0.0\) changes `entropy_coef`"):
            EntropyScheduleCallback(trainer)
