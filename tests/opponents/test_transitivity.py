"""What is cyclic in a table of win rates, against numbers that can be had on paper."""

import math
import random

import pytest

from trl_spiral.opponents.transitivity import Matrix, cycles, decompose


MANY = 1e9  # games, so that neither chance nor the half game that keeps log-odds finite can be seen


def logistic(log_odds):
    return 1.0 / (1.0 + math.exp(-log_odds))


def table(log_odds, games=MANY, names=None):
    """A matrix from log-odds by (row, column); `games` is one number or one by (row, column)."""
    size = 1 + max(j for _, j in log_odds)
    rates = [[math.nan] * size for _ in range(size)]
    counts = [[0.0] * size for _ in range(size)]
    for (i, j), value in log_odds.items():
        rates[i][j], rates[j][i] = logistic(value), logistic(-value)
        counts[i][j] = counts[j][i] = games[i, j] if isinstance(games, dict) else games
    return Matrix(tuple(names or "abcdefghijkl"[:size]), tuple(map(tuple, rates)), tuple(map(tuple, counts)))


def sampled(log_odds, games, rng):
    """The same, as `games` games between each two would show it."""
    exact = table(log_odds, games)
    size = range(len(exact.names))
    rates = [[math.nan] * len(size) for _ in size]
    for i, j in log_odds:
        rates[i][j] = sum(rng.random() < exact.rates[i][j] for _ in range(games)) / games
        rates[j][i] = 1.0 - rates[i][j]
    return Matrix(exact.names, tuple(map(tuple, rates)), exact.counts)


def ladder(strength):
    return {(i, j): strength[i] - strength[j] for j in range(len(strength)) for i in range(j)}


ROCK_PAPER_SCISSORS = {(0, 1): 2.0, (1, 2): 2.0, (0, 2): -2.0}


