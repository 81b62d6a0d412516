"""
A LoRA run with a pool that is killed repeatedly, at random moments, equals the run that was never killed.

`TRL_SPIRAL_KILLS` sets how often each run of the slow tests is killed.
"""

import gc
import json
import logging
import os
import signal
import socket
import time
from collections import Counter
from functools import partial

import pytest

from tests.helpers import training_runs
from tests.helpers.forked_ranks import run_on_ranks
from tests.helpers.training_runs import RecordingTrainer, config, games
from trl_spiral import OpponentPool
from trl_spiral.lock import LOCK_FILE
from trl_spiral.training.checkpoint import why_incomplete


KILLS = int(os.environ.get("TRL_SPIRAL_KILLS", "6"))

RUN = dict(
    per_device_train_batch_size=16,
    logging_steps=2,
    save_strategy="steps",
    save_steps=3,
    save_total_limit=3,
    opponents="self:0.4,pool:0.4,random:0.2",
    matchmaking="pfsp-var",
    pool_every=2,
    pool_capacity=3,
    pool_kwargs={"eviction": "ladder"},
    max_draw_retries=1,
)


def run_of(model_dir, out, kills, **changes):
    return dict(
        name="result",
        model=model_dir,
        games=["TicTacToe-v0", "Sum-v0"],
        config={"output_dir": str(out), "max_steps": 6 + 3 * kills, **RUN},
        lora={},
        **changes,
    )


def in_a_fork(run, folder, meanwhile=None):
    """
    Plays a run in a child. Returns whether it was killed, and what it logged.

    `meanwhile` is called with the child's process id until the child ends.
    """
    log = folder / "log"
    log.write_text("")
    pid = os.fork()
    if pid == 0:
        try:
            logging.getLogger("trl_spiral").addHandler(logging.FileHandler(log))
            training_runs.play(run, folder)
        except BaseException as error:  # noqa: BLE001
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    while meanwhile is not None and is_running(pid):
        meanwhile(pid)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    assert not os.WIFSIGNALED(status) or os.WTERMSIG(status) == signal.SIGKILL
    return os.WIFSIGNALED(status), log.read_text()


