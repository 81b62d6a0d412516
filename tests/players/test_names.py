import pytest

from trl_spiral.games import get_game
from trl_spiral.players.names import (
    PlayerName,
    parse_name,
    parse_opponents,
    scripted_player,
    scripted_player_for_games,
    short_names,
)


class TestParseName:
    @pytest.mark.parametrize(
        ("text", "kind", "short"),
        [
            ("random", "scripted", "random"),
            ("mcts-1000", "scripted", "mcts-1000"),
            ("human", "human", "human"),
            ("https://host:8000/v1#org/model", "endpoint", "org/model"),
            ("./random", "path", "./random"),
            ("run/opponents#step-40", "path", "run/opponents#step-40"),
        ],
    )
    def test_classifies_by_form(self, text, kind, short):
        assert parse_name(text) == PlayerName(text, kind, short)


class TestShortNames:
    def test_are_used_only_if_they_are_unique(self):
        names = [
            PlayerName("a/player", "model", "player"),
            PlayerName("b/player", "model", "player"),
            PlayerName("run/step-40", "model", "step-40"),
            PlayerName("runs/random", "model", "random"),
        ]

        assert list(short_names(names).values()) == ["a/player", "b/player", "step-40", "runs/random"]

    def test_are_not_the_whole_name_of_another_player(self):
        names = [PlayerName("https://host/v1#org/model", "endpoint", "org/model")]
        names.append(PlayerName("org/model", "model", "model"))

        assert list(short_names(names).values()) == ["https://host/v1#org/model", "model"]


class TestParseOpponents:
    @pytest.mark.parametrize(
        ("text", "shares"),
        [
            ("self", {"self": 1.0}),
            ("self:0.5,pool:0.4,random:0.1", {"self": 0.5, "pool": 0.4, "random": 0.1}),
            ("self:3, pool", {"self": 0.75, "pool": 0.25}),
            ("https://host:8000/v1#model:0.25,self:0.75", {"https://host:8000/v1#model": 0.25, "self": 0.75}),
            ("https://host/v1#model", {"https://host/v1#model": 1.0}),
            ("http://host:8000/v1#my/model:free", {"http://host:8000/v1#my/model:free": 1.0}),
            ("org/name:1", {"org/name": 1.0}),
        ],
    )
    def test_returns_shares_that_sum_to_one(self, text, shares):
        assert parse_opponents(text) == pytest.approx(shares)

    @pytest.mark.parametrize(
        "text", ["", "self:0", "self:-1", "self:x", "self,self", ":1", "self:nan", "self:inf", "self,"]
    )
    def test_refuses_malformed_entries(self, text):
        with pytest.raises(ValueError, match="must list each name once with a positive share"):
            parse_opponents(text)


class TestScriptedPlayer:
    @pytest.mark.parametrize(
        ("name", "game", "called"),
        [
            ("random", "PigDice-v0-50", "random"),
            ("minimax", "TicTacToe-v0", "minimax"),
            ("equilibrium", "Kuhn-v0-5", "equilibrium"),
            ("mcts", "ConnectFour-v0", "mcts-200"),
            ("mcts-50", "TicTacToe-v0", "mcts-50"),
            ("hold-20", "PigDice-v0-50", "hold-20"),
            ("hold-25", "PigDice-v0-50", "hold-25"),
            ("random", "LiarsDice-v1-5", "random"),
            ("odds", "LiarsDice-v1-2-3p", "odds"),
            ("random", "KuhnPoker-v1", "random"),
            ("random", "SimpleNegotiation-v2", "random"),
            ("greedy", "SimpleNegotiation-v2", "greedy"),
        ],
    )
    def test_makes_a_player_for_a_game(self, name, game, called):
        player = scripted_player(name, get_game(game))

        assert player.name == called
        match = get_game(game).start(0)
        assert match.apply(player.ask(match.observe(match.to_move)).action) is not None

    @pytest.mark.parametrize(
        "name", ["minmax", "mcts-", "mcts-x", "mcts--5", "random-3", "hold", "hold-", "hold-x", ""]
    )
    def test_refuses_an_unknown_name(self, name):
        with pytest.raises(ValueError, match=f"no scripted player called '{name}'. Choose 'random', 'minimax'"):
            scripted_player(name, get_game("TicTacToe-v0"))

    def test_refuses_a_game_that_the_player_does_not_play(self):
        with pytest.raises(ValueError, match="no minimax player for Kuhn-v0"):
            scripted_player("minimax", get_game("Kuhn-v0"))
        with pytest.raises(ValueError, match="no 'mcts' player for Kuhn-v0"):
            scripted_player("mcts", get_game("Kuhn-v0"))


class TestScriptedPlayerForGames:
    def test_plays_each_game_under_one_name(self):
        games = [get_game("TicTacToe-v0"), get_game("ConnectFour-v0")]
        player = scripted_player_for_games("mcts", games)

        assert player.name == "mcts"
        for game in games:
            match = game.start(0)
            assert match.apply(player.ask(match.observe(0)).action) is not None

    def test_refuses_games_that_the_player_does_not_play(self):
        with pytest.raises(ValueError, match="no minimax player for Kuhn-v0"):
            scripted_player_for_games("minimax", [get_game("TicTacToe-v0"), get_game("Kuhn-v0")])
