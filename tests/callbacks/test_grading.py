"""When `GradingCallback` grades; tested on the events of a trainer, without a model."""

from types import SimpleNamespace

import pytest
from transformers import TrainerCallback

from trl_spiral import callbacks
from trl_spiral.callbacks import GradingCallback, grading


GRADING = [
    one
    for one in vars(callbacks).values()
    if isinstance(one, type) and issubclass(one, GradingCallback) and one is not GradingCallback
]


class StepCallback(GradingCallback):
    """Grades each model by its step."""

    key_metrics = ["test/step"]

    def grade(self, step):
        return {"test/step": float(step)}


@pytest.fixture
def run(monkeypatch):
    """Send a callback the events of a run, and return the steps that it graded."""
    monkeypatch.setattr(grading, "check_can_play", lambda *args, **kwargs: None)
    monkeypatch.setattr(
        grading,
        "log_separately",
        lambda trainer, metrics: trainer.state.log_history.append({**metrics, "step": trainer.state.global_step}),
    )

    def run(max_steps=6, every=None, first_step=0, stop_at=None, log=(), best=None):
        state = SimpleNamespace(
            global_step=first_step, max_steps=max_steps, log_history=list(log), best_model_checkpoint=best
        )
        args = SimpleNamespace(load_best_model_at_end=best is not None)
        callback = StepCallback(SimpleNamespace(state=state), every)
        callback.on_train_begin(args, state, None)
        for state.global_step in range(first_step + 1, (stop_at or max_steps) + 1):
            callback.on_step_end(args, state, None)
        callback.on_train_end(args, state, None)
        return [entry["step"] for entry in callback.curve]

    return run


class TestGradingCallback:
    def test_grades_before_and_after_training_by_default(self, run):
        assert run(max_steps=6) == [0, 6]

    @pytest.mark.parametrize(("every", "steps"), [(2, [0, 2, 4, 6]), (4, [0, 4, 6]), (7, [0, 6])])
    def test_grades_every_n_steps_and_the_last_step_once(self, every, steps, run):
        assert run(max_steps=6, every=every) == steps

    def test_a_run_that_stops_early_at_a_graded_step_is_not_graded_again(self, run):
        assert run(every=2, stop_at=4) == [0, 2, 4]
        assert run(every=2, stop_at=5) == [0, 2, 4, 5]

    def test_a_best_model_that_is_loaded_at_the_end_is_graded(self, run):
        assert run(every=2, stop_at=4, best="checkpoint-2") == [0, 2, 4, 4]

    def test_a_resumed_run_is_not_graded_at_its_start(self, run):
        log = [{"step": 0, "test/step": 0.0}, {"step": 1, "loss": 1.0}]

        assert run(first_step=3, log=log) == [0, 6]
        assert run(first_step=3, log=[]) == [3, 6]

    def test_a_resume_of_a_finished_and_graded_run_grades_nothing(self, run):
        log = [{"step": step, "test/step": float(step)} for step in (0, 6)]

        assert run(first_step=6, log=log) == [0, 6]

    def test_a_grade_without_metrics_is_not_logged(self, run, monkeypatch):
        monkeypatch.setattr(StepCallback, "grade", lambda self, step: {})

        assert run() == []

    @pytest.mark.parametrize("every", [0, -1])
    def test_refuses_steps_below_one(self, every):
        with pytest.raises(ValueError, match=rf"`every` \({every}\) must be at least 1"):
            StepCallback(None, every)


class TestSubclasses:
    def test_are_the_five_that_grade(self):
        assert {one.__name__ for one in GRADING} == {
            "ExploitabilityCallback",
            "MBPPCallback",
            "MatchCallback",
            "MathCallback",
            "TicTacToeCallback",
        }

    @pytest.mark.parametrize("callback", GRADING)
    def test_do_not_decide_themselves_when_to_grade(self, callback):
        events = {name for name in vars(TrainerCallback) if name.startswith("on_")}

        assert events & set(vars(callback)) == set()
