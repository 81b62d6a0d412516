import json
import logging
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from trl_spiral import OpponentPool
from trl_spiral.opponents import Played, pool
from trl_spiral.opponents.pool import INDEX
from trl_spiral.types import POLICY


def writing(content=b"weights"):
    """Return a function that writes a snapshot of one file."""

    def write(folder):
        (folder / "model.safetensors").write_bytes(content)

    return write


def filled(folder, steps, **changes):
    made = OpponentPool(folder, **changes)
    for step in steps:
        made.add(step, "weights", writing(f"weights of step {step}".encode()))
    return made


def names(made):
    return [snapshot.name for snapshot in made.snapshots]


def on_disk(folder):
    return sorted(path.name for path in folder.iterdir())


class TestAdd:
    def test_writes_a_folder_and_adds_it_to_the_index(self, tmp_path):
        made = filled(tmp_path, [10, 20])

        assert names(made) == ["step-10", "step-20"]
        assert on_disk(tmp_path) == [INDEX, "step-10", "step-20"]
        assert made.path("step-20") == tmp_path / "step-20"
        assert (made["step-20"].step, made["step-20"].kind, made["step-20"].size) == (20, "weights", 18)
        assert made.size == 36
        assert "step-10" in made
        assert "step-30" not in made

    def test_nothing_is_written_before_the_first_snapshot(self, tmp_path):
        OpponentPool(tmp_path / "pool")

        assert not (tmp_path / "pool").exists()

    def test_a_snapshot_starts_with_the_policys_rating(self, tmp_path):
        made = OpponentPool(tmp_path)
        made.ratings.update([Played((POLICY, "random"), (1.0, -1.0))] * 20)
        made.add(10, "weights", writing())

        assert made.ratings.rating("step-10") == made.ratings.rating(POLICY)
        assert made.ratings.rating("step-10").mu > made.ratings.rating("random").mu

    def test_refuses_a_name_that_exists(self, tmp_path):
        made = filled(tmp_path, [10])

        with pytest.raises(ValueError, match="already contains step-10"):
            made.add(10, "weights", writing(b"others"))

        assert (tmp_path / "step-10" / "model.safetensors").read_bytes() == b"weights of step 10"

    def test_refuses_a_malformed_name(self, tmp_path):
        with pytest.raises(ValueError, match=r"\('\.\./mine'\) must be step-N, past-N or base"):
            OpponentPool(tmp_path).add(10, "weights", writing(), name="../mine")

    def test_refuses_a_snapshot_without_files(self, tmp_path):
        with pytest.raises(ValueError, match="Nothing was written for the snapshot step-10"):
            OpponentPool(tmp_path).add(10, "weights", lambda folder: None)

    def test_an_error_while_writing_does_not_change_the_pool(self, tmp_path):
        made = filled(tmp_path, [10])

        def fail(folder):
            (folder / "model.safetensors").write_bytes(b"half")
            raise OSError("No space left on device")

        with pytest.raises(OSError, match="No space left"):
            made.add(20, "weights", fail)
        opened = OpponentPool(tmp_path)
        opened.sweep()

        assert names(opened) == names(made) == ["step-10"]
        assert on_disk(tmp_path) == [INDEX, "step-10"]

    def test_a_pinned_snapshot_does_not_count_and_is_not_evicted(self, tmp_path):
        made = OpponentPool(tmp_path, capacity=1)
        made.add(0, "weights", writing(), name="base", pinned=True)
        for step in (10, 20):
            made.add(step, "weights", writing())

        assert names(made) == ["step-20"]
        assert on_disk(tmp_path) == ["base", INDEX, "step-20"]

    def test_refuses_a_folder_with_similar_names_of_another_tool(self, tmp_path):
        (tmp_path / "step-1000").mkdir()
        (tmp_path / "step-1000" / "precious").write_text("another tool's")

        with pytest.raises(
            ValueError, match="contains step-1000, which a pool would delete. Give the pool a folder of its own"
        ):
            filled(tmp_path, [10])

        assert on_disk(tmp_path) == ["step-1000"]


