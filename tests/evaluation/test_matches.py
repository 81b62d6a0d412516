import math
from dataclasses import replace

import pytest

from tests.helpers.games import LastStone, ShortOrLong
from trl_spiral.evaluation.matches import (
    MatchReport,
    SeatResult,
    evaluate_matches,
    match_table,
    paired_starts,
    play_matches,
    seat_result,
)
from trl_spiral.games import get_game
from trl_spiral.intervals import bootstrap_mean, wilson
from trl_spiral.players import RandomPlayer, ScriptedPlayer
from trl_spiral.selfplay.referee import play, referee
from trl_spiral.types import Ending, Episode, Trajectory, Turn


FIRST = ScriptedPlayer("first", lambda observation: observation.legal_actions[0])
GIVES_UP = ScriptedPlayer("gives up", lambda observation: None)


def report(game, player, rival, pairs=20, **changes):
    return evaluate_matches(game, player, rival, pairs, **changes)[0]


class TestPairedStarts:
    @pytest.mark.parametrize("game", [get_game("PigDice-v0-50"), LastStone()], ids=["two seats", "three seats"])
    def test_are_the_games_of_a_series_in_each_seat(self, game):
        seats = game.traits.seats
        starts = paired_starts(game, FIRST, RandomPlayer(), pairs=3, seed=5)
        episodes = sorted(play(map(referee, starts)), key=lambda episode: episode.counter)

        assert [episode.counter for episode in episodes] == list(range(3 * seats))
        for seat in range(seats):
            series = play_matches(game, FIRST, RandomPlayer(), seat, 3, seed=5)
            assert [e.moves for e in series] == [e.moves for e in episodes[seat::seats]]

    def test_every_seat_is_dealt_the_same(self):
        starts = paired_starts(LastStone(), FIRST, RandomPlayer(), pairs=4)

        for deal in range(4):
            assert len({start.seed for start in starts[3 * deal : 3 * deal + 3]}) == 1
            assert len({start.play_seed for start in starts[3 * deal : 3 * deal + 3]}) == 3


def episode(returns, ending=Ending.FINISHED, offender=None, lengths=((), ())):
    """An episode in which seats wrote replies of these lengths."""
    trajectories = tuple(
        Trajectory(seat, tuple(Turn("[0]", completion_ids=(1,) * length) for length in mine))
        for seat, mine in enumerate(lengths)
    )
    order = tuple(seat for seat, mine in enumerate(lengths) for _ in mine)
    return Episode("Game", 0, ("a", "b"), trajectories, returns, ending, offender, order=order)


class TestOutcome:
    @pytest.mark.parametrize(
        ("returns", "results"),
        [
            ((1.0, -1.0), ("win", "loss")),
            ((0.0, 0.0), ("draw", "draw")),
            ((3.0, 1.0), ("win", "loss")),  # negotiation: both may gain
        ],
    )
    def test_says_who_won(self, returns, results):
        for seat, result in enumerate(results):
            found = SeatResult.of(episode(returns), seat, deal=0)
            assert [name for name in ("win", "draw", "loss") if getattr(found, name)] == [result]
            assert found.reward == returns[seat]

    @pytest.mark.parametrize(
        ("ending", "field", "other"),
        [(Ending.ILLEGAL_MOVE, "illegal", "truncated"), (Ending.TRUNCATED, "truncated", "illegal")],
    )
    def test_an_illegal_and_a_cut_off_reply_are_told_apart_and_their_writers_alone(self, ending, field, other):
        played = episode((1.0, -1.0), ending, offender=1)

        assert [getattr(SeatResult.of(played, seat, 0), field) for seat in (0, 1)] == [False, True]
        assert [getattr(SeatResult.of(played, seat, 0), other) for seat in (0, 1)] == [False, False]

    def test_counts_all_turns_and_the_tokens_of_its_own_replies(self):
        played = episode((1.0, -1.0), lengths=((10, 20), (7,)))

        assert [SeatResult.of(played, seat, 0).reply_tokens for seat in (0, 1)] == [15.0, 7.0]
        assert [SeatResult.of(played, seat, 0).length for seat in (0, 1)] == [3, 3]
        assert SeatResult.of(episode((1.0, -1.0)), 0, 0).reply_tokens is None

    def test_knows_which_seat_and_deal_a_counter_means(self):
        found = seat_result(replace(episode((1.0, -1.0)), counter=7))

        assert (found.deal, found.seat, found.reward) == (3, 1, -1.0)


