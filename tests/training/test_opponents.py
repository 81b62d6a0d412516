import pytest

from tests.helpers.training_runs import config
from trl_spiral.evaluation.matches import play_matches
from trl_spiral.games import get_game
from trl_spiral.opponents.pool import POOL_FOLDER
from trl_spiral.training.opponents import invite
from trl_spiral.types import Sampling


TICTACTOE = [get_game("TicTacToe-v0")]


class TestInvite:
    def test_self_play_needs_nobody(self, tmp_path):
        invited = invite(config(tmp_path), TICTACTOE)

        assert (invited.shares, invited.pool, invited.players, invited.engines) == ({"self": 1.0}, None, {}, {})

    def test_refuses_opponents_whom_no_game_has_a_seat_for(self, tmp_path):
        hanoi = get_game("TowerOfHanoi-v0")
        with pytest.raises(
            ValueError, match="would never be met: .* the only seat of TowerOfHanoi-v0. Leave 'random' out"
        ):
            invite(config(tmp_path, opponents="self,random"), [hanoi])

        assert invite(config(tmp_path, opponents="self,random"), [hanoi, *TICTACTOE]).players

    def test_makes_what_the_text_names(self, tmp_path, monkeypatch):
        monkeypatch.setenv("GUEST_KEY", "secret")
        guest = "org/model:free"
        args = config(
            tmp_path,
            opponents=f"self:4,pool:2,random:1,minimax:1,mcts-20:1,human:1,https://host/v1#{guest}:1",
            pool_capacity=3,
            pool_kwargs={"eviction": "ladder"},
            endpoint_kwargs={"api_key_env": "GUEST_KEY", "max_requests": 10, "timeout": 7.0},
        )
        invited = invite(args, TICTACTOE)

        assert set(invited.players) == {"random", "minimax", "mcts-20", "human", guest}
        assert [invited.players[name].name for name in ("random", "minimax", guest)] == ["random", "minimax", guest]
        assert set(invited.engines) == {guest}
        assert (invited.pool.folder, invited.pool.capacity, invited.pool.eviction) == (
            tmp_path / POOL_FOLDER,
            3,
            "ladder",
        )

    @pytest.mark.parametrize(
        ("names", "shares"),
        [
            ("https://a/v1#m,self", {"m", "self"}),
            ("https://a/v1#m,https://b/v1#m", {"https://a/v1#m", "https://b/v1#m"}),
            ("https://a/v1#random,random", {"https://a/v1#random", "random"}),
            ("https://a/v1#self,self", {"https://a/v1#self", "self"}),
        ],
    )
    def test_endpoints_go_by_their_models_name_where_it_is_nobody_elses(self, names, shares, tmp_path):
        assert (
            set(invite(config(tmp_path, opponents=names, endpoint_kwargs={"api_key_env": ""}), TICTACTOE).shares)
            == shares
        )

    def test_a_person_does_not_sit_at_two_terminals(self, tmp_path, monkeypatch):
        args = config(tmp_path, opponents="human")
        monkeypatch.setattr(type(args), "world_size", 2)

        with pytest.raises(ValueError, match="A person sits at one terminal, and there are 2 ranks"):
            invite(args, TICTACTOE)

    def test_scripted_players_play(self, tmp_path):
        invited = invite(config(tmp_path, opponents="random,minimax"), TICTACTOE)
        episodes = play_matches(TICTACTOE[0], invited.players["minimax"], invited.players["random"], 1, 20)

        assert {episode.players for episode in episodes} == {("random", "minimax")}
        assert min(episode.returns[1] for episode in episodes) >= 0.0

    def test_a_player_that_does_not_know_one_of_the_games_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="no minimax player for PigDice-v0-50"):
            invite(config(tmp_path, opponents="minimax"), [*TICTACTOE, get_game("PigDice-v0-50")])

    def test_a_key_that_is_missing_is_asked_for(self, tmp_path, monkeypatch):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)

        with pytest.raises(ValueError, match="OPENAI_API_KEY must hold the endpoint's key"):
            invite(config(tmp_path, opponents="https://host/v1#model"), TICTACTOE)

    def test_a_budget_is_shared_by_ranks(self, tmp_path, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        args = config(tmp_path, opponents="https://host/v1#model", endpoint_kwargs={"max_requests": 1})
        monkeypatch.setattr(type(args), "world_size", 2)

        with pytest.raises(ValueError, match="budget of 1 cannot be shared by 2 ranks"):
            invite(args, TICTACTOE)


class TestSavedPlayer:
    def test_a_folder_plays_by_its_path(self, model_dir, tmp_path):
        invited = invite(config(tmp_path, opponents=f"self:0.5,{model_dir}:0.5"), TICTACTOE)
        player, engine = invited.players[model_dir], invited.engines[model_dir]
        episodes = play_matches(TICTACTOE[0], player, player, 0, 4, engine)
        turns = [turn for episode in episodes for seat in episode.trajectories for turn in seat.turns]

        assert {turn.policy for turn in turns} == {model_dir}
        assert any(turn.action for turn in turns)

    def test_an_adapter_plays_on_its_base(self, model_dir, tmp_path):
        import torch
        from peft import get_peft_model
        from transformers import AutoModelForCausalLM

        from tests.helpers.training_runs import lora
        from trl_spiral.engines.load import saved_player

        torch.manual_seed(0)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_dir), lora(init_lora_weights=False))
        model.save_pretrained(tmp_path / "adapter")
        sampling = Sampling(max_new_tokens=8, temperature=0.0)
        game = TICTACTOE[0]
        said = []
        for path in (model_dir, str(tmp_path / "adapter")):
            player, engine = saved_player(path, sampling)
            (episode,) = play_matches(game, player, player, 0, 1, engine)
            said.append(episode.trajectories[0].turns[0].completion_ids)

        assert said[0] != said[1]

    def test_a_model_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(ValueError, match="The model '.*nowhere' cannot be loaded: "):
            invite(config(tmp_path, opponents=f"{tmp_path}/nowhere"), TICTACTOE)


