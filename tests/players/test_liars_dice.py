"""The player of liar's dice that plays by probabilities."""

from itertools import product

import pytest

from trl_spiral.evaluation.matches import play_matches, tally
from trl_spiral.games import get_game
from trl_spiral.games.liars_dice import FACES, LiarsDiceMatch
from trl_spiral.players import RandomPlayer
from trl_spiral.players.liars_dice import OddsPlayer, chance
from trl_spiral.types import Ending


TWO = get_game("LiarsDice-v1-2")


def answer(dice, *moves):
    match = LiarsDiceMatch(TWO, dice, seed=0)
    for move in moves:
        match.apply(move)
    return OddsPlayer(TWO.name).ask(match.observe(match.to_move)).action


class TestChance:
    @pytest.mark.parametrize("mine", [(), (3, 3), (1, 5)])
    def test_equals_the_share_of_rolls_that_make_a_bid_true(self, mine):
        rolls = list(product(range(1, FACES + 1), repeat=3))
        for quantity in range(1, 7):
            true = sum((*mine, *roll).count(3) >= quantity for roll in rolls)

            assert chance((quantity, 3), mine, hidden=3) == pytest.approx(true / len(rolls))


class TestOddsPlayer:
    def test_bids_its_own_dice_and_calls_impossible_bids(self):
        # The bids that are certainly true are (1, 4) and (2, 4).
        assert answer(((4, 4), (1, 1))) in ("[Bid: 1, 4]", "[Bid: 2, 4]")
        # Four fives need both of its own.
        assert answer(((5, 5), (1, 2)), "[Bid: 4, 5]") == "[Call]"

    def test_calls_only_if_that_is_the_better_choice(self):
        # It has one of the two fours that are bid: true in 11 of 36 rolls. Its best bid is not better, so it calls.
        assert answer(((4, 4), (4, 1)), "[Bid: 2, 4]") == "[Call]"
        # One four is certainly true, and so is its own five.
        assert answer(((4, 4), (4, 5)), "[Bid: 1, 4]") == "[Bid: 1, 5]"

    @pytest.mark.parametrize("name", ["LiarsDice-v1-1", "LiarsDice-v1-5", "LiarsDice-v1-2-3p"])
    def test_beats_random_players_in_every_seat(self, name):
        game = get_game(name)
        for seat in range(game.traits.seats):
            episodes = play_matches(game, OddsPlayer(name), RandomPlayer(), seat, games=40)

            assert {episode.ending for episode in episodes} == {Ending.FINISHED}
            # It wins 0.8 (one die, first seat) to 1.0 of these 40. Equal players would win a half or a third.
            assert tally(episodes, seat)["win"] > 0.7

    def test_refuses_other_games(self):
        with pytest.raises(ValueError, match="no 'odds' player for Kuhn-v0: it plays LiarsDice-v1-1 to"):
            OddsPlayer("Kuhn-v0")
