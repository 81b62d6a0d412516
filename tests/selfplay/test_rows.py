import pytest

from trl_spiral.selfplay.rows import Row, make_rows
from trl_spiral.types import POLICY, Ending, Episode, Trajectory, Turn


def turn(prompt: tuple[int, ...], completion: tuple[int, ...], policy: str | None = POLICY, version: int = 0) -> Turn:
    logprobs = tuple(-token / 100 for token in completion)
    return Turn("[4]", "", prompt, completion, logprobs, policy, version)


def episode(first: tuple[Turn, ...], second: tuple[Turn, ...], order: tuple[int, ...]) -> Episode:
    return Episode(
        game="Toy",
        seed=0,
        players=("policy", "other"),
        trajectories=(Trajectory(0, first), Trajectory(1, second)),
        returns=(1.0, -1.0),
        ending=Ending.FINISHED,
        counter=17,
        order=order,
    )


class TestTurnRows:
    def test_are_one_per_turn_in_playing_order(self):
        # Seat 0 moves twice running, as the rules of PigDice or dots-and-boxes allow.
        played = episode(
            (turn((1,), (11,)), turn((2,), (12,)), turn((4,), (14,))), (turn((3,), (13,)),), order=(0, 0, 1, 0)
        )

        rows = make_rows(played, ((0.1, 0.2, 0.4), (0.3,)), "turn")

        assert [row.completion_ids for row in rows] == [[11], [12], [13], [14]]
        assert [row.advantages for row in rows] == [[0.1], [0.2], [0.3], [0.4]]
        assert [row.seat for row in rows] == [0, 0, 1, 0]
        assert [row.reward for row in rows] == [1.0, 1.0, -1.0, 1.0]

    def test_contain_exactly_the_sampled_tokens(self):
        played = episode((turn((1, 2), (11, 12, 13), version=5),), (), order=(0,))

        (row,) = make_rows(played, ((0.5,), ()), "turn")

        assert row == Row(
            prompt_ids=[1, 2],
            completion_ids=[11, 12, 13],
            mask=[1, 1, 1],
            logprobs=[-0.11, -0.12, -0.13],
            advantages=[0.5, 0.5, 0.5],
            reward=1.0,
            game="Toy",
            seat=0,
            episode=17,
            version=5,
        )
        assert (row.advantage, row.policy_tokens) == (0.5, 3)


class TestTrajectoryRows:
    def test_mask_tokens_that_the_policy_did_not_sample(self):
        # The second prompt is the first one, its reply, and two tokens that the game put in between.
        played = episode(
            (turn((1, 2), (11, 12), version=3), turn((1, 2, 11, 12, 91, 92), (13,), version=4)), (), order=(0, 0)
        )

        (row,) = make_rows(played, ((0.25, 1.0), ()), "trajectory")

        assert row.prompt_ids == [1, 2]
        assert row.completion_ids == [11, 12, 91, 92, 13]
        assert row.mask == [1, 1, 0, 0, 1]
        assert row.logprobs == [-0.11, -0.12, 0.0, 0.0, -0.13]
        assert row.advantages == [0.25, 0.25, 0.0, 0.0, 1.0]
        assert row.version == 4

    def test_have_the_mean_advantage_of_the_policys_tokens(self):
        played = episode((turn((1,), (11, 12)), turn((1, 11, 12, 91), (13,))), (), order=(0, 0))

        (row,) = make_rows(played, ((0.3, 0.9), ()), "trajectory")

        assert row.advantage == pytest.approx((0.3 + 0.3 + 0.9) / 3)
        assert row.policy_tokens == 3

    def test_are_one_per_trained_seat(self):
        played = episode((turn((1,), (11,)),), (turn((2,), (12,)),), order=(0, 1))

        assert [row.seat for row in make_rows(played, ((0.1,), (0.2,)), "trajectory")] == [0, 1]

    def test_refuse_turns_that_do_not_continue_each_other(self):
        played = episode((turn((1, 2), (11,)), turn((1, 3, 11, 91), (12,))), (), order=(0, 0))

        with pytest.raises(ValueError, match='seat 0 in Toy do not carry on.*sample_unit="turn"'):
            make_rows(played, ((0.1, 0.2), ()), "trajectory")


class TestMakeRows:
    @pytest.mark.parametrize("unit", ["turn", "trajectory"])
    def test_makes_no_row_for_an_opponent(self, unit):
        played = episode((turn((1,), (11,)),), (turn((2,), (12,), policy="step-100"),), order=(0, 1))

        rows = make_rows(played, ((0.1,), ()), unit)

        assert [row.completion_ids for row in rows] == [[11]]

    @pytest.mark.parametrize("unit", ["turn", "trajectory"])
    def test_makes_no_row_for_a_broken_episode(self, unit):
        played = episode((turn((1,), (11,)),), (turn((2,), (12,)),), order=(0, 1))

        assert make_rows(played, ((), ()), unit) == []

    def test_round_trips_through_a_checkpoint(self):
        played = episode((turn((1, 2), (11, 12)),), (), order=(0,))
        (row,) = make_rows(played, ((0.1,), ()), "turn")

        assert Row(**row.to_dict()) == row


class TestLogprobs:
    @pytest.mark.parametrize("unit", ["turn", "trajectory"])
    def test_are_needed_for_every_token(self, unit):
        turn = Turn("[4]", "", (1,), (2, 3), (), POLICY)
        trajectories = (Trajectory(0, (turn,)), Trajectory(1, ()))
        episode = Episode("Toy", 0, ("p", "q"), trajectories, (1.0, -1.0), Ending.FINISHED, order=(0,))

        with pytest.raises(ValueError, match="2 tokens and 0 log-probabilities"):
            make_rows(episode, ((0.1,), ()), unit)
