"""
A run that is stopped by signals at random moments and resumed each time equals the run that was never stopped.

`TRL_SPIRAL_STOPS` sets how often each run of the slow tests is stopped by each signal.
"""

import json
import logging
import os
import random
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from unittest.mock import ANY

import pytest
from transformers import TrainerCallback

from tests.algorithms.test_temperature import make
from tests.helpers import forks, training_runs
from tests.helpers.forked_ranks import fork, wait
from tests.helpers.training_runs import RecordingTrainer, SignalAt, config, games, history, plain_trainer
from tests.training.test_two_ranks import command
from trl_spiral import OpponentPool, PreemptionCallback
from trl_spiral.callbacks import OpponentPoolCallback
from trl_spiral.training.checkpoint import newest_complete_checkpoint


SCRIPT = Path(__file__).parents[1] / "helpers/training_runs.py"
STOPS = int(os.environ.get("TRL_SPIRAL_STOPS", "1"))
SIGNALS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]
ENV = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "GLOO_SOCKET_IFNAME": "lo"}

# A cycle is four steps. Stops fall inside cycles, logging windows and intervals between evaluations.
RUN = dict(
    per_device_train_batch_size=16,
    max_steps=12 + 10 * 3 * STOPS,
    logging_steps=2,
    save_strategy="steps",
    save_steps=5,
    save_total_limit=3,
    eval_strategy="steps",
    eval_steps=7,
    opponents="self:0.4,pool:0.4,random:0.2",
    matchmaking="pfsp-var",
    pool_every=2,
    pool_capacity=3,
    max_draw_retries=1,
)


def run_of(model_dir, out, **changes):
    return dict(
        name="result",
        model=model_dir,
        games=["TicTacToe-v0", "Sum-v0"],
        config={"output_dir": str(out), **RUN, **changes.pop("config", {})},
        lora={},
        **changes,
    )


class Forks:
    """A run on ranks that are forks of this process. A signal goes to one of them."""

    def __init__(self, run, folder, ranks):
        (folder / "runs.json").write_text(json.dumps([run]))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.logs = [folder / f"err_{rank}" for rank in range(ranks)]
        self.pids = [fork(rank, ranks, port, folder, play, (folder / "runs.json",)) for rank in range(ranks)]

    def wait(self):
        """Return the exit code, which all ranks share, and what they logged."""
        (code,) = set(wait(self.pids, timeout=1800))
        return code, "".join(log.read_text() for log in self.logs)


def play(path):
    logging.getLogger("trl_spiral").addHandler(logging.StreamHandler())
    training_runs.main(path)


@pytest.fixture(autouse=True)
def interruptible():
    """Background jobs of a shell, and their children, ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def running_in(folder):
    """Return the processes whose working folder is `folder`, by their id."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if os.readlink(path) == str(folder):
                found.append(int(path.parent.name))
        except OSError:
            continue  # it has just ended
    return found


def wait_until(condition, seconds=600):
    until = time.time() + seconds
    while not condition():
        assert time.time() < until, "nothing happened"
        time.sleep(0.01)


def steps_in(path, event):
    """Return the steps and times of an event in a step log."""
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(step), float(when)) for name, step, when in lines if name == event]


def result(folder):
    return json.loads((folder / "result_0.json").read_text())


class TestTwoRanks:
    def test_a_signal_to_one_rank_stops_both_after_the_same_step(self, model_dir, tmp_path):
        results, short = [], dict(max_steps=6, eval_steps=4)
        for name, changes in (("whole", {}), ("stopped", dict(signal_at=(1, 3, signal.SIGUSR1)))):
            (tmp_path / name).mkdir()
            run = run_of(model_dir, tmp_path / name / "out", config=short, **changes)
            results.append(Forks({**run, "games": ["Sum-v0"]}, tmp_path / name, 2).wait())
        saved = [path.name for path in (tmp_path / "stopped" / "out").glob("checkpoint-*")]
        run = run_of(model_dir, tmp_path / "stopped" / "out", config=short, resume="auto")
        resumed = Forks({**run, "games": ["Sum-v0"]}, tmp_path / "stopped", 2).wait()

        assert [code for code, _ in (*results, resumed)] == [0, 75, 0]
        assert saved == ["checkpoint-4"]
        assert results[1][1].count("SIGUSR1: the run stopped after step 4. Resume it") == 1
        whole, stopped = result(tmp_path / "whole"), result(tmp_path / "stopped")
        assert stopped["history"] == whole["history"]
        assert stopped["weights"] == whole["weights"]
        assert {**stopped["pool"], "run": None} == {**whole["pool"], "run": None}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("ranks", [1, 2], ids=["one rank", "two ranks"])
