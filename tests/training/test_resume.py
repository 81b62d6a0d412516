"""A run that is killed and resumed gives the same numbers as a run that was never killed."""

import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers.trainer
from transformers import TrainerState

from tests.algorithms.test_temperature import make
from tests.helpers.training_runs import KillAt, KillAtTheEnd, RecordingTrainer, StopAt, config, games, history
from trl_spiral.callbacks import MatchCallback, TranscriptCallback
from trl_spiral.training import base_trainer as base
from trl_spiral.training.checkpoint import MARKER, newest_complete_checkpoint, read_marker, write_marker


SCRIPT = Path(__file__).parents[1] / "helpers/training_runs.py"
RECIPES = Path(__file__).parents[2] / "recipes"

# A cycle is four steps, logged every 2 and saved every 3: checkpoints lie inside cycles and inside logging windows.
RUN = dict(
    per_device_train_batch_size=16,
    max_steps=14,
    logging_steps=2,
    save_strategy="steps",
    save_steps=3,
    eval_strategy="steps",
    eval_steps=5,
    max_draw_retries=2,
    beta=0.05,
    sync_ref_model=True,
    ref_model_sync_steps=2,
    # Dropout draws from torch's generator at every step, so a state that is lost shows in every later number.
    model_init_kwargs={"attention_dropout": 0.1},
)
GAMES = ("TicTacToe-v0", "Sum-v0")


