import json
import re
import subprocess
import sys

import pytest

from tests.helpers.games import LastStone, ShortOrLong
from trl_spiral.games import base, check_game, game_names, get_game, register_game
from trl_spiral.players import RandomPlayer
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import Ending


REGISTERED = [
    *("ConnectFour-v0", "Kuhn-v0", "Kuhn-v0-5", "Nim-v0", "PigDice-v0-50", "RockPaperScissors-v0", "TicTacToe-v0"),
]


@pytest.fixture
def registry(monkeypatch):
    """Restore the registry after the test."""
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    monkeypatch.setattr(base, "_GAMES", dict(base._GAMES))


class TestRegistry:
    def test_contains_the_games_of_the_package(self):
        assert set(REGISTERED) <= set(game_names())

    @pytest.mark.parametrize("name", REGISTERED)
    def test_names_games_as_registered(self, name):
        assert get_game(name).name == name

    @pytest.mark.parametrize(
        ("typed", "meant"),
        [("TicTacToe", "TicTacToe-v0"), ("tictactoe-V0", "TicTacToe-v0"), ("PigDice-v0-5", "PigDice-v0-50")],
    )
    def test_suggests_the_closest_names_for_an_unknown_game(self, typed, meant):
        with pytest.raises(ValueError, match=f"no game called '{typed}'. Did you mean '{meant}'"):
            check_game(typed)

    def test_names_the_command_if_no_name_is_close(self):
        with pytest.raises(ValueError, match="`trl-spiral games` lists them all"):
            get_game("xyz")

    @pytest.mark.parametrize(
        ("name", "reason"),
        [("Chess-v0", "it needs Python 3.12"), ("Debate-v0", "it needs a judge model")],
    )
    def test_gives_the_reason_for_a_game_that_cannot_be_played(self, name, reason):
        with pytest.raises(ValueError, match=f"'{name}' cannot be played: {reason}") as error:
            get_game(name)

        assert "Did you mean" not in str(error.value)

    def test_suggests_playable_games_only(self):
        with pytest.raises(ValueError, match="no game called 'Ches-v0'") as error:
            get_game("Ches-v0")

        assert set(re.findall(r"'([^']+)'", str(error.value).split("Did you mean")[1])) <= set(game_names())

    def test_plays_a_registered_game_with_an_unsupported_name(self, registry):
        register_game("Chess-v0", LastStone)

        assert isinstance(get_game("Chess-v0"), LastStone)

    def test_makes_a_game_once_at_its_first_use(self, registry):
        made = []
        register_game("LastStone", lambda: made.append(1) or LastStone())

        check_game("LastStone")
        assert made == []
        assert get_game("LastStone") is get_game("LastStone")
        assert made == [1]

    def test_refuses_a_taken_name(self, registry):
        with pytest.raises(ValueError, match="'Nim-v0' is registered already"):
            register_game("Nim-v0", LastStone)

    def test_does_not_contain_games_of_other_tests(self):
        assert "LastStone" not in game_names()


class TestEveryGame:
    """Properties of games over random play."""

    @pytest.fixture(params=[*REGISTERED, LastStone(), ShortOrLong()], ids=lambda game: getattr(game, "name", game))
    def game(self, request):
        return get_game(request.param) if isinstance(request.param, str) else request.param

    def test_ends_by_its_rules_under_legal_play(self, game):
        players = (RandomPlayer(),) * game.traits.seats

        for episode in play(referee(Start(game, players, seed, play_seed=seed)) for seed in range(30)):
            assert (episode.ending, episode.offender) == (Ending.FINISHED, None)
            assert len(episode.returns) == game.traits.seats
            if game.traits.zero_sum:
                assert sum(episode.returns) == 0

    def test_lists_legal_moves_in_canonical_form(self, game):
        match = game.start(seed=0)

        for move in match.legal_actions():
            assert game.canonical(move) == move
            # Players may omit the brackets, or add whitespace.
            assert game.canonical(f"  {move[1:-1]} ") == move

    def test_observations_contain_name_seat_and_legal_moves(self, game):
        match = game.start(seed=0)

        observation = match.observe(match.to_move)

        assert (observation.game, observation.seat) == (game.name, match.to_move)
        assert observation.legal_actions == match.legal_actions() != ()
        assert (
            observation.update == observation.messages[-1]["content"]
            or observation.update in (observation.messages[-1]["content"])
        )

    def test_ends_at_an_illegal_move_with_its_offender(self, game):
        match = game.start(seed=0)
        seat = match.to_move

        assert match.apply("[no such move]") is None
        assert (match.ending, match.offender, match.to_move) == (Ending.ILLEGAL_MOVE, seat, None)
        assert match.returns == (0.0,) * game.traits.seats

    def test_refuses_moves_after_its_end(self, game):
        match = game.start(seed=0)
        while match.to_move is not None:
            match.apply(match.legal_actions()[0])
        returns = match.returns

        with pytest.raises(ValueError, match="has ended"):
            match.apply("[1]")

        assert (match.returns, match.ending, match.to_move) == (returns, Ending.FINISHED, None)


class TestImport:
    def test_the_package_loads_neither_torch_nor_textarena(self):
        # All torch-free modules, up to making every game, in a new process.
        code = """
import json, sys
import trl_spiral
import trl_spiral.evaluation.exact.tictactoe
from trl_spiral import PolicyPlayer, PositionValues, Opponents, RandomPlayer, Start, play, referee
from trl_spiral.games import game_names, get_game
games = [get_game(name) for name in game_names()]
heavy = ("torch", "transformers", "trl", "accelerate", "textarena", "numpy", "datasets")
before = [name for name in heavy if name in sys.modules]
games[0].start(seed=0)
print(json.dumps([before, "textarena" in sys.modules, "torch" in sys.modules]))
"""
        answered = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

        before, textarena_after, torch_after = json.loads(answered.stdout)
        assert before == []
        assert textarena_after
        assert not torch_after
