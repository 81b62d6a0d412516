import math

import pytest

from trl_spiral.opponents import SCHEMES, Candidate, get_scheme, probabilities
from trl_spiral.types import POLICY


def candidates(win_rates, gaps=None):
    """Return snapshots, oldest first, and the policy."""
    gaps = gaps or [0.0] * len(win_rates)
    past = [
        Candidate(f"step-{10 * place}", 10 * place, win_rate=rate, rating_gap=gap)
        for place, (rate, gap) in enumerate(zip(win_rates, gaps, strict=True), start=1)
    ]
    return [*past, Candidate(POLICY, 10 * len(past))]


FOUR = candidates([0.9, 0.5, 0.6, 0.2], gaps=[400.0, 0.0, 200.0, -200.0])


class TestSchemes:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("mirror", [0, 0, 0, 0, 1]),
            ("latest", [0, 0, 0, 1, 0]),
            ("lagged-3", [0, 1, 0, 0, 0]),
            ("lagged", [1, 0, 0, 0, 0]),  # five back, and there are four
            ("uniform", [1 / 4, 1 / 4, 1 / 4, 1 / 4, 0]),
            ("fifo", [1 / 5] * 5),
            ("fifo-3", [0, 0, 1 / 3, 1 / 3, 1 / 3]),
            # (1 - p)^2: 0.01, 0.25, 0.16, 0.64; the sum is 1.06.
            ("pfsp-hard", [0.01 / 1.06, 0.25 / 1.06, 0.16 / 1.06, 0.64 / 1.06, 0]),
            # p(1 - p): 0.09, 0.25, 0.24, 0.16; the sum is 0.74.
            ("pfsp-var", [0.09 / 0.74, 0.25 / 0.74, 0.24 / 0.74, 0.16 / 0.74, 0]),
        ],
    )
    def test_probabilities_follow_the_papers(self, name, expected):
        assert probabilities(get_scheme(name), FOUR) == pytest.approx(expected)

    def test_rating_prefers_similar_ratings(self):
        chances = probabilities(get_scheme("rating"), FOUR)
        weights = [math.exp(-2.0), 1.0, math.exp(-0.5), math.exp(-0.5)]  # two, zero, one and one width away

        assert chances == pytest.approx([*(weight / sum(weights) for weight in weights), 0.0])

    @pytest.mark.parametrize("name", SCHEMES)
    def test_without_snapshots_the_policy_plays_itself(self, name):
        assert probabilities(get_scheme(name), candidates([])) == [1.0]

    @pytest.mark.parametrize("name", ["pfsp-hard", "pfsp-var"])
    def test_if_all_weights_are_zero_the_policy_plays_itself(self, name):
        assert probabilities(get_scheme(name), candidates([1.0, 1.0])) == [0.0, 0.0, 1.0]

    @pytest.mark.parametrize("name", ["best", "lagged-0", "fifo-x", "uniform-3", "lagged--1"])
    def test_refuses_unknown_names(self, name):
        with pytest.raises(ValueError, match=f"`matchmaking` \\('{name}'\\) must be one of mirror, latest"):
            get_scheme(name)


class TestProbabilities:
    def test_accepts_a_custom_function(self):
        def newest_most(known):
            return [one.step for one in known[:-1]] + [0.0]

        assert probabilities(newest_most, FOUR) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.0])

    @pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0, 0.0, 0.0, 0.0], [math.nan] * 5, [math.inf, 0, 0, 0, 0]])
    def test_refuses_malformed_weights(self, weights):
        with pytest.raises(ValueError, match="It must return one finite weight of at least 0 for each"):
            probabilities(lambda known: weights, FOUR)
