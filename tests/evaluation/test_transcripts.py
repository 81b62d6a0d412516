"""Transcripts as text and as records, and the log of a run that is resumed."""

import json
import logging
import platform
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch
from transformers import TrainerCallback

from tests.helpers.training_runs import RecordingTrainer, config, plain_trainer
from trl_spiral.callbacks import TranscriptCallback
from trl_spiral.callbacks.transcripts import describe_run, trained_advantages
from trl_spiral.evaluation.matches import play_matches
from trl_spiral.evaluation.transcripts import GAMES, GameLog, format_transcript, make_record, read_game_log
from trl_spiral.games import get_game
from trl_spiral.machine import KERNELS
from trl_spiral.players import RandomPlayer
from trl_spiral.sandbox import CannotContain
from trl_spiral.selfplay.advantages import ReturnsOnly
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.selfplay.rows import make_rows
from trl_spiral.types import POLICY, Ending, Episode, Trajectory, Turn


def random_episode(name, seed=3, opening=0):
    game = get_game(name)
    players = [RandomPlayer()] * game.traits.seats
    return game, next(play([referee(Start(game, players, seed=seed, play_seed=seed, opening=opening))]))


class Silent:
    """Makes one move, then writes a reply without a move."""

    name = "silent"

    def ask(self, observation):
        if observation.turns:
            return Turn(action=None, text="I would rather not.")
        return Turn(action=observation.legal_actions[0], text="fine")


class TestFormatTranscript:
    def test_a_reply_with_a_code_block_stays_in_one_block(self):
        class Writing(Silent):
            def ask(self, observation):
                return replace(super().ask(observation), text="```python\nprint(1)\n```")

        game = get_game("TicTacToe-v0")
        episode = next(play([referee(Start(game, [Writing()] * 2, seed=5, play_seed=5))]))

        assert "Wrote:\n\n````text\n```python\nprint(1)\n```\n````\n" in format_transcript(episode)


class TestMakeRecord:
    @pytest.mark.parametrize("name", ["TicTacToe-v0", "Kuhn-v0", "RockPaperScissors-v0"])
    def test_contains_the_observations_of_each_seat(self, name):
        seen = []

        class Watching(RandomPlayer):
            def ask(self, observation):
                seen.append((observation.seat, observation.messages[-1]["content"]))
                return super().ask(observation)

        game = get_game(name)
        players = [Watching()] * game.traits.seats
        episode = next(play([referee(Start(game, players, seed=5, play_seed=5))]))
        record = make_record(episode, game, 7, "training")

        assert [(turn["seat"], turn["sees"]) for turn in record["turns"]] == seen
        assert [[turn["seat"], turn["move"]] for turn in record["turns"]] == [list(move) for move in episode.moves]
        assert (record["step"], record["kind"], record["returns"]) == (7, "training", list(episode.returns))
        assert len(record["end"]) == game.traits.seats

    def test_starts_after_a_random_opening(self):
        game, episode = random_episode("TicTacToe-v0", opening=3)
        record = make_record(episode, game, 0, "final")

        assert len(record["opening"]) == 3
        assert sum(record["turns"][0]["sees"].count(f" {mark} ") for mark in "OX") == 3

    def test_the_move_of_an_illegal_reply_is_none(self):
        game = get_game("TicTacToe-v0")
        (episode,) = play_matches(game, Silent(), RandomPlayer(), 0, 1)
        record = make_record(episode, game, 0, "final")

        assert (record["ending"], record["offender"]) == ("illegal_move", 0)
        assert (record["turns"][-1]["move"], record["turns"][-1]["reply"]) == (None, "I would rather not.")

    def test_a_scripted_player_has_no_tokens(self):
        game, episode = random_episode("Kuhn-v0")
        turn = make_record(episode, game, 0, "final")["turns"][0]

        assert [turn[name] for name in ("policy", "tokens", "logprob", "advantage")] == [None] * 4


def record(step, kind="training", **changes):
    game, episode = random_episode("Kuhn-v0")
    return {**make_record(episode, game, step, kind), **changes}


def kept(path):
    return [(game["step"], game["kind"]) for game in read_game_log(path)]


