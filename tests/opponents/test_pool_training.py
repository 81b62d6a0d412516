"""Training against snapshots: opponents, rows, the pool, and resuming."""

import logging
import shutil

import pytest
import torch

from tests.helpers.training_runs import RecordingTrainer, config, games, history, lora
from trl_spiral import OpponentPool
from trl_spiral.opponents.pool import INDEX
from trl_spiral.types import BASE, POLICY


# A generation cycle has four steps. Snapshots every other step change the pool within a cycle, and saves fall between.
RUN = dict(
    per_device_train_batch_size=32,
    max_steps=12,
    save_strategy="steps",
    save_steps=3,
    opponents="self:0.4,pool:0.4,random:0.1,base:0.1",
    pool_every=2,
    pool_capacity=3,
    matchmaking="pfsp-hard",
)


def train(model, folder, adapter=True, resume=None, **changes):
    trainer = RecordingTrainer(
        model,
        config(folder, **{**RUN, **changes}),
        games=games(["TicTacToe-v0", "Sum-v0"]),
        peft_config=lora() if adapter else None,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.fixture(scope="module", params=[True, False], ids=["lora", "whole"])
def trained(request, model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return request.param, train(model_dir, folder, adapter=request.param)


class TestTraining:
    def test_meets_all_configured_opponents(self, trained):
        _, trainer = trained
        met = {name for _, episodes, _ in trainer.batches for episode in episodes for name in episode.players}

        assert met >= {POLICY, BASE, "random", "step-2", "step-4", "step-6", "step-8"}

    def test_trains_only_on_turns_of_the_policy(self, trained):
        _, trainer = trained
        by_others = [
            turn
            for _, episodes, _ in trainer.batches
            for episode in episodes
            for seat in episode.trajectories
            for turn in seat.turns
            if turn.policy not in (POLICY, None)
        ]
        own = {
            (turn.prompt_ids, turn.completion_ids, turn.logprobs)
            for _, episodes, _ in trainer.batches
            for episode in episodes
            for seat in episode.trajectories
            for turn in seat.turns
            if turn.policy == POLICY
        }

        assert len(by_others) > 20
        for rows, _, _ in trainer.batches:
            for row in rows:
                assert (tuple(row.prompt_ids), tuple(row.completion_ids), tuple(row.logprobs)) in own

    def test_keeps_the_newest_snapshots_and_logs_their_size(self, trained):
        adapter, trainer = trained
        entry = next(entry for entry in reversed(trainer.state.log_history) if "pool/size" in entry)

        assert [snapshot.name for snapshot in trainer.pool.snapshots] == ["step-8", "step-10", "step-12"]
        assert {snapshot.kind for snapshot in trainer.pool.snapshots} == {"adapter" if adapter else "weights"}
        assert trainer.pool.problems() == []
        assert (BASE in trainer.pool) == (not adapter)
        assert entry["pool/size"] == 3
        assert entry["pool/bytes"] > 10_000
        assert {name for name in entry if name.startswith("pool/share/")} <= {
            f"pool/share/{name}" for name in ("self", "pool", "random", "base")
        }
        assert any("weight_switches" in name for name in entry)
        assert f"pool/rating/{POLICY}" in entry

    def test_each_class_of_opponent_has_a_baseline(self, trained):
        _, trainer = trained

        assert {opponent for _, _, opponent in trainer.rollout.estimator.baselines} == {
            "self",
            "pool",
            "random",
            "base",
        }

    def test_or_all_classes_share_one_baseline(self, model_dir, tmp_path):
        trainer = train(model_dir, tmp_path, max_steps=4, save_strategy="no", baseline_per_opponent=False)
        shares = {name for entry in trainer.state.log_history for name in entry if name.startswith("pool/share/")}

        assert {opponent for _, _, opponent in trainer.rollout.estimator.baselines} == {"self"}
        assert {"pool/share/self", "pool/share/base"} <= shares

    def test_a_snapshot_equals_the_policy_at_that_step(self, trained):
        adapter, trainer = trained
        from safetensors.torch import load_file

        name = "adapter_model.safetensors" if adapter else "model.safetensors"
        folder = trainer.pool.folder
        checkpoint = load_file(f"{trainer.args.output_dir}/checkpoint-12/{name}")
        newest = load_file(folder / "step-12" / name)
        older = load_file(folder / "step-10" / name)

        assert all(torch.equal(newest[key], checkpoint[key]) for key in checkpoint)
        assert not all(torch.equal(older[key], checkpoint[key]) for key in checkpoint)

    def test_draws_the_win_rates(self, trained):
        pytest.importorskip("matplotlib")
        _, trainer = trained

        assert (trainer.pool.folder / "win_rates.png").read_bytes().startswith(b"\x89PNG")

    def test_a_resumed_run_has_the_same_history(self, trained, model_dir, tmp_path):
        adapter, trainer = trained
        shutil.copytree(trainer.args.output_dir, tmp_path / "out")
        for later in ("checkpoint-9", "checkpoint-12"):
            shutil.rmtree(tmp_path / "out" / later)
        resumed = train(model_dir, tmp_path / "out", adapter=adapter, resume=True)

        assert history(resumed) == history(trainer)
        assert resumed.pool.state_dict() == trainer.pool.state_dict()
        assert resumed.pool.run == trainer.pool.run
        assert resumed.transcripts == trainer.transcripts[2:]


class TestFolder:
    def test_a_new_run_refuses_the_pool_of_an_earlier_run(self, trained, model_dir):
        adapter, trainer = trained

        with pytest.raises(ValueError, match="contains snapshots of an earlier run. Continue that run with"):
            train(model_dir, trainer.args.output_dir, adapter=adapter)

    def test_a_run_without_a_checkpoint_starts_anew(self, model_dir, tmp_path):
        first = train(model_dir, tmp_path, adapter=False, max_steps=4, save_strategy="no")
        second = train(model_dir, tmp_path, adapter=False, max_steps=4, save_strategy="no")

        assert history(second) == history(first)
        assert second.pool.run != first.pool.run
        assert [snapshot.name for snapshot in OpponentPool(second.pool.folder).snapshots] == ["step-2", "step-4"]

    def test_a_resume_refuses_the_pool_of_another_run(self, trained, model_dir, tmp_path):
        adapter, trainer = trained
        train(model_dir, tmp_path / "out", adapter=adapter, max_steps=3, opponents="self", matchmaking="uniform")
        shutil.copytree(trainer.pool.folder, tmp_path / "out" / "opponents")

        with pytest.raises(ValueError, match="contains snapshots of an earlier run"):
            train(model_dir, tmp_path / "out", adapter=adapter, max_steps=6, resume=True)
        assert OpponentPool(tmp_path / "out" / "opponents").problems() == []
        assert len(OpponentPool(tmp_path / "out" / "opponents")) == 3

    def test_pool_repair_leaves_out_a_damaged_snapshot(self, trained, model_dir, tmp_path, caplog):
        adapter, trainer = trained
        shutil.copytree(trainer.args.output_dir, tmp_path / "out")
        name = "adapter_model.safetensors" if adapter else "model.safetensors"
        weights = tmp_path / "out" / "checkpoint-12" / "opponents" / "step-10" / name
        weights.write_bytes(weights.read_bytes()[:-1])
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            resumed = train(
                model_dir, tmp_path / "out", adapter=adapter, resume=True, max_steps=13, pool_kwargs={"repair": True}
            )

        assert any("Going on without step-10" in message for message in caplog.messages)
        assert [snapshot.name for snapshot in resumed.pool.snapshots] == ["step-8", "step-12"]

    @pytest.mark.parametrize("how", ["renamed", "copied"])
    def test_a_checkpoint_that_was_moved_keeps_its_pool(self, how, trained, model_dir, tmp_path):
        adapter, trainer = trained
        shutil.copytree(trainer.args.output_dir, tmp_path / "out")
        moved = tmp_path / "out" / "best" if how == "renamed" else tmp_path / "elsewhere"
        (shutil.move if how == "renamed" else shutil.copytree)(tmp_path / "out" / "checkpoint-6", moved)
        # The run goes on, evicts the snapshots of that checkpoint, and its pool is deleted.
        train(model_dir, tmp_path / "out", adapter=adapter, resume=True, max_steps=14, save_total_limit=1)
        shutil.rmtree(tmp_path / "out" / "opponents")
        resumed = train(model_dir, tmp_path / "new", adapter=adapter, resume=str(moved))

        assert history(resumed) == history(trainer)
        assert resumed.pool.state_dict() == trainer.pool.state_dict()
        assert resumed.pool.problems() == []

    def test_a_truncated_index_is_restored(self, trained, model_dir, tmp_path):
        adapter, trainer = trained
        shutil.copytree(trainer.args.output_dir, tmp_path / "out")
        for later in ("checkpoint-9", "checkpoint-12"):
            shutil.rmtree(tmp_path / "out" / later)
        index = tmp_path / "out" / "opponents" / INDEX
        index.write_bytes(index.read_bytes()[:100])
        resumed = train(model_dir, tmp_path / "out", adapter=adapter, resume=True)

        assert resumed.pool.state_dict() == trainer.pool.state_dict()
        assert OpponentPool(index.parent).problems() == []

    def test_a_checkpoint_without_a_pool_resumes_with_an_empty_one(self, model_dir, tmp_path, caplog):
        train(model_dir, tmp_path, max_steps=3, opponents="self", matchmaking="uniform")
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            resumed = train(model_dir, tmp_path, max_steps=6, resume=True)

        assert any(
            "has no pool of opponents, so the pool of this run starts empty" in line for line in caplog.messages
        )
        assert [snapshot.name for snapshot in resumed.pool.snapshots] == ["step-4", "step-6"]
        assert ("TicTacToe-v0", 0, "self") in resumed.rollout.estimator.baselines

    def test_disk_use_is_bounded_by_the_pool_and_the_checkpoints(self, model_dir, tmp_path):
        trainer = train(model_dir, tmp_path, max_steps=16, save_steps=4, save_total_limit=2)
        weights = list(tmp_path.rglob("opponents/*/adapter_model.safetensors"))

        # Checkpoints 12 and 16 are kept with three snapshots each. The pool has the same files as the latter.
        assert [snapshot.name for snapshot in trainer.pool.snapshots] == ["step-12", "step-14", "step-16"]
        assert len(weights) == 9
        assert {path.parent.name for path in weights} == {f"step-{step}" for step in (8, 10, 12, 14, 16)}
        assert len({path.stat().st_ino for path in weights}) == 5


class TestRatingGames:
    def test_each_snapshot_plays_each_other_in_both_seats(self, model_dir, tmp_path):
        trainer = train(model_dir, tmp_path, max_steps=6, pool_kwargs={"rating_games": 4})
        ratings = trainer.pool.ratings

        # Four episodes of each of two games. Games against the policy count separately.
        for one, other in (("step-2", "step-4"), ("step-2", "step-6"), ("step-4", "step-6")):
            assert ratings.win_rate(one, other).games == 8

    def test_are_the_same_after_a_resume(self, model_dir, tmp_path):
        whole = train(model_dir, tmp_path / "whole", max_steps=6, pool_kwargs={"rating_games": 2})
        shutil.copytree(tmp_path / "whole", tmp_path / "out")
        shutil.rmtree(tmp_path / "out" / "checkpoint-6")
        resumed = train(model_dir, tmp_path / "out", max_steps=6, pool_kwargs={"rating_games": 2}, resume=True)

        assert resumed.pool.state_dict() == whole.pool.state_dict()
        assert history(resumed) == history(whole)


class TestWithoutATrainer:
    def test_all_snapshots_of_a_pool_play(self, trained, model_dir):
        from trl_spiral.engines.build import build_players, read_names
        from trl_spiral.evaluation.matches import play_matches
        from trl_spiral.games import get_game
        from trl_spiral.types import Sampling

        _, trainer = trained
        pool = OpponentPool(trainer.pool.folder)
        names = read_names([str(pool.folder)])
        built = build_players(names, [], Sampling(max_new_tokens=8), tokenizer=model_dir)
        players, engine = built.players, built.engine()
        episodes = play_matches(get_game("TicTacToe-v0"), players["step-8"], players["step-12"], 0, 6, engine)

        assert (pool.folder / INDEX).exists()
        assert list(players) == ["step-8", "step-10", "step-12"]
        assert {episode.players for episode in episodes} == {("step-8", "step-12")}
        assert all(
            turn.policy == f"{pool.folder}#{name}"
            for e in episodes
            for name, seat in zip(e.players, e.trajectories, strict=True)
            for turn in seat.turns
        )
        assert engine.metrics()["weight_switches"] >= 2
