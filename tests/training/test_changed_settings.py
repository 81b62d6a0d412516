"""Settings that differ from the checkpoint's: applied, refused or applied with a warning, by one table."""

import dataclasses
import json
import logging

import pytest
import torch
from datasets import Dataset

from tests.algorithms.test_temperature import make
from tests.helpers.training_runs import RecordingTrainer, StopAt, config, games, history, lora
from tests.selfplay.test_curriculum import Alternating
from trl_spiral import AlgorithmConfig, SpiralConfig
from trl_spiral.callbacks import TranscriptCallback
from trl_spiral.selfplay.advantages import RoleBaseline
from trl_spiral.training import resume
from trl_spiral.training.resume import check_settings, describe, plain


NAMES = {
    **{name: "refused" for names in resume.REFUSED.values() for name in names.split()},
    **dict.fromkeys(resume.WARNED.split(), "warned"),
    **dict.fromkeys(resume.APPLIED.split(), "applied"),
    **dict.fromkeys(resume.HARMLESS.split(), "harmless"),
    **dict.fromkeys(resume.AS_OBJECTS.split(), "as objects"),
}
# A cycle is four steps, so step 6 lies inside one.
RUN = dict(max_steps=12, save_strategy="steps", save_steps=6, logging_steps=1)


class TestTable:
    @pytest.mark.parametrize("kind", [SpiralConfig, AlgorithmConfig])
    def test_contains_every_setting(self, kind):
        # A new field of TRL's or transformers' belongs in one of the lists of `trl_spiral/resume.py`.
        assert {field.name for field in dataclasses.fields(kind)} - set(NAMES) == set()

    def test_contains_each_setting_once(self):
        listed = [*resume.REFUSED.values(), resume.WARNED, resume.APPLIED, resume.HARMLESS, resume.AS_OBJECTS]
        names = " ".join(listed).split()

        assert sorted(names) == sorted(set(names))

    def test_contains_only_recorded_settings(self, interrupted, puzzled):
        fields = {field.name for kind in (SpiralConfig, AlgorithmConfig) for field in dataclasses.fields(kind)}
        recorded = {*interrupted[1]._settings, *puzzled[1]._settings, "adapter", "base_model"}

        assert set(NAMES) - recorded - fields == set()
        assert recorded <= set(NAMES)
        assert {NAMES[name] for name in recorded} == {"refused", "warned", "applied"}

    @pytest.mark.parametrize(("name", "kind"), sorted((name, kind) for name, kind in NAMES.items()))
    def test_is_applied_by_a_resume(self, name, kind, caplog):
        caplog.set_level(logging.INFO, logger="trl_spiral")
        if kind == "refused":
            with pytest.raises(
                ValueError, match=rf"^here was written with `{name}=1` and this run has 2\. It contains "
            ):
                check_settings("here", {name: 1}, {name: 2})
        elif kind in ("warned", "applied"):
            assert check_settings("here", {name: 1}, {name: 2}) == {name: (1, 2)}
            (record,) = caplog.records
            assert record.levelname == ("WARNING" if kind == "warned" else "INFO")
            assert f"`{name}=2` instead of 1" in record.message
        assert check_settings("here", {name: 1}, {name: 1}) == {}

    @pytest.mark.parametrize(
        ("before", "now", "name"),
        [
            ({"lr_scheduler_type": "linear"}, {"lr_scheduler_type": "greedy"}, "lr_scheduler_type"),
            ({"lr_scheduler_type": "reduce_lr_on_plateau"}, {"lr_scheduler_type": "linear"}, "lr_scheduler_type"),
            ({"learning_rate": 1, "lr_scheduler_type": "greedy"}, {"lr_scheduler_type": "greedy"}, "learning_rate"),
            (
                {"learning_rate": 1, "distributed_type": "DEEPSPEED"},
                {"distributed_type": "DEEPSPEED"},
                "learning_rate",
            ),
            ({"entropy_coef": 1, "use_adaptive_entropy": True}, {"use_adaptive_entropy": True}, "entropy_coef"),
        ],
    )
    def test_refuses_some_because_of_others(self, before, now, name):
        with pytest.raises(ValueError, match=f"written with `{name}="):
            check_settings("here", before, now)

    def test_an_unknown_setting_warns(self, caplog):
        check_settings("here", {"of_a_subclass": 1}, {"of_a_subclass": 2})

        assert "`of_a_subclass=2` instead of 1" in caplog.text


class TestRecord:
    def test_contains_no_address_and_no_text_of_dictionaries(self):
        secret = "https://name:key@host/v1?token=abc#model"
        for value in (secret, [f"{secret}:0.5"], {"hf_token": "abc"}):
            assert "abc" not in str(plain(value))
            assert plain(value) == plain(value) != plain([value])

    def test_of_an_object_is_its_class_and_its_arguments(self):
        class Mine(RoleBaseline):
            def __init__(self, key, games, decay=0.5):
                super().__init__(decay)
                self.key, self.games, self.count = key, frozenset(games), 0

        one, other = Mine("secret", ["a", "b"]), Mine("secret", ["b", "a"])
        other.count = 7  # no argument, but state

        assert describe(one) == describe(other)
        assert describe(one) != describe(Mine("secret", ["a"]))
        assert describe(one)[0].endswith("Mine")
        assert "decay=0.5" in describe(one)[1]
        assert "secret" not in str(describe(one))
        assert describe(None) == (None, [])
        assert describe(len) == ("len", [])


