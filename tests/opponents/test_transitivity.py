"""The cyclic part of a table of win rates, compared with values derived by hand."""

import math
import random

import pytest

from trl_spiral.opponents.transitivity import Matrix, cycles, decompose


MANY = 1e9  # games, so that neither chance nor the half game that keeps log-odds finite has a visible effect


def logistic(log_odds):
    return 1.0 / (1.0 + math.exp(-log_odds))


def table(log_odds, games=MANY, names=None):
    """Return a matrix from log-odds by (row, column). `games` is one number, or one by (row, column)."""
    size = 1 + max(j for _, j in log_odds)
    rates = [[math.nan] * size for _ in range(size)]
    counts = [[0.0] * size for _ in range(size)]
    for (i, j), value in log_odds.items():
        rates[i][j], rates[j][i] = logistic(value), logistic(-value)
        counts[i][j] = counts[j][i] = games[i, j] if isinstance(games, dict) else games
    return Matrix(tuple(names or "abcdefghijkl"[:size]), tuple(map(tuple, rates)), tuple(map(tuple, counts)))


def sampled(log_odds, games, rng):
    """Return such a matrix, estimated from `games` random games of each pair."""
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
    def test_rock_paper_scissors_is_fully_cyclic(self):
        parts = decompose(table(ROCK_PAPER_SCISSORS))

        assert parts.cyclic_share == pytest.approx(1.0)
        assert parts.raw_share == pytest.approx(1.0)
        assert list(parts.ladder.values()) == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)
        assert (parts.pairs, parts.loops) == (3, 1)

    def test_a_ladder_is_recovered_without_a_cyclic_part(self):
        strength = [1.5, 0.7, 0.0, -0.4, -1.8]  # mean zero
        parts = decompose(table(ladder(strength)))

        assert parts.cyclic_share == 0.0
        assert parts.raw_share == pytest.approx(0.0, abs=1e-12)
        assert list(parts.ladder.values()) == pytest.approx(strength, abs=1e-6)
        assert (parts.pairs, parts.loops) == (10, 6)

    def test_three_equal_steps_upwards_are_cyclic_by_a_ninth(self):
        # a beats b, b beats c and a beats c, all with log-odds 2. On a ladder the last would be 4. Around the cycle
        # the log-odds sum to 2 + 2 - 2 = 2, so the cyclic part is 2^2 / 3 of 3 x 2^2.
        parts = decompose(table({(0, 1): 2.0, (1, 2): 2.0, (0, 2): 2.0}))

        assert parts.cyclic_share == pytest.approx(1 / 9, rel=1e-6)

    def test_a_mixture_is_split_like_currents_in_a_circuit(self):
        # In one loop of three pairs the cyclic part is (sum around the loop)^2 / (sum of 1 / weight), like the power
        # of a voltage in three resistors. The weight of a pair is games x p (1 - p).
        log_odds = {(0, 1): 1.0, (1, 2): 0.3, (0, 2): -0.5}
        games = {(0, 1): 3e8, (1, 2): 1e8, (0, 2): 7e8}
        weights = {pair: games[pair] * logistic(v) * logistic(-v) for pair, v in log_odds.items()}
        cyclic = (1.0 + 0.3 + 0.5) ** 2 / sum(1 / weight for weight in weights.values())
        total = sum(weights[pair] * value**2 for pair, value in log_odds.items())
        parts = decompose(table(log_odds, games))

        assert parts.cyclic == pytest.approx(cyclic, rel=1e-6)
        assert parts.total == pytest.approx(total, rel=1e-6)
        assert parts.cyclic_share == pytest.approx(cyclic / total, rel=1e-6)

    def test_no_other_ladder_leaves_a_smaller_rest(self):
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

    def test_does_not_depend_on_the_order_of_names(self):
        rng = random.Random(0)
        log_odds = {(i, j): rng.gauss(0, 1) for j in range(6) for i in range(j)}
        there = decompose(table(log_odds))
        back = decompose(table({(5 - j, 5 - i): -value for (i, j), value in log_odds.items()}, names="fedcba"))

        assert back.raw_share == pytest.approx(there.raw_share)
        assert back.ladder == {name: pytest.approx(height) for name, height in there.ladder.items()}

    def test_groups_that_never_met_are_decomposed_separately(self):
        parts = decompose(table({**ROCK_PAPER_SCISSORS, (3, 4): 1.0}))

        assert (parts.pairs, parts.loops) == (4, 1)
        assert list(parts.ladder.values()) == pytest.approx([0.0, 0.0, 0.0, 0.5, -0.5], abs=1e-6)

    def test_games_against_one_player_form_no_loop(self):
        parts = decompose(table({(0, 1): 2.0, (0, 2): -2.0, (0, 3): 1.0}))

        assert parts.loops == 0
        assert math.isnan(parts.cyclic_share)

    def test_pairs_with_few_games_are_left_out(self):
        games = {pair: 15.0 if pair == (0, 2) else 100.0 for pair in ROCK_PAPER_SCISSORS}

        assert decompose(table(ROCK_PAPER_SCISSORS, games)).pairs == 2
        assert decompose(table(ROCK_PAPER_SCISSORS, games), min_games=15.0).pairs == 3

    def test_equal_players_rarely_have_a_cyclic_share(self):
        shares = []
        for seed in range(100):
            parts = decompose(sampled(ladder([0.0] * 8), 30, random.Random(seed)))
            shares.append((parts.raw_share, parts.cyclic_share))

        # By chance alone, the raw share is 21 loops / 28 pairs. The threshold of two standard deviations should pass
        # in about one table of 40.
        assert sum(raw for raw, _ in shares) / 100 == pytest.approx(21 / 28, abs=0.03)
        assert sum(not math.isnan(share) for _, share in shares) <= 7

    @pytest.mark.parametrize("turn", [0.0, 0.7])
    def test_the_share_is_not_biased_by_few_games(self, turn):
        log_odds = {
            (i, j): value + turn * (0, 1, -1)[(j - i) % 3]
            for (i, j), value in ladder([0.3 * number for number in range(8)]).items()
        }
        truth = decompose(table(log_odds)).cyclic_share
        found = [decompose(sampled(log_odds, 40, random.Random(seed))) for seed in range(60)]
        raw = sum(parts.raw_share for parts in found) / 60
        share = sum(parts.cyclic_share for parts in found) / 60

        # With 40 games each, the raw share is biased by more than 0.04, the corrected one by less than 0.02.
        assert raw > truth + 0.04
        assert share == pytest.approx(truth, abs=0.02)


