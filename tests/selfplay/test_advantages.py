import json
import random

import pytest

from trl_spiral.selfplay.advantages import BatchMean, GroupMean, ReturnsOnly, RoleBaseline
from trl_spiral.selfplay.position_values import PositionValues
from trl_spiral.selfplay.results import Result, learning_seats
from trl_spiral.types import POLICY, Ending, Episode, Trajectory, Turn


ESTIMATORS = [RoleBaseline, BatchMean, GroupMean, ReturnsOnly, PositionValues]


def result(
    *returns: float,
    counter: int = 0,
    game: str = "Toy",
    seed: int = 0,
    positions: tuple[tuple[int, ...], ...] | None = None,
    ending: Ending = Ending.FINISHED,
) -> Result:
    """A game whose seats take turns, one each unless `positions` lists more. Seats with turns are trained on."""
    positions = ((1,),) * len(returns) if positions is None else positions
    rounds = range(max(map(len, positions)))
    return Result(
        counter=counter,
        game=game,
        seed=seed,
        returns=returns,
        ending=ending,
        offender=None,
        learners=tuple(bool(turns) and not ending.is_broken for turns in positions),
        positions=positions,
        order=tuple(seat for number in rounds for seat, turns in enumerate(positions) if number < len(turns)),
        tokens=0,
        logprob_sum=0.0,
        discarded_tokens=0,
        policy_turns=0,
        opening=0,
    )


def learn(estimator, results):
    """Compute the advantages of a batch, and update the estimator, as in training."""
    advantages = estimator.advantages(results)
    estimator.update(results)
    return advantages


BROKEN = result(0.0, 0.0, ending=Ending.ENVIRONMENT_ERROR)
"""The result of a broken episode: no seat to train on."""


