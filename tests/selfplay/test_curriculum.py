"""Sampling weights of several games, fixed or from a curriculum."""

import math
from collections import Counter

import pytest

from tests.helpers.games import AskingPlayer, EchoEngine, LastStone, ShortOrLong
from trl_spiral import SelfPlaySettings, SpiralConfig
from trl_spiral.rollout_func import SelfPlayRollout
from trl_spiral.selfplay.curriculum import LinearCurriculum, game_shares, named_shares
from trl_spiral.types import POLICY


GAMES = [LastStone(), ShortOrLong()]  # of three seats and of two
NAMES = [game.name for game in GAMES]


def collect(rollout, rows=600, step=0):
    """Play one training batch, and keep it in the rollout as its call does."""
    schedule = rollout.schedule(AskingPlayer(name=POLICY), seed=0)
    rollout.batch = rollout.collector.collect(rows, schedule, EchoEngine(), step)
    return Counter(episode.game for episode in rollout.batch.episodes)


def weighted(*weights, **settings):
    return SelfPlaySettings(game_weights=weights, **settings)


class Alternating:
    """One game, then the other: a curriculum with state."""

    def __init__(self):
        self.calls = 0
        self.calls_seen = []

    def __call__(self, step, metrics):
        self.calls += 1
        self.calls_seen.append((step, metrics))
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
    def test_refuse_invalid_weights(self, weights, message):
        with pytest.raises(ValueError, match=message):
            game_shares(["a", "b"], weights)

    def test_are_checked_by_the_configuration(self, tmp_path):
        with pytest.raises(ValueError, match=r"must be as many as `games` \(TicTacToe-v0\)"):
            SpiralConfig(str(tmp_path), game_weights=[1.0, 2.0], use_cpu=True, bf16=False)

    def test_refuse_an_unknown_name(self):
        with pytest.raises(ValueError, match="weighs 'Chess', which is not among the games"):
            named_shares(["a"], {"Chess": 1.0})


class TestLinearCurriculum:
    def test_changes_linearly_and_stays(self):
        curriculum = LinearCurriculum({"a": 1.0}, {"a": 1.0, "b": 3.0}, steps=10)
        shares = [named_shares(["a", "b"], curriculum(step, {})) for step in (0, 5, 10, 99)]

        assert shares == [[1.0, 0.0], [0.625, 0.375], [0.25, 0.75], [0.25, 0.75]]

    def test_refuses_zero_steps(self):
        with pytest.raises(ValueError, match=r"`steps` \(0\) must be at least 1"):
            LinearCurriculum({"a": 1.0}, {"b": 1.0}, steps=0)


class TestWeights:
    def test_set_the_proportion_of_games(self):
        played = collect(SelfPlayRollout(GAMES, weighted(1.0, 3.0)))

        # Of some 130 games, a quarter; 0.09 to 0.41 is over 4 sigma.
        assert 0.09 < played["LastStone"] / played.total() < 0.41

    def test_of_zero_exclude_a_game(self):
        assert set(collect(SelfPlayRollout(GAMES, weighted(0.0, 2.0)))) == {"ShortOrLong"}

    def test_are_uniform_by_default_with_the_same_draws_as_ever(self):
        rollout = SelfPlayRollout(GAMES)
        collect(rollout, rows=40)

        # Recorded before there were weights: the published curves come from these draws.
        assert "".join(episode.game[0] for episode in rollout.batch.episodes[:12]) == "SSLLLLSLLLLS"

    def test_apply_to_groups_that_share_a_start(self):
        rollout = SelfPlayRollout(GAMES, weighted(1.0, 1.0, games_per_start=4))
        collect(rollout)
        groups = [rollout.batch.episodes[first : first + 4] for first in range(0, len(rollout.batch.episodes), 4)]

        assert all(len({(episode.game, episode.seed) for episode in group}) == 1 for group in groups)

    def test_leave_each_game_and_seat_its_own_baseline(self):
        rollout = SelfPlayRollout(GAMES, weighted(1.0, 3.0))
        collect(rollout)
        roles = {(game, seat) for game, seat, _ in rollout.estimator.baselines}

        assert roles == {("LastStone", seat) for seat in range(3)} | {("ShortOrLong", seat) for seat in range(2)}
        for game, seat in roles:
            played = [episode for episode in rollout.batch.episodes if episode.game == game]
            # A seat without a turn has no return to learn from.
            returns = [episode.returns[seat] for episode in played if episode.trajectories[seat].turns]
            baseline = rollout.estimator.baselines[game, seat, "self"]
            assert baseline == pytest.approx(math.fsum(returns) / len(returns)), (game, seat)


