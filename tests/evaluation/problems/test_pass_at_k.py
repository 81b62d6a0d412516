"""
pass@k against its definition: the probability that k programs, drawn without replacement, contain one that passes.
"""

from itertools import combinations

import pytest

from trl_spiral.evaluation.problems.pass_at_k import mean_pass_at_k, pass_at_k
from trl_spiral.intervals import wilson


class TestPassAtK:
    @pytest.mark.parametrize("passed", range(6))
    @pytest.mark.parametrize("k", [1, 2, 3, 5])
    def test_is_the_share_of_draws_with_a_program_that_passes(self, passed, k):
        draws = list(combinations(range(5), k))

        assert pass_at_k(5, passed, k) == pytest.approx(sum(min(draw) < passed for draw in draws) / len(draws))

    def test_does_not_overflow(self):
        # C(200, 100) has 59 digits; what is left after 20 passed is a millionth of it.
        assert pass_at_k(200, 20, 100) == pytest.approx(1.0, abs=1e-6)
        assert pass_at_k(10_000, 1, 5000) == pytest.approx(0.5)

    @pytest.mark.parametrize("k", [0, 6])
    def test_needs_at_least_k_programs(self, k):
        with pytest.raises(ValueError, match=rf"pass@{k} cannot be estimated from 5 programs per problem"):
            pass_at_k(5, 2, k)


class TestMeanPassAtK:
    def test_has_wilsons_interval_with_one_program_per_problem(self):
        assert mean_pass_at_k([1, 0, 1, 1], programs=1, k=1) == wilson(0.75, 4)

    def test_has_an_interval_over_problems(self):
        estimate = mean_pass_at_k([0, 5, 10, 10, 2, 0, 7, 1], programs=10, k=1)

        # The standard error of the eight shares is 0.147, and a 95 % interval about 3.7 of them wide.
        assert estimate.value == pytest.approx(0.4375)
        assert 0.4 < estimate.high - estimate.low < 0.7
        assert estimate.low < 0.25 and 0.6 < estimate.high

    @pytest.mark.parametrize("passed", [0, 3, 10])
    def test_an_interval_is_never_a_point(self, passed):
        estimate = mean_pass_at_k([passed] * 5, programs=10, k=1)

        assert estimate == wilson(passed / 10, 5)
        assert estimate.high - estimate.low > 0.3