class TestCycles:
    def test_rock_paper_scissors_is_one(self):
        assert cycles(table(ROCK_PAPER_SCISSORS, games=100)) == [("a", "b", "c")]

    def test_each_is_listed_once_starting_with_the_first_player(self):
        backwards = {pair: -value for pair, value in ROCK_PAPER_SCISSORS.items()}

        assert cycles(table(backwards, games=100)) == [("a", "c", "b")]

    def test_a_ladder_has_none(self):
        assert cycles(table(ladder([2.0, 1.0, 0.0, -1.0]), games=1000)) == []

    def test_lists_every_triple_of_a_larger_cycle(self):
        # Each of five players beats the next two: 5 of the 10 triples are cycles, the maximum for five players.
        log_odds = {(i, j): 2.0 if j - i <= 2 else -2.0 for j in range(5) for i in range(j)}

        assert len(cycles(table(log_odds, games=100))) == 5

    def test_needs_three_significant_win_rates(self):
        # With 3 pairs the threshold is 2.39 standard deviations of 1 / (2 sqrt(n)). At 64 % that takes 73 games.
        slight = {
            pair: math.log(0.64 / 0.36) * (1 if value > 0 else -1) for pair, value in ROCK_PAPER_SCISSORS.items()
        }

        assert cycles(table(slight, games=72)) == []
        assert len(cycles(table(slight, games=74))) == 1

    def test_equal_players_have_one_in_fewer_than_5_percent_of_tables(self):
        found = [cycles(sampled(ladder([0.0] * 8), 50, random.Random(seed))) for seed in range(100)]

        assert sum(map(bool, found)) <= 5

    def test_there_are_none_without_games(self):
        assert cycles(table(ROCK_PAPER_SCISSORS, games=0.0)) == []
