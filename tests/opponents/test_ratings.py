"""Ratings, their intervals, and pairwise results, equal on all ranks."""

import json
import math
import random

import pytest

from trl_spiral.opponents.ratings import SPREAD, START, Played, Ratings


def won(winner, loser, games, counter=0):
    return [Played((winner, loser), (1.0, -1.0), counter + number) for number in range(games)]


def chance(lead):
    """Return the win probability for a lead in Elo points: 400 points are odds of ten to one."""
    return 1.0 / (1.0 + 10.0 ** (-lead / 400.0))


def duel(rng, name, rival, lead, counter=0):
    """Play a game of `name`, which is better by `lead` points."""
    return Played((name, rival), (1.0, -1.0) if rng.random() < chance(lead) else (-1.0, 1.0), counter)


def random_batch(rng, names, games, seats=2):
    return [
        Played(
            tuple(rng.choice(names) for _ in range(seats)),
            tuple(rng.choice((-1.0, 0.0, 1.0)) for _ in range(seats)),
            counter,
        )
        for counter in range(games)
    ]


class TestRating:
    def test_a_new_player_has_the_prior(self):
        rating = Ratings().rating("step-40")

        assert (rating.mu, rating.sigma) == (START, SPREAD)
        # 1500 plus or minus 1.96 times 400 / ln 10 x sqrt(2).
        assert rating.low == pytest.approx(1018.5, abs=0.1)
        assert rating.high == pytest.approx(1981.5, abs=0.1)

    def test_odds_of_three_to_one_give_the_lead_of_that_scale(self):
        ratings = Ratings()
        for counter in range(1000):
            ratings.update([*won("a", "b", 3, 4 * counter), *won("b", "a", 1, 4 * counter + 3)])

        # 400 x log10(3) points, by the definition of the scale.
        assert ratings.rating("a").mu - ratings.rating("b").mu == pytest.approx(190.85, abs=5.0)

    def test_draws_make_two_players_equal(self):
        ratings = Ratings()
        ratings.update([*won("a", "b", 5), *(Played(("a", "b"), (0.0, 0.0), 5 + number) for number in range(500))])

        assert abs(ratings.rating("a").mu - ratings.rating("b").mu) < 15.0

    @pytest.mark.parametrize("star", [True, False], ids=["one against all", "all against all"])
    def test_intervals_have_their_nominal_coverage(self, star):
        runs, inside = 300, 0
        for run in range(runs):
            rng = random.Random(run)
            strength = [rng.gauss(START, 100.0) for _ in range(6)]
            ratings = Ratings()
            games = []
            for counter in range(150):
                one, other = (0, rng.randrange(1, 6)) if star else rng.sample(range(6), 2)
                games.append(duel(rng, str(one), str(other), strength[one] - strength[other], counter))
            ratings.update(games)
            # One difference from each run, so that trials are independent.
            one, other = ratings.rating("0"), ratings.rating("5")
            error = one.mu - other.mu - (strength[0] - strength[5])
            inside += abs(error) < 1.96 * math.hypot(one.sigma, other.sigma)

        # Three standard deviations of a count with probability 0.95.
        assert abs(inside / runs - 0.95) < 3.0 * math.sqrt(0.95 * 0.05 / runs)

    def test_ratings_of_three_seats_match_their_strengths(self):
        rng = random.Random(0)
        strength = {"strong": 200.0, "middle": 0.0, "weak": -200.0}
        games = []
        for counter in range(3000):
            seats = rng.sample(sorted(strength), 3)
            # The highest mark wins. Gumbel noise of this scale gives each pair the odds of Elo points.
            marks = [strength[name] - 400.0 / math.log(10.0) * math.log(-math.log(rng.random())) for name in seats]
            games.append(Played(tuple(seats), tuple(marks), counter))
        ratings = Ratings()
        ratings.update(games)

        assert ratings.games == 9000
        assert ratings.rating("strong").mu - ratings.rating("middle").mu == pytest.approx(200.0, abs=25.0)
        assert ratings.rating("middle").mu - ratings.rating("weak").mu == pytest.approx(200.0, abs=25.0)

    def test_two_seats_of_one_name_are_not_compared(self):
        ratings = Ratings()
        ratings.update([Played(("policy", "policy"), (1.0, -1.0))])

        assert (ratings.games, ratings.names) == (0, ())

        ratings.update([Played(("policy", "step-40", "policy"), (1.0, 0.0, -1.0))])

        # Both seats of the policy played the snapshot: one won and one lost.
        assert (ratings.games, ratings.win_rate("policy", "step-40").rate) == (2, 0.5)

    def test_only_the_order_of_returns_counts(self):
        chips, points = Ratings(), Ratings()
        chips.update([Played(("a", "b"), (37.0, -37.0))])
        points.update([Played(("a", "b"), (1.0, -1.0))])

        assert chips.state_dict() == points.state_dict()

    def test_ratings_do_not_depend_on_names(self):
        new_name = {"a": "z", "b": "y", "c": "x"}
        games = random_batch(random.Random(0), "abc", 200, seats=3)
        before, after = Ratings(), Ratings()
        before.update(games)
        after.update([Played(tuple(new_name[name] for name in g.players), g.returns, g.counter) for g in games])

        for name, other in new_name.items():
            assert before.rating(name) == after.rating(other)
            assert before.win_rate(name, "a") == pytest.approx(after.win_rate(other, "z"), nan_ok=True)

    def test_games_are_counted_in_order_of_their_counters(self):
        games = random_batch(random.Random(0), ["policy", "step-40", "step-80"], 300)
        in_order, as_they_end = Ratings(), Ratings()
        in_order.update(games)
        as_they_end.update(random.Random(1).sample(games, len(games)))

        assert as_they_end.state_dict() == in_order.state_dict()

        backwards = Ratings()
        backwards.update([Played(g.players, g.returns, -g.counter) for g in games])

        # The order does change ratings, so the test above can fail.
        assert backwards.rating("policy") != in_order.rating("policy")