class TestStoppedOverAndOver:
    def test_equals_the_run_that_was_never_stopped(self, ranks, model_dir, tmp_path):
        (tmp_path / "whole").mkdir()
        (tmp_path / "stopped").mkdir()
        assert Forks(run_of(model_dir, tmp_path / "whole" / "out"), tmp_path / "whole", ranks).wait()[0] == 0
        rng = random.Random(ranks)
        out, steps = tmp_path / "stopped" / "out", tmp_path / "stopped" / "steps_0"
        saved, lost, more = 0, [], []
        for number in SIGNALS * STOPS:
            steps.unlink(missing_ok=True)
            run = Forks(run_of(model_dir, out, resume="auto", steps="steps"), tmp_path / "stopped", ranks)
            wait_until(lambda: steps_in(steps, "begin"))
            time.sleep(rng.uniform(0.0, 0.6))
            sent = time.time()
            os.kill(rng.choice(run.pids), number)
            code, log = run.wait()
            done = max([step for step, when in steps_in(steps, "end") if when < sent], default=saved)
            assert steps_in(steps, "begin")[0][0] == saved, log  # resumed from the newest
            saved = int(newest_complete_checkpoint(out).rsplit("-", 1)[1])
            lost.append(max(0, done - saved))
            more.append(saved - done)
            assert code == (130 if number == signal.SIGINT else 75), log
            assert log.count(f"{number.name}: the run stopped after step {saved}. Resume it") == 1
        code, log = Forks(run_of(model_dir, out, resume=True), tmp_path / "stopped", ranks).wait()

        assert code == 0, log
        assert max(lost) == 0 and max(more) <= 1
        whole, stopped = result(tmp_path / "whole"), result(tmp_path / "stopped")
        assert stopped["history"] == whole["history"]
        assert stopped["weights"] == whole["weights"]
        assert {**stopped["pool"], "run": None} == {**whole["pool"], "run": None}
        print(f"{ranks} rank(s), {len(lost)} stops: steps lost {lost}, taken since {more}")  # noqa: T201


class AfterTraining(TrainerCallback):
    """Fails if training ends as usual."""

    def on_train_end(self, args, state, control, **kwargs):
        raise AssertionError("training did not stop")


SHORT = dict(max_steps=6, logging_steps=2, save_strategy="steps", save_steps=3, eval_strategy="steps", eval_steps=4)


def trainer_in(folder, model_dir, *callbacks, **changes):
    return RecordingTrainer(
        model_dir, config(folder, **{**SHORT, **changes}), games=games(["Sum-v0"]), callbacks=list(callbacks)
    )


def stopped(trainer, **kwargs):
    """Train until a signal stops the run. Return the exit code."""
    with pytest.raises(SystemExit) as stop:
        trainer.train(**kwargs)
    return stop.value.code


@pytest.fixture(scope="module")
def whole(model_dir, tmp_path_factory):
    trainer = trainer_in(tmp_path_factory.mktemp("whole"), model_dir)
    trainer.train()
    return trainer