def mixed_batch() -> list[Result]:
    """Twenty results of two games, with turns of several lengths some of them with a seat that is not trained on."""
    rng = random.Random(0)
    batch = []
    for counter in range(20):
        gain = rng.choice((-1.0, 0.0, 1.0, 0.1))
        positions = tuple(tuple(rng.randrange(6) for _ in range(rng.randrange(4))) for _ in range(2))
        batch.append(
            result(gain, -gain, counter=counter, game=rng.choice("AB"), seed=counter // 4, positions=positions)
        )
    return batch


def turn(policy: str | None = POLICY, prompt: tuple[int, ...] = (1,)) -> Turn:
    return Turn(action="[4]", prompt_ids=prompt, completion_ids=(7, 8), logprobs=(-0.25, -0.5), policy=policy)


def episode(*seats: tuple[Turn, ...], ending: Ending = Ending.FINISHED, offender: int | None = None) -> Episode:
    return Episode(
        game="Toy",
        seed=3,
        players=("x",) * len(seats),
        trajectories=tuple(Trajectory(seat, turns) for seat, turns in enumerate(seats)),
        returns=(1.0, -1.0),
        ending=ending,
        offender=offender,
        counter=5,
        order=tuple(seat for seat, turns in enumerate(seats) for _ in turns),
        discarded_tokens=4,
    )


class TestLearningSeats:
    def test_are_the_seats_that_the_policy_filled(self):
        assert learning_seats(episode((turn(),), (turn(),))) == (0, 1)
        assert learning_seats(episode((turn(),), (turn("step-100"),))) == (0,)
        assert learning_seats(episode((turn(None),), (turn(),))) == (1,)

    def test_leave_out_a_seat_that_never_moved(self):
        assert learning_seats(episode((turn(),), ())) == (0,)

    @pytest.mark.parametrize("ending", [ending for ending in Ending if ending.is_broken])
    def test_are_none_in_a_broken_episode(self, ending):
        assert learning_seats(episode((turn(),), (turn(),), ending=ending)) == ()

    @pytest.mark.parametrize("ending", [ending for ending in Ending if ending.is_forfeit])
    def test_without_the_winner_of_a_forfeit_are_the_offender(self, ending):
        forfeit = episode((turn(),), (turn(),), ending=ending, offender=1)

        assert learning_seats(forfeit) == (0, 1)
        assert learning_seats(forfeit, winner_learns_from_forfeit=False) == (1,)


class TestResult:
    def test_counts_only_tokens_and_turns_of_the_policy(self):
        summary = Result.of(episode((turn(), turn()), (turn("step-100"),)))

        assert (summary.tokens, summary.policy_turns, summary.order) == (4, 2, (0, 0, 1))
        assert summary.logprob_sum == pytest.approx(2 * (-0.25 - 0.5))
        assert (summary.counter, summary.seed, summary.discarded_tokens) == (5, 3, 4)

    def test_marks_the_seats_that_are_trained_on(self):
        table = episode((turn(),), (turn(),))

        assert Result.of(table).learners == (True, True)
        assert Result.of(table, learners=(1,)).learners == (False, True)
        assert Result.of(episode((turn(),), (turn(),), ending=Ending.PLAYER_LOST)).learners == (False, False)

    def test_keeps_one_position_per_turn_of_the_policy(self):
        summary = Result.of(episode((turn(prompt=(1,)), turn(prompt=(2,)), turn(prompt=(1,))), (turn("step-100"),)))

        (first, second, again), other = summary.positions
        assert first == again != second
        assert other == ()


class TestRoleBaseline:
    def test_starts_from_the_first_batch(self):
        # Seat 0 returns 1 and 0: mean 0.5. Read before the update, so the first batch is scored against itself.
        assert learn(RoleBaseline(), [result(1.0, -1.0), result(0.0, 0.0)]) == [((0.5,), (-0.5,)), ((-0.5,), (0.5,))]

    def test_is_read_before_it_is_updated(self):
        baseline = RoleBaseline(decay=0.5)
        learn(baseline, [result(2.0, -2.0)])

        first = learn(baseline, [result(0.0, 0.0)])
        second = learn(baseline, [result(0.0, 0.0)])

        # 2, then 0.5 * 2 + 0.5 * 0 = 1.
        assert first == [((-2.0,), (2.0,))]
        assert second == [((-1.0,), (1.0,))]
        assert baseline.baselines == {("Toy", 0, "self"): 0.5, ("Toy", 1, "self"): -0.5}

    def test_moves_once_per_batch(self):
        baseline = RoleBaseline(decay=0.9)
        learn(baseline, [result(1.0, -1.0)])

        learn(baseline, [result(0.0, 0.0)] * 100)

        assert baseline.baselines["Toy", 0, "self"] == pytest.approx(0.9)

    def test_follows_a_constant_return_geometrically(self):
        baseline = RoleBaseline(decay=0.95)
        learn(baseline, [result(0.0, 0.0)])
        for _ in range(10):
            learn(baseline, [result(1.0, -1.0)])

        # b_n = 1 - 0.95**n, from b_0 = 0 and b <- 0.95 b + 0.05.
        assert baseline.baselines["Toy", 0, "self"] == pytest.approx(1 - 0.95**10)

    def test_keeps_one_number_per_game_and_seat(self):
        baseline = RoleBaseline()

        learn(baseline, [result(1.0, -1.0, game="A"), result(0.5, -0.5, game="B"), result(0.0, 0.25, 1.0, game="C")])

        assert baseline.baselines == {
            ("A", 0, "self"): 1.0,
            ("A", 1, "self"): -1.0,
            ("B", 0, "self"): 0.5,
            ("B", 1, "self"): -0.5,
            ("C", 0, "self"): 0.0,
            ("C", 1, "self"): 0.25,
            ("C", 2, "self"): 1.0,
        }

    def test_per_episode_moves_after_every_episode(self):
        baseline = RoleBaseline(decay=0.5, per_episode=True)

        advantages = learn(
            baseline, [result(1.0, -1.0, counter=0), result(1.0, -1.0, counter=1), result(0.0, 0.0, counter=2)]
        )

        # From zero, as in SPIRAL: 0, 0.5, 0.75, then 0.375.
        assert [seats[0] for seats in advantages] == [(1.0,), (0.5,), (-0.75,)]
        assert baseline.baselines["Toy", 0, "self"] == 0.375

    def test_ignores_seats_that_are_not_trained_on(self):
        baseline = RoleBaseline()

        advantages = learn(baseline, [result(1.0, -1.0, positions=((1, 2), ()))])

        assert advantages == [((0.0, 0.0), ())]
        assert baseline.baselines == {("Toy", 0, "self"): 1.0}

    def test_logs_each_baseline_by_role(self):
        baseline = RoleBaseline()
        learn(baseline, [result(1.0, -1.0)])

        assert baseline.metrics() == {"baseline/Toy/seat0": 1.0, "baseline/Toy/seat1": -1.0}


class TestDiscount:
    @pytest.mark.parametrize("estimator", [RoleBaseline(discount=0.5, per_episode=True), ReturnsOnly(discount=0.5)])
    def test_halves_the_advantage_with_every_later_turn_of_the_seat(self, estimator):
        # A fresh per-episode baseline is 0, so both see the bare return, 1.
        assert learn(estimator, [result(1.0, -1.0, positions=((1, 2, 3), (1,)))]) == [((0.25, 0.5, 1.0), (-1.0,))]


class TestBatchMean:
    def test_subtracts_the_mean_of_the_role_in_this_batch(self):
        estimator = BatchMean()
        learn(estimator, [result(9.0, -9.0)])

        assert learn(estimator, [result(1.0, -1.0), result(0.0, 0.0), result(1.0, -1.0, game="B")]) == [
            ((0.5,), (-0.5,)),
            ((-0.5,), (0.5,)),
            ((0.0,), (0.0,)),
        ]


class TestGroupMean:
    def test_compares_only_episodes_of_one_start(self):
        same_start = [result(1.0, -1.0, seed=1), result(0.0, 0.0, seed=1)]
        alone = result(1.0, -1.0, seed=2)
        other_game = result(1.0, -1.0, seed=1, game="B")

        advantages = learn(GroupMean(), [*same_start, alone, other_game])

        assert advantages == [((0.5,), (-0.5,)), ((-0.5,), (0.5,)), ((0.0,), (0.0,)), ((0.0,), (0.0,))]


class TestReturnsOnly:
    def test_is_the_return(self):
        assert learn(ReturnsOnly(), [result(1.0, -1.0, positions=((1, 2), (3,)))]) == [((1.0, 1.0), (-1.0,))]


class TestPositionValues:
    def test_agrees_with_a_hand_computation(self):
        values = PositionValues(trace=0.5, rate=0.1, discount=0.5)
        values.values = {("Toy", 0, 1, "self"): (0.2, 10), ("Toy", 0, 2, "self"): (0.4, 10)}

        (((first, second), (other,)),) = learn(values, [result(1.0, -1.0, positions=((1, 2), (3,)))])

        # Last turn: return - value = 1 - 0.4. First: 0.5 * 0.4 - 0.2 = 0, plus 0.5 * 0.5 of the last turn's.
        # Seat 1's position is new, so it counts as its role's mean return, -1, and the return is no surprise.
        assert second == pytest.approx(0.6)
        assert first == pytest.approx(0.15)
        assert other == pytest.approx(0.0)
        # Moved by max(rate, 1 / 11) = 0.1 of what followed: 0.2 + 0.15, and 0.4 + 0.6.
        assert values.values["Toy", 0, 1, "self"] == (pytest.approx(0.2 + 0.1 * 0.15), 11)
        assert values.values["Toy", 0, 2, "self"] == (pytest.approx(0.4 + 0.1 * 0.6), 11)

    def test_gives_every_turn_the_final_return_at_trace_one(self):
        values = PositionValues(trace=1.0)
        values.values = {
            ("Toy", 0, 1, "self"): (0.3, 5),
            ("Toy", 0, 2, "self"): (-0.7, 5),
            ("Toy", 0, 3, "self"): (0.1, 5),
        }

        ((turns, _),) = learn(values, [result(1.0, -1.0, positions=((1, 2, 3), ()))])

        # The sum telescopes to return - value.
        assert turns == pytest.approx((1.0 - 0.3, 1.0 + 0.7, 1.0 - 0.1))

    def test_gives_every_turn_the_next_positions_value_at_trace_zero(self):
        values = PositionValues(trace=0.0)
        values.values = {
            ("Toy", 0, 1, "self"): (0.3, 5),
            ("Toy", 0, 2, "self"): (-0.7, 5),
            ("Toy", 0, 3, "self"): (0.1, 5),
        }

        ((turns, _),) = learn(values, [result(1.0, -1.0, positions=((1, 2, 3), ()))])

        assert turns == pytest.approx((-0.7 - 0.3, 0.1 + 0.7, 1.0 - 0.1))

    @pytest.mark.parametrize(
        ("trace", "expected"),
        [
            # Each position against the next one of either seat: 0.1 - 0.2, -0.4 + 0.1, 1 - 0.4.
            (0.0, ((-0.1, 0.6), (-0.3,))),
            # The sums telescope to the return again: 1 - 0.2, -1 + 0.1, 1 - 0.4.
            (1.0, ((0.8, 0.6), (-0.9,))),
        ],
    )
    def test_judges_a_move_among_rivals_by_the_position_it_leaves(self, trace, expected):
        values = PositionValues(trace=trace, rivals=["Toy"])
        values.values = {
            ("Toy", 0, 1, "self"): (0.2, 5),
            ("Toy", 1, 3, "self"): (-0.1, 5),
            ("Toy", 0, 2, "self"): (0.4, 5),
        }

        ((first, second),) = learn(values, [result(1.0, -1.0, positions=((1, 2), (3,)))])

        assert first == pytest.approx(expected[0])
        assert second == pytest.approx(expected[1])

    def test_is_a_plain_mean_up_to_the_rate(self):
        values = PositionValues(trace=1.0, rate=0.1)
        for gain in (1.0, 0.0, 0.0, 1.0):
            learn(values, [result(gain, -gain)])

        assert values.values["Toy", 0, 1, "self"] == (pytest.approx(0.5), 4)

    def test_values_a_new_position_at_its_roles_mean(self):
        values = PositionValues()
        learn(values, [result(0.5, -0.5)])

        advantages = learn(values, [result(1.0, -1.0, positions=((99,), (98,)))])

        assert advantages == [((0.5,), (-0.5,))]

    def test_logs_the_number_of_positions(self):
        values = PositionValues()
        learn(values, [result(1.0, -1.0, positions=((1, 2), (2,)))])

        assert values.metrics()["positions"] == 3


class TestEveryEstimator:
    @pytest.mark.parametrize("make", ESTIMATORS)
    def test_does_not_depend_on_the_order_of_results(self, make):
        batch = mixed_batch()
        order = random.Random(1).sample(range(len(batch)), len(batch))
        straight, shuffled = make(), make()

        for _ in range(3):
            expected = learn(straight, batch)
            seen = learn(shuffled, [batch[index] for index in order])

            assert seen == [expected[index] for index in order]

        # Bit for bit, so one rank's games in any order leave the state that two ranks' games leave.
        assert shuffled.state_dict() == straight.state_dict()

    @pytest.mark.parametrize("make", ESTIMATORS)
    def test_continues_from_a_state_in_json(self, make):
        estimator, resumed = make(), make()
        learn(estimator, mixed_batch())

        resumed.load_state_dict(json.loads(json.dumps(estimator.state_dict())))

        assert learn(resumed, mixed_batch()) == learn(estimator, mixed_batch())
        assert resumed.state_dict() == estimator.state_dict()

    @pytest.mark.parametrize("make", [*ESTIMATORS, lambda: RoleBaseline(per_episode=True)])
    def test_changes_nothing_without_an_update(self, make):
        estimator = make()
        learn(estimator, mixed_batch()[:10])
        before = json.dumps(estimator.state_dict())

        advantages = estimator.advantages(mixed_batch()[10:])

        assert json.dumps(estimator.state_dict()) == before
        assert advantages == learn(estimator, mixed_batch()[10:])

    @pytest.mark.parametrize("make", [*ESTIMATORS, lambda: RoleBaseline(per_episode=True)])
    def test_ignores_broken_episodes(self, make):
        with_broken, without = make(), make()

        advantages = learn(with_broken, [BROKEN, result(1.0, -1.0), BROKEN])

        assert advantages[0] == advantages[2] == ((), ())
        assert [advantages[1]] == learn(without, [result(1.0, -1.0)])
        assert with_broken.state_dict() == without.state_dict()

    @pytest.mark.parametrize("make", ESTIMATORS)
    def test_supports_three_seats(self, make):
        advantages = learn(make(), [result(1.0, -0.5, -0.5, positions=((1, 2), (3,), (4, 5, 6)))])

        assert [[len(turns) for turns in seats] for seats in advantages] == [[2, 1, 3]]