class TestGameLog:
    def test_returns_the_appended_records(self, tmp_path):
        # A lone surrogate, which JSON of an endpoint may contain, and a line separator that JSON ignores.
        games = [record(1, detail="\ud800 \u2028 </script>"), record(2)]
        GameLog(tmp_path / GAMES).append(games[:1])
        GameLog(tmp_path / GAMES).append(games[1:])

        assert list(read_game_log(tmp_path / GAMES)) == games

    def test_rewinds_to_a_step(self, tmp_path):
        log = GameLog(tmp_path / GAMES)
        log.append([record(1), record(20), record(20, "final"), record(40), record(40, "final")])
        log.rewind(20)

        # Games of step 20 are logged before its checkpoint. Final games are played again if the run ends there.
        assert kept(log.path) == [(1, "training"), (20, "training")]

    def test_rewinding_to_zero_deletes_all_games(self, tmp_path):
        log = GameLog(tmp_path / GAMES)
        log.append([record(1)])
        log.rewind(0)

        assert kept(log.path) == []

    def test_ignores_an_incomplete_last_line(self, tmp_path):
        log = GameLog(tmp_path / GAMES)
        log.append([record(1)])
        with log.path.open("a") as file:
            file.write('{"format":1,"step":2,"ki')

        assert kept(log.path) == [(1, "training")]
        log.rewind(5)
        log.append([record(6)])
        assert kept(log.path) == [(1, "training"), (6, "training")]

    @pytest.mark.parametrize("line", ["nothing of ours", "[]", '{"format":2}', '{"step":1}'])
    def test_refuses_malformed_lines(self, line, tmp_path):
        (tmp_path / GAMES).write_text(f"{json.dumps(record(1))}\n{line}\n")

        with pytest.raises(ValueError, match=r"Line 2 of .* is no game in format 1"):
            list(read_game_log(tmp_path / GAMES))

    def test_drops_games_with_one_warning_if_it_is_full(self, tmp_path, caplog):
        size = len(json.dumps(record(1), separators=(",", ":"))) + 1
        log = GameLog(tmp_path / GAMES, largest=2 * size)
        with caplog.at_level(logging.WARNING, "trl_spiral"):
            added = [log.append([record(1), record(1)]), log.append([record(1)]), log.append([record(1)])]

        assert added == [2, 0, 0]
        assert log.path.stat().st_size == 2 * size
        assert [line.getMessage().split(" has reached")[0] for line in caplog.records] == [str(log.path)]


def episode_of(turns):
    """Return an episode of two alternating seats with these tokens per turn. Prompts continue earlier ones."""
    seats = ([], [])
    for number, tokens in enumerate(turns):
        seat = seats[number % 2]
        before = (*seat[-1].prompt_ids, *seat[-1].completion_ids) if seat else ()
        ids = tuple(range(100 * number, 100 * number + tokens))
        seat.append(Turn("[0]", "", (*before, -number), ids, (-0.5,) * tokens, POLICY))
    trajectories = tuple(Trajectory(seat, tuple(taken)) for seat, taken in enumerate(seats))
    order = tuple(number % 2 for number in range(len(turns)))
    return Episode("Sum-v0", 0, (POLICY, POLICY), trajectories, (1.0, -1.0), Ending.FINISHED, counter=4, order=order)


class TestTrainedAdvantages:
    @pytest.mark.parametrize("unit", ["turn", "trajectory"])
    def test_returns_the_advantage_of_each_turn(self, unit):
        episode = episode_of([2, 1, 3, 2])
        numbers = [[0.5, 0.25], [-0.5, -1.0]]
        rows = make_rows(episode, numbers, unit)

        assert trained_advantages(episode, rows) == numbers

    def test_is_none_for_turns_outside_the_batch(self):
        episode = episode_of([2, 1, 3, 2])
        rows = make_rows(episode, [[0.5, 0.25], [-0.5, -1.0]], "turn")

        assert trained_advantages(episode, rows[1:3]) == [[None, 0.25], [-0.5, None]]
        assert trained_advantages(episode, []) == [[None, None], [None, None]]


