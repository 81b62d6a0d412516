"""
Two ranks on the CPU, started by `accelerate launch` with gloo and `use_cpu=True`. The processes are forks.

One launch plays a whole run and then begins another, in which both ranks die; a second launch resumes that one.
"""

import json
import os
import pickle
import shutil
import signal
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers import forks
from tests.helpers.training_runs import flip
from trl_spiral.selfplay.advantages import RoleBaseline
from trl_spiral.selfplay.results import Result
from trl_spiral.training.checkpoint import newest_complete_checkpoint, read_marker


SCRIPT = Path(__file__).parents[1] / "helpers/training_runs.py"
GAMES = ("TicTacToe-v0", "Sum-v0")
RUN = dict(
    max_steps=10, logging_steps=2, save_strategy="steps", save_steps=3, max_draw_retries=1, log_completions=True
)


def command(*arguments):
    """Return the command line of `accelerate launch` on two ranks, away from the configuration of the machine."""
    return [
        *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
        *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"),
        *map(str, arguments),
    ]


def launch(*arguments):
    """Run a script on two ranks."""
    return forks.run(command(*arguments), env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})


class Launched:
    """Files of both ranks."""

    def __init__(self, folder, name):
        self.ranks = [json.loads((folder / f"{name}_{rank}.json").read_text()) for rank in (0, 1)]
        self.batches = [pickle.loads((folder / f"{name}_{rank}.pkl").read_bytes()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def folder(model_dir, tmp_path_factory):
    """A folder with an uninterrupted run, and one that was killed after step 8."""
    folder = tmp_path_factory.mktemp("two_ranks")
    run = dict(model=model_dir, games=GAMES)
    runs = [
        dict(name="whole", config={"output_dir": str(folder / "whole"), **RUN}, **run),
        dict(name="killed", config={"output_dir": str(folder / "killed"), **RUN}, kill_at=8, **run),
    ]
    (folder / "runs.json").write_text(json.dumps(runs))
    done = launch(SCRIPT, folder / "runs.json")

    assert done.returncode != 0
    assert f"Signal {signal.SIGKILL.value} (SIGKILL)" in done.stderr, done.stderr
    return folder


@pytest.fixture(scope="module")
def whole(folder):
    return Launched(folder, "whole")


class TestTwoRanks:
    def test_play_different_games(self, whole):
        counters, seeds = [], []
        for rank in (0, 1):
            episodes = [episode for _, episodes, _ in whole.batches[rank] for episode in episodes]
            counters.append([episode.counter for episode in episodes])
            seeds.append({episode.seed for episode in episodes})

        # Ranks count in turns, without holes.
        for rank in (0, 1):
            assert counters[rank] == list(range(rank, 2 * len(counters[rank]), 2))
            assert len(counters[rank]) >= 5
        assert not seeds[0] & seeds[1]
        assert len(seeds[0]) == len(counters[0])

    def test_get_their_rows_each(self, whole):
        assert [[len(rows) for rows, _, _ in batches] for batches in whole.batches] == [[16] * 3] * 2

    def test_log_the_same_on_both(self, whole):
        assert whole.ranks[0]["history"] == whole.ranks[1]["history"]
        games = [entry["selfplay/games"] for entry in whole.ranks[0]["history"] if "selfplay/games" in entry]
        assert games == [
            sum(len(whole.batches[rank][batch][1]) for rank in (0, 1)) for batch in range(len(whole.batches[0]))
        ]

    def test_hold_equal_baselines(self, whole):
        assert whole.ranks[0]["estimator"] == whole.ranks[1]["estimator"]
        assert len(whole.ranks[0]["estimator"]["baselines"]) == 4

    def test_give_the_advantages_that_one_rank_gives_to_the_same_episodes(self, whole):
        alone = RoleBaseline()
        compared = 0
        known = {}
        for batch in range(len(whole.batches[0])):
            results = [Result.of(episode) for rank in (0, 1) for episode in whole.batches[rank][batch][1]]
            results.sort(key=lambda result: result.counter)
            for result, advantages in zip(results, alone.advantages(results), strict=True):
                known[result.counter] = advantages
            alone.update(results)
            for rank in (0, 1):
                for row in whole.batches[rank][batch][0]:
                    assert set(row.advantages) == set(known[row.episode][row.seat])
                    compared += 1

        assert compared == 3 * 32
        assert {abs(a) for seats in known.values() for turns in seats for a in turns} - {0.0, 1.0}
        assert json.loads(json.dumps(alone.state_dict())) == whole.ranks[0]["estimator"]

    def test_write_one_set_of_files(self, whole, folder):
        out = folder / "whole"
        checkpoint = {path.name for path in (out / "checkpoint-6").iterdir()}

        assert {"selfplay_state_0.pt", "selfplay_state_1.pt", "rng_state_0.pth", "rng_state_1.pth"} <= checkpoint
        assert "selfplay_state_2.pt" not in checkpoint
        assert not {name for name in checkpoint if name.endswith(".partial")}
        assert {path.name for path in out.glob("checkpoint-*")} == {f"checkpoint-{step}" for step in (3, 6, 9, 10)}
        assert read_marker(out / "checkpoint-6")["settings"]["world_size"] == 2
        # The table has the rows of both ranks, once.
        table = pd.read_parquet(out / "completions" / "completions_00002.parquet")
        rows = [row for rank in (0, 1) for row in whole.batches[rank][0][0]]
        assert table["advantage"].tolist() == pytest.approx([row.advantage for row in rows])

    def test_agree_on_the_newest_complete_checkpoint(self, model_dir, whole, folder):
        shutil.copytree(folder / "killed", folder / "damaged")
        flip(folder / "damaged" / "checkpoint-6" / "selfplay_state_1.pt")
        run = dict(name="again", model=model_dir, games=GAMES, resume=True)
        run["config"] = {"output_dir": str(folder / "damaged"), **RUN}
        (folder / "runs.json").write_text(json.dumps([run]))
        done = launch(SCRIPT, folder / "runs.json")

        assert done.returncode == 0, done.stderr
        sentence = "Skipping checkpoint-6, which is damaged: selfplay_state_1.pt is not what was written."
        assert done.stderr.count(sentence) == 1
        again = Launched(folder, "again")
        for rank in (0, 1):
            assert again.ranks[rank]["history"] == whole.ranks[rank]["history"]
            assert again.ranks[rank]["transcripts"] == whole.ranks[rank]["transcripts"][1:]

    def test_resume_as_the_run_that_was_never_killed(self, model_dir, whole, folder):
        assert newest_complete_checkpoint(folder / "killed") == str(folder / "killed" / "checkpoint-6")
        run = dict(name="resumed", model=model_dir, games=GAMES, resume=True)
        run["config"] = {"output_dir": str(folder / "killed"), **RUN}
        (folder / "runs.json").write_text(json.dumps([run]))
        done = launch(SCRIPT, folder / "runs.json")

        assert done.returncode == 0, done.stderr
        resumed = Launched(folder, "resumed")
        for rank in (0, 1):
            assert resumed.ranks[rank]["history"] == whole.ranks[rank]["history"]
            # From step 6, the middle of the second cycle: only the third batch was played.
            assert resumed.ranks[rank]["transcripts"] == whole.ranks[rank]["transcripts"][2:]
            assert resumed.ranks[rank]["estimator"] == whole.ranks[rank]["estimator"]


class TestWithoutUseCpu:
    def test_the_launch_is_refused_in_one_sentence(self, tmp_path):
        (tmp_path / "train.py").write_text(
            "from trl_spiral import SpiralConfig\n"
            f"SpiralConfig({str(tmp_path / 'out')!r}, bf16=False, report_to='none')\n"
        )
        done = launch(tmp_path / "train.py")

        assert done.returncode != 0
        assert (
            "ValueError: The launcher started 2 processes, and without an accelerator each of them would train alone. "
            "Add `--use_cpu` to train on the CPU together." in done.stderr
        )
        assert not (tmp_path / "out").exists()
