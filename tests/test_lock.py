"""One run per output folder: a second process is refused before it changes any file."""

import errno
import fcntl
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from tests.algorithms.test_temperature import make
from tests.callbacks.test_preemption import SCRIPT, steps_in, wait_until
from tests.helpers import forks
from tests.helpers.training_runs import config, games, plain_trainer
from tests.training.test_two_ranks import launch
from trl_spiral import OpponentPool, SpiralTrainer
from trl_spiral.callbacks import OpponentPoolCallback
from trl_spiral.lock import LOCK_FILE, lock_folder


def in_a_child(work):
    """Run `work` in a fork, and return its result, or its `ValueError` as text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = work()
        except ValueError as error:
            answer = str(error)
        except BaseException as error:  # noqa: BLE001
            answer = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, repr(answer).encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


def try_to_lock(folder):
    return in_a_child(lambda: "locked" if lock_folder(folder) else None)


class TestLock:
    def test_refuses_other_processes_and_names_the_holder(self, tmp_path):
        lock = lock_folder(tmp_path / "new")
        refused = try_to_lock(tmp_path / "new")
        again = lock_folder(str(tmp_path / "other" / ".." / "new"))
        del lock
        still_refused = try_to_lock(tmp_path / "new")
        del again

        assert f"new is in use by process {os.getpid()} on {socket.gethostname()}." in refused
        assert still_refused == refused
        assert try_to_lock(tmp_path / "new") == "'locked'"

    def test_ends_with_its_holder_even_if_a_child_lives_on(self, tmp_path):
        (ready, tell), (wait, alive) = os.pipe(), os.pipe()
        holder = os.fork()
        if holder == 0:
            try:
                lock = lock_folder(tmp_path)
                if os.fork() == 0:
                    os.close(alive)
                    os.write(tell, b"x")
                    os.read(wait, 1)  # until the test is over
                    os._exit(0)
                # Released and taken again, perhaps before the child has run.
                del lock
                lock = lock_folder(tmp_path)
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        status = os.waitpid(holder, 0)[1]
        os.read(ready, 1)
        free = try_to_lock(tmp_path)
        for end in (ready, tell, wait, alive):
            os.close(end)

        assert os.WIFSIGNALED(status)
        assert free == "'locked'"

    def test_is_kept_when_its_file_is_read(self, tmp_path):
        lock = lock_folder(tmp_path)
        (tmp_path / LOCK_FILE).read_text()

        assert "is in use by" in try_to_lock(tmp_path)
        del lock

    def test_is_kept_when_a_child_ends(self, tmp_path):
        lock = lock_folder(tmp_path)
        in_a_child(gc.collect)

        assert "is in use by" in try_to_lock(tmp_path)
        del lock

    @pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
    def test_warns_on_a_file_system_without_locks(self, number, tmp_path, monkeypatch, caplog):
        # No such file system can be mounted here. The system call returns its error.
        def refuse(file, operation):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", refuse)
        lock_folder(tmp_path)

        assert "cannot be locked" in caplog.text and os.strerror(number) in caplog.text


class TestTrainers:
    def test_refuse_a_second_run_before_the_model_is_loaded(self, model_dir, tmp_path):
        first = SpiralTrainer(model_dir, config(tmp_path / "out"), games=games(["Sum-v0"]))
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
        # The model's folder does not exist, which would be the next error.
        spiral = in_a_child(lambda: SpiralTrainer("no/model", config(tmp_path / "out"), games=games(["Sum-v0"])))
        algorithm = in_a_child(lambda: make("no/model", tmp_path / "out"))

        for answer in (spiral, algorithm):
            assert f"out is in use by process {os.getpid()} on {socket.gethostname()}. End that run" in answer
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
        del first

    def test_accept_a_second_trainer_in_the_same_process(self, model_dir, tmp_path):
        for _ in range(2):
            trainer = SpiralTrainer(model_dir, config(tmp_path, max_steps=1), games=games(["Sum-v0"]))
        trainer.train()

        assert trainer.state.global_step == 1

    def test_release_the_folder_after_training_and_lock_it_again(self, model_dir, tmp_path):
        trainer = SpiralTrainer(model_dir, config(tmp_path, max_steps=1), games=games(["Sum-v0"]))
        before = try_to_lock(tmp_path)
        trainer.train()
        between = try_to_lock(tmp_path)
        lock = lock_folder(tmp_path)
        thread = threading.Thread(target=trainer.train)  # a second start in this process continues
        thread.start()
        thread.join()
        del lock

        assert "is in use by" in before
        assert between == "'locked'"

    @pytest.mark.parametrize("inside", [True, False])
    def test_lock_the_pool_of_a_plain_trl_trainer(self, inside, model_dir, tmp_path):
        trainer, _ = plain_trainer(model_dir, tmp_path / "first", ["Sum-v0"])
        pool = tmp_path / "first" / "opponents" if inside else tmp_path / "pool"
        callback = OpponentPoolCallback(trainer, OpponentPool(pool))

        def second():
            other, _ = plain_trainer(model_dir, tmp_path / ("first" if inside else "second"), ["Sum-v0"])
            OpponentPoolCallback(other, OpponentPool(pool))

        assert f"is in use by process {os.getpid()}" in in_a_child(second)
        trainer.add_callback(callback)
        trainer.train()
        assert in_a_child(second) == "None"

    def test_refuse_a_second_start_in_one_sentence(self, model_dir, tmp_path):
        settings = dict(output_dir=str(tmp_path / "out"), max_steps=10_000, save_strategy="no", opponents="pool")
        run = dict(name="run", model=model_dir, games=["Sum-v0"], config=settings, steps="steps")
        (tmp_path / "runs.json").write_text(json.dumps([run]))
        line = [sys.executable, str(SCRIPT), str(tmp_path / "runs.json")]
        first = forks.Process(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: steps_in(tmp_path / "steps_0", "end"))
            second = forks.run(line)
            assert first.poll() is None
        finally:
            first.kill()
            first.wait()
        third = in_a_child(lambda: "locked" if lock_folder(tmp_path / "out") else None)

        assert second.returncode == 1
        assert second.stderr.splitlines()[-1] == (
            f"ValueError: {tmp_path}/out is in use by process {first.pid} on {socket.gethostname()}. "
            "End that run, or choose another folder."
        )
        assert third == "'locked'"  # the process is gone, and its lock with it

    def test_end_all_ranks_of_a_second_start(self, model_dir, tmp_path):
        lock = lock_folder(tmp_path / "out")
        run = dict(name="run", model=model_dir, games=["Sum-v0"], config=dict(output_dir=str(tmp_path / "out")))
        (tmp_path / "runs.json").write_text(json.dumps([run]))
        done = launch(SCRIPT, tmp_path / "runs.json")
        del lock

        assert done.returncode == 1
        sentence = f"out is in use by process {os.getpid()} on {socket.gethostname()}"
        assert f"ValueError: {tmp_path}/{sentence}" in done.stderr
        assert f"Rank 0 has failed, and this rank stops with it: ValueError: {tmp_path}/{sentence}" in done.stderr
        assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK_FILE]