class TestEviction:
    def test_oldest(self, tmp_path):
        assert names(filled(tmp_path, range(10, 60, 10), capacity=3)) == ["step-30", "step-40", "step-50"]
        assert on_disk(tmp_path) == [INDEX, "step-30", "step-40", "step-50"]

    def test_lowest_rated_but_never_the_newest(self, tmp_path):
        made = filled(tmp_path, [10, 20, 30], capacity=3, eviction="lowest")
        made.ratings.update(
            [Played(("step-10", "step-20"), (1.0, -1.0)), Played(("step-30", "step-20"), (1.0, -1.0))] * 5
        )
        made.ratings.update([Played((POLICY, name), (-1.0, 1.0)) for name in ("step-10", "step-20", "step-30")] * 9)
        made.add(40, "weights", writing())

        assert made.ratings.rating("step-40").mu < made.ratings.rating("step-10").mu
        assert names(made) == ["step-10", "step-30", "step-40"]

    def test_ladder_keeps_ages_in_geometric_steps(self, tmp_path):
        made = filled(tmp_path, range(1, 129), capacity=8, eviction="ladder")
        ages = [129 - snapshot.step for snapshot in made.snapshots]
        ratios = [older / newer for older, newer in zip(ages, ages[1:], strict=False)]

        # Seven ratios from 1 to 128: 128 ** (1 / 7) = 2 each, if every age were available.
        assert ages[0] == 128
        assert ages[-1] == 1
        assert max(ratios) <= 4
        assert min(ratios) > 1.2

    def test_deletes_the_results_of_the_evicted_snapshot(self, tmp_path):
        made = filled(tmp_path, [10], capacity=1)
        made.ratings.update([Played((POLICY, "step-10"), (1.0, -1.0))])
        made.add(20, "weights", writing())

        assert "step-10" not in made.ratings.names
        assert made.ratings.win_rate(POLICY, "step-10").games == 0

    def test_keeps_the_files_of_a_checkpoint(self, tmp_path):
        made = filled(tmp_path / "pool", [10], capacity=1)
        made.save_to(tmp_path / "checkpoint-10" / "opponents")
        (tmp_path / "checkpoint-10").rename(tmp_path / "best")
        made.add(20, "weights", writing())

        assert on_disk(tmp_path / "pool") == [INDEX, "step-20"]
        kept = OpponentPool(tmp_path / "best" / "opponents")
        assert names(kept) == ["step-10"]
        assert kept.problems() == []


class TestOpen:
    def test_restores_snapshots_and_ratings(self, tmp_path):
        made = filled(tmp_path, [10, 20])
        made.ratings.update([Played((POLICY, "step-10"), (1.0, -1.0))])
        made.save()
        opened = OpponentPool(tmp_path)

        assert opened.snapshots == made.snapshots
        assert opened.state_dict() == made.state_dict()
        assert opened.ratings.win_rate(POLICY, "step-10").games == 1

    def test_refuses_an_index_of_another_version(self, tmp_path):
        (tmp_path / INDEX).write_text('{"format": 1}')

        with pytest.raises(ValueError, match=f"{INDEX} is no index of a pool in format 2"):
            OpponentPool(tmp_path)

    @pytest.mark.parametrize("damage", [b"", bytes(900), b'{"format": 2, "snaps', b"[1]", b"\xff\xfe"])
    def test_restores_a_damaged_index_from_the_newest_checkpoint(self, damage, tmp_path, caplog):
        made = filled(tmp_path / "run" / "opponents", [10])
        for step in (20, 30):
            made.add(step, "weights", writing())
            made.save_to(tmp_path / "run" / f"checkpoint-{step}" / "opponents")
        (made.folder / INDEX).write_bytes(damage)
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            opened = OpponentPool(made.folder)
        opened.restore(tmp_path / "run" / "checkpoint-20" / "opponents")

        assert caplog.messages == [
            f"{made.folder / INDEX} is damaged, and that in {tmp_path}/run/checkpoint-30/opponents takes its place."
        ]
        assert names(OpponentPool(made.folder)) == ["step-10", "step-20"]

    def test_refuses_a_damaged_index_without_checkpoints(self, tmp_path):
        pool = tmp_path / "run" / "opponents"  # the folders next to `tmp_path` are those of other tests
        filled(pool, [10])
        (pool / INDEX).write_text("")

        with pytest.raises(ValueError, match=f"{INDEX} is damaged. Delete .* and resume the run"):
            OpponentPool(pool)

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"capacity": 0}, r"capacity \(0\) must be at least 1"),
            ({"eviction": "random"}, r"eviction \('random'\) must be one of oldest, lowest, ladder"),
        ],
    )
    def test_refuses_arguments_out_of_range(self, changes, sentence, tmp_path):
        with pytest.raises(ValueError, match=sentence):
            OpponentPool(tmp_path, **changes)

    def test_table_has_a_row_for_each_snapshot(self, tmp_path):
        table = filled(tmp_path, [10, 20]).table().splitlines()

        assert len(table) == 4
        assert table[2].startswith("| step-10 | 10 | weights | 0.0 | 1500 |")