class TestMatchReport:
    def test_seats_are_told_apart(self):
        # One turn where the seed is even, nine where it is odd, and whoever moves last with [a] wins: always seat 0.
        found = report(ShortOrLong(), FIRST, FIRST)

        assert [found.seats[seat]["win"].value for seat in ("0", "1", "all")] == [1.0, 0.0, 0.5]
        assert [found.seats[seat]["reward"].value for seat in ("0", "1", "all")] == [1.0, -1.0, 0.0]
        assert found.games == {"0": 20, "1": 20, "all": 40}
        assert 1.0 < found.seats["0"]["length"].value < 9.0
        assert "reply_tokens" not in found.seats["0"]

    def test_intervals_are_wilsons_and_the_bootstraps(self):
        game = get_game("TicTacToe-v0")
        found, episodes = evaluate_matches(game, FIRST, RandomPlayer(), pairs=25, seed=4)
        mine = [played for played in episodes if played.players[0] == "first"]
        won = sum(played.returns[0] > 0 for played in mine)

        share, wilsons = found.seats["0"]["win"], wilson(won / 25, 25)
        assert (share.value, share.low, share.high) == pytest.approx((won / 25, wilsons.low, wilsons.high))
        assert found.seats["0"]["reward"] == bootstrap_mean([[played.returns[0]] for played in mine], seed=4)

    def test_luck_of_the_deal_is_shared_by_the_seats_and_cancels(self):
        # Two players who do the same: whoever sits first wins, so over both seats nothing is left to chance.
        found = report(ShortOrLong(), FIRST, FIRST).seats["all"]["reward"]

        assert (found.low, found.value, found.high) == (0.0, 0.0, 0.0)

    def test_uniform_kuhn_poker_is_worth_an_eighth_to_the_first_seat(self):
        found = report(get_game("Kuhn-v0"), RandomPlayer(), RandomPlayer("other"), pairs=400).seats
        first, both = found["0"]["reward"], found["all"]["reward"]

        # The value of the uniform policies, as OpenSpiel's `expected_game_score` gives it: 1/8.
        assert first.low < 1 / 8 < first.high
        assert both.low < 0.0 < both.high
        # Most of the luck is the deal's, which both seats share.
        assert both.high - both.low < 0.6 * (first.high - first.low)

    def test_three_seats_have_three_rows(self):
        found = report(LastStone(), FIRST, RandomPlayer(), pairs=30)

        assert list(found.seats) == ["0", "1", "2", "all"]
        assert sum(found.games[seat] for seat in "012") == found.games["all"] == 90
        assert found.seats["all"]["win"].value == pytest.approx(
            sum(found.seats[seat]["win"].value for seat in "012") / 3
        )

    def test_own_illegal_replies_are_counted_in_their_seat(self):
        game = get_game("TicTacToe-v0")
        mine, theirs = report(game, GIVES_UP, RandomPlayer()), report(game, RandomPlayer(), GIVES_UP)

        assert [mine.seats["all"][field].value for field in ("illegal", "loss")] == [1.0, 1.0]
        assert [theirs.seats["all"][field].value for field in ("illegal", "win")] == [0.0, 1.0]

    def test_broken_games_are_counted_apart(self):
        outcomes = [SeatResult.of(episode((1.0, -1.0)), 0, deal) for deal in range(3)]
        outcomes += [SeatResult.of(episode((0.0, 0.0), Ending.PLAYER_LOST), 1, deal) for deal in range(3)]
        found = MatchReport.of(get_game("TicTacToe-v0"), "a", "b", outcomes)

        assert (found.games, found.broken) == ({"0": 3, "1": 0, "all": 3}, {"0": 0, "1": 3, "all": 3})
        assert found.seats["all"]["win"].value == 1.0
        assert found.seats["all"]["draw"].value == 0.0
        assert math.isnan(found.seats["1"]["reward"].value)
        assert "| 0 (3 broken) | – |" in found.table()

    def test_metrics_have_spirals_names_and_give_the_report_back(self):
        game = get_game("TicTacToe-v0")
        found = report(game, FIRST, RandomPlayer())
        metrics = found.metrics()

        for seat in ("pid-0", "pid-1", "all"):
            for field in ("win", "draw", "loss", "illegal", "length", "reward"):
                name = f"eval/TicTacToe-v0-random/{seat}/{field}"
                assert metrics[f"{name}_low"] <= metrics[name] <= metrics[f"{name}_high"]
        assert all(type(value) is float for value in metrics.values())
        assert MatchReport.from_metrics(game, "first", "random", metrics) == found

    def test_order_of_the_games_does_not_matter(self):
        game = get_game("TicTacToe-v0")
        _, episodes = evaluate_matches(game, FIRST, RandomPlayer(), pairs=9)
        outcomes = [seat_result(played) for played in episodes]

        # As ranks that play every other game each would hand them in.
        assert MatchReport.of(game, "a", "b", outcomes[0::2] + outcomes[1::2]) == MatchReport.of(
            game, "a", "b", outcomes
        )

    def test_the_table_says_how_intervals_were_got(self):
        found = report(LastStone(), FIRST, RandomPlayer())
        lines = match_table([("before", found), ("after", found)]).splitlines()

        assert [line.split(" | ")[:4] for line in lines[2:10:4]] == [
            ["| before", "LastStone", "random", "0"],
            ["| after", "LastStone", "random", "0"],
        ]
        assert "Wilson" in lines[-1] and "bootstrap" in lines[-1]
