"""Two ranks, of which one fails, or which share one engine."""

import json
import time

import pytest

from tests.helpers import training_runs
from tests.helpers.forked_ranks import run_on_ranks
from tests.training.test_two_ranks import Launched


GAMES = ("TicTacToe-v0", "Sum-v0")
PATIENCE = 60  # seconds from the failure of one rank to the end of all


def run(folder, model, name, **changes):
    """Run four steps on two ranks. Return the process, and the seconds from the failure to its end."""
    settings = dict(name=name, model=model, games=GAMES, config={"output_dir": str(folder / name), "max_steps": 4})
    (folder / f"{name}.json").write_text(json.dumps([settings | changes]))
    done = run_on_ranks(training_runs.main, folder / f"{name}.json")
    return done, time.time() - float((folder / "trouble").read_text())


class TestFailingRank:
    @pytest.mark.parametrize("rank", [0, 1])
    def test_stops_the_other_with_its_reason(self, rank, model_dir, tmp_path):
        done, seconds = run(tmp_path, model_dir, "raise", trouble=["raise", rank, 1])

        assert done.returncode != 0
        assert "RuntimeError: The engine is out of memory." in done.stderr
        assert (
            f"Rank {rank} has failed, and this rank stops with it: RuntimeError: The engine is out of memory."
            in done.stderr
        )
        assert seconds < PATIENCE

    def test_stops_the_other_when_it_is_killed(self, model_dir, tmp_path):
        done, seconds = run(tmp_path, model_dir, "die", trouble=["die", 1, 1])

        assert done.returncode != 0
        assert "SIGKILL" in done.stderr
        assert seconds < PATIENCE


class TestRanksThatShareAnEngine:
    """As in a tensor-parallel group. Here each rank has its own engine, with equal replies."""

    def test_play_the_same_games_and_divide_the_rows(self, model_dir, tmp_path):
        done, _ = run(tmp_path, model_dir, "shared", trouble=["", 0, 2])

        assert done.returncode == 0, done.stderr
        shared = Launched(tmp_path, "shared")
        assert shared.ranks[0]["transcripts"] == shared.ranks[1]["transcripts"]
        assert shared.ranks[0]["estimator"] == shared.ranks[1]["estimator"]
        for (first, episodes, _), (second, _, _) in zip(*shared.batches, strict=True):
            # Numbered as one rank would number them, and each row trained once.
            assert [episode.counter for episode in episodes] == list(
                range(episodes[0].counter, episodes[0].counter + len(episodes))
            )
            assert (len(first), len(second)) == (16, 16)
            assert [(row.episode, row.prompt_ids) for row in first] != [
                (row.episode, row.prompt_ids) for row in second
            ]
            known = {(row.episode, row.seat, tuple(row.prompt_ids)) for row in first + second}
            assert len(known) == 32

    def test_stop_when_their_replies_differ(self, model_dir, tmp_path):
        done, seconds = run(tmp_path, model_dir, "apart", trouble=["change a seed", 1, 2])

        assert done.returncode != 0
        assert done.stderr.count("The ranks of group 0 share one engine and have played different games") >= 2
        assert seconds < PATIENCE
