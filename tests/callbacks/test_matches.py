import json

import pytest
import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from tests.callbacks.test_callbacks import SETTINGS, state_of
from tests.helpers import run_matches
from tests.helpers.forked_ranks import run_on_ranks
from tests.helpers.games import LastStone
from tests.helpers.run_matches import matches
from tests.helpers.training_runs import config, history, plain_trainer
from trl_spiral import SpiralTrainer
from trl_spiral.callbacks import MatchCallback
from trl_spiral.games import get_game
from trl_spiral.players import HumanPlayer, RandomPlayer
from trl_spiral.sandbox import CannotContain


def make_trainer(kind, model, folder, seen, steps, **changes):
    """Make a small trainer with dropout: a callback that used torch's generator would change its numbers."""
    if kind == "self-play":
        dropout = {"attention_dropout": 0.1, "dtype": "float32"}
        return plain_trainer(model, folder, ["TicTacToe-v0"], max_steps=steps, model_init_kwargs=dropout)[0]
    if kind == "spiral":
        return SpiralTrainer(model=model, args=config(folder, max_steps=steps), games=[get_game("TicTacToe-v0")])
    rows = [
        {
            "prompt": list(map(dict, observation.messages)),
            "completion": [{"role": "assistant", "content": f"\\boxed{{{move}}}"}],
        }
        for observation, move in seen[:64]
    ]
    settings = SFTConfig(str(folder), **{**SETTINGS, "max_steps": steps, **changes})
    return SFTTrainer(model, settings, train_dataset=Dataset.from_list(rows))