class TestCrash:
    """If the process is killed between any two writes, the folder still contains a complete pool."""

    @staticmethod
    def dying_after(calls, work):
        """Run `work` in a child that is killed after `calls` calls of functions that change the disk."""
        pid = os.fork()
        if pid == 0:
            try:
                count = 0

                def counted(function):
                    def call(*args, **kwargs):
                        nonlocal count
                        count += 1
                        if count > calls:
                            os.kill(os.getpid(), signal.SIGKILL)
                        return function(*args, **kwargs)

                    return call

                for module, name in (
                    *((pool.os, name) for name in ("rename", "replace", "unlink", "rmdir", "mkdir")),
                    (pool.json, "dumps"),
                ):
                    setattr(module, name, counted(getattr(module, name)))
                work()
            except BaseException as error:  # noqa: BLE001
                os.write(2, repr(error).encode())
                os._exit(2)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return os.WIFSIGNALED(status)

    def test_the_folder_contains_the_old_pool_or_the_new_one(self, tmp_path):
        outcomes = []
        for calls in range(100):
            folder = tmp_path / str(calls)
            filled(folder, [10, 20], capacity=2)
            killed = self.dying_after(
                calls, lambda folder=folder: OpponentPool(folder, 2).add(30, "weights", writing())
            )
            opened = OpponentPool(folder, capacity=2)
            listed = names(opened)
            opened.sweep()

            assert opened.problems() == []
            assert listed in (["step-10", "step-20"], ["step-20", "step-30"])
            assert {name for name in on_disk(folder) if not name.endswith(".partial")} == {INDEX, *listed}
            outcomes.append(listed[0])
            if not killed:
                break
            if listed == ["step-10", "step-20"]:
                # A resumed run takes the same snapshot again.
                assert names_after_adding(opened, 30) == ["step-20", "step-30"]

        # The child was killed at each call in turn, until it finished.
        assert not killed
        assert outcomes.count("step-10") > 3
        assert outcomes.count("step-20") > 2


def names_after_adding(opened, step):
    opened.add(step, "weights", writing())
    assert opened.problems() == []
    return names(opened)


