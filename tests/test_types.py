from dataclasses import FrozenInstanceError

import pytest

from trl_spiral.types import POLICY, Ending, Episode, Trajectory, Turn


def episode(returns: tuple[float, ...], *turns: Turn, ending: Ending = Ending.FINISHED) -> Episode:
    return Episode(
        game="Toy",
        seed=0,
        players=("a", "b"),
        trajectories=(Trajectory(0, turns), Trajectory(1, ())),
        returns=returns,
        ending=ending,
    )


class TestEnding:
    def test_only_illegal_and_truncated_replies_are_forfeits(self):
        assert [ending for ending in Ending if ending.is_forfeit] == [Ending.ILLEGAL_MOVE, Ending.TRUNCATED]

    def test_only_lost_players_and_failing_environments_are_broken(self):
        assert [ending for ending in Ending if ending.is_broken] == [Ending.PLAYER_LOST, Ending.ENVIRONMENT_ERROR]

    def test_is_written_to_a_log_as_its_value(self):
        assert f"{Ending.TURN_LIMIT}" == "turn_limit"


class TestTurn:
    def test_refuses_log_probabilities_that_do_not_match_the_tokens(self):
        with pytest.raises(ValueError, match="2 log-probabilities for 3 completion tokens"):
            Turn(action="[4]", completion_ids=(1, 2, 3), logprobs=(-0.1, -0.2))

    def test_may_have_no_log_probabilities(self):
        assert Turn(action="[4]", completion_ids=(1, 2, 3)).logprobs == ()

    def test_cannot_be_changed(self):
        turn = Turn(action="[4]")

        with pytest.raises(FrozenInstanceError):
            turn.action = "[5]"


class TestEpisode:
    def test_is_drawn_where_no_seat_does_better_than_another(self):
        assert episode((0.0, 0.0)).is_draw
        assert episode((0.5, 0.5)).is_draw
        assert not episode((1.0, -1.0)).is_draw

    def test_counts_the_tokens_of_the_trained_policy_alone(self):
        mine = Turn(action="[4]", completion_ids=(1, 2, 3), policy=POLICY)
        snapshot = Turn(action="[4]", completion_ids=(1, 2), policy="step-100")
        scripted = Turn(action="[4]")

        assert episode((0.0, 0.0), mine, snapshot, scripted, mine).policy_tokens == 6
