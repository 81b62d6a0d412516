import math
import random

import pytest

from trl_spiral.intervals import bootstrap_mean, clustered_wilson, wilson


class TestWilson:
    @pytest.mark.parametrize(
        ("share", "games", "low", "high"),
        [
            # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, method 3.
            (81 / 263, 263, 0.2553, 0.3662),
            (15 / 148, 148, 0.0624, 0.1605),
            (0.0, 20, 0.0, 0.1611),
            (1 / 29, 29, 0.0061, 0.1718),
        ],
    )
    def test_matches_published_values(self, share, games, low, high):
        found = wilson(share, games)

        assert (found.value, round(found.low, 4), round(found.high, 4)) == (share, low, high)

    def test_the_ends_solve_the_score_equation(self):
        found = wilson(0.3, 50)

        # |share - p| = 1.96 standard deviations of a share whose true value is p.
        for end in (found.low, found.high):
            assert abs(0.3 - end) / math.sqrt(end * (1 - end) / 50) == pytest.approx(1.959964, rel=1e-6)

    def test_is_the_whole_range_without_games(self):
        found = wilson(math.nan, 0)

        assert math.isnan(found.value)
        assert (found.low, found.high) == (0.0, 1.0)


class TestClusteredWilson:
    def test_games_of_a_deal_with_equal_results_count_once(self):
        alike = [[1.0, 1.0]] * 30 + [[0.0, 0.0]] * 20
        found, once = clustered_wilson(alike), wilson(0.6, 50)

        assert (found.value, found.low, found.high) == pytest.approx((0.6, once.low, once.high))

    def test_games_of_different_deals_all_count(self):
        apart = clustered_wilson([[1.0]] * 30 + [[0.0]] * 20)
        plain = wilson(0.6, 50)

        assert (apart.value, apart.low, apart.high) == pytest.approx((0.6, plain.low, plain.high))

    def test_the_effective_number_is_at_most_the_number_of_games(self):
        assert clustered_wilson([[1.0, 0.0]] * 50) == wilson(0.5, 100)

    @pytest.mark.parametrize("result", [0.0, 1.0])
    def test_if_all_results_are_equal_each_deal_counts_once(self, result):
        # Eight samples of each of eleven problems, perfectly correlated as far as these results show.
        assert clustered_wilson([[result] * 8] * 11) == wilson(result, 11)

    @pytest.mark.parametrize("solved", [0, 20, 64])
    def test_a_single_deal_counts_once(self, solved):
        assert clustered_wilson([[1.0] * solved + [0.0] * (64 - solved)]) == wilson(solved / 64, 1)

    def test_has_its_nominal_coverage(self):
        rng = random.Random(0)
        held = 0
        for _ in range(400):
            # Both seats of a deal share its luck (0.8 or 0.2), so their games are not independent.
            clusters = []
            for _ in range(60):
                luck = rng.choice((0.8, 0.2))
                clusters.append([float(rng.random() < luck), float(rng.random() < luck)])
            found = clustered_wilson(clusters)
            held += found.low <= 0.5 <= found.high

        # 400 trials at 95 %: 380 +- 3 standard deviations of 4.4. With games taken as independent, coverage would be
        # 90.7 % (a design effect of 1.36).
        assert 367 <= held <= 393


class TestBootstrapMean:
    def test_is_the_normal_interval_for_normal_values(self):
        rng = random.Random(1)
        values = [rng.gauss(2.0, 3.0) for _ in range(400)]
        mean = math.fsum(values) / 400
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / 400)
        found = bootstrap_mean([[value] for value in values])

        assert found.value == pytest.approx(mean)
        # The half width is 1.96 s / sqrt(n), up to the noise of 1,000 resamples.
        half = 1.96 * deviation / math.sqrt(400)
        assert found.low == pytest.approx(mean - half, abs=0.12 * half)
        assert found.high == pytest.approx(mean + half, abs=0.12 * half)

    def test_luck_of_a_deal_cancels_between_seats(self):
        rng = random.Random(2)
        deals = [rng.gauss(0.0, 10.0) for _ in range(50)]
        found = bootstrap_mean([[1.0 + luck, 1.0 - luck] for luck in deals])

        assert (found.low, found.value, found.high) == pytest.approx((1.0, 1.0, 1.0))

    def test_is_determined_by_the_seed(self):
        values = [[float(number)] for number in range(30)]

        assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
        assert bootstrap_mean(values, seed=3) != bootstrap_mean(values, seed=4)

    def test_weights_deals_by_their_games(self):
        assert bootstrap_mean([[1.0, 1.0, 1.0], [0.0]]).value == 0.75
