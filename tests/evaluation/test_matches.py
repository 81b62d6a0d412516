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

    def test_each_seat_gets_the_same_deals(self):
        starts = paired_starts(LastStone(), FIRST, RandomPlayer(), pairs=4)

        for deal in range(4):
            assert len({start.seed for start in starts[3 * deal : 3 * deal + 3]}) == 1
            assert len({start.play_seed for start in starts[3 * deal : 3 * deal + 3]}) == 3


def episode(returns, ending=Ending.FINISHED, offender=None, lengths=((), ())):
    """Return an episode with replies of these lengths by seat."""
    trajectories = tuple(
        Trajectory(seat, tuple(Turn("[0]", completion_ids=(1,) * length) for length in mine))
        for seat, mine in enumerate(lengths)
    )
    order = tuple(seat for seat, mine in enumerate(lengths) for _ in mine)
    return Episode("Game", 0, ("a", "b"), trajectories, returns, ending, offender, order=order)


class TestSeatResult:
    @pytest.mark.parametrize(
        ("returns", "results"),
        [
            ((1.0, -1.0), ("win", "loss")),
            ((0.0, 0.0), ("draw", "draw")),
            ((3.0, 1.0), ("win", "loss")),  # negotiation: both may gain
        ],
    )
    def test_is_a_win_a_draw_or_a_loss(self, returns, results):
        for seat, result in enumerate(results):
            found = SeatResult.of(episode(returns), seat, deal=0)
            assert [name for name in ("win", "draw", "loss") if getattr(found, name)] == [result]
            assert found.reward == returns[seat]

    @pytest.mark.parametrize(
        ("ending", "field", "other"),
        [(Ending.ILLEGAL_MOVE, "illegal", "truncated"), (Ending.TRUNCATED, "truncated", "illegal")],
    )
    def test_counts_illegal_and_truncated_replies_for_the_offender(self, ending, field, other):
        played = episode((1.0, -1.0), ending, offender=1)

        assert [getattr(SeatResult.of(played, seat, 0), field) for seat in (0, 1)] == [False, True]
        assert [getattr(SeatResult.of(played, seat, 0), other) for seat in (0, 1)] == [False, False]

    def test_length_counts_all_turns_and_reply_tokens_its_own(self):
        played = episode((1.0, -1.0), lengths=((10, 20), (7,)))

        assert [SeatResult.of(played, seat, 0).reply_tokens for seat in (0, 1)] == [15.0, 7.0]
        assert [SeatResult.of(played, seat, 0).length for seat in (0, 1)] == [3, 3]
        assert SeatResult.of(episode((1.0, -1.0)), 0, 0).reply_tokens is None

    def test_a_counter_gives_deal_and_seat(self):
        found = seat_result(replace(episode((1.0, -1.0)), counter=7))

        assert (found.deal, found.seat, found.reward) == (3, 1, -1.0)


