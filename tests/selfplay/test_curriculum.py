"""Several games in one run: how often each is played, by weights that stay or by a curriculum."""

import math
from collections import Counter

import pytest

from tests.helpers.games import AskingPlayer, EchoEngine, LastStone, ShortOrLong
from trl_spiral import SpiralConfig
from trl_spiral.rollout_func import SelfPlayRollout
from trl_spiral.selfplay.curriculum import LinearCurriculum, game_shares, named_shares
from trl_spiral.selfplay.state import RolloutState
from trl_spiral.types import POLICY


GAMES = [LastStone(), ShortOrLong()]  # of three seats and of two
NAMES = [game.name for game in GAMES]


def collect(rollout, rows=600, step=0, **options):
    rollout.collect(rows, AskingPlayer(name=POLICY), EchoEngine(), seed=0, step=step, **options)
    return Counter(episode.game for episode in rollout.episodes)


class Alternating:
    """One game, then the other: a curriculum that remembers whose turn it is."""

    def __init__(self):
        self.calls = 0
        self.told = []

    def __call__(self, step, metrics):
        self.calls += 1
        self.told.append((step, metrics))
        return {NAMES[self.calls % 2]: 1.0}

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


class TestGameShares:
    def test_add_up_to_one(self):
        assert game_shares(["a", "b", "c"], [1, 2, 1]) == [0.25, 0.5, 0.25]
        assert named_shares(["a", "b", "c"], {"c": 3.0, "a": 1.0}) == [0.25, 0.0, 0.75]

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ([1.0], r"`game_weights` \(1\) must be as many as `games` \(a, b\)"),
            ([1.0, -0.5], r"`game_weights` \(1, -0.5\) must be numbers of at least 0"),
            ([1.0, math.nan], r"`game_weights` \(1, nan\) must be numbers of at least 0"),
            ([0.0, 0.0], r"`game_weights` \(0, 0\) must be numbers of at least 0, not all of them 0"),
        ],
    )
    def test_wrong_weights_are_refused_in_one_sentence(self, weights, message):
        with pytest.raises(ValueError, match=message):
            game_shares(["a", "b"], weights)

    def test_the_configuration_refuses_them_too(self, tmp_path):
        with pytest.raises(ValueError, match=r"must be as many as `games` \(TicTacToe-v0\)"):
            SpiralConfig(str(tmp_path), game_weights=[1.0, 2.0], use_cpu=True, bf16=False)

    def test_a_curriculum_may_not_name_another_game(self):
        with pytest.raises(ValueError, match="weighs 'Chess', which is not among the games"):
            named_shares(["a"], {"Chess": 1.0})


class TestLinearCurriculum:
    def test_moves_evenly_and_stays(self):
        curriculum = LinearCurriculum({"a": 1.0}, {"a": 1.0, "b": 3.0}, steps=10)
        shares = [named_shares(["a", "b"], curriculum(step, {})) for step in (0, 5, 10, 99)]

        assert shares == [[1.0, 0.0], [0.625, 0.375], [0.25, 0.75], [0.25, 0.75]]

    def test_needs_a_way_to_go(self):
        with pytest.raises(ValueError, match=r"`steps` \(0\) must be at least 1"):
            LinearCurriculum({"a": 1.0}, {"b": 1.0}, steps=0)


class TestWeights:
    def test_games_are_played_in_proportion(self):
        played = collect(SelfPlayRollout(GAMES, game_weights=[1.0, 3.0]))

        # Of some 130 games, a quarter; 0.09 to 0.41 is over 4 sigma.
        assert 0.09 < played["LastStone"] / played.total() < 0.41

    def test_a_game_of_weight_zero_is_left_out(self):
        assert set(collect(SelfPlayRollout(GAMES, game_weights=[0.0, 2.0]))) == {"ShortOrLong"}

    def test_without_weights_the_games_are_those_they_have_always_been(self):
        rollout = SelfPlayRollout(GAMES)
        collect(rollout, rows=40)

        # Written down before there were weights: runs whose curves are published draw so.
        assert "".join(episode.game[0] for episode in rollout.episodes[:12]) == "SSLLLLSLLLLS"

    def test_games_that_share_a_start_are_of_one_game(self):
        rollout = SelfPlayRollout(GAMES, game_weights=[1.0, 1.0], games_per_start=4)
        collect(rollout)
        groups = [rollout.episodes[first : first + 4] for first in range(0, len(rollout.episodes), 4)]

        assert all(len({(episode.game, episode.seed) for episode in group}) == 1 for group in groups)

    def test_each_game_and_seat_has_a_baseline_of_its_own(self):
        rollout = SelfPlayRollout(GAMES, game_weights=[1.0, 3.0])
        collect(rollout)
        roles = {(game, seat) for game, seat, _ in rollout.estimator.baselines}

        assert roles == {("LastStone", seat) for seat in range(3)} | {("ShortOrLong", seat) for seat in range(2)}
        for game, seat in roles:
            played = [episode for episode in rollout.episodes if episode.game == game]
            # A seat that the game has ended without asking learns nothing from it.
            returns = [episode.returns[seat] for episode in played if episode.trajectories[seat].turns]
            baseline = rollout.estimator.baselines[game, seat, "self"]
            assert baseline == pytest.approx(math.fsum(returns) / len(returns)), (game, seat)


