"""Strategies at the table: what they win there is what the tree says they win."""

import math

import pytest

from trl_spiral.evaluation.exact.exploitability import best_responses
from trl_spiral.evaluation.exact.strategy_player import StrategyPlayer, best_responder
from trl_spiral.evaluation.matches import play_matches
from trl_spiral.games import get_game
from trl_spiral.players import RandomPlayer


def uniform(state):
    return dict.fromkeys(("[call]", "[fold]") if state.endswith("b") else ("[check]", "[bet]"), 0.5)


def mean_return(player, rival, seat, games=1500):
    episodes = play_matches(get_game("Kuhn-v0"), player, rival, seat, games)
    return math.fsum(episode.returns[seat] for episode in episodes) / games


class TestBestResponder:
    @pytest.mark.parametrize("seat", [0, 1])
    def test_wins_what_it_is_said_to_win(self, seat):
        expected = best_responses("Kuhn-v0", uniform)[seat].value

        # A game's return has a standard deviation below 1.6; five of the mean's, over 1500 games, are 0.21.
        assert mean_return(best_responder("Kuhn-v0", uniform), RandomPlayer(), seat) == pytest.approx(
            expected, abs=0.21
        )


class TestStrategyPlayer:
    def test_draws_its_moves_with_their_odds(self):
        bold = {"[bet]": 0.8, "[check]": 0.2}
        player = StrategyPlayer("Kuhn-v0", lambda state: {"[fold]": 1.0} if state.endswith("b") else bold)
        firsts = [episode.moves[0][1] for episode in play_matches(get_game("Kuhn-v0"), player, player, 0, 1500)]

        # Five standard deviations of a share of 1500 are 0.052.
        assert firsts.count("[bet]") / 1500 == pytest.approx(0.8, abs=0.052)

    def test_needs_a_game_that_tells_information_states(self):
        with pytest.raises(ValueError, match="TicTacToe-v0 does not tell information states"):
            StrategyPlayer("TicTacToe-v0", uniform)
