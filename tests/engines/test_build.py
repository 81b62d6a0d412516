"""Players and engines from names: for the command line, for the trainer, and of weights on disk or on the Hub."""

import json
import shutil
import sys

import pytest
import torch
from accelerate.utils import is_peft_model
from peft import PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Qwen3ForCausalLM

from tests.helpers import forks
from tests.helpers.completions_server import CompletionsServer
from tests.helpers.hub_server import HubServer
from tests.helpers.lora_policies import lora_model
from tests.helpers.training_runs import config, lora
from trl_spiral.engines.build import build_opponents, build_players, read_name, read_names, saved_player
from trl_spiral.engines.local.second_copy import FrozenCopy
from trl_spiral.engines.local.transformers import TransformersEngine, generation_config
from trl_spiral.evaluation.matches import play_matches
from trl_spiral.evaluation.tournament import round_robin
from trl_spiral.games import get_game
from trl_spiral.opponents import OpponentPool
from trl_spiral.opponents.pool import POOL_FOLDER
from trl_spiral.players import HumanPlayer, RandomPlayer
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import Ending, Request, Sampling


TICTACTOE = [get_game("TicTacToe-v0")]
SHORT = Sampling(max_new_tokens=8)
GREEDY = Sampling(max_new_tokens=8, temperature=0.0)
PROMPT = (20, 21, 22, 23)


def take(pool, model_dir, steps):
    """Add snapshots of the unchanged model to a pool."""
    for step in steps:
        pool.add(step, "weights", lambda folder: copy_weights(model_dir, folder))


def copy_weights(model_dir, folder):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(f"{model_dir}/{name}", folder)


def build(texts, games=TICTACTOE, sampling=SHORT, **kwargs):
    return build_players(read_names(texts), games, sampling, **kwargs)