class TestRestore:
    def test_restores_an_earlier_index(self, tmp_path):
        made = filled(tmp_path / "pool", [10, 20], capacity=2)
        made.save_to(tmp_path / "saved")
        state = json.loads(json.dumps(made.state_dict()))
        for step in (30, 40):
            made.add(step, "weights", writing())
        made.restore(tmp_path / "saved")

        assert names(made) == ["step-10", "step-20"]
        assert made.problems() == []
        assert made.state_dict() == state
        assert OpponentPool(made.folder).state_dict() == state
        assert on_disk(made.folder) == [INDEX, "step-10", "step-20"]

    def test_restores_the_files_into_a_new_folder(self, tmp_path):
        made = filled(tmp_path / "pool", [10, 20])
        made.save_to(tmp_path / "saved")
        shutil.rmtree(made.folder)
        new = OpponentPool(tmp_path / "new")
        new.restore(tmp_path / "saved")
        shutil.rmtree(tmp_path / "saved")

        assert new.problems() == []
        assert new.state_dict() == made.state_dict()

    def test_links_files_if_the_file_system_has_links(self, tmp_path):
        made = filled(tmp_path / "pool", [10])
        made.save_to(tmp_path / "saved")

        assert (tmp_path / "saved" / "step-10" / "model.safetensors").samefile(
            made.path("step-10") / "model.safetensors"
        )

    def test_copies_files_if_the_file_system_has_no_links(self, tmp_path):
        elsewhere = Path("/dev/shm")
        if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("needs a second file system")
        made = filled(tmp_path / "pool", [10])
        with tempfile.TemporaryDirectory(dir=elsewhere) as folder:
            made.save_to(Path(folder) / "saved")

            assert OpponentPool(Path(folder) / "saved").problems() == []

    def test_replaces_a_damaged_copy_in_the_pool(self, tmp_path):
        made = filled(tmp_path / "pool", [10])
        made.save_to(tmp_path / "saved")
        (made.path("step-10") / "model.safetensors").unlink()
        (made.path("step-10") / "model.safetensors").write_bytes(bytes(18))
        made.restore(tmp_path / "saved")

        assert made.problems() == []

    def test_refuses_to_replace_snapshots_of_another_run(self, tmp_path):
        filled(tmp_path / "mine", [10]).save_to(tmp_path / "saved")
        others = filled(tmp_path / "others", [10, 20])

        with pytest.raises(ValueError, match="contains snapshots of another run than .*saved"):
            others.restore(tmp_path / "saved")
        assert on_disk(tmp_path / "others") == [INDEX, "step-10", "step-20"]

    @pytest.mark.parametrize(
        ("damage", "clause"),
        [
            (lambda path: path.unlink(), "step-10/model.safetensors is missing"),
            (lambda path: path.write_bytes(b"half"), "step-10/model.safetensors has 4 bytes and should have 18"),
            (
                lambda path: path.write_bytes(b"Weights of step 10"),
                "step-10/model.safetensors is not what was written",
            ),
        ],
    )
    def test_repair_leaves_out_a_damaged_snapshot(self, damage, clause, tmp_path, caplog):
        made = filled(tmp_path / "pool", [10, 20])
        made.save_to(tmp_path / "saved")
        damage(tmp_path / "saved" / "step-10" / "model.safetensors")
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            made.restore(tmp_path / "saved", repair=True)

        assert OpponentPool(tmp_path / "saved").problems() == [clause]
        assert names(made) == ["step-20"]
        assert caplog.messages == [f"Going on without step-10: {clause}."]
        assert on_disk(made.folder) == [INDEX, "step-20"]


class TestStartAnew:
    def test_keeps_snapshots_that_are_older_than_the_run(self, tmp_path):
        made = OpponentPool(tmp_path)
        made.add(-5, "weights", writing(), name="past-15")
        made.add(10, "weights", writing())
        made.ratings.update([Played((POLICY, "past-15"), (1.0, -1.0))])
        made.start_anew()

        assert names(made) == names(OpponentPool(tmp_path)) == ["past-15"]
        assert on_disk(tmp_path) == [INDEX, "past-15"]
        assert made.ratings.win_rate(POLICY, "past-15").games == 0


class TestSweep:
    def test_deletes_only_folders_with_names_of_snapshots(self, tmp_path):
        made = filled(tmp_path, [10])
        for name in ("checkpoint-10", "notes", "step-ten", "step-99", ".partial-step-98"):
            (tmp_path / name).mkdir()
        (tmp_path / "step-97").write_text("a file")

        assert made.sweep() == [".partial-step-98", "step-99"]
        assert on_disk(tmp_path) == ["checkpoint-10", INDEX, "notes", "step-10", "step-97", "step-ten"]

    def test_logs_folders_that_cannot_be_deleted(self, tmp_path, monkeypatch, caplog):
        made = filled(tmp_path, [10])
        (tmp_path / "step-99").mkdir()

        def refuse(path):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(pool.shutil, "rmtree", refuse)
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            swept = made.sweep()

        assert swept == []
        assert "could not be deleted and takes up disk space" in caplog.text