class TestDecompose:
    def test_rock_paper_scissors_is_all_circle(self):
        parts = decompose(table(ROCK_PAPER_SCISSORS))

        assert parts.cyclic_share == pytest.approx(1.0)
        assert parts.raw_share == pytest.approx(1.0)
        assert list(parts.ladder.values()) == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)
        assert (parts.pairs, parts.loops) == (3, 1)

    def test_a_ladder_is_no_circle_and_is_found(self):
        strength = [1.5, 0.7, 0.0, -0.4, -1.8]  # mean zero
        parts = decompose(table(ladder(strength)))

        assert parts.cyclic_share == 0.0
        assert parts.raw_share == pytest.approx(0.0, abs=1e-12)
        assert list(parts.ladder.values()) == pytest.approx(strength, abs=1e-6)
        assert (parts.pairs, parts.loops) == (10, 6)

    def test_three_equal_steps_upwards_hide_a_ninth_of_circle(self):
        # a beats b, b beats c and a beats c, all by as much: on a ladder the last would be twice as much. Around the
        # circle the log-odds sum to 2 + 2 - 2 = 2, hence 2^2 / 3 of 3 x 2^2 in squares.
        parts = decompose(table({(0, 1): 2.0, (1, 2): 2.0, (0, 2): 2.0}))

        assert parts.cyclic_share == pytest.approx(1 / 9, rel=1e-6)

    def test_a_mix_is_split_as_currents_in_a_circuit_are(self):
        # One loop of three pairs: what is cyclic in it is (sum around it)^2 / (sum of 1 / weight), as with a voltage
        # around three resistors. A pair weighs games x p (1 - p).
        log_odds = {(0, 1): 1.0, (1, 2): 0.3, (0, 2): -0.5}
        games = {(0, 1): 3e8, (1, 2): 1e8, (0, 2): 7e8}
        weights = {pair: games[pair] * logistic(v) * logistic(-v) for pair, v in log_odds.items()}
        cyclic = (1.0 + 0.3 + 0.5) ** 2 / sum(1 / weight for weight in weights.values())
        total = sum(weights[pair] * value**2 for pair, value in log_odds.items())
        parts = decompose(table(log_odds, games))

        assert parts.cyclic == pytest.approx(cyclic, rel=1e-6)
        assert parts.total == pytest.approx(total, rel=1e-6)
        assert parts.cyclic_share == pytest.approx(cyclic / total, rel=1e-6)

    def test_what_is_left_can_be_had_by_no_other_ladder(self):
        rng = random.Random(0)
        log_odds = {(i, j): rng.gauss(0, 1) for j in range(7) for i in range(j) if rng.random() < 0.7}
        matrix = table(log_odds)
        parts = decompose(matrix)

        def rest(heights):
            return sum(
                MANY * logistic(v) * logistic(-v) * (v - heights[i] + heights[j]) ** 2
                for (i, j), v in log_odds.items()
            )

        best = list(parts.ladder.values())
        assert parts.cyclic == pytest.approx(rest(best), rel=1e-6)
        for player in range(7):
            for step in (-0.01, 0.01):
                moved = [height + step * (place == player) for place, height in enumerate(best)]
                assert rest(moved) > rest(best)

    def test_the_order_of_the_names_changes_nothing(self):
        rng = random.Random(0)
        log_odds = {(i, j): rng.gauss(0, 1) for j in range(6) for i in range(j)}
        there = decompose(table(log_odds))
        back = decompose(table({(5 - j, 5 - i): -value for (i, j), value in log_odds.items()}, names="fedcba"))

        assert back.raw_share == pytest.approx(there.raw_share)
        assert back.ladder == {name: pytest.approx(height) for name, height in there.ladder.items()}

    def test_two_groups_that_never_met_are_split_each_for_itself(self):
        parts = decompose(table({**ROCK_PAPER_SCISSORS, (3, 4): 1.0}))

        assert (parts.pairs, parts.loops) == (4, 1)
        assert list(parts.ladder.values()) == pytest.approx([0.0, 0.0, 0.0, 0.5, -0.5], abs=1e-6)

    def test_a_policy_that_alone_meets_everybody_shows_no_circle(self):
        parts = decompose(table({(0, 1): 2.0, (0, 2): -2.0, (0, 3): 1.0}))

        assert parts.loops == 0
        assert math.isnan(parts.cyclic_share)

    def test_pairs_with_few_games_are_left_out(self):
        games = {pair: 15.0 if pair == (0, 2) else 100.0 for pair in ROCK_PAPER_SCISSORS}

        assert decompose(table(ROCK_PAPER_SCISSORS, games)).pairs == 2
        assert decompose(table(ROCK_PAPER_SCISSORS, games), min_games=15.0).pairs == 3

    def test_equals_are_seldom_said_to_be_a_circle(self):
        shares = []
        for seed in range(100):
            parts = decompose(sampled(ladder([0.0] * 8), 30, random.Random(seed)))
            shares.append((parts.raw_share, parts.cyclic_share))

        # Chance alone looks like 21 loops / 28 pairs of circle; told from chance by two standard deviations, it should
        # be about one table in forty.
        assert sum(raw for raw, _ in shares) / 100 == pytest.approx(21 / 28, abs=0.03)
        assert sum(not math.isnan(share) for _, share in shares) <= 7

    @pytest.mark.parametrize("turn", [0.0, 0.7])
    def test_few_games_do_not_look_more_cyclic_than_many(self, turn):
        log_odds = {
            (i, j): value + turn * (0, 1, -1)[(j - i) % 3]
            for (i, j), value in ladder([0.3 * number for number in range(8)]).items()
        }
        truth = decompose(table(log_odds)).cyclic_share
        found = [decompose(sampled(log_odds, 40, random.Random(seed))) for seed in range(60)]
        raw = sum(parts.raw_share for parts in found) / 60
        share = sum(parts.cyclic_share for parts in found) / 60

        # 40 games each: the plain share is off by more than 0.04, the corrected one by less than 0.02.
        assert raw > truth + 0.04
        assert share == pytest.approx(truth, abs=0.02)


class TestCycles:
    def test_rock_paper_scissors_is_one(self):
        assert cycles(table(ROCK_PAPER_SCISSORS, games=100)) == [("a", "b", "c")]

    def test_each_is_told_once_and_from_whoever_comes_first(self):
        backwards = {pair: -value for pair, value in ROCK_PAPER_SCISSORS.items()}

        assert cycles(table(backwards, games=100)) == [("a", "c", "b")]

    def test_a_ladder_has_none(self):
        assert cycles(table(ladder([2.0, 1.0, 0.0, -1.0]), games=1000)) == []

    def test_counts_every_triple_of_a_larger_circle(self):
        # Five players, each of whom beats the next two: 5 of the 10 triples are circles, the most that five can have.
        log_odds = {(i, j): 2.0 if j - i <= 2 else -2.0 for j in range(5) for i in range(j)}

        assert len(cycles(table(log_odds, games=100))) == 5

    def test_needs_every_win_rate_to_be_beyond_chance(self):
        # 3 pairs: beyond 2.39 standard deviations, 1 / (2 sqrt(n)) each. At 64 % that takes 73 games.
        slight = {
            pair: math.log(0.64 / 0.36) * (1 if value > 0 else -1) for pair, value in ROCK_PAPER_SCISSORS.items()
        }

        assert cycles(table(slight, games=72)) == []
        assert len(cycles(table(slight, games=74))) == 1

    def test_among_equals_one_is_found_in_fewer_than_one_table_in_twenty(self):
        found = [cycles(sampled(ladder([0.0] * 8), 50, random.Random(seed))) for seed in range(100)]

        assert sum(map(bool, found)) <= 5

    def test_nobody_has_played(self):
        assert cycles(table(ROCK_PAPER_SCISSORS, games=0.0)) == []