def script(folder, **run):
    """Run in a new process. Return the process, and the results if the run finished."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.json").write_text(json.dumps([{"name": "result", **run}]))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder / "runs.json")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "OMP_NUM_THREADS": "1"},
    )
    result = folder / "result_0.json"
    return done, json.loads(result.read_text()) if result.exists() else None


def plain(value):
    """Round-trip through JSON, where tuples become lists."""
    return json.loads(json.dumps(value))


@pytest.fixture(scope="module")
def uninterrupted(model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    trainer = RecordingTrainer(model_dir, config(folder, **RUN), games=games(GAMES))
    trainer.train()
    return trainer


def forked(work) -> int:
    """Run `work` in a child process, and return the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            os.write(2, repr(error).encode())
        finally:
            os._exit(1)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def until_three(model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("until_three")

    def work():
        settings = config(folder, **RUN)
        RecordingTrainer(model_dir, settings, games=games(GAMES), callbacks=[KillAt(5)]).train()

    assert forked(work) == signal.SIGKILL
    assert (folder / "checkpoint-3" / MARKER).exists()
    return folder


class TestKilledAndResumed:
    def test_equals_the_run_that_was_never_killed(self, model_dir, uninterrupted, until_three, tmp_path):
        out = tmp_path / "out"
        shutil.copytree(until_three, out)

        def work():
            trainer = RecordingTrainer(model_dir, config(out, **RUN), games=games(GAMES), callbacks=[KillAt(8)])
            trainer.train(resume_from_checkpoint=True)

        died_of = forked(work)
        # A new interpreter, where nothing is left in memory and strings hash differently.
        last, result = script(
            tmp_path / "last", model=model_dir, games=GAMES, config={"output_dir": str(out), **RUN}, resume="true"
        )

        assert died_of == signal.SIGKILL
        assert last.returncode == 0, last.stderr
        assert result["history"] == plain(history(uninterrupted))
        # Resumed at step 6, in the middle of the second cycle: the third batch, and no other, was played anew.
        assert result["transcripts"] == plain(uninterrupted.transcripts[2:])
        assert result["estimator"] == plain(uninterrupted.rollout.estimator.state_dict())

    def test_has_state_of_every_kind(self, uninterrupted):
        def logged(name):
            return [entry[name] for entry in history(uninterrupted) if name in entry]

        saved = torch.load(f"{uninterrupted.args.output_dir}/checkpoint-6/selfplay_state_0.pt")

        assert saved["cycle"]["step"] % 4 == 2
        assert saved["self_play"]["kept"]
        assert saved["self_play"]["estimator"]["baselines"]
        assert max(logged("selfplay/carried_rows")) > 0
        assert max(logged("selfplay/discarded_tokens")) > 0
        assert min(logged("kl")) > 0
        assert max(map(abs, logged("loss"))) > 1e-4

    def test_from_the_start_of_a_cycle_reports_the_loss_of_the_whole_run(self, model_dir, uninterrupted, tmp_path):
        checkpoint = f"{uninterrupted.args.output_dir}/checkpoint-12"
        trainer = RecordingTrainer(model_dir, config(tmp_path, **RUN), games=games(GAMES))
        output = trainer.train(resume_from_checkpoint=checkpoint)

        assert history(trainer) == history(uninterrupted)
        assert output.training_loss == output.metrics["train_loss"] == history(uninterrupted)[-1]["train_loss"]


class TestKilledWhileWriting:
    """The process dies while it writes checkpoint-6; checkpoint-3 is complete."""

    @staticmethod
    def patch(point):
        """Kill the process at a point of `_save_checkpoint`. Called only in the child."""
        if point == "after the weights":
            RecordingTrainer._save_optimizer_and_scheduler = die
        elif point == "in the middle of our state":
            half_state_of = base.save_atomically

            def dying(value, path):
                half_state_of(value, path)
                content = path.read_bytes()
                path.unlink()
                path.with_name(path.name + ".partial").write_bytes(content[: len(content) // 2])
                die()

            base.save_atomically = dying
        elif point == "before the marker":
            base.write_marker = die
        elif point == "inside trainer_state.json":
            save = TrainerState.save_to_json

            def save_half(self, path):
                save(self, path)
                os.truncate(path, os.path.getsize(path) // 2)
                die()

            TrainerState.save_to_json = save_half
        elif point == "in the rotation":
            transformers.trainer.rotate_checkpoints = die

    @pytest.mark.parametrize(
        ("point", "reason"),
        [
            ("after the weights", f"{MARKER} is missing"),
            ("in the middle of our state", f"{MARKER} is missing"),
            ("before the marker", f"{MARKER} is missing"),
            ("inside trainer_state.json", f"{MARKER} is missing"),
        ],
    )
    def test_skips_the_incomplete_checkpoint(
        self, point, reason, model_dir, until_three, uninterrupted, tmp_path, caplog
    ):
        folder = tmp_path / "out"
        shutil.copytree(until_three, folder)

        def work():
            self.patch(point)
            RecordingTrainer(model_dir, config(folder, **RUN), games=games(GAMES)).train(resume_from_checkpoint=True)

        died_of = forked(work)
        trainer = RecordingTrainer(model_dir, config(folder, **RUN), games=games(GAMES), callbacks=[StopAt(8)])
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            trainer.train(resume_from_checkpoint=True)

        assert died_of == signal.SIGKILL
        assert (folder / "checkpoint-6" / "model.safetensors").exists()
        assert f"Skipping checkpoint-6, which was not written to the end: {reason}." in caplog.text
        assert "checkpoint-3" not in caplog.text
        resumed = history(trainer)[:-1]  # the last entry sums up the run, and this one was stopped early
        assert resumed[-1]["step"] == 8
        assert resumed == history(uninterrupted)[: len(resumed)]
        # The folder that was cut off has been written anew, whole.
        assert newest_complete_checkpoint(folder) == str(folder / "checkpoint-6")

    def test_a_checkpoint_is_complete_before_older_ones_are_rotated(self, model_dir, tmp_path):
        # TRL writes the state of its entropy controller after the rotation, so it must be in ours.
        settings = dict(
            max_steps=8,
            save_strategy="steps",
            save_steps=3,
            use_adaptive_entropy=True,
            entropy_target=10.0,  # never reached: the coefficient moves at every step
            entropy_coef_delta=0.05,
        )

        def run(folder, resume=None):
            trainer = RecordingTrainer(model_dir, config(folder, **settings), games=games(GAMES))
            trainer.train(resume_from_checkpoint=resume)
            return history(trainer)

        def work():
            self.patch("in the rotation")
            run(tmp_path / "killed")

        whole = run(tmp_path / "whole")
        assert forked(work) == signal.SIGKILL
        assert newest_complete_checkpoint(tmp_path / "killed") == str(tmp_path / "killed" / "checkpoint-3")
        assert len({entry["entropy_coef"] for entry in whole if "loss" in entry}) == 8
        assert run(tmp_path / "killed", resume=True) == whole

    @pytest.mark.parametrize("point", ["after the weights", "before the marker"])
    def test_a_checkpoint_that_is_being_overwritten_is_incomplete(self, point, model_dir, uninterrupted, tmp_path):
        # Whoever goes back to checkpoint-3 by name writes over a checkpoint-6 that was complete.
        folder = tmp_path / "out"
        shutil.copytree(uninterrupted.args.output_dir, folder)
        for newer in ("checkpoint-14", "checkpoint-12", "checkpoint-9"):
            shutil.rmtree(folder / newer)

        def work():
            self.patch(point)
            trainer = RecordingTrainer(model_dir, config(folder, **RUN), games=games(GAMES))
            trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3"))

        before = newest_complete_checkpoint(folder)
        died_of = forked(work)

        assert before == str(folder / "checkpoint-6")
        assert died_of == signal.SIGKILL
        assert newest_complete_checkpoint(folder) == str(folder / "checkpoint-3")


class TestAlgorithms:
    """The same for `AlgorithmTrainer`."""

    RUN = dict(max_steps=8, save_strategy="steps", save_steps=3)

    def test_killed_while_writing_equals_the_run_that_was_never_killed(self, model_dir, tmp_path, caplog):
        def work():
            write = base.write_marker

            def write_the_first(checkpoint, *args):
                if checkpoint.name == "checkpoint-6":
                    die()
                write(checkpoint, *args)

            base.write_marker = write_the_first
            make(model_dir, tmp_path / "killed", **self.RUN).train()

        died_of = forked(work)
        whole = make(model_dir, tmp_path / "whole", **self.RUN)
        whole.train()
        resumed = make(model_dir, tmp_path / "killed", **self.RUN)
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            resumed.train(resume_from_checkpoint="True")  # as a command line has it

        assert died_of == signal.SIGKILL
        assert f"Skipping checkpoint-6, which was not written to the end: {MARKER} is missing." in caplog.text
        assert history(resumed) == history(whole)
        assert newest_complete_checkpoint(tmp_path / "killed") == str(tmp_path / "killed" / "checkpoint-8")

    def test_one_that_is_being_overwritten_is_incomplete(self, model_dir, tmp_path):
        def work():
            base.write_marker = die
            make(model_dir, tmp_path, **self.RUN).train()

        make(model_dir, tmp_path, **{**self.RUN, "max_steps": 3}).train()
        before = newest_complete_checkpoint(tmp_path)
        died_of = forked(work)

        assert before == str(tmp_path / "checkpoint-3")
        assert died_of == signal.SIGKILL
        assert newest_complete_checkpoint(tmp_path) is None

    def test_a_checkpoint_of_self_play_is_refused(self, model_dir, uninterrupted, tmp_path):
        changes = {"per_device_train_batch_size": 16, "num_generations": uninterrupted.args.num_generations}
        trainer = make(model_dir, tmp_path, **self.RUN, **changes)

        with pytest.raises(ValueError, match="has no algorithm_state_0.pt, so another trainer wrote it"):
            trainer.train(resume_from_checkpoint=f"{uninterrupted.args.output_dir}/checkpoint-3")

    def test_a_checkpoint_without_a_reference_is_refused_with_sync_ref_model(self, model_dir, tmp_path):
        changes = {**self.RUN, "algorithm": "dr_grpo", "beta": 0.05}
        make(model_dir, tmp_path, **{**changes, "max_steps": 3}).train()
        trainer = make(model_dir, tmp_path / "resumed", **changes, sync_ref_model=True)

        with pytest.raises(ValueError, match="Cannot resume from .* with `sync_ref_model`: .* stored none"):
            trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


class TestKilledAtTheEnd:
    """After the last checkpoint and before the end: nothing is left to train, and much to log and to write."""

    SETTINGS = dict(
        {**RUN, "max_steps": 6, "logging_steps": 4},
        opponents="self:0.5,pool:0.5",
        pool_every=3,
        pool_kwargs={"rating_games": 2},
    )

    def run(self, model_dir, out, kill, resume=None):
        callbacks = [KillAtTheEnd()] if kill else None
        trainer = RecordingTrainer(model_dir, config(out, **self.SETTINGS), games=games(GAMES), callbacks=callbacks)
        trainer.add_callback(TranscriptCallback(trainer, games=4, every=4))
        trainer.add_callback(MatchCallback(trainer, pairs=2, every=4))
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    def test_equals_the_run_that_was_never_killed(self, model_dir, tmp_path, caplog):
        whole = self.run(model_dir, tmp_path / "whole", kill=False)
        died_of = forked(lambda: self.run(model_dir, tmp_path / "killed", kill=True))
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            resumed = self.run(model_dir, tmp_path / "killed", kill=False, resume=True)

        assert died_of == signal.SIGKILL
        assert newest_complete_checkpoint(tmp_path / "killed") == str(tmp_path / "killed" / "checkpoint-6")
        assert "checkpoint-6 has taken 6 steps and `max_steps` is 6: nothing is left to train." in caplog.text
        assert history(resumed) == history(whole)
        assert resumed.rollout.estimator.state_dict() == whole.rollout.estimator.state_dict()
        assert resumed.rollout.collector.state_dict() == whole.rollout.collector.state_dict()
        assert {**resumed.pool.state_dict(), "run": None} == {**whole.pool.state_dict(), "run": None}
        written = [
            {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
            for out in (tmp_path / "killed", tmp_path / "whole")
        ]
        assert written[0] == written[1]
        logs = [(tmp_path / out / "games.jsonl").read_text() for out in ("killed", "whole")]
        assert logs[0] == logs[1]

    def test_in_the_middle_of_an_epoch(self, model_dir, tmp_path):
        # Eight prompts by four replies are an epoch of eight steps.
        settings = dict(max_steps=11, logging_steps=4, save_strategy="steps", save_steps=3)
        whole = make(model_dir, tmp_path / "whole", **settings)
        whole.train()

        def work():
            trainer = make(model_dir, tmp_path / "killed", **settings)
            trainer.add_callback(KillAtTheEnd())
            trainer.train()

        assert forked(work) == signal.SIGKILL
        resumed = make(model_dir, tmp_path / "killed", **settings)
        resumed.train(resume_from_checkpoint=True)

        assert whole.state.epoch % 1 > 0
        # The window of steps 9 to 11 ends with the run.
        assert {"train_loss", "reward", "temperature"} <= set(history(resumed)[-1])
        assert history(resumed) == history(whole)
        assert resumed._own_state() == whole._own_state()


class TestAdapters:
    def test_resume_as_whole_models_do(self, model_dir, tmp_path):
        peft = pytest.importorskip("peft")
        settings = dict(
            max_steps=8, save_strategy="steps", save_steps=3, learning_rate=0.02, advantage_estimator="none"
        )

        def run(folder, resume=None):
            adapter = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
            trainer = RecordingTrainer(model_dir, config(folder, **settings), games=games(GAMES), peft_config=adapter)
            trainer.train(resume_from_checkpoint=resume)
            return history(trainer)

        whole = run(tmp_path / "whole")
        assert run(tmp_path / "again", resume=str(tmp_path / "whole" / "checkpoint-6")) == whole


class TestCheckpoints:
    def test_the_oldest_are_rotated(self, model_dir, tmp_path):
        changes = dict(max_steps=8, save_strategy="steps", save_steps=2, save_total_limit=2)
        RecordingTrainer(model_dir, config(tmp_path, **changes), games=games(["Sum-v0"])).train()

        kept = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
        assert kept == ["checkpoint-6", "checkpoint-8"]
        assert newest_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-8")

    def test_one_of_another_number_of_processes_is_refused(self, model_dir, uninterrupted, tmp_path):
        folder = tmp_path / "checkpoint-3"
        shutil.copytree(f"{uninterrupted.args.output_dir}/checkpoint-3", folder)
        write_marker(folder, {**read_marker(folder)["settings"], "world_size": 2})
        trainer = RecordingTrainer(model_dir, config(tmp_path, **RUN), games=games(GAMES))

        with pytest.raises(ValueError, match="with `world_size=2` and this run has 1.*`--num_processes 2`"):
            trainer.train(resume_from_checkpoint=str(folder))

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("per_device_train_batch_size", 32),
            ("steps_per_generation", 4),
            ("num_iterations", 1),
            ("num_generations", 4),
        ],
    )
    def test_one_with_batches_of_another_shape_is_refused(self, option, value, model_dir, uninterrupted, tmp_path):
        trainer = RecordingTrainer(model_dir, config(tmp_path, **{**RUN, option: value}), games=games(GAMES))
        before = getattr(uninterrupted.args, option)

        with pytest.raises(
            ValueError, match=f"with `{option}={before}` and this run has {value}.*`{option}` to {before}"
        ):
            trainer.train(resume_from_checkpoint=f"{uninterrupted.args.output_dir}/checkpoint-6")

    def test_one_of_an_earlier_version_is_refused(self, model_dir, uninterrupted, tmp_path):
        folder = tmp_path / "checkpoint-12"
        shutil.copytree(f"{uninterrupted.args.output_dir}/checkpoint-12", folder)
        (folder / MARKER).write_text(json.dumps({"world_size": 1, "batch_shape": {}, "files": {}}))
        trainer = RecordingTrainer(model_dir, config(tmp_path, **RUN), games=games(GAMES))

        with pytest.raises(
            ValueError, match=f"not written by this version of trl_spiral: {MARKER} is in another format"
        ):
            trainer.train(resume_from_checkpoint=str(folder))

    def test_one_of_a_trainer_of_trl_is_refused(self, model_dir, uninterrupted, tmp_path):
        folder = tmp_path / "checkpoint-3"
        shutil.copytree(f"{uninterrupted.args.output_dir}/checkpoint-3", folder)
        (folder / MARKER).unlink()
        trainer = RecordingTrainer(model_dir, config(tmp_path, **RUN), games=games(GAMES))

        with pytest.raises(ValueError, match=f"{MARKER} is missing, as in checkpoints of TRL's own trainers"):
            trainer.train(resume_from_checkpoint=str(folder))

    def test_a_folder_without_any_is_refused(self, model_dir, tmp_path):
        trainer = RecordingTrainer(model_dir, config(tmp_path), games=games(GAMES))

        with pytest.raises(ValueError, match="There is no complete checkpoint in"):
            trainer.train(resume_from_checkpoint=True)


class TestMissingCheckpoints:
    """Refused in one sentence when arguments are read, before a model is loaded or a tiny one is made."""

    @pytest.mark.parametrize("recipe", sorted(path.stem for path in RECIPES.glob("*.py")))
    @pytest.mark.parametrize("wanted", ["no/such/checkpoint-50", "true"])
    def test_are_refused_by_every_recipe(self, wanted, recipe, tmp_path):
        spec = importlib.util.spec_from_file_location(recipe, RECIPES / f"{recipe}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        out = tmp_path / "out"
        sentence = {
            "no/such/checkpoint-50": f"`resume_from_checkpoint` ('{wanted}') is not a folder. Pass the folder of a "
            f"checkpoint, or `true` for the newest complete one in '{out}'.",
            "true": f"There is no complete checkpoint in {out}. Start without `resume_from_checkpoint`.",
        }[wanted]

        with pytest.raises(ValueError) as error:
            module.parse(["--output_dir", str(out), "--resume_from_checkpoint", wanted, "--use_cpu"])
        assert str(error.value) == sentence

    @pytest.mark.parametrize("trainer", ["spiral", "algorithm"])
    def test_are_refused_by_name_and_left_out_by_auto(self, trainer, model_dir, tmp_path):
        def start():
            if trainer == "algorithm":
                return make(model_dir, tmp_path / "out", max_steps=1)
            return RecordingTrainer(model_dir, config(tmp_path / "out", max_steps=1), games=games(["Sum-v0"]))

        with pytest.raises(ValueError, match=r"`resume_from_checkpoint` \('.*/checkpoint-1'\) is not a folder"):
            start().train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
        (tmp_path / "file").touch()
        with pytest.raises(ValueError, match="is not a folder"):
            start().train(resume_from_checkpoint=tmp_path / "file")
        fresh = start()
        fresh.train(resume_from_checkpoint="auto")

        assert fresh.state.global_step == 1


class TestSeeds:
    def test_the_same_seed_gives_the_same_run_and_another_seed_another(self, model_dir, tmp_path):
        def run(name, seed):
            trainer = RecordingTrainer(model_dir, config(tmp_path / name, seed=seed), games=games(GAMES))
            trainer.train()
            return trainer

        first, again, other = run("first", 1), run("again", 1), run("other", 2)

        assert first.transcripts == again.transcripts
        assert history(first) == history(again)
        assert first.transcripts != other.transcripts
        assert history(first) != history(other)