@pytest.fixture
def run(model_dir, tmp_path):
    """Folder of a run with a pool of two snapshots and a tokenizer next to it."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(f"{model_dir}/{name}", tmp_path)
    take(OpponentPool(tmp_path / "opponents"), model_dir, (20, 40))
    return tmp_path


@pytest.fixture
def adapter(model_dir, tmp_path):
    """Folder of an adapter."""
    torch.manual_seed(0)
    lora_model(model_dir).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


class TestReadNames:
    def test_classifies_each_name(self, run, model_dir):
        texts = ["random", "mcts-200", "human", "https://host/v1#org/model", model_dir, "org/model"]
        pool = f"{run}/opponents"

        assert [(name.kind, name.short) for name in read_names(texts)] == [
            ("scripted", "random"),
            ("scripted", "mcts-200"),
            ("human", "human"),
            ("endpoint", "org/model"),
            ("model", model_dir.rsplit("/", 1)[1]),
            ("model", "model"),
        ]
        assert [(name.kind, name.text) for name in read_names([pool])] == [
            ("snapshot", f"{pool}#step-20"),
            ("snapshot", f"{pool}#step-40"),
        ]
        assert [name.short for name in read_names([f"{pool}#step-40"])] == ["step-40"]

    def test_a_folder_does_not_hide_a_scripted_player(self, model_dir, tmp_path, monkeypatch):
        (tmp_path / "random").mkdir()
        copy_weights(model_dir, tmp_path / "random")
        monkeypatch.chdir(tmp_path)

        assert [name.kind for name in read_names(["random", "./random"])] == ["scripted", "model"]

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
            (["{run}/nowhere"], "There is no folder .*nowhere, and no model on the Hub can have that name"),
            (["{run}"], "contains no model, no adapter and no pool of snapshots. Did you mean .*/opponents"),
            (["{run}/empty"], "contains no model.* Give the folder that `save_pretrained` wrote"),
        ],
    )
    def test_refuses_unknown_and_repeated_names(self, texts, sentence, run):
        (run / "empty").mkdir()

        with pytest.raises(ValueError, match=sentence):
            read_names([text.format(run=run) for text in texts])

    def test_refuses_several_players_where_an_option_takes_one(self, run):
        pool = f"{run}/opponents"

        assert read_name(f"{pool}#step-20", "MODEL").short == "step-20"
        with pytest.raises(ValueError, match="`MODEL` .* must name one player, and it names 2. Choose .*#step-40"):
            read_name(pool, "MODEL")


class TestBuildPlayers:
    def test_models_snapshots_and_scripted_players_meet_in_one_process(self, run, model_dir):
        built = build([model_dir, "random", f"{run}/opponents"])
        names = [model_dir.rsplit("/", 1)[1], "random", "step-20", "step-40"]
        episodes = round_robin(TICTACTOE, list(built.players.values()), 1, built.engine())

        assert list(built.players) == [player.name for player in built.players.values()] == names
        # The snapshots of a pool share one engine.
        assert len({id(engine) for engine in built.engines.values()}) == 2
        assert len(episodes) == 6 * 2
        # The same weights under three names give the same replies at temperature 0.
        same = build([model_dir, f"{run}/opponents"], sampling=GREEDY)
        rival = RandomPlayer()
        moves = [
            next(play([referee(Start(TICTACTOE[0], (player, rival), 0, 0))], same.engine())).moves
            for player in same.players.values()
        ]
        assert moves[0] == moves[1] == moves[2]

    def test_snapshots_of_two_pools_have_different_names(self, run, model_dir):
        other = run / "other" / "opponents"
        take(OpponentPool(other), model_dir, (40, 60))
        texts = [f"{run}/opponents", str(other)]
        built = build(texts, tokenizer=model_dir)

        assert list(built.players) == ["step-20", f"{run}/opponents#step-40", f"{other}#step-40", "step-60"]
        with pytest.raises(ValueError, match="no tokenizer next to the pool in .*other"):
            build(texts)

    def test_the_tokenizer_of_an_adapter_is_that_of_its_base(self, model_dir, tmp_path):
        pool = OpponentPool(tmp_path / "opponents")
        pool.add(7, "adapter", lora_model(model_dir).save_pretrained)
        built = build([f"{pool.folder}#step-7"])
        base = json.loads((pool.path("step-7") / "adapter_config.json").read_text())["base_model_name_or_path"]

        assert base == model_dir
        assert round_robin(TICTACTOE, [built.players["step-7"], RandomPlayer()], 1, built.engine())[0].order

        name = f"{pool.folder}#step-7"
        assert set(build_opponents(config(tmp_path / "out", opponents=name), TICTACTOE).players) == {name}

    def test_an_endpoint_plays_and_is_closed(self):
        with CompletionsServer() as server:
            built = build([f"{server.url}#some/model", "random"], endpoint_kwargs={"api_key_env": ""})
            episodes = round_robin(TICTACTOE, list(built.players.values()), 1, built.engine())
            built.close()

        assert {name for episode in episodes for name in episode.players} == {"some/model", "random"}
        assert not any(episode.ending is Ending.PLAYER_LOST for episode in episodes)

    def test_one_game_at_a_time_if_a_person_plays(self):
        assert build(["human"]).in_flight == 1
        assert isinstance(build(["human"]).players["human"], HumanPlayer)
        assert build(["random"]).in_flight > 1

    def test_cheap_checks_come_before_any_model_is_loaded(self, model_dir, monkeypatch):
        monkeypatch.setattr("trl_spiral.engines.build.saved_player", None)
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)

        with pytest.raises(ValueError, match="no minimax player for PigDice-v0-50"):
            build([model_dir, "minimax"], [get_game("PigDice-v0-50")])
        with pytest.raises(ValueError, match="OPENAI_API_KEY must hold the endpoint's key"):
            build([model_dir, "https://host/v1#model"])

    def test_an_error_names_the_model_that_cannot_be_loaded(self, tmp_path):
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "config.json").write_text("{}")

        with pytest.raises(ValueError, match="The model '.*broken' cannot be loaded: "):
            build([f"{tmp_path}/broken"])


class TestBuildOpponents:
    def test_self_play_needs_no_players(self, tmp_path):
        built = build_opponents(config(tmp_path), TICTACTOE)

        assert (built.shares, built.pool, built.players, built.engines) == ({"self": 1.0}, None, {}, {})

    def test_refuses_opponents_if_every_game_has_one_seat(self, tmp_path):
        args, hanoi = config(tmp_path, opponents="self,random"), get_game("TowerOfHanoi-v0")
        with pytest.raises(
            ValueError, match="would never be met: .* the only seat of TowerOfHanoi-v0. Leave 'random' out"
        ):
            build_opponents(args, [hanoi])

        assert build_opponents(args, [hanoi, *TICTACTOE]).players

    def test_builds_each_kind_of_opponent(self, tmp_path, monkeypatch):
        monkeypatch.setenv("GUEST_KEY", "secret")
        guest = "org/model:free"
        args = config(
            tmp_path,
            opponents=f"self:4,pool:2,random:1,minimax:1,mcts-20:1,human:1,https://host/v1#{guest}:1",
            pool_capacity=3,
            pool_kwargs={"eviction": "ladder"},
            endpoint_kwargs={"api_key_env": "GUEST_KEY", "max_requests": 10, "timeout": 7.0},
        )
        built = build_opponents(args, TICTACTOE)

        assert set(built.players) == {"random", "minimax", "mcts-20", "human", guest}
        assert [built.players[name].name for name in ("random", "minimax", guest)] == ["random", "minimax", guest]
        assert set(built.engines) == {guest}
        assert (built.pool.folder, built.pool.capacity, built.pool.eviction) == (tmp_path / POOL_FOLDER, 3, "ladder")

    @pytest.mark.parametrize(
        ("names", "shares"),
        [
            ("https://a/v1#m,self", {"m", "self"}),
            ("https://a/v1#m,https://b/v1#m", {"https://a/v1#m", "https://b/v1#m"}),
            ("https://a/v1#random,random", {"https://a/v1#random", "random"}),
            ("https://a/v1#self,self", {"https://a/v1#self", "self"}),
        ],
    )
    def test_an_endpoint_has_the_name_of_its_model_if_that_is_unique(self, names, shares, tmp_path):
        args = config(tmp_path, opponents=names, endpoint_kwargs={"api_key_env": ""})

        assert set(build_opponents(args, TICTACTOE).shares) == shares

    def test_refuses_a_person_on_two_ranks(self, tmp_path, monkeypatch):
        args = config(tmp_path, opponents="human")
        monkeypatch.setattr(type(args), "world_size", 2)

        with pytest.raises(ValueError, match="A person sits at one terminal, and there are 2 ranks"):
            build_opponents(args, TICTACTOE)

    def test_scripted_players_play(self, tmp_path):
        built = build_opponents(config(tmp_path, opponents="random,minimax"), TICTACTOE)
        episodes = play_matches(TICTACTOE[0], built.players["minimax"], built.players["random"], 1, 20)

        assert {episode.players for episode in episodes} == {("random", "minimax")}
        assert min(episode.returns[1] for episode in episodes) >= 0.0

    def test_refuses_a_player_that_does_not_play_one_of_the_games(self, tmp_path):
        with pytest.raises(ValueError, match="no minimax player for PigDice-v0-50"):
            build_opponents(config(tmp_path, opponents="minimax"), [*TICTACTOE, get_game("PigDice-v0-50")])

    def test_refuses_an_endpoint_without_its_key(self, tmp_path, monkeypatch):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)

        with pytest.raises(ValueError, match="OPENAI_API_KEY must hold the endpoint's key"):
            build_opponents(config(tmp_path, opponents="https://host/v1#model"), TICTACTOE)

    def test_ranks_share_a_budget(self, tmp_path, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        args = config(tmp_path, opponents="https://host/v1#model", endpoint_kwargs={"max_requests": 1})
        monkeypatch.setattr(type(args), "world_size", 2)

        with pytest.raises(ValueError, match="budget of 1 cannot be shared by 2 ranks"):
            build_opponents(args, TICTACTOE)

    def test_a_model_keeps_its_path_as_its_name(self, model_dir, tmp_path):
        built = build_opponents(config(tmp_path, opponents=f"self:0.5,{model_dir}:0.5"), TICTACTOE)
        player, engine = built.players[model_dir], built.engines[model_dir]
        episodes = play_matches(TICTACTOE[0], player, player, 0, 4, engine)
        turns = [turn for episode in episodes for seat in episode.trajectories for turn in seat.turns]

        assert built.shares == {"self": 0.5, model_dir: 0.5}
        assert {turn.policy for turn in turns} == {model_dir}
        assert any(turn.action for turn in turns)

    def test_a_snapshot_of_another_run_is_an_opponent(self, run, tmp_path):
        name = f"{run}/opponents#step-40"
        built = build_opponents(config(tmp_path / "out", opponents=f"self,{name}"), TICTACTOE)

        assert built.shares == {"self": 0.5, name: 0.5}
        assert play_matches(TICTACTOE[0], built.players[name], RandomPlayer(), 0, 1, built.engines[name])[0].order
        with pytest.raises(ValueError, match="`opponents` .* must name one player, and it names 2"):
            build_opponents(config(tmp_path / "out", opponents=f"self,{run}/opponents"), TICTACTOE)

    def test_an_error_names_the_model_that_is_missing(self, tmp_path):
        with pytest.raises(ValueError, match="There is no folder .*nowhere"):
            build_opponents(config(tmp_path, opponents=f"{tmp_path}/nowhere"), TICTACTOE)


def reply_of(path):
    """Return a saved model's reply to `PROMPT`, and the metrics of its engine."""
    player, engine = saved_player(str(path), GREEDY)
    engine.add(0, Request(PROMPT, GREEDY, player.policy))
    ((_, reply),) = engine.step()
    return reply, engine.metrics()


