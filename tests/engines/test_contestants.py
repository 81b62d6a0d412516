import json
import shutil

import pytest

from tests.helpers.completions_server import CompletionsServer
from trl_spiral.engines.contestants import make_contestants, read_names
from trl_spiral.evaluation.tournament import round_robin
from trl_spiral.games import get_game
from trl_spiral.opponents import OpponentPool
from trl_spiral.players import HumanPlayer, RandomPlayer
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import Ending, Sampling


TICTACTOE = [get_game("TicTacToe-v0")]
SHORT = Sampling(max_new_tokens=8)


def take(pool, model_dir, steps):
    """Snapshots of the model as it is."""
    for step in steps:
        pool.add(step, "weights", lambda folder: copy_weights(model_dir, folder))


def copy_weights(model_dir, folder):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(f"{model_dir}/{name}", folder)


@pytest.fixture
def run(model_dir, tmp_path):
    """The folder of a run that has a pool of two and a tokenizer beside it."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(f"{model_dir}/{name}", tmp_path)
    take(OpponentPool(tmp_path / "opponents"), model_dir, (20, 40))
    return tmp_path


class TestReadNames:
    def test_tells_what_is_named(self, run, model_dir):
        texts = ["random", "mcts-200", "human", "https://host/v1#org/model", model_dir, "org/model"]
        pool = f"{run}/opponents"

        assert [(one.kind, one.short) for one in read_names(texts)] == [
            ("scripted", "random"),
            ("scripted", "mcts-200"),
            ("human", "human"),
            ("endpoint", "org/model"),
            ("model", model_dir.rsplit("/", 1)[1]),
            ("model", "model"),
        ]
        assert [(one.kind, one.whole) for one in read_names([pool])] == [
            ("snapshot", f"{pool}#step-20"),
            ("snapshot", f"{pool}#step-40"),
        ]
        assert [one.short for one in read_names([f"{pool}#step-40"])] == ["step-40"]

    def test_no_folder_hides_a_scripted_player(self, model_dir, tmp_path, monkeypatch):
        (tmp_path / "random").mkdir()
        copy_weights(model_dir, tmp_path / "random")
        monkeypatch.chdir(tmp_path)

        assert [one.kind for one in read_names(["random", "./random"])] == ["scripted", "model"]

    @pytest.mark.parametrize(
        ("texts", "sentence"),
        [
            (
                ["radnom"],
                "no scripted player called 'radnom'.*, or a model's folder, its id on the Hub, or an endpoint",
            ),
            (["random", "random"], "'random' is named twice"),
            (["{run}/opponents", "{run}/opponents#step-20"], "step-20' is named twice"),
            (["{run}/opponents#step-30"], "has no snapshot 'step-30'. It has step-20, step-40"),
            (["{run}/nowhere"], "There is no folder .*nowhere, and no model on the Hub can be called that"),
            (["{run}"], "holds no model, no adapter and no pool of snapshots. Did you mean .*/opponents"),
            (["{run}/empty"], "holds no model.* Give the folder that `save_pretrained` wrote"),
        ],
    )
    def test_refuses_who_is_nobody(self, texts, sentence, run):
        (run / "empty").mkdir()

        with pytest.raises(ValueError, match=sentence):
            read_names([text.format(run=run) for text in texts])


class TestMakeContestants:
    def test_models_snapshots_and_scripted_players_meet_in_one_process(self, run, model_dir):
        made = make_contestants([model_dir, "random", f"{run}/opponents"], TICTACTOE, SHORT)
        names = [model_dir.rsplit("/", 1)[1], "random", "step-20", "step-40"]
        episodes = round_robin(TICTACTOE, list(made.players.values()), 1, made.engine())

        assert list(made.players) == [player.name for player in made.players.values()] == names
        # The snapshots of a pool share one engine.
        assert len({id(engine) for engine in made.engines.values()}) == 2
        assert len(episodes) == 6 * 2
        # The same weights under three names say the same when nothing is drawn.
        same = make_contestants([model_dir, f"{run}/opponents"], TICTACTOE, Sampling(0.0, max_new_tokens=8))
        rival = RandomPlayer()
        moves = [
            next(play([referee(Start(TICTACTOE[0], (player, rival), 0, 0))], same.engine())).moves
            for player in same.players.values()
        ]
        assert moves[0] == moves[1] == moves[2]

    def test_snapshots_of_two_pools_are_told_apart(self, run, model_dir):
        other = run / "other" / "opponents"
        take(OpponentPool(other), model_dir, (40, 60))
        texts = [f"{run}/opponents", str(other)]
        made = make_contestants(texts, TICTACTOE, SHORT, tokenizer=model_dir)

        assert list(made.players) == ["step-20", f"{run}/opponents#step-40", f"{other}#step-40", "step-60"]
        with pytest.raises(ValueError, match="No tokenizer is beside the pool in .*other"):
            make_contestants(texts, TICTACTOE, SHORT)

    def test_an_adapter_knows_its_tokenizer(self, model_dir, tmp_path):
        from tests.helpers.lora_policies import lora_model

        pool = OpponentPool(tmp_path / "opponents")
        pool.add(7, "adapter", lora_model(model_dir).save_pretrained)
        made = make_contestants([f"{pool.folder}#step-7"], TICTACTOE, SHORT)
        base = json.loads((pool.path("step-7") / "adapter_config.json").read_text())["base_model_name_or_path"]

        assert base == model_dir
        assert round_robin(TICTACTOE, [made.players["step-7"], RandomPlayer()], 1, made.engine())[0].order

    def test_an_endpoint_plays_and_is_hung_up_on(self):
        with CompletionsServer() as server:
            made = make_contestants(
                [f"{server.url}#some/model", "random"], TICTACTOE, SHORT, endpoint_kwargs={"api_key_env": ""}
            )
            episodes = round_robin(TICTACTOE, list(made.players.values()), 1, made.engine())
            made.close()

        assert {name for episode in episodes for name in episode.players} == {"some/model", "random"}
        assert not any(episode.ending is Ending.PLAYER_LOST for episode in episodes)

    def test_one_game_at_a_time_where_a_person_plays(self):
        assert make_contestants(["human"], TICTACTOE).in_flight == 1
        assert isinstance(make_contestants(["human"], TICTACTOE).players["human"], HumanPlayer)
        assert make_contestants(["random"], TICTACTOE).in_flight > 1

    def test_what_is_wrong_is_said_before_a_model_is_loaded(self, model_dir, monkeypatch):
        monkeypatch.setattr("trl_spiral.engines.contestants.saved_player", None)
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)

        with pytest.raises(ValueError, match="no minimax player for PigDice-v0-50"):
            make_contestants([model_dir, "minimax"], [get_game("PigDice-v0-50")])
        with pytest.raises(ValueError, match="OPENAI_API_KEY must hold the endpoint's key"):
            make_contestants([model_dir, "https://host/v1#model"], TICTACTOE)

    def test_a_model_that_cannot_be_loaded_is_named(self, tmp_path):
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "config.json").write_text("{}")

        with pytest.raises(ValueError, match="The model '.*broken' cannot be loaded: "):
            make_contestants([f"{tmp_path}/broken"], TICTACTOE)
