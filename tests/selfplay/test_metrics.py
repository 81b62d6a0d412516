"""Metrics of a batch of games, compared with counts by hand."""

from dataclasses import replace

import pytest

from trl_spiral.selfplay.metrics import measure
from trl_spiral.selfplay.results import Result
from trl_spiral.types import POLICY, Ending


WON = Result(
    counter=0,
    game="toy",
    seed=0,
    returns=(1.0, -1.0),
    ending=Ending.FINISHED,
    offender=None,
    learners=(True, True),
    positions=((1, 2), (3,)),
    order=(0, 1, 0),
    tokens=12,
    logprob_sum=-6.0,
    discarded_tokens=0,
    policy_turns=3,
    opening=0,
)


class TestMeasure:
    def test_logs_the_share_of_games_with_the_policy_in_a_seat(self):
        metrics = measure([replace(WON, players=(POLICY, "random")), replace(WON, players=(POLICY, POLICY))])

        assert metrics["selfplay/toy/seat0/policy"] == 1.0
        assert metrics["selfplay/toy/seat1/policy"] == 0.5

    def test_counts_by_seat(self):
        drawn = replace(WON, returns=(0.0, 0.0), order=(0, 1), tokens=8, logprob_sum=-2.0, policy_turns=2)
        forfeit = replace(WON, returns=(1.0, -1.0), ending=Ending.ILLEGAL_MOVE, offender=1)
        metrics = measure([WON, WON, drawn, forfeit])

        assert metrics["selfplay/games"] == 4
        assert metrics["selfplay/draw_rate"] == 0.25
        assert metrics["selfplay/illegal_rate"] == 0.25
        assert metrics["selfplay/turns_per_game"] == (3 + 3 + 2 + 3) / 4
        assert metrics["selfplay/entropy"] == pytest.approx(20 / 44)
        assert metrics["selfplay/reply_length"] == 44 / 11
        assert [metrics[f"selfplay/toy/seat0/{name}"] for name in ("win", "draw", "loss", "illegal")] == [
            *(0.75, 0.25, 0.0, 0.0)
        ]
        assert [metrics[f"selfplay/toy/seat1/{name}"] for name in ("win", "draw", "loss", "illegal")] == [
            *(0.0, 0.25, 0.75, 0.25)
        ]

    def test_a_broken_game_is_not_a_draw(self):
        broken = replace(WON, returns=(0.0, 0.0), ending=Ending.ENVIRONMENT_ERROR)
        metrics = measure([WON, broken])

        assert metrics["selfplay/broken_rate"] == 0.5
        assert metrics["selfplay/draw_rate"] == 0.0
        assert measure([broken]) == {"selfplay/games": 1.0, "selfplay/broken_rate": 1.0}

    def test_counts_three_seats(self):
        metrics = measure([replace(WON, returns=(-0.5, -0.5, 1.0))])

        assert [metrics[f"selfplay/toy/seat{seat}/win"] for seat in range(3)] == [0.0, 0.0, 1.0]
