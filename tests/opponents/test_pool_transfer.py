import sys

import pytest

from tests.helpers import forks
from tests.helpers.hub_server import HubServer
from trl_spiral.opponents import OpponentPool, Played, pool_from_checkpoints
from trl_spiral.opponents.pool import INDEX
from trl_spiral.opponents.pool_transfer import kind_of
from trl_spiral.types import POLICY


def filled(folder, steps, **changes):
    made = OpponentPool(folder, **changes)
    for step in steps:
        content = f"weights of step {step}".encode()
        made.add(step, "weights", lambda target, content=content: (target / "model.safetensors").write_bytes(content))
    return made


class TestFromCheckpoints:
    def test_snapshots_count_back_from_the_last_checkpoint(self, tmp_path):
        for step in (100, 20, 60):
            folder = tmp_path / "run" / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")
            (folder / "model.safetensors").write_bytes(b"%d" % step)
            (folder / "optimizer.pt").write_bytes(b"large")
            (folder / "selfplay_reference.safetensors").write_bytes(b"another")
        made = pool_from_checkpoints(tmp_path / "run", tmp_path / "pool", capacity=2)

        assert [(snapshot.name, snapshot.step) for snapshot in made.snapshots] == [("past-60", -40), ("past-100", 0)]
        assert sorted(path.name for path in (tmp_path / "pool" / "past-60").iterdir()) == [
            "config.json",
            "model.safetensors",
        ]
        assert (tmp_path / "pool" / "past-60" / "model.safetensors").read_bytes() == b"60"

    def test_refuses_a_folder_without_checkpoints(self, tmp_path):
        (tmp_path / "checkpoint-1").mkdir()

        with pytest.raises(ValueError, match="contains no checkpoint-N folder with safetensors or a LoRA adapter"):
            pool_from_checkpoints(tmp_path, tmp_path / "pool")

    def test_refuses_a_pool_with_snapshots(self, tmp_path):
        filled(tmp_path / "pool", [10])

        with pytest.raises(ValueError, match="already contains 1 snapshots"):
            pool_from_checkpoints(tmp_path, tmp_path / "pool")

    def test_an_adapter_differs_from_whole_weights(self, tmp_path):
        for name in ("adapter_config.json", "model.safetensors", "model.safetensors.index.json", "optimizer.pt"):
            (tmp_path / name).mkdir()
            (tmp_path / name / name).write_text("")

        assert kind_of(tmp_path / "adapter_config.json") == "adapter"
        assert kind_of(tmp_path / "model.safetensors") == "weights"
        assert kind_of(tmp_path / "model.safetensors.index.json") == "weights"
        assert kind_of(tmp_path / "optimizer.pt") is None


class TestHub:
    def test_upload_and_download_keep_snapshots_and_ratings(self, tmp_path):
        made = filled(tmp_path / "pool", [10, 20, 30], capacity=2)
        made.ratings.update([Played((POLICY, "step-20"), (1.0, -1.0))])
        (made.folder / "step-99").mkdir()  # as after a crash
        (made.folder / "step-99" / "model.safetensors").write_bytes(b"orphan")
        code = f"""
from trl_spiral.opponents import OpponentPool, pool_from_hub, push_pool_to_hub
push_pool_to_hub(OpponentPool({str(made.folder)!r}, 2), "someone/player")
pulled = pool_from_hub("someone/player", {str(tmp_path / "pulled")!r})
assert [one.name for one in pulled.snapshots] == ["step-20", "step-30"], pulled.snapshots
assert pool_from_hub("someone/player").problems() == []
try:
    pool_from_hub("someone/other")
except Exception as error:
    print(type(error).__name__)
"""
        made.save()
        with HubServer() as hub:
            done = forks.run([sys.executable, "-c", code], env=hub.environment(tmp_path))
            files = set(hub.repos["someone/player"])

        assert done.returncode == 0, done.stderr
        assert files == {
            f"opponents/{INDEX}",
            "opponents/step-20/model.safetensors",
            "opponents/step-30/model.safetensors",
        }
        pulled = OpponentPool(tmp_path / "pulled" / "opponents")
        assert pulled.state_dict() == made.state_dict()
        assert pulled.ratings.win_rate(POLICY, "step-20").games == 1
