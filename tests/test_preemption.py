"""
A run that is stopped by signals at random moments, and resumed each time, is the run that was never stopped.

`TRL_SPIRAL_STOPS` sets how often each run is stopped by each signal; the default keeps the tests short.
"""

import json
import logging
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import training_runs
from test_two_ranks import command

from trl_spiral.state import newest_complete_checkpoint


SCRIPT = Path(__file__).with_name("training_runs.py")
STOPS = int(os.environ.get("TRL_SPIRAL_STOPS", "1"))
SIGNALS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]
ENV = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1]), "GLOO_SOCKET_IFNAME": "lo"}

# A cycle is four steps. Stops fall inside cycles, logging windows and intervals between evaluations.
RUN = dict(
    per_device_train_batch_size=16,
    max_steps=12 + 5 * 3 * STOPS,
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


class Process:
    """A run on one rank, in a fork of this process."""

    ranks = 1

    def __init__(self, run, folder):
        self.log = folder / "log"
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                with self.log.open("w") as log:
                    os.dup2(log.fileno(), 2)
                logging.getLogger("trl_spiral").addHandler(logging.FileHandler(self.log))
                training_runs.play(run, folder)
                code = 0
            except SystemExit as stop:
                code = stop.code
            except BaseException as error:  # noqa: BLE001
                os.write(2, repr(error).encode())
            finally:
                os._exit(code)

    def send(self, number, rng):
        os.kill(self.pid, number)

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), self.log.read_text()


class Launch:
    """A run on two ranks of one launch. A signal goes to the launcher or to one of its ranks."""

    ranks = 2

    def __init__(self, run, folder):
        (folder / "runs.json").write_text(json.dumps([run]))
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command(SCRIPT, folder / "runs.json"), env=ENV, stderr=log)

    def send(self, number, rng):
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(rng.choice([self.process.pid, *children])), number)

    def wait(self):
        code = self.process.wait(timeout=120)
        wait_until(lambda: not training(SCRIPT))
        return code, self.log.read_text()


def training(word):
    """Return the processes whose command line contains `word`, by their id."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(word) in path.read_text():
                found.append(int(path.parent.name))
        except OSError:
            continue  # it has just ended
    return found


def wait_until(condition, seconds=120):
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


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("start", [Process, Launch], ids=["one rank", "two ranks"])
class TestStoppedOverAndOver:
    def test_equals_the_run_that_was_never_stopped(self, start, model_dir, tmp_path):
        (tmp_path / "whole").mkdir()
        (tmp_path / "stopped").mkdir()
        assert start(run_of(model_dir, tmp_path / "whole" / "out"), tmp_path / "whole").wait()[0] == 0
        rng = random.Random(start.ranks)
        out, steps = tmp_path / "stopped" / "out", tmp_path / "stopped" / "steps_0"
        saved, lost, more = 0, [], []
        for number in SIGNALS * STOPS:
            steps.unlink(missing_ok=True)
            run = run_of(model_dir, out, resume="auto", steps="steps")
            process = start(run, tmp_path / "stopped")
            wait_until(lambda: steps_in(steps, "begin"))
            time.sleep(rng.uniform(0.0, 0.7))
            sent = time.time()
            process.send(number, rng)
            code, log = process.wait()
            done = max([step for step, when in steps_in(steps, "end") if when < sent], default=saved)
            assert steps_in(steps, "begin")[0][0] == saved, log  # resumed from the newest
            saved = int(newest_complete_checkpoint(out).rsplit("-", 1)[1])
            lost.append(max(0, done - saved))
            more.append(saved - done)
            if start is Process:
                assert code == (130 if number == signal.SIGINT else 75), log
            assert "Resume it with `--resume_from_checkpoint " in log
            assert log.count(f"the run stopped after step {saved}. Resume it") == 1
            assert saved < RUN["max_steps"], "the run came to its end"
        code, log = start(run_of(model_dir, out, resume=True), tmp_path / "stopped").wait()

        assert code == 0, log
        assert max(lost) == 0
        assert start is Launch or max(more) <= 1
        whole, stopped = result(tmp_path / "whole"), result(tmp_path / "stopped")
        assert stopped["history"] == whole["history"]
        assert stopped["weights"] == whole["weights"]
        assert {**stopped["pool"], "run": None} == {**whole["pool"], "run": None}
        print(f"{start.ranks} rank(s): {len(lost)} stops, steps lost {lost}, steps finished after {more}")  # noqa: T201