class TestTranscriptCallback:
    @pytest.fixture
    def trainer(self, model_dir, tmp_path):
        def make(**changes):
            settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, **changes}
            trainer = RecordingTrainer(
                model_dir, args=config(tmp_path, **settings), estimator=ReturnsOnly(discount=0.5)
            )
            trainer.add_callback(TranscriptCallback(trainer, games=3, every=2))
            return trainer

        return make

    def test_logs_games_of_training_with_their_advantages(self, trainer, tmp_path):
        run = trainer()
        run.train()
        games = list(read_game_log(tmp_path / GAMES))
        # One generation batch lasts for four steps here.
        ((rows, episodes, _),) = run.batches

        assert (
            kept(tmp_path / GAMES) == [(step, "training") for step in (1, 2, 4) for _ in range(3)] + [(4, "final")] * 3
        )
        assert [game["number"] for game in games[:3]] == [episode.counter for episode in episodes[:3]]
        trained = [turn["advantage"] for game in games[:3] for turn in game["turns"] if turn["advantage"] is not None]
        counters = {episode.counter for episode in episodes[:3]}
        assert trained == [row.advantage for row in rows if row.episode in counters]
        assert len(set(trained)) > 2

    def test_a_resumed_run_logs_each_game_once(self, trainer, tmp_path):
        trainer(num_iterations=1).train()
        straight = (tmp_path / GAMES).read_text()
        trainer(num_iterations=1).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

        assert (tmp_path / GAMES).read_text() == straight

    def test_an_evaluation_does_not_change_the_log(self, trainer, tmp_path):
        # After the second of the four steps that one batch lasts.
        run = trainer(eval_strategy="steps", eval_steps=2)
        run.train()
        ((_, episodes, _),) = run.batches
        numbers = [game["number"] for game in read_game_log(tmp_path / GAMES) if game["kind"] == "training"]

        assert any("eval_loss" in entry for entry in run.state.log_history)
        assert numbers == [episode.counter for episode in episodes[:3]] * 3

    def test_an_evaluation_of_a_plain_trainer_does_not_change_the_log(self, model_dir, tmp_path):
        class Evaluate(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                control.should_evaluate = state.global_step == 2

        run, rollout = plain_trainer(
            model_dir, tmp_path, ["TicTacToe-v0"], max_steps=4, num_iterations=4, per_device_eval_batch_size=16
        )
        run.eval_dataset = rollout.dataset(1)
        run.add_callback(Evaluate())
        run.add_callback(TranscriptCallback(run, games=3, every=2))
        run.train()

        assert any("eval_loss" in entry for entry in run.state.log_history)
        assert kept(tmp_path / GAMES) == [(step, "training") for step in (1, 2) for _ in range(3)] + [(4, "final")] * 3

    @pytest.mark.parametrize(
        ("arguments", "shown"),
        [
            (["--wandb-api-key", "s3cret"], "--wandb-api-key HIDDEN"),
            (["--wandb-api-key=s3cret"], "--wandb-api-key=HIDDEN"),
            (["--model_init_kwargs", '{"token": "s3cret", "dtype": "bf16"}'], '{"token": "HIDDEN", "dtype": "bf16"}'),
            (["--model_init_kwargs={'api_key': 's3cret'}"], """{'"'"'api_key'"'"': "HIDDEN"}"""),
            (["--url", "https://me:s3cret@host/v1"], "https://HIDDEN@host/v1"),
        ],
    )
    def test_hides_secrets_in_commands(self, arguments, shown, trainer):
        command = describe_run(trainer().args, ["train.py", *arguments])["command"]

        assert "s3cret" not in command
        assert shown in command

    def test_hides_secrets_in_settings(self, trainer):
        run = trainer()
        run.args.vllm_server_base_url = "http://me:s3cret@host:8000"
        run.args.run_name = '{"hub_token": "s3cret"}'
        run.args.label_names = ["http://me:s3cret@host"]
        settings = describe_run(run.args, [])["settings"]

        assert settings["vllm_server_base_url"] == "http://HIDDEN@host:8000"
        assert settings["run_name"] == '{"hub_token": "HIDDEN"}'
        assert settings["label_names"] == ["http://HIDDEN@host"]

    def test_records_the_command_and_the_settings(self, trainer, tmp_path, monkeypatch):
        monkeypatch.setattr("sys.argv", ["train.py", "--hub_token", "hf_x", "--wandb_api_key=k", "--seed", "42"])
        run = trainer(hub_token="hf_x")
        described = describe_run(run.args, ["train.py", "--hub_token", "hf_x", "--wandb_api_key=k", "--seed", "42"])

        assert described["command"] == "train.py --hub_token HIDDEN --wandb_api_key=HIDDEN --seed 42"
        assert described["settings"]["max_steps"] == 4
        assert "hf_x" not in json.dumps(described)

    def test_records_machine_and_versions(self, trainer, tmp_path, monkeypatch):
        for name in KERNELS:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
        trainer(num_iterations=1, max_steps=1).train()
        recorded = json.loads((tmp_path / "run.json").read_text())

        assert recorded["machine"] == {
            "processes": 1,
            "threads": torch.get_num_threads(),
            "architecture": platform.machine(),
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "accelerator": None,
            "environment": {"ATEN_CPU_CAPABILITY": "avx2"},
        }
        installed = ("trl-spiral", "trl", "transformers", "accelerate", "torch", "tokenizers", "textarena")
        assert {name: recorded["versions"][name] for name in installed} == {name: version(name) for name in installed}
        assert recorded["versions"]["python"] == platform.python_version()

    def test_refuses_a_trainer_without_games(self, trainer):
        run = trainer()
        run.rollout_func = None

        with pytest.raises(ValueError, match="records training games, and this trainer plays none"):
            run.train()

    def test_refuses_a_game_that_needs_a_sandbox_without_one(self, trainer, no_sandbox):
        with pytest.raises(CannotContain, match="Nothing here contains programs"):
            TranscriptCallback(trainer(), game="CodeGame-v0")

    def test_refuses_every_zero_steps(self, trainer):
        with pytest.raises(ValueError, match=r"`every` \(0\) must be at least 1"):
            TranscriptCallback(trainer(), every=0)