def is_running(pid):
    """Return whether a child has not ended yet. Does not collect its status."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def on_two_ranks(run, folder):
    """The same, on two ranks of one launch."""
    (folder / "runs.json").write_text(json.dumps([run]))
    done = run_on_ranks(training_runs.main, folder / "runs.json")
    killed = "SIGKILL" in done.stderr
    assert killed or done.returncode == 0, done.stderr[-3000:]
    return killed, done.stderr


def files(out):
    """Return all files of a run."""
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def results(folder, ranks):
    return [json.loads((folder / f"result_{rank}.json").read_text()) for rank in range(ranks)]


def pools(folder, ranks):
    """Return the pool of each rank, without the id of the run."""
    return [{**one["pool"], "run": None} for one in results(folder, ranks)]


FULL = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("play", "ranks", "killers"),
    [
        pytest.param(in_a_fork, 1, [2, 4], id="while writing"),
        pytest.param(in_a_fork, 1, range(KILLS), id="one rank", marks=FULL),
        pytest.param(on_two_ranks, 2, range(KILLS), id="two ranks", marks=FULL),
    ],
)
class TestRepeatedKills:
    def test_equals_the_run_that_was_never_killed(self, play, ranks, killers, model_dir, tmp_path):
        run_now = partial(run_of, model_dir, kills=len(killers))
        (tmp_path / "whole").mkdir()
        (tmp_path / "killed").mkdir()
        killed, _ = play(run_now(out=tmp_path / "whole" / "out"), tmp_path / "whole")
        assert not killed
        out = tmp_path / "killed" / "out"
        skipped = 0
        written = Counter()
        notes = [tmp_path / "killed" / f"note_{rank}" for rank in range(ranks)]
        for killer in killers:
            for note in notes:
                note.write_text("")
            unfinished = [path.name for path in out.glob("checkpoint-*") if why_incomplete(path)]
            resume = any(not why_incomplete(path) for path in out.glob("checkpoint-*"))
            run = run_now(out=out, killer=killer, **({"resume": True} if resume else {}))
            killed, log = play(run, tmp_path / "killed")
            assert killed, f"the run with killer {killer} came to its end"
            written.update({note.read_text() for note in notes} - {""})
            # The newest complete checkpoint stands: each newer one, which was cut off, is skipped with a sentence.
            newest = max((step(path.name) for path in out.glob("checkpoint-*") if not why_incomplete(path)), default=0)
            for name in unfinished if resume else ():
                if step(name) > newest:
                    assert f"Skipping {name}, which was not written to the end" in log
            skipped += log.count("which was not written to the end")
            if (out / "opponents").exists():
                assert OpponentPool(out / "opponents").problems() == []
        killed, _ = play(run_now(out=out, resume=True), tmp_path / "killed")

        assert not killed
        assert results(tmp_path / "killed", ranks)[0]["history"] == results(tmp_path / "whole", ranks)[0]["history"]
        assert pools(tmp_path / "killed", ranks) == pools(tmp_path / "whole", ranks)
        assert files(out) == files(tmp_path / "whole" / "out")
        assert written.total() >= len(killers) // 4
        print(f"{ranks} rank(s): {len(killers)} kills, while writing {dict(written)}, {skipped} checkpoints skipped")  # noqa: T201


class Intruder:
    """A second start in the folder of a run, about every second."""

    def __init__(self, model_dir, out):
        self.model_dir = model_dir
        self.out = out
        self.refused = 0

    def __call__(self, holder):
        if not self.is_held_by(holder):
            time.sleep(0.01)  # the run itself is just starting
            return
        try:
            RecordingTrainer(self.model_dir, config(self.out, **RUN), games=games(["TicTacToe-v0", "Sum-v0"]))
        except ValueError as error:
            assert str(error).startswith(f"{self.out} is in use by process {holder} on {socket.gethostname()}.")
            self.refused += 1
        else:
            assert not is_running(holder), "the second start was let in"
            gc.collect()  # the run was killed in this moment, and its next start needs the folder
        until = time.monotonic() + 1.0
        while is_running(holder) and time.monotonic() < until:
            time.sleep(0.01)

    def is_held_by(self, holder):
        path = self.out / LOCK_FILE
        return path.exists() and path.read_text() == f"process {holder} on {socket.gethostname()}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestSecondStart:
    def test_never_disturbs_a_run_that_is_killed_repeatedly(self, model_dir, tmp_path):
        (tmp_path / "whole").mkdir()
        (tmp_path / "killed").mkdir()
        assert not in_a_fork(run_of(model_dir, tmp_path / "whole" / "out", KILLS), tmp_path / "whole")[0]
        out = tmp_path / "killed" / "out"
        intruder = Intruder(model_dir, out)
        for number in range(KILLS):
            run = run_of(model_dir, out, KILLS, killer=number, resume="auto")
            assert in_a_fork(run, tmp_path / "killed", intruder)[0]
        assert not in_a_fork(run_of(model_dir, out, KILLS, resume=True), tmp_path / "killed", intruder)[0]

        assert intruder.refused >= KILLS
        assert results(tmp_path / "killed", 1)[0]["history"] == results(tmp_path / "whole", 1)[0]["history"]
        assert results(tmp_path / "killed", 1)[0]["weights"] == results(tmp_path / "whole", 1)[0]["weights"]
        assert pools(tmp_path / "killed", 1) == pools(tmp_path / "whole", 1)
        assert files(out) == files(tmp_path / "whole" / "out")
        print(f"{KILLS} kills, {intruder.refused} second starts refused")  # noqa: T201


def step(name):
    return int(name.rsplit("-", 1)[1])