def greedy_reply(model):
    """Return the reply of a model's own `generate`."""
    settings = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    return model.eval().generate(torch.tensor([PROMPT]), generation_config=settings)[0, len(PROMPT) :].tolist()


class TestSavedPlayer:
    def test_replies_end_with_a_token_of_the_tokenizer_or_the_model(self, model_dir, tmp_path):
        model, tokenizer = Qwen3ForCausalLM.from_pretrained(model_dir), AutoTokenizer.from_pretrained(model_dir)
        first = greedy_reply(model)[0]
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, first]
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        reply, _ = reply_of(tmp_path)

        assert reply.completion_ids == (first,)
        assert reply.finish_reason == "stop"

    def test_the_weights_are_in_place_from_the_start(self, model_dir):
        _, metrics = reply_of(model_dir)

        assert metrics["weight_switches"] == 0

    def test_an_adapter_is_loaded_onto_its_base(self, model_dir, adapter):
        expected = PeftModel.from_pretrained(Qwen3ForCausalLM.from_pretrained(model_dir), adapter)
        reply, _ = reply_of(adapter)

        assert list(reply.completion_ids) == greedy_reply(expected)
        assert list(reply.completion_ids) != greedy_reply(Qwen3ForCausalLM.from_pretrained(model_dir))

    def test_an_adapter_on_the_hub_is_loaded_onto_its_base(self, adapter, tmp_path):
        script = (
            "import sys\nfrom huggingface_hub import HfApi\nfrom tests.engines.test_build import reply_of\n"
            "HfApi().create_repo('tester/adapter')\n"
            "HfApi().upload_folder(repo_id='tester/adapter', folder_path=sys.argv[1])\n"
            "print(*reply_of('tester/adapter')[0].completion_ids)\n"
        )
        with HubServer() as hub:
            done = forks.run([sys.executable, "-c", script, adapter], env=hub.environment(tmp_path))

        assert done.returncode == 0, done.stderr
        assert list(map(int, done.stdout.split())) == list(reply_of(adapter)[0].completion_ids)

    def test_an_adapter_plays_other_moves_than_its_base(self, model_dir, tmp_path):
        torch.manual_seed(0)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_dir), lora(init_lora_weights=False))
        model.save_pretrained(tmp_path / "adapter")
        replies = []
        for path in (model_dir, str(tmp_path / "adapter")):
            player, engine = saved_player(path, GREEDY)
            (episode,) = play_matches(TICTACTOE[0], player, player, 0, 1, engine)
            replies.append(episode.trajectories[0].turns[0].completion_ids)

        assert replies[0] != replies[1]


class TestAdaptersThatTransformersLoaded:
    """`AutoModelForCausalLM` puts an adapter into the layers itself, and makes no PEFT model of it."""

    def test_are_decoded_with_the_adapter(self, model_dir, adapter):
        model = AutoModelForCausalLM.from_pretrained(adapter).eval()
        assert model.peft_config and not isinstance(model, PeftModel)
        engine = TransformersEngine(model, generation_config(model, AutoTokenizer.from_pretrained(model_dir)))
        engine.add(0, Request(PROMPT, GREEDY))
        ((_, reply),) = engine.step()

        assert list(reply.completion_ids) == greedy_reply(model)
        # A frozen copy shares no layer with it: any of its layers may be trained.
        shared = {p.data_ptr() for p in FrozenCopy(model).model.parameters()} & {
            p.data_ptr() for p in model.parameters()
        }
        assert not shared
        assert not is_peft_model(model)
