import random

import pytest

from trl_spiral.evaluation.nash import nash_average


ROCK_PAPER_SCISSORS = [[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]


def with_copy(payoffs, player):
    """Return the table with a copy of a player."""
    order = [*range(len(payoffs)), player]
    return [[payoffs[i][j] for j in order] for i in order]


class TestNashAverage:
    def test_the_masses_of_a_cycle_are_equal(self):
        found = nash_average(ROCK_PAPER_SCISSORS)

        assert found.masses == pytest.approx([1 / 3] * 3)
        assert found.skills == pytest.approx([0.0] * 3, abs=1e-9)

    def test_the_masses_of_an_uneven_cycle_match_theory(self):
        # Cyclic payoffs a, b, c between 0-1, 1-2, 2-0: the kernel of the table is (b, c, a) / (a + b + c).
        a, b, c = 0.2, 0.3, 0.5
        found = nash_average([[0.0, a, -c], [-a, 0.0, b], [c, -b, 0.0]])

        assert found.masses == pytest.approx((b, c, a))

    def test_a_player_that_beats_all_others_has_the_whole_mass(self):
        found = nash_average([[0.0, 0.1, 0.9], [-0.1, 0.0, 0.2], [-0.9, -0.2, 0.0]])

        assert found.masses == pytest.approx((1.0, 0.0, 0.0))
        assert found.skills == pytest.approx((0.0, -0.1, -0.9))

    def test_a_copy_shares_the_mass_and_changes_nothing_else(self):
        alone, together = nash_average(ROCK_PAPER_SCISSORS), nash_average(with_copy(ROCK_PAPER_SCISSORS, 0))

        # Balduzzi et al. 2018, property P2: invariance to redundancy.
        assert together.masses == pytest.approx((1 / 6, 1 / 3, 1 / 3, 1 / 6), abs=1e-5)
        assert together.skills == pytest.approx((*alone.skills, alone.skills[0]), abs=1e-6)

    def test_the_masses_of_equal_players_are_equal(self):
        assert nash_average([[0.0] * 4] * 4).masses == pytest.approx([1 / 4] * 4)

    @pytest.mark.parametrize("size", [2, 5, 12, 30])
    def test_no_player_gains_against_it_in_random_tables(self, size):
        rng = random.Random(size)
        payoffs = [[0.0] * size for _ in range(size)]
        for i in range(size):
            for j in range(i):
                # Few distinct values, as in a tournament with few games, so the equilibrium may not be unique.
                payoffs[i][j] = rng.randrange(-3, 4) / 3
                payoffs[j][i] = -payoffs[i][j]
        found = nash_average(payoffs)
        twice = nash_average(with_copy(payoffs, 0))

        assert sum(found.masses) == pytest.approx(1.0)
        assert max(found.skills) < 1e-7
        assert twice.masses[0] + twice.masses[-1] == pytest.approx(found.masses[0], abs=1e-4)

    @pytest.mark.parametrize("payoffs", [[], [[0.0, 1.0], [1.0, 0.0]], [[0.0, float("nan")], [float("nan"), 0.0]]])
    def test_refuses_tables_that_are_not_antisymmetric(self, payoffs):
        with pytest.raises(ValueError, match="needs antisymmetric payoffs"):
            nash_average(payoffs)
