import json
from itertools import combinations

import pytest

from tests.helpers.games import LastStone
from trl_spiral.cli import main
from trl_spiral.cli.tournament import standing_table, standings
from trl_spiral.evaluation.tournament import round_robin
from trl_spiral.games import get_game
from trl_spiral.players import MinimaxPlayer, RandomPlayer, ScriptedPlayer


TICTACTOE = get_game("TicTacToe-v0")
ROCK_PAPER_SCISSORS = get_game("RockPaperScissors-v0")


def always(move):
    return ScriptedPlayer(move, lambda observation: f"[{move}]")


class TestRoundRobin:
    def test_each_pair_plays_each_deal_from_each_seat(self):
        players = [RandomPlayer(name) for name in "abc"]
        games = [TICTACTOE, LastStone()]
        episodes = round_robin(games, players, pairs=2)

        assert [episode.counter for episode in episodes] == list(range(2 * 3 * (2 + 3)))
        for one, other in combinations("abc", 2):
            for game in games:
                met = [e for e in episodes if e.game == game.name and set(e.players) == {one, other}]
                seats = [tuple(place for place, name in enumerate(e.players) if name == one) for e in met]
                assert seats == [(seat,) for seat in range(game.traits.seats)] * 2
                assert len({e.seed for e in met}) == 2
        assert len({e.seed for e in episodes}) == 4

    def test_is_determined_by_the_seed(self):
        players = [RandomPlayer("a"), RandomPlayer("b")]
        first, again, other = (round_robin([TICTACTOE], players, 3, seed=seed) for seed in (1, 1, 2))

        assert first == again
        assert [e.moves for e in first] != [e.moves for e in other]

    @pytest.mark.parametrize("names", ["a", "aa"])
    def test_refuses_players_without_different_names(self, names):
        with pytest.raises(ValueError, match="needs at least two players with different names"):
            round_robin([TICTACTOE], [RandomPlayer(name) for name in names], 1)


class TestStandings:
    def test_the_strongest_comes_first_and_has_the_whole_mass(self):
        players = [RandomPlayer(), MinimaxPlayer("TicTacToe-v0")]
        standing = standings(round_robin([TICTACTOE], players, 20), [player.name for player in players])

        assert [player["name"] for player in standing["players"]] == ["minimax", "random"]
        assert [player["nash_mass"] for player in standing["players"]] == pytest.approx([1.0, 0.0])
        assert standing["win_rates"][0][1]["rate"] > 0.8
        assert json.loads(json.dumps(standing)) == standing

    def test_players_of_a_cycle_share_the_mass(self):
        throws = [always(move) for move in ("rock", "paper", "scissors")]
        # The fourth player is a copy of the first: they share its third.
        copy = ScriptedPlayer("stone", lambda observation: "[rock]")
        names = ["rock", "paper", "scissors", "stone"]
        standing = standings(round_robin([ROCK_PAPER_SCISSORS], [*throws, copy], 10), names)
        masses = {player["name"]: player["nash_mass"] for player in standing["players"]}

        assert [masses[name] for name in names] == pytest.approx([1 / 6, 1 / 3, 1 / 3, 1 / 6], abs=1e-5)
        assert len(standing["cycles"]) == 2
        assert standing["cyclic_share"] > 0.9
        assert "paper beats rock" in standing_table(standing)

    def test_the_error_names_pairs_without_results(self):
        with pytest.raises(ValueError, match="No game between a and c was completed"):
            standings(round_robin([TICTACTOE], [RandomPlayer("a"), RandomPlayer("b")], 1), ["a", "b", "c"])


class TestCommand:
    def run(self, folder, *arguments):
        return main(["tournament", *arguments, "--game", "TicTacToe-v0", "--output", str(folder)])

    def test_is_reproducible(self, tmp_path, capsys):
        for folder in ("one", "two"):
            assert self.run(tmp_path / folder, "random", "minimax", "mcts-5", "--pairs", "4") == 0
        shown = capsys.readouterr().out
        written = [(tmp_path / folder / "tournament.json").read_text() for folder in ("one", "two")]

        assert "| minimax |" in shown and "Nash mass" in shown
        assert written[0] == written[1]
        assert json.loads(written[0])["players"][0]["name"] == "minimax"
        assert (tmp_path / "one" / "win_rates.png").stat().st_size > 10_000

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["random"], "needs at least two players"),
            (["random", "random"], "'random' is named twice"),
            (["random", "minmax"], "no scripted player called 'minmax'"),
            (["random", "minimax", "--pairs", "0"], r"`--pairs` (0) must be at least 1"),
        ],
    )
    def test_errors_are_one_sentence(self, arguments, sentence, tmp_path, capsys):
        assert self.run(tmp_path / "out", *arguments) == 2
        assert sentence in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