class TestPolicyThatLearns:
    def batches(self, ratings, lead, number, seed):
        rng = random.Random(seed)
        for _ in range(number):
            ratings.update([duel(rng, "policy", "step-40", lead, counter) for counter in range(64)])

    def lead(self, ratings):
        return ratings.rating("policy").mu - ratings.rating("step-40").mu

    def test_its_rating_follows_a_sudden_gain(self):
        ratings, frozen = Ratings(), Ratings(drift=0.0)
        for one in (ratings, frozen):
            self.batches(one, lead=0.0, number=200, seed=0)
            before = self.lead(one)
            self.batches(one, lead=300.0, number=20, seed=1)

            assert abs(before) < 40.0

        # 20 batches of 64 games are enough with drift, and far too few without.
        assert self.lead(ratings) > 240.0
        assert self.lead(frozen) < 120.0

    def test_its_uncertainty_converges_and_that_of_a_snapshot_shrinks(self):
        ratings = Ratings(drift=10.0)
        self.batches(ratings, lead=0.0, number=100, seed=0)
        early = ratings.rating("policy").sigma, ratings.rating("step-40").sigma
        self.batches(ratings, lead=0.0, number=400, seed=1)
        late = ratings.rating("policy").sigma, ratings.rating("step-40").sigma

        # A batch measures with a deviation of r = 400 / ln 10 / sqrt(64 / 4) = 43 points. Together with a drift of q =
        # 10 the variance before the next drift is close to -q^2 / 2 + sqrt(q^4 / 4 + q^2 r^2): 19.6 points.
        assert late[0] == pytest.approx(19.6, abs=1.0)
        assert early[0] == pytest.approx(late[0], abs=1.0)
        assert late[1] < 0.6 * early[1] < 0.6 * early[0]

    def test_its_uncertainty_never_exceeds_the_prior(self):
        ratings = Ratings(drift=100.0)
        self.batches(ratings, lead=0.0, number=1, seed=0)
        for _ in range(50):
            ratings.update([])

        assert ratings.rating("policy").sigma == SPREAD

    def test_its_results_decay_and_those_of_snapshots_do_not(self):
        ratings = Ratings(decay=0.5)
        ratings.update([*won("policy", "step-40", 8), *won("step-80", "step-40", 8)])
        ratings.update(won("step-40", "policy", 4))

        # 8 x 0.5 wins of 8 x 0.5 + 4 games, plus the prior: one win of two games.
        assert ratings.recent_win_rate("policy", "step-40") == pytest.approx((4 + 1) / (8 + 2))
        assert ratings.recent_win_rate("step-40", "policy") == pytest.approx((4 + 1) / (8 + 2))
        assert ratings.recent_win_rate("policy", "step-40", prior=0.0) == pytest.approx(0.5)
        assert ratings.recent_win_rate("step-80", "step-40") == pytest.approx((8 + 1) / (8 + 2))
        assert ratings.win_rate("policy", "step-40").rate == pytest.approx(8 / 12)

    def test_games_of_other_players_do_not_change_it(self):
        ratings = Ratings(decay=0.5)
        ratings.update(won("policy", "step-40", 8))
        before = ratings.rating("policy"), ratings.recent_win_rate("policy", "step-40")
        ratings.update(won("step-80", "step-40", 8), policy_moved=False)

        assert (ratings.rating("policy"), ratings.recent_win_rate("policy", "step-40")) == before
        assert ratings.win_rate("step-80", "step-40").games == 8

    def test_players_that_never_met_are_equal(self):
        assert Ratings().recent_win_rate("policy", "step-40") == 0.5

    def test_a_snapshot_starts_with_the_rating_of_the_policy(self):
        ratings = Ratings()
        ratings.update(won("policy", "base", 30))
        ratings.inherit("step-40", "policy")
        inherited = ratings.rating("step-40")

        assert inherited == ratings.rating("policy")
        assert ratings.win_rate("step-40", "base").games == 0

        ratings.update(won("base", "policy", 30))

        assert ratings.rating("step-40") == inherited

    def test_a_snapshot_taken_again_starts_without_results(self):
        ratings = Ratings()
        ratings.update(won("step-40", "policy", 30))
        ratings.inherit("step-40", "policy")

        assert ratings.win_rate("step-40", "policy").games == 0
        assert ratings.rating("step-40") == ratings.rating("policy")

    def test_remove_deletes_a_player_but_not_its_games_in_the_total(self):
        ratings = Ratings()
        ratings.update([*won("policy", "step-40", 5), *won("policy", "step-80", 3)])
        policy = ratings.rating("policy")
        ratings.remove("step-40")

        assert ratings.names == ("policy", "step-80")
        assert ratings.win_rate("policy", "step-40").games == 0
        assert ratings.rating("step-40").mu == START
        assert ratings.rating("policy") == policy
        assert ratings.games == 8
        assert "step-40" not in json.dumps(ratings.state_dict())