class TestCurriculum:
    def test_is_asked_once_a_batch_and_told_what_was_measured(self):
        curriculum = Alternating()
        rollout = SelfPlayRollout(GAMES, curriculum=curriculum)
        played = [set(collect(rollout, rows=60, step=step)) for step in (0, 4, 8)]

        assert played == [{"ShortOrLong"}, {"LastStone"}, {"ShortOrLong"}]
        assert [step for step, _ in curriculum.told] == [0, 4, 8]
        assert curriculum.told[0][1] == {}
        assert {"selfplay/ShortOrLong/seat0/win", "selfplay/draw_rate"} <= set(curriculum.told[1][1])
        assert rollout.metrics["selfplay/ShortOrLong/share"] == 1.0

    def test_evaluation_goes_by_the_weights(self):
        curriculum = Alternating()
        rollout = SelfPlayRollout(GAMES, game_weights=[1.0, 0.0], curriculum=curriculum)
        played = set(collect(rollout, rows=60, evaluation=True))

        assert played == {"LastStone"}
        assert curriculum.calls == 0

    def test_a_resumed_run_plays_on_as_if_it_had_not_stopped(self):
        whole, begun = (SelfPlayRollout(GAMES, curriculum=Alternating()) for _ in range(2))
        for rollout in (whole, begun):
            collect(rollout, rows=60)
        saved = begun.state.state_dict()
        resumed = SelfPlayRollout(GAMES, curriculum=Alternating())
        resumed.restore(RolloutState.from_state_dict(saved))
        for rollout in (whole, resumed):
            collect(rollout, rows=60, step=1)

        assert resumed.episodes == whole.episodes
        assert resumed.curriculum.told == whole.curriculum.told[1:]

    def test_a_state_that_nobody_takes_is_an_error(self):
        rollout = SelfPlayRollout(GAMES, curriculum=Alternating())
        collect(rollout, rows=60)
        forgetful = SelfPlayRollout(GAMES, curriculum=lambda step, metrics: {"LastStone": 1.0})

        with pytest.raises(ValueError, match="holds the state of a curriculum"):
            forgetful.restore(RolloutState.from_state_dict(rollout.state.state_dict()))

    def test_ranks_that_are_told_different_shares_stop(self, monkeypatch):
        monkeypatch.setattr("trl_spiral.rollout_func.gather_object", lambda told: [*told, ([0.5, 0.5], "")])
        rollout = SelfPlayRollout(GAMES, curriculum=Alternating())

        with pytest.raises(RuntimeError, match="another rank otherwise"):
            collect(rollout, rows=60)

    def test_a_rank_where_it_fails_tells_the_others_first(self, monkeypatch):
        told = []
        monkeypatch.setattr("trl_spiral.rollout_func.gather_object", lambda mine: told.extend(mine) or mine)
        rollout = SelfPlayRollout(GAMES, curriculum=lambda step, metrics: {"Chess": 1.0})

        with pytest.raises(ValueError, match="weighs 'Chess'"):
            collect(rollout, rows=60)

        assert len(told) == 1
        assert told[0][1].startswith("ValueError: The curriculum weighs 'Chess'")

    def test_a_rank_stops_with_another_where_it_has_failed(self, monkeypatch):
        monkeypatch.setattr("trl_spiral.rollout_func.gather_object", lambda mine: [*mine, ([], "KeyError: 'loss'")])
        rollout = SelfPlayRollout(GAMES, curriculum=Alternating())

        with pytest.raises(RuntimeError, match="failed on rank 1, and this rank stops with it: KeyError: 'loss'"):
            collect(rollout, rows=60)


class TestGamesThatListNoMoves:
    @pytest.mark.parametrize("setting", ["opening_moves", "priming_games"])
    def test_are_refused_where_random_moves_are_wanted(self, setting):
        with pytest.raises(
            ValueError, match=f"`{setting}` needs games that list their legal moves, and SimpleNegotiation-v2 does not"
        ):
            SelfPlayRollout(["Kuhn-v0", "SimpleNegotiation-v2"], **{setting: 1})

    def test_may_stand_beside_at_weight_zero_and_are_not_primed(self):
        rollout = SelfPlayRollout(["Kuhn-v0", "SimpleNegotiation-v2"], game_weights=[1.0, 0.0], priming_games=4)
        collect(rollout, rows=20)

        assert {game for game, *_ in rollout.estimator.baselines} == {"Kuhn-v0"}