class TestSignals:
    # Steps are counted when they end. The run saves at 3 and 6, logs at 2, 4 and 6, and evaluates at 4.
    @pytest.mark.parametrize(
        ("event", "step", "number", "saved"),
        [
            ("on_pre_optimizer_step", 0, signal.SIGTERM, 1),
            ("on_step_begin", 3, signal.SIGINT, 4),
            ("on_step_end", 2, signal.SIGUSR1, 2),
            ("on_step_end", 3, signal.SIGTERM, 3),
            ("on_log", 2, signal.SIGINT, 3),
            ("on_evaluate", 4, signal.SIGUSR1, 5),
        ],
    )
    def test_a_run_stops_after_the_step_and_resumes_with_the_same_numbers(
        self, event, step, number, saved, model_dir, whole, tmp_path, caplog
    ):
        at = SignalAt(event, step, number)
        before = [signal.getsignal(each) for each in SIGNALS]
        code = stopped(trainer_in(tmp_path, model_dir, at))
        after = [signal.getsignal(each) for each in SIGNALS]
        resumed = trainer_in(tmp_path, model_dir)
        resumed.train(resume_from_checkpoint=True)

        assert code == (130 if number == signal.SIGINT else 75)
        assert at.calls == sorted({3, saved} if saved > 3 else {saved})  # saved once, even if a save was due
        assert caplog.messages[0] == (
            f"{number.name}: the run stopped after step {saved}. Resume it with `--resume_from_checkpoint "
            f"{tmp_path}/checkpoint-{saved}`."
        )
        assert after == before
        assert history(resumed) == history(whole)
        assert training_runs.digest(resumed.model) == training_runs.digest(whole.model)

    def test_a_signal_in_the_last_step_stops_before_the_work_after_training(self, model_dir, tmp_path):
        trainer = trainer_in(tmp_path, model_dir, SignalAt("on_step_end", 6, signal.SIGTERM))
        trainer.add_callback(AfterTraining())

        assert stopped(trainer) == 75
        assert newest_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-6")

    def test_a_signal_during_a_checkpoint_stops_after_that_checkpoint(self, model_dir, whole, tmp_path):
        trainer = trainer_in(tmp_path, model_dir)
        save = trainer._save_checkpoint

        def interrupted(*args):
            os.kill(os.getpid(), signal.SIGTERM)
            save(*args)

        trainer._save_checkpoint = interrupted

        assert stopped(trainer) == 75
        assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]

    @pytest.mark.parametrize(
        "changes",
        [
            dict(save_strategy="no"),
            dict(save_strategy="best", eval_steps=1, metric_for_best_model="reward", greater_is_better=True),
            dict(enable_jit_checkpoint=True),
        ],
        ids=["no checkpoints", "best checkpoints", "with transformers' own"],
    )
    def test_a_run_is_saved_with_any_save_strategy(self, changes, model_dir, tmp_path):
        before = signal.getsignal(signal.SIGTERM)
        code = stopped(trainer_in(tmp_path, model_dir, SignalAt("on_step_begin", 1, signal.SIGTERM), **changes))

        assert code == 75
        assert newest_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
        assert signal.getsignal(signal.SIGTERM) is before

    def test_a_second_interrupt_ends_the_run_at_once(self, model_dir, tmp_path, capfd):
        trainer = trainer_in(tmp_path, model_dir, SignalAt("on_step_begin", 4, signal.SIGINT, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            trainer.train()

        assert trainer.state.global_step == 4
        assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]
        assert "Press Ctrl-C again to end at once" in capfd.readouterr().err
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    @pytest.mark.parametrize("event", ["on_train_begin", "on_train_end"])
    def test_signals_act_as_usual_before_the_first_step_and_after_the_last(self, event, model_dir, tmp_path):
        trainer = trainer_in(tmp_path, model_dir)
        trainer.add_callback(SignalAt(event, 6 if event == "on_train_end" else 0, signal.SIGINT))

        with pytest.raises(KeyboardInterrupt):
            trainer.train()

    def test_a_signal_after_the_last_step_acts_as_usual_after_training(self, model_dir, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            trainer_in(tmp_path, model_dir, SignalAt("on_log", 6, signal.SIGINT), save_strategy="no").train()

    def test_an_ignored_signal_stays_ignored(self, model_dir, tmp_path):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job of a shell
        try:
            trainer_in(tmp_path, model_dir, SignalAt("on_step_begin", 1, signal.SIGINT)).train()
        finally:
            signal.signal(signal.SIGINT, before)

    def test_another_thread_trains_without_handlers(self, model_dir, tmp_path):
        seen = []

        class Look(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                seen.append(signal.getsignal(signal.SIGTERM))

        trainer = trainer_in(tmp_path, model_dir, Look())
        thread = threading.Thread(target=trainer.train)
        thread.start()
        thread.join()

        assert set(seen) == {signal.SIG_DFL}
        assert trainer.state.global_step == 6

    def test_handlers_are_restored_if_training_fails(self, model_dir, tmp_path):
        def fail(self, args, state, control, **kwargs):
            raise OSError("no space")

        before = [signal.getsignal(each) for each in SIGNALS]
        with pytest.raises(OSError, match="no space"):
            trainer_in(tmp_path, model_dir, type("Failing", (TrainerCallback,), {"on_step_end": fail})()).train()

        assert [signal.getsignal(each) for each in SIGNALS] == before


class TestOtherTrainers:
    def test_an_algorithm_trainer_stops_and_resumes(self, model_dir, tmp_path):
        settings = dict(max_steps=6, logging_steps=2, save_strategy="steps", save_steps=3)
        whole = make(model_dir, tmp_path / "whole", **settings)
        whole.train()
        trainer = make(model_dir, tmp_path / "stopped", **settings)
        trainer.add_callback(SignalAt("on_step_begin", 3, signal.SIGUSR1))
        code = stopped(trainer)
        resumed = make(model_dir, tmp_path / "stopped", **settings)
        resumed.train(resume_from_checkpoint="auto")

        assert code == 75
        assert newest_complete_checkpoint(tmp_path / "stopped") == str(tmp_path / "stopped" / "checkpoint-6")
        assert history(resumed) == history(whole)
        assert (tmp_path / "stopped" / "checkpoint-4").exists()

    def test_a_trainer_of_trl_stops_with_the_callback(self, model_dir, tmp_path, caplog):
        trainer, _ = plain_trainer(model_dir, tmp_path, ["Sum-v0"])
        trainer.add_callback(PreemptionCallback(trainer))
        # Later callbacks get `on_save`, and do not begin their work after training.
        trainer.add_callback(OpponentPoolCallback(trainer, OpponentPool(tmp_path / "opponents"), every=1))
        trainer.add_callback(AfterTraining())
        trainer.add_callback(SignalAt("on_step_begin", 1, signal.SIGTERM))

        assert stopped(trainer) == 75
        assert f"--resume_from_checkpoint {tmp_path}/checkpoint-2" in caplog.text
        index = json.loads((tmp_path / "checkpoint-2" / "opponents" / "index.json").read_text())
        assert index["snapshots"][1]["step"] == 2


LONG = dict(max_steps=10_000, save_strategy="no")
PATIENT = {**ENV, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3600"}  # seconds that `torchrun` waits for its processes


class TestLaunchers:
    """Launchers of `accelerate`, killed from outside. One is a new interpreter, and the others are forks."""

    @pytest.fixture
    def start(self, model_dir, tmp_path):
        """Start a run of many steps under a launcher of several processes, and kill remaining processes at the end."""
        started = []

        def start(processes, script=SCRIPT, popen=forks.Process, **changes):
            settings = {"output_dir": str(tmp_path / "out"), **LONG}
            run = dict(name="run", model=model_dir, games=["Sum-v0"], config=settings, steps="steps", **changes)
            (tmp_path / "runs.json").write_text(json.dumps([run]))
            line = command(script, tmp_path / "runs.json")
            if processes == 1:
                line.remove("--multi_gpu")
                line[line.index("--num_processes") + 1] = "1"
            with (tmp_path / "log").open("w") as log:
                process = popen(line, env=PATIENT, cwd=tmp_path, stderr=log, stdout=log, start_new_session=True)
            started.append(process)
            return process

        yield start
        for process in started:
            for left in {process.pid, *running_in(tmp_path)}:
                try:
                    os.kill(left, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.wait()

    @pytest.mark.parametrize(
        ("processes", "number", "received"),
        [
            (1, signal.SIGKILL, "SIGUSR1"),
            (1, signal.SIGTERM, "SIGUSR1"),
            (1, signal.SIGINT, "SIGINT"),
            (2, signal.SIGKILL, "SIGUSR1"),
            (2, signal.SIGTERM, "SIGTERM"),
            (2, signal.SIGINT, "SIGINT"),
        ],
    )
    def test_a_launcher_that_ends_leaves_no_trainer_running(self, processes, number, received, start, tmp_path):
        launcher = start(processes)
        wait_until(lambda: steps_in(tmp_path / "steps_0", "end"))
        if number == signal.SIGINT:
            os.killpg(launcher.pid, number)  # as a terminal does
        else:
            os.kill(launcher.pid, number)
        launcher.wait()
        wait_until(lambda: not running_in(tmp_path))

        assert f"{received}: the run stopped after step" in (tmp_path / "log").read_text()
        assert newest_complete_checkpoint(tmp_path / "out")

    def test_a_killed_launcher_leaves_no_process_before_training(self, start, tmp_path):
        script = tmp_path / "warm_start.py"
        script.write_text(
            "import sys, time\n"
            "from trl_spiral import SpiralConfig\n"
            f"SpiralConfig({str(tmp_path / 'out')!r}, use_cpu=True, bf16=False)\n"
            "print('training the tiny player', flush=True)\n"
            "time.sleep(600)\n"
        )
        launcher = start(1, script, popen=subprocess.Popen)
        wait_until(lambda: "training the tiny player" in (tmp_path / "log").read_text())
        launcher.kill()
        launcher.wait()
        wait_until(lambda: not running_in(tmp_path))

    @pytest.mark.parametrize("processes", [1, 2])
    def test_two_interrupts_at_the_terminal_end_all_processes_at_once(self, processes, start, tmp_path):
        launcher = start(processes, hang_at=3)  # a step that does not end, after which nothing could be saved
        wait_until(lambda: (3, ANY) in steps_in(tmp_path / "steps_0", "begin"))
        os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does
        wait_until(lambda: "Press Ctrl-C again" in (tmp_path / "log").read_text())
        os.killpg(launcher.pid, signal.SIGINT)
        launcher.wait()
        wait_until(lambda: not running_in(tmp_path))

        assert not list((tmp_path / "out").glob("checkpoint-*"))
