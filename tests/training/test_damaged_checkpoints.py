"""Damaged checkpoints are skipped with one sentence each, and the newest complete one is used."""

import contextlib
import errno
import logging
import shutil
import subprocess

import pytest
import torch

from tests.helpers.training_runs import RecordingTrainer, config, flip, games, history, lora
from tests.opponents.test_pool import filled, names, writing
from tests.opponents.test_pool_training import RUN, train
from trl_spiral import OpponentPool
from trl_spiral.cli import main
from trl_spiral.files import naming_full_disk
from trl_spiral.training.checkpoint import MARKER, Incomplete, newest_complete_checkpoint, read_marker, why_incomplete


DAMAGES = {
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flipped": flip,
    "halved": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
}


@pytest.fixture(scope="module", params=[True, False], ids=["lora", "whole"])
def run(request, model_dir, tmp_path_factory):
    """A run with a pool and four checkpoints, copied so that no two files are one."""
    folder = tmp_path_factory.mktemp("run")
    trainer = train(model_dir, folder / "original", adapter=request.param)
    shutil.copytree(folder / "original", folder / "out")
    return request.param, trainer, folder / "out"


def files_of(checkpoint):
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


class TestEveryFile:
    def test_includes_files_of_every_kind(self, run):
        adapter, _, out = run
        found = {path.relative_to(out / "checkpoint-12").as_posix() for path in files_of(out / "checkpoint-12")}
        weights = "adapter_model.safetensors" if adapter else "model.safetensors"

        assert {weights, "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", MARKER} <= found
        assert {"selfplay_state_0.pt", "opponents/index.json", f"opponents/step-10/{weights}"} <= found

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_if_damaged_makes_the_resume_use_the_previous_checkpoint(self, damage, run, caplog):
        _, _, out = run
        for path in files_of(out / "checkpoint-12"):
            name = path.relative_to(out / "checkpoint-12").as_posix()
            content = path.read_bytes()
            caplog.clear()
            with caplog.at_level(logging.WARNING, logger="trl_spiral"):
                DAMAGES[damage](path)
                found = newest_complete_checkpoint(out)
            path.write_bytes(content)

            assert found == str(out / "checkpoint-9"), name
            (sentence,) = caplog.messages
            assert sentence.startswith("Skipping checkpoint-12, which ")
            assert name in sentence
        assert why_incomplete(out / "checkpoint-12") is None

    def test_includes_every_bit_of_the_marker(self, run, tmp_path):
        _, _, out = run
        content = (out / "checkpoint-12" / MARKER).read_bytes()
        for bit in range(1, 8 * len(content), 61):
            (tmp_path / MARKER).write_bytes(content)
            flip(tmp_path / MARKER, bit)
            with pytest.raises(Incomplete, match=MARKER):
                read_marker(tmp_path)


class TestTraining:
    def test_continues_from_the_newest_complete_checkpoint(self, run, model_dir, tmp_path, caplog):
        adapter, trainer, out = run
        shutil.copytree(out, tmp_path / "out")
        DAMAGES["zeroed"](tmp_path / "out" / "checkpoint-12" / "optimizer.pt")
        weights = "adapter_model.safetensors" if adapter else "model.safetensors"
        flip(tmp_path / "out" / "checkpoint-9" / "opponents" / "step-6" / weights)
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            resumed = train(model_dir, tmp_path / "out", adapter=adapter, resume=True)

        assert [line for line in caplog.messages if "kipping" in line] == [
            "Skipping checkpoint-12, which is damaged: optimizer.pt is not what was written.",
            f"Skipping checkpoint-9, which is damaged: opponents/step-6/{weights} is not what was written.",
        ]
        assert history(resumed) == history(trainer)
        assert resumed.pool.state_dict() == trainer.pool.state_dict()

    def test_refuses_a_damaged_checkpoint_before_loading_and_names_another(self, run, model_dir, tmp_path):
        adapter, _, out = run
        shutil.copytree(out, tmp_path / "out")
        damaged = tmp_path / "out" / "checkpoint-12"
        flip(damaged / "trainer_state.json")
        trainer = RecordingTrainer(
            model_dir,
            config(tmp_path / "new", **RUN),
            games=games(["TicTacToe-v0", "Sum-v0"]),
            peft_config=lora() if adapter else None,
        )
        before = {name: value.clone() for name, value in trainer.model.state_dict().items()}

        with pytest.raises(
            ValueError, match=r"which is damaged: trainer_state.json .* next to it is .*checkpoint-9\."
        ):
            trainer.train(resume_from_checkpoint=str(damaged))
        assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())

    def test_raises_if_none_is_complete(self, run, model_dir, tmp_path):
        adapter, _, out = run
        shutil.copytree(out / "checkpoint-3", tmp_path / "out" / "checkpoint-3")
        flip(tmp_path / "out" / "checkpoint-3" / "scheduler.pt")

        with pytest.raises(ValueError, match="There is no complete checkpoint in"):
            train(model_dir, tmp_path / "out", adapter=adapter, resume=True)
        with pytest.raises(ValueError, match="No checkpoint next to it is complete"):
            train(model_dir, tmp_path / "out", adapter=adapter, resume=str(tmp_path / "out" / "checkpoint-3"))


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of that size, in a folder."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root mounts a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # a writer that failed may still have it open