class TestConfig:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"opponents": "self:0"}, "must list each name once with a positive share"),
            ({"opponents": "self:0.5,radnom:0.5"}, "no scripted player called 'radnom'"),
            ({"matchmaking": "best"}, r"`matchmaking` \('best'\) must be one of"),
            (
                {"matchmaking": "pfsp-hard"},
                "`matchmaking` .* chooses among snapshots, and `opponents` .* contains no pool",
            ),
            ({"pool_every": 0}, r"`pool_every` \(0\) must be at least 1"),
            ({"pool_capacity": 0}, r"`pool_capacity` \(0\) must be at least 1"),
            ({"pool_kwargs": {"start": -1}}, r"`start` \(-1\) in `pool_kwargs` must be at least 0"),
            ({"pool_kwargs": {"eviction": "newest"}}, r"`eviction` \('newest'\) in `pool_kwargs` must be one of"),
            ({"pool_kwargs": '{"dtype": "int8"}'}, r"`dtype` \('int8'\) in `pool_kwargs` must be float32"),
            (
                {"pool_kwargs": {"size": 1}},
                "`pool_kwargs` names 'size'; it takes start, eviction, dtype, rating_games, repair",
            ),
            ({"endpoint_kwargs": {"max_tokens": 0}}, r"`max_tokens` \(0\) must be at least 1"),
            ({"endpoint_kwargs": {"timeout": 0}}, r"`timeout` \(0\) must be a number of seconds above 0"),
            ({"endpoint_kwargs": '{"timeout": Infinity}'}, r"`timeout` \(inf\) must be a number of seconds above 0"),
            ({"endpoint_kwargs": {"time": 1}}, "`endpoint_kwargs` names 'time'; it takes api_key_env, .*, timeout"),
        ],
    )
    def test_refuses_what_makes_no_sense(self, changes, sentence, tmp_path):
        with pytest.raises(ValueError, match=sentence):
            config(tmp_path, **changes)