class TestCurriculum:
    def test_is_called_once_per_batch_with_the_previous_metrics(self):
        curriculum = Alternating()
        rollout = SelfPlayRollout(GAMES, curriculum=curriculum)
        played = [set(collect(rollout, rows=60, step=step)) for step in (0, 4, 8)]

        assert played == [{"ShortOrLong"}, {"LastStone"}, {"ShortOrLong"}]
        assert [step for step, _ in curriculum.calls_seen] == [0, 4, 8]
        assert curriculum.calls_seen[0][1] == {}
        assert {"selfplay/ShortOrLong/seat0/win", "selfplay/draw_rate"} <= set(curriculum.calls_seen[1][1])
        assert rollout.batch.metrics["selfplay/ShortOrLong/share"] == 1.0

    def test_is_not_used_in_evaluation(self):
        curriculum = Alternating()
        rollout = SelfPlayRollout(GAMES, weighted(1.0, 0.0), curriculum=curriculum)
        schedule = rollout.schedule(AskingPlayer(name=POLICY), seed=0, evaluation=True)
        batch = rollout.collector.evaluate(60, schedule, EchoEngine())

        assert {episode.game for episode in batch.episodes} == {"LastStone"}
        assert curriculum.calls == 0

    def test_continues_in_a_resumed_run(self):
        whole, begun = (SelfPlayRollout(GAMES, curriculum=Alternating()) for _ in range(2))
        for rollout in (whole, begun):
            collect(rollout, rows=60)
        saved = begun.collector.state_dict()
        resumed = SelfPlayRollout(GAMES, curriculum=Alternating())
        resumed.collector.load_state_dict(saved)
        for rollout in (whole, resumed):
            collect(rollout, rows=60, step=1)

        assert resumed.batch.episodes == whole.batch.episodes
        assert resumed.curriculum.calls_seen == whole.curriculum.calls_seen[1:]

    def test_without_state_cannot_resume_one_with_state(self):
        rollout = SelfPlayRollout(GAMES, curriculum=Alternating())
        collect(rollout, rows=60)
        forgetful = SelfPlayRollout(GAMES, curriculum=lambda step, metrics: {"LastStone": 1.0})

        with pytest.raises(ValueError, match="contains the state of a curriculum"):
            forgetful.collector.load_state_dict(rollout.collector.state_dict())

    def test_ranks_with_different_weights_stop(self, monkeypatch):
        def gather(items):
            is_shares = isinstance(items[0], list)
            return [*items, [0.5, 0.5]] if is_shares else items

        monkeypatch.setattr("trl_spiral.distributed.gather_object", gather)
        rollout = SelfPlayRollout(GAMES, curriculum=Alternating())

        with pytest.raises(RuntimeError, match="on this rank at step 0, and other weights on another rank"):
            collect(rollout, rows=60)

    def test_a_failure_is_sent_to_other_ranks_first(self, monkeypatch):
        sent = []
        monkeypatch.setattr("trl_spiral.distributed.gather_object", lambda mine: sent.extend(mine) or mine)
        rollout = SelfPlayRollout(GAMES, curriculum=lambda step, metrics: {"Chess": 1.0})

        with pytest.raises(ValueError, match="weighs 'Chess'"):
            collect(rollout, rows=60)

        assert len(sent) == 1
        assert sent[0][1].startswith("ValueError: The curriculum weighs 'Chess'")

    def test_a_failure_on_another_rank_stops_this_one(self, monkeypatch):
        monkeypatch.setattr("trl_spiral.distributed.gather_object", lambda mine: [*mine, (True, "KeyError: 'loss'")])
        rollout = SelfPlayRollout(GAMES, curriculum=Alternating())

        with pytest.raises(RuntimeError, match="Rank 1 has failed, and this rank stops with it: KeyError: 'loss'"):
            collect(rollout, rows=60)


class TestGamesThatListNoMoves:
    @pytest.mark.parametrize("setting", ["opening_moves", "priming_games"])
    def test_are_refused_with_random_moves(self, setting):
        with pytest.raises(
            ValueError, match=f"`{setting}` needs games that list their legal moves, and SimpleNegotiation-v2 does not"
        ):
            SelfPlayRollout(["Kuhn-v0", "SimpleNegotiation-v2"], SelfPlaySettings(**{setting: 1}))

    def test_are_allowed_at_weight_zero(self):
        rollout = SelfPlayRollout(["Kuhn-v0", "SimpleNegotiation-v2"], weighted(1.0, 0.0, priming_games=4))
        collect(rollout, rows=20)

        assert {game for game, *_ in rollout.estimator.baselines} == {"Kuhn-v0"}