class TestFullDisk:
    def test_is_named_and_leaves_the_previous_checkpoint_complete(self, run, model_dir, tmp_path):
        adapter, whole, out = run
        one = sum(path.stat().st_size for path in files_of(out / "checkpoint-3"))
        with small_disk(tmp_path / "disk", size=int(2.2 * one)) as disk:
            with pytest.raises(
                OSError, match=r"^The disk is full: .* cannot be written \(No space left on device\)\."
            ):
                train(model_dir, disk / "out", adapter=adapter)
            assert newest_complete_checkpoint(disk / "out") == str(disk / "out" / "checkpoint-3")
            shutil.copytree(disk / "out", tmp_path / "larger")
        resumed = train(model_dir, tmp_path / "larger", adapter=adapter, resume=True)

        assert history(resumed) == history(whole)

    @pytest.mark.parametrize("writer", ["torch", "safetensors", "python", "copy"])
    def test_is_named_for_every_write(self, writer, tmp_path):
        from safetensors.torch import save_file

        source = tmp_path / "source"
        source.write_bytes(bytes(4_000_000))
        tensors = {"weight": torch.zeros(1_000_000)}
        with small_disk(tmp_path / "disk", size="2m") as disk:
            write = {
                "torch": lambda: torch.save(tensors, disk / "file"),
                "safetensors": lambda: save_file(tensors, disk / "file"),
                "python": lambda: (disk / "file").write_bytes(bytes(4_000_000)),
                "copy": lambda: shutil.copy2(source, disk / "file"),
            }[writer]
            with pytest.raises(OSError, match=r"The disk is full: .*disk cannot be written \(No space left"):
                with naming_full_disk(disk):
                    write()

    def test_of_a_quota_is_named_too(self, tmp_path):
        with pytest.raises(OSError, match=r"The disk is full: .* \(Disk quota exceeded\)\. Free some space\."):
            with naming_full_disk(tmp_path):
                raise OSError(errno.EDQUOT, "Disk quota exceeded")

    def test_is_not_named_for_other_errors(self, tmp_path):
        with pytest.raises(RuntimeError, match="out of memory"), naming_full_disk(tmp_path):
            raise RuntimeError("out of memory")
        with pytest.raises(FileNotFoundError), naming_full_disk(tmp_path):
            (tmp_path / "nowhere" / "file").write_text("")
        assert list(tmp_path.iterdir()) == []

    def test_leaves_the_pool_as_it_was(self, tmp_path):
        with small_disk(tmp_path / "disk", size="1m") as disk:
            pool = filled(disk / "pool", [10, 20])
            with pytest.raises(OSError, match="The disk is full: .*pool cannot be written"):
                pool.add(30, "weights", writing(bytes(2_000_000)))
            opened = OpponentPool(disk / "pool")
            opened.sweep()

            assert names(opened) == ["step-10", "step-20"]
            assert opened.problems() == []

    def test_is_named_by_the_report(self, run, tmp_path, capsys):
        _, _, out = run
        with small_disk(tmp_path / "disk", size="16k") as disk:
            status = main(["report", str(out), "--output", str(disk / "report.html")])

        assert status == 2
        assert "The disk is full: " in capsys.readouterr().err