class TestWinRate:
    def test_draws_count_half(self):
        ratings = Ratings()
        ratings.update([*won("a", "b", 13), *won("b", "a", 3), *[Played(("b", "a"), (0.0, 0.0))] * 4])

        # Wilson's interval for 15 of 20 is (0.531, 0.888).
        rate = ratings.win_rate("a", "b")
        assert (rate.rate, rate.games) == (0.75, 20)
        assert (rate.low, rate.high) == (pytest.approx(0.5313, abs=1e-4), pytest.approx(0.8881, abs=1e-4))

        other = ratings.win_rate("b", "a")
        assert (other.rate, other.games) == (0.25, 20)
        assert (other.low, other.high) == (pytest.approx(1 - rate.high), pytest.approx(1 - rate.low))

    def test_is_unknown_for_players_that_never_met(self):
        rate = Ratings().win_rate("a", "b")

        assert math.isnan(rate.rate)
        assert (rate.games, rate.low, rate.high) == (0, 0.0, 1.0)

    def test_the_matrix_contains_each_pair_from_both_sides(self):
        ratings = Ratings()
        ratings.update([*won("a", "b", 3), *won("b", "a", 1), *won("b", "c", 2)])
        matrix = ratings.matrix(["c", "a", "b"])

        assert matrix.names == ("c", "a", "b")
        assert matrix.counts == ((0, 0, 2), (0, 0, 4), (2, 4, 0))
        assert matrix.rates[1][2] == 0.75
        assert matrix.rates[2] == (1.0, 0.25, pytest.approx(math.nan, nan_ok=True))
        assert math.isnan(matrix.rates[0][1])

    def test_the_matrix_leaves_out_pairs_whose_games_have_decayed(self):
        ratings = Ratings(decay=0.5)
        ratings.update(won("policy", "step-40", 4))
        for _ in range(4):
            ratings.update([])
        matrix = ratings.matrix()

        assert matrix.counts == ((0, 0), (0, 0))
        assert math.isnan(matrix.rates[0][1])
        assert ratings.win_rate("policy", "step-40").games == 4


