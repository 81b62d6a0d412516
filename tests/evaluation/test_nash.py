import random

import pytest

from trl_spiral.evaluation.nash import nash_average


ROCK_PAPER_SCISSORS = [[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]


def with_copy(payoffs, player):
    """The same table with a player twice."""
    order = [*range(len(payoffs)), player]
    return [[payoffs[i][j] for j in order] for i in order]


class TestNashAverage:
    def test_a_circle_is_even(self):
        found = nash_average(ROCK_PAPER_SCISSORS)

        assert found.masses == pytest.approx([1 / 3] * 3)
        assert found.skills == pytest.approx([0.0] * 3, abs=1e-9)

    def test_an_uneven_circle_has_the_masses_that_its_payoffs_give(self):
        # Cyclic payoffs a, b, c between 0-1, 1-2, 2-0: the kernel of the table is (b, c, a) / (a + b + c).
        a, b, c = 0.2, 0.3, 0.5
        found = nash_average([[0.0, a, -c], [-a, 0.0, b], [c, -b, 0.0]])

        assert found.masses == pytest.approx((b, c, a))

    def test_whoever_beats_everybody_has_it_all(self):
        found = nash_average([[0.0, 0.1, 0.9], [-0.1, 0.0, 0.2], [-0.9, -0.2, 0.0]])

        assert found.masses == pytest.approx((1.0, 0.0, 0.0))
        assert found.skills == pytest.approx((0.0, -0.1, -0.9))

    def test_a_copy_shares_its_originals_mass_and_changes_nothing_else(self):
        alone, together = nash_average(ROCK_PAPER_SCISSORS), nash_average(with_copy(ROCK_PAPER_SCISSORS, 0))

        # Balduzzi et al. 2018, property P2: invariance to redundancy.
        assert together.masses == pytest.approx((1 / 6, 1 / 3, 1 / 3, 1 / 6), abs=1e-5)
        assert together.skills == pytest.approx((*alone.skills, alone.skills[0]), abs=1e-6)

    def test_players_who_never_win_nor_lose_are_even(self):
        assert nash_average([[0.0] * 4] * 4).masses == pytest.approx([1 / 4] * 4)

    @pytest.mark.parametrize("size", [2, 5, 12, 30])
    def test_nobody_gains_against_it_in_any_table(self, size):
        rng = random.Random(size)
        payoffs = [[0.0] * size for _ in range(size)]
        for i in range(size):
            for j in range(i):
                # Ties of few games, as in a tournament: the equilibrium need not be unique.
                payoffs[i][j] = rng.randrange(-3, 4) / 3
                payoffs[j][i] = -payoffs[i][j]
        found = nash_average(payoffs)
        twice = nash_average(with_copy(payoffs, 0))

        assert sum(found.masses) == pytest.approx(1.0)
        assert max(found.skills) < 1e-7
        assert twice.masses[0] + twice.masses[-1] == pytest.approx(found.masses[0], abs=1e-4)

    @pytest.mark.parametrize("payoffs", [[], [[0.0, 1.0], [1.0, 0.0]], [[0.0, float("nan")], [float("nan"), 0.0]]])
    def test_refuses_what_is_no_such_table(self, payoffs):
        with pytest.raises(ValueError, match="needs payoffs that are antisymmetric"):
            nash_average(payoffs)
