from itertools import product

import pytest

from trl_spiral.games import get_game
from trl_spiral.games.rock_paper_scissors import THROWS, RockPaperScissors
from trl_spiral.types import Ending


GAME = get_game("RockPaperScissors-v0")
BEATS = {"[rock]": "[scissors]", "[scissors]": "[paper]", "[paper]": "[rock]"}


class TestRockPaperScissors:
    @pytest.mark.parametrize(("first", "second"), list(product(THROWS, THROWS)))
    def test_pays_the_winning_throw(self, first, second):
        match = GAME.start(0)
        match.apply(first)
        match.apply(second)
        gain = 1.0 if BEATS[first] == second else -1.0 if BEATS[second] == first else 0.0

        assert (match.ending, match.returns) == (Ending.FINISHED, (gain, -gain))

    def test_hides_the_first_throw(self):
        before = GAME.start(0).observe(1)
        seen = []
        for throw in THROWS:
            match = GAME.start(0)
            match.apply(throw)
            seen.append(match.observe(1))

        assert seen[0] == seen[1] == seen[2]
        assert seen[0].messages == before.messages
        assert RockPaperScissors().information_state(seen[0]) == "1"

    def test_returns_zero_before_both_throws(self):
        match = GAME.start(0)
        match.apply("[paper]")

        assert (match.to_move, match.returns, match.ending) == (1, (0.0, 0.0), None)

    def test_parses_ascii_only(self):
        assert GAME.canonical("[ Rock ]") == "[rock]"
        assert GAME.canonical("[roc\u212a]") is None  # the Kelvin sign, whose lower case is a k

    def test_ends_at_an_unknown_throw(self):
        match = GAME.start(0)
        match.apply(" Rock ")

        assert match.apply("[well]") is None
        assert (match.ending, match.offender, match.returns) == (Ending.ILLEGAL_MOVE, 1, (0.0, 0.0))