@pytest.fixture(scope="module")
def interrupted(model_dir, tmp_path_factory):
    """A run of self-play that has a checkpoint after half of its steps."""
    folder = tmp_path_factory.mktemp("interrupted")
    trainer = RecordingTrainer(model_dir, config(folder, **RUN), games=games(["TicTacToe-v0", "Sum-v0"]))
    trainer.train()
    return folder / "checkpoint-6", trainer


@pytest.fixture(scope="module")
def puzzled(model_dir, tmp_path_factory):
    """The same with prompts and rewards."""
    folder = tmp_path_factory.mktemp("puzzled")
    trainer = make(model_dir, folder, **RUN)
    trainer.train()
    return folder / "checkpoint-6", trainer


def go_on(
    model_dir, interrupted, folder, played=("TicTacToe-v0", "Sum-v0"), peft_config=None, objects=None, **changes
):
    checkpoint, _ = interrupted
    settings = config(folder, **{**RUN, "max_steps": 8, **changes})
    trainer = RecordingTrainer(model_dir, settings, games=games(played), peft_config=peft_config, **(objects or {}))
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint))
    except ValueError:
        after = trainer.model.state_dict()
        assert all(torch.equal(value, after[name]) for name, value in before.items()), "loaded before it was refused"
        raise
    return trainer


class TestSelfPlay:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"seed": 7}, "`seed=42` and this run has 7. It contains the place in the order of games"),
            ({"sample_unit": "trajectory"}, "`sample_unit='turn'` and this run has 'trajectory'"),
            ({"gradient_accumulation_steps": 2}, "`gradient_accumulation_steps=1` and this run has 2"),
            ({"advantage_estimator": "position"}, "`estimator='RoleBaseline'` and this run has 'PositionValues'"),
            ({"beta": 0.1}, "`kl_term=False` and this run has True. .*: keep `beta` at zero, or above it"),
            ({"optim": "sgd"}, "`optim='adamw_torch_fused'` and this run has 'sgd'"),
            ({"objects": {"curriculum": Alternating()}}, "`curriculum=None` and this run has 'Alternating'"),
            ({"peft_config": lora()}, "`adapter=None` and this run has 'LORA of rank 8 "),
        ],
    )
    def test_refuses_settings_that_do_not_fit_the_checkpoint(
        self, changes, sentence, model_dir, interrupted, tmp_path
    ):
        with pytest.raises(ValueError, match=sentence):
            go_on(model_dir, interrupted, tmp_path, **changes)

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"played": ["Sum-v0"]}, "`games=['Sum-v0']` instead of ['TicTacToe-v0', 'Sum-v0']"),
            ({"advantage_kwargs": {"decay": 0.5}}, "`estimator_arguments=['decay=0.5'"),
            ({"objects": {"estimator": RoleBaseline(0.5)}}, "`estimator_arguments=['decay=0.5'"),
            ({"opponents": "self:0.5,random:0.5"}, "`opponents=['self:0.5', 'random:0.5']` instead of ['self:1.0']"),
        ],
    )
    def test_warns_of_settings_that_mix(self, changes, sentence, model_dir, interrupted, tmp_path, caplog):
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            trainer = go_on(model_dir, interrupted, tmp_path, **changes)

        assert sentence in caplog.text
        assert caplog.text.count("The content of the checkpoint comes from the former value") == 1
        assert trainer.state.global_step == 8

    def test_logs_nothing_for_equal_settings(self, model_dir, interrupted, tmp_path, caplog):
        with caplog.at_level(logging.INFO, logger="trl_spiral.training.resume"):
            trainer = go_on(model_dir, interrupted, tmp_path, max_steps=12, run_name="another")

        assert [record for record in caplog.records if record.name == "trl_spiral.training.resume"] == []
        assert history(trainer) == history(interrupted[1])

    def test_an_adapter_of_another_rank_is_refused(self, model_dir, tmp_path):
        first = RecordingTrainer(
            model_dir, config(tmp_path, **{**RUN, "max_steps": 6}), games=games(["Sum-v0"]), peft_config=lora()
        )
        first.train()
        checkpoint = tmp_path / "checkpoint-6", first

        with pytest.raises(ValueError, match="`adapter='LORA of rank 8 .*'` and this run has 'LORA of rank 4 "):
            go_on(model_dir, checkpoint, tmp_path / "new", ["Sum-v0"], lora(r=4))
        go_on(model_dir, checkpoint, tmp_path / "new", ["Sum-v0"], lora(lora_dropout=0.1))


def rates(trainer):
    return {entry["step"]: entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry}