class TestMatchCallback:
    @pytest.mark.parametrize("kind", ["sft", "self-play", "spiral"])
    def test_the_run_equals_the_run_without_matches(self, kind, model_dir, seen, tmp_path):
        alone = make_trainer(kind, model_dir, tmp_path / "alone", seen, steps=3)
        alone.train()
        watched = make_trainer(kind, model_dir, tmp_path / "watched", seen, steps=3)
        callback = MatchCallback(watched, "TicTacToe-v0", ["random", model_dir], pairs=2, every=1, temperature=1.0)
        watched.add_callback(callback)
        watched.train()

        assert [entry["step"] for entry in callback.curve] == [0, 1, 2, 3]
        assert [entry for entry in history(watched) if entry not in callback.curve] == history(alone)
        for (key, value), (_, other) in zip(state_of(alone), state_of(watched), strict=True):
            assert torch.equal(value, other), key
        assert watched.model.training

    def test_a_resumed_run_keeps_its_first_grade(self, model_dir, seen, tmp_path):
        curves = []
        for resume in (None, str(tmp_path / "checkpoint-2")):
            trainer = make_trainer("sft", model_dir, tmp_path, seen, steps=4, save_strategy="steps", save_steps=2)
            callback = MatchCallback(trainer, "TicTacToe-v0", pairs=1, every=2)
            trainer.add_callback(callback)
            trainer.train(resume_from_checkpoint=resume)
            curves.append(callback.curve)

        assert [entry["step"] for entry in curves[0]] == [0, 2, 4]
        assert curves[0] == curves[1]

    def test_two_ranks_share_the_games_and_log_what_one_rank_logs(self, model_dir, tmp_path):
        _, alone = matches(model_dir, tmp_path / "alone")
        done = run_on_ranks(run_matches.main, model_dir, tmp_path)

        assert done.returncode == 0, done.stderr
        ranks = [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in (0, 1)]
        assert ranks[0]["curve"] == ranks[1]["curve"] == json.loads(json.dumps(alone.curve))
        played = [[episode.game, *episode.players, episode.counter] for episode in alone.episodes]
        assert [len(rank["played"]) for rank in ranks] == [len(played) // 2] * 2
        assert sorted(ranks[0]["played"] + ranks[1]["played"]) == sorted(played)

    def test_logs_every_seat_of_every_game_against_every_rival(self, model_dir, tmp_path):
        trainer, _ = plain_trainer(model_dir, tmp_path, ["Sum-v0"])
        callback = MatchCallback(trainer, [LastStone(), "TicTacToe-v0"], [RandomPlayer("r")], pairs=3)
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)
        (entry,) = callback.curve

        for game, seats in (("LastStone", 3), ("TicTacToe-v0", 2)):
            for seat in (*(f"pid-{number}" for number in range(seats)), "all"):
                for field in ("win", "draw", "loss", "illegal", "truncated", "length", "reward", "reply_tokens"):
                    name = f"eval/{game}-r/{seat}/{field}"
                    assert entry[f"{name}_low"] <= entry[name] <= entry[f"{name}_high"]
                assert entry[f"eval/{game}-r/{seat}/games"] == 3 * (seats if seat == "all" else 1)
        assert [report.metrics().items() <= entry.items() for report in callback.reports] == [True, True]
        assert len(callback.episodes) == 3 * 3 + 3 * 2

    def test_the_table_has_rows_before_and_after(self, model_dir, tmp_path):
        trainer, _ = plain_trainer(model_dir, tmp_path, ["TicTacToe-v0"], max_steps=1)
        callback = MatchCallback(trainer, rivals=["minimax"], pairs=2)
        trainer.add_callback(callback)
        trainer.train()
        rows = [line.split(" | ")[:4] for line in callback.table().splitlines() if "minimax" in line]

        assert rows == [
            [f"| {when}", "TicTacToe-v0", "minimax", seat]
            for when in ("before", "after")
            for seat in ("0", "1", "all")
        ]

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"rivals": ["radnom"]}, "no scripted player called 'radnom'"),
            ({"rivals": []}, "`rivals` is empty: nothing would be played"),
            ({"pairs": 0}, r"`pairs` \(0\)"),
            ({"every": 0}, r"`every` \(0\)"),
            ({"games": "TicTacToe-v1"}, "no game called 'TicTacToe-v1'"),
            ({"games": "PigDice-v0-50", "rivals": ["minimax"]}, "no minimax player for PigDice-v0-50"),
            ({"rivals": ["random", RandomPlayer()]}, "needs a name of its own"),
            ({"rivals": [RandomPlayer("policy")]}, "none may be 'policy'"),
            ({"rivals": [HumanPlayer()]}, "A person cannot play every evaluation"),
        ],
    )
    def test_refuses_wrong_arguments_before_training(self, changes, sentence, model_dir, tmp_path):
        trainer, _ = plain_trainer(model_dir, tmp_path, ["TicTacToe-v0"])

        with pytest.raises(ValueError, match=sentence):
            MatchCallback(trainer, **changes)

    def test_refuses_a_game_without_a_sandbox_before_it_loads_rivals(self, model_dir, tmp_path, no_sandbox):
        trainer, _ = plain_trainer(model_dir, tmp_path, ["TicTacToe-v0"])

        with pytest.raises(CannotContain, match="Nothing here contains programs"):
            MatchCallback(trainer, games="CodeGame-v0", rivals=str(tmp_path / "no model"))

    @pytest.mark.parametrize("rivals", ["random", RandomPlayer()])
    def test_accepts_one_rival_without_a_list(self, rivals, model_dir, tmp_path):
        trainer, _ = plain_trainer(model_dir, tmp_path, ["TicTacToe-v0"])

        assert list(MatchCallback(trainer, rivals=rivals)._rivals.players) == ["random"]

    def test_endpoint_kwargs_set_the_key_of_endpoints(self, model_dir, tmp_path, monkeypatch):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        trainer, _ = plain_trainer(model_dir, tmp_path, ["TicTacToe-v0"])
        rival = "http://127.0.0.1:9/v1#model"

        with pytest.raises(ValueError, match="OPENAI_API_KEY must hold the endpoint's key"):
            MatchCallback(trainer, rivals=rival)
        with pytest.raises(ValueError, match="ANOTHER_KEY must hold the endpoint's key"):
            MatchCallback(trainer, rivals=rival, endpoint_kwargs={"api_key_env": "ANOTHER_KEY"})
        assert list(MatchCallback(trainer, rivals=rival, endpoint_kwargs={"api_key_env": ""})._rivals.players) == [
            "model"
        ]
        trainer.args.endpoint_kwargs = {"api_key_env": "", "max_requests": 1}
        assert list(MatchCallback(trainer, rivals=rival)._rivals.players) == ["model"]

    def test_refuses_models_as_rivals_if_ranks_share_an_engine(self, model_dir, tmp_path, monkeypatch):
        trainer, _ = plain_trainer(model_dir, tmp_path, ["TicTacToe-v0"])
        monkeypatch.setattr("trl_spiral._trl.ranks_per_engine", lambda trainer: 2)

        with pytest.raises(ValueError, match="Ranks that share an engine .* would each query"):
            MatchCallback(trainer, rivals=[model_dir])