class TestMatchReport:
    def test_has_results_by_seat(self):
        # One turn if the seed is even, nine if it is odd. The last to move [a] wins, which is always seat 0.
        found = report(ShortOrLong(), FIRST, FIRST)

        assert [found.seats[seat]["win"].value for seat in ("0", "1", "all")] == [1.0, 0.0, 0.5]
        assert [found.seats[seat]["reward"].value for seat in ("0", "1", "all")] == [1.0, -1.0, 0.0]
        assert found.games == {"0": 20, "1": 20, "all": 40}
        assert 1.0 < found.seats["0"]["length"].value < 9.0
        assert "reply_tokens" not in found.seats["0"]

    def test_shares_have_wilson_and_means_bootstrap_intervals(self):
        game = get_game("TicTacToe-v0")
        found, episodes = evaluate_matches(game, FIRST, RandomPlayer(), pairs=25, seed=4)
        mine = [played for played in episodes if played.players[0] == "first"]
        won = sum(played.returns[0] > 0 for played in mine)

        share, wilsons = found.seats["0"]["win"], wilson(won / 25, 25)
        assert (share.value, share.low, share.high) == pytest.approx((won / 25, wilsons.low, wilsons.high))
        assert found.seats["0"]["reward"] == bootstrap_mean([[played.returns[0]] for played in mine], seed=4)

    def test_luck_of_a_deal_cancels_over_all_seats(self):
        # With equal players seat 0 always wins, so over both seats there is no variance.
        found = report(ShortOrLong(), FIRST, FIRST).seats["all"]["reward"]

        assert (found.low, found.value, found.high) == (0.0, 0.0, 0.0)

    def test_uniform_kuhn_poker_is_worth_an_eighth_to_the_first_seat(self):
        found = report(get_game("Kuhn-v0"), RandomPlayer(), RandomPlayer("other"), pairs=400).seats
        first, both = found["0"]["reward"], found["all"]["reward"]

        # 1/8 is the value of uniform policies by OpenSpiel's `expected_game_score`.
        assert first.low < 1 / 8 < first.high
        assert both.low < 0.0 < both.high
        # Most of the variance is the deal's, which both seats share.
        assert both.high - both.low < 0.6 * (first.high - first.low)

    def test_three_seats_have_three_rows(self):
        found = report(LastStone(), FIRST, RandomPlayer(), pairs=30)

        assert list(found.seats) == ["0", "1", "2", "all"]
        assert sum(found.games[seat] for seat in "012") == found.games["all"] == 90
        assert found.seats["all"]["win"].value == pytest.approx(
            sum(found.seats[seat]["win"].value for seat in "012") / 3
        )

    def test_counts_only_illegal_replies_of_the_player(self):
        game = get_game("TicTacToe-v0")
        mine, theirs = report(game, GIVES_UP, RandomPlayer()), report(game, RandomPlayer(), GIVES_UP)

        assert [mine.seats["all"][field].value for field in ("illegal", "loss")] == [1.0, 1.0]
        assert [theirs.seats["all"][field].value for field in ("illegal", "win")] == [0.0, 1.0]

    def test_counts_broken_games_separately(self):
        results = [SeatResult.of(episode((1.0, -1.0)), 0, deal) for deal in range(3)]
        results += [SeatResult.of(episode((0.0, 0.0), Ending.PLAYER_LOST), 1, deal) for deal in range(3)]
        found = MatchReport.of(get_game("TicTacToe-v0"), "a", "b", results)

        assert (found.games, found.broken) == ({"0": 3, "1": 0, "all": 3}, {"0": 0, "1": 3, "all": 3})
        assert found.seats["all"]["win"].value == 1.0
        assert found.seats["all"]["draw"].value == 0.0
        assert math.isnan(found.seats["1"]["reward"].value)
        assert "| 0 (3 broken) | – |" in found.table()

    def test_metrics_have_spirals_names_and_restore_the_report(self):
        game = get_game("TicTacToe-v0")
        found = report(game, FIRST, RandomPlayer())
        metrics = found.metrics()

        for seat in ("pid-0", "pid-1", "all"):
            for field in ("win", "draw", "loss", "illegal", "length", "reward"):
                name = f"eval/TicTacToe-v0-random/{seat}/{field}"
                assert metrics[f"{name}_low"] <= metrics[name] <= metrics[f"{name}_high"]
        assert all(type(value) is float for value in metrics.values())
        assert MatchReport.from_metrics(game, "first", "random", metrics) == found

    def test_does_not_depend_on_the_order_of_games(self):
        game = get_game("TicTacToe-v0")
        _, episodes = evaluate_matches(game, FIRST, RandomPlayer(), pairs=9)
        results = [seat_result(played) for played in episodes]

        # The order if two ranks play alternate games.
        assert MatchReport.of(game, "a", "b", results[0::2] + results[1::2]) == MatchReport.of(game, "a", "b", results)

    def test_the_table_names_the_kinds_of_intervals(self):
        found = report(LastStone(), FIRST, RandomPlayer())
        lines = match_table([("before", found), ("after", found)]).splitlines()

        assert [line.split(" | ")[:4] for line in lines[2:10:4]] == [
            ["| before", "LastStone", "random", "0"],
            ["| after", "LastStone", "random", "0"],
        ]
        assert "Wilson" in lines[-1] and "bootstrap" in lines[-1]