class TestApplied:
    def test_the_learning_rate_from_the_first_step_on(self, model_dir, interrupted, tmp_path):
        trainer = go_on(model_dir, interrupted, tmp_path, max_steps=12, learning_rate=3e-4)

        # Linear to zero over twelve steps: step 7 is taken at 6/12 of the initial rate.
        for step in range(7, 13):
            assert rates(trainer)[step] == pytest.approx(3e-4 * (13 - step) / 12)
        assert rates(trainer)[6] == rates(interrupted[1])[6]

    def test_the_schedule_and_its_length(self, model_dir, interrupted, tmp_path):
        constant = go_on(model_dir, interrupted, tmp_path / "a", lr_scheduler_type="constant")
        longer = go_on(model_dir, interrupted, tmp_path / "b", max_steps=24)

        assert rates(constant)[7] == rates(constant)[8] == 1e-3
        assert rates(longer)[7] == pytest.approx(1e-3 * 18 / 24)

    def test_the_settings_of_the_optimizer(self, model_dir, interrupted, tmp_path):
        trainer = go_on(model_dir, interrupted, tmp_path, weight_decay=0.25, adam_beta1=0.5, adam_epsilon=1e-4)
        groups = trainer.optimizer.param_groups

        assert [group["weight_decay"] for group in groups] == [0.25, 0.0]
        assert {(tuple(group["betas"]), group["eps"]) for group in groups} == {((0.5, 0.999), 1e-4)}

    def test_the_temperature_and_the_entropy_bonus(self, model_dir, interrupted, tmp_path, caplog):
        with caplog.at_level(logging.INFO, logger="trl_spiral.training.resume"):
            trainer = go_on(model_dir, interrupted, tmp_path, temperature=0.5, entropy_coef=0.25)

        assert (trainer.temperature, trainer.entropy_coef) == (0.5, 0.25)
        assert "`entropy_coef=0.25` instead of 0.0" in caplog.text
        assert "`temperature=0.5` instead of 1.0" in caplog.text


class TestReached:
    @pytest.mark.parametrize("steps", [4, 6])
    @pytest.mark.parametrize("kind", ["self-play", "prompts"])
    def test_warns_that_all_steps_are_taken(self, kind, steps, model_dir, interrupted, puzzled, tmp_path, caplog):
        checkpoint, whole = interrupted if kind == "self-play" else puzzled
        if kind == "self-play":
            trainer = RecordingTrainer(
                model_dir, config(tmp_path, **{**RUN, "max_steps": steps}), games=games(["TicTacToe-v0", "Sum-v0"])
            )
        else:
            trainer = make(model_dir, tmp_path, **{**RUN, "max_steps": steps})
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            trainer.train(resume_from_checkpoint=str(checkpoint))

        assert (
            f"{checkpoint} has taken 6 steps and `max_steps` is {steps}: nothing is left to train. Raise `max_steps`"
            in caplog.text
        )
        assert trainer.state.global_step == 6
        assert history(trainer)[:-1] == [entry for entry in history(whole) if entry["step"] <= 6]


class TestPrompts:
    def test_another_dataset_is_refused(self, model_dir, puzzled, tmp_path):
        checkpoint, first = puzzled
        trainer = make(model_dir, tmp_path, **RUN)
        trainer.train_dataset = Dataset.from_dict({"prompt": [*first.train_dataset["prompt"][:-1], "another"]})

        with pytest.raises(ValueError, match="`train_dataset='8 rows .*'` and this run has '8 rows"):
            trainer.train(resume_from_checkpoint=str(checkpoint))

    def test_the_same_dataset_from_another_source_is_accepted(self, model_dir, puzzled, tmp_path):
        checkpoint, first = puzzled
        first.train_dataset.to_json(tmp_path / "prompts.jsonl")
        trainer = make(model_dir, tmp_path / "new", **RUN)
        trainer.train_dataset = Dataset.from_json(str(tmp_path / "prompts.jsonl"), cache_dir=str(tmp_path / "cache"))
        trainer.train(resume_from_checkpoint=str(checkpoint))

        assert history(trainer) == history(first)


class TestRunFile:
    def test_records_each_resume_and_what_changed(self, model_dir, tmp_path):
        def run(stop=99, resumed=None, **changes):
            settings = config(tmp_path, **{**RUN, "save_steps": 3, "max_steps": 9, **changes})
            trainer = RecordingTrainer(model_dir, settings, games=games(["Sum-v0"]), callbacks=[StopAt(stop)])
            trainer.add_callback(TranscriptCallback(trainer, game="TicTacToe-v0", games=2))
            trainer.train(resume_from_checkpoint=resumed)
            return json.loads((tmp_path / "run.json").read_text())["resumed"]

        first = run(stop=4)
        second = run(stop=7, resumed=True, learning_rate=5e-4)
        third = run(resumed=True, learning_rate=5e-4, opening_moves=1)

        one = {"checkpoint": f"{tmp_path}/checkpoint-3", "step": 3, "changed": {"learning_rate": [1e-3, 5e-4]}}
        other = {"checkpoint": f"{tmp_path}/checkpoint-6", "step": 6, "changed": {"opening_moves": [0, 1]}}
        assert first == []
        assert second == [one]
        assert third == [one, other]