class TestMetrics:
    def test_name_the_rivals_with_the_most_recent_games(self):
        ratings = Ratings()
        ratings.update([game for number in range(30) for game in won("policy", f"step-{number}", number + 1)])
        metrics = ratings.metrics(limit=2)

        assert set(metrics) == {
            "games",
            *(f"rating/{name}{part}" for name in ("policy", "step-29", "step-28") for part in ("", "/low", "/high")),
            *(f"{what}/{name}" for what in ("win_rate", "games") for name in ("step-29", "step-28")),
        }
        assert metrics["games"] == 465
        assert metrics["games/step-29"] == 30
        assert metrics["win_rate/step-29"] == pytest.approx(31 / 32)

    def test_contain_cycles_only_if_players_met_in_a_loop(self):
        ratings = Ratings()
        ratings.update([*won("policy", "step-40", 30), *won("policy", "step-80", 30)])

        assert not {"cycles", "cyclic_share"} & set(ratings.metrics())

        ratings = Ratings()
        ratings.update([*won("policy", "step-40", 30), *won("step-40", "step-80", 30), *won("step-80", "policy", 30)])

        assert (ratings.metrics()["cycles"], ratings.metrics()["cyclic_share"]) == (1.0, 1.0)

    def test_are_numbers_before_the_first_game(self):
        assert Ratings().metrics()["rating/policy"] == START


class TestState:
    def test_survives_json_exactly(self):
        rng = random.Random(0)
        names = ["policy", "step-40", "base"]
        ratings = Ratings()
        for _ in range(5):
            ratings.update(random_batch(rng, names, 40))
        ratings.inherit("step-80", "policy")
        resumed = Ratings()
        resumed.update(won("gone", "base", 3))
        resumed.load_state_dict(json.loads(json.dumps(ratings.state_dict())))

        assert resumed.state_dict() == ratings.state_dict()
        assert list(resumed.names) == list(ratings.names)

        batch = random_batch(rng, [*names, "step-80"], 40)
        for one in (ratings, resumed):
            one.update(batch)

        assert resumed.state_dict() == ratings.state_dict()
        assert resumed.metrics() == ratings.metrics()

    def test_a_saved_state_does_not_change(self):
        ratings = Ratings()
        ratings.update(won("a", "b", 1))
        state = ratings.state_dict()
        ratings.update(won("a", "b", 1))

        assert state["games"] == 1
        assert state["results"][0][2:5] == [1, 0, 0]


class TestWrongInput:
    def test_refuses_a_game_with_more_returns_than_players(self):
        with pytest.raises(ValueError, match="Game 7 has 2 players and 3 returns"):
            Played(("a", "b"), (1.0, 0.0, -1.0), counter=7)

    @pytest.mark.parametrize("decay", [0.0, 1.1])
    def test_refuses_a_decay_out_of_range(self, decay):
        with pytest.raises(ValueError, match=r"`decay` .* must be in \(0, 1\]"):
            Ratings(decay=decay)

    def test_refuses_a_negative_drift(self):
        with pytest.raises(ValueError, match="`drift` .* must not be negative"):
            Ratings(drift=-1.0)
