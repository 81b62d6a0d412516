"""
Filling a batch, without torch: scripted players, and an engine that answers at once.

Promises that are checked here: every batch is full; rows keep the order of games; surplus rows are kept or counted;
evaluation changes no state; a state that went through JSON continues with the same games.
"""

import json
from dataclasses import replace

import pytest

from tests.helpers.games import AskingPlayer, EchoEngine, LastStone, ShortOrLong
from trl_spiral.selfplay.advantages import ReturnsOnly, RoleBaseline
from trl_spiral.selfplay.collector import Collector
from trl_spiral.selfplay.ranks import Ranks
from trl_spiral.selfplay.schedule import Schedule
from trl_spiral.selfplay.settings import SelfPlaySettings
from trl_spiral.types import POLICY


def itself(policy, seats, seed):
    return (policy,) * seats


def make(settings=None, games=None, estimator=None, tracker=None, ranks=None):
    """A collector and its schedule."""
    settings = settings or SelfPlaySettings(row_advantages=True)
    schedule = Schedule(games or [ShortOrLong(), LastStone()], settings, AskingPlayer(name=POLICY), itself, seed=3)
    return Collector(settings, estimator or RoleBaseline(), tracker, ranks=ranks), schedule


class Tracker:
    """Stores what it is called with."""

    def __init__(self):
        self.recorded = []

    def against(self, players):
        return "anyone"

    def record(self, results):
        self.recorded.append(list(results))

    def metrics(self):
        return {"games": 1.0}


class TestBatches:
    def test_have_the_requested_rows(self):
        collector, schedule = make()
        batches = [collector.collect(20, schedule, EchoEngine()) for _ in range(3)]

        assert [len(batch.rows) for batch in batches] == [20, 20, 20]

    def test_take_all_rows_in_the_order_of_games(self):
        collector, schedule = make()
        batches = [collector.collect(20, schedule, EchoEngine()) for _ in range(3)]
        played = [(one.counter, seat) for batch in batches for one in batch.episodes for seat in one.order]
        taken = [(row.episode, row.seat) for batch in batches for row in batch.rows]

        assert taken + [(row.episode, row.seat) for row in collector.kept] == played

    def test_without_kept_rows_count_what_is_dropped(self):
        collector, schedule = make(SelfPlaySettings())
        for _ in range(3):
            batch = collector.collect(20, schedule, EchoEngine())
            turns = [turn for one in batch.episodes for seat in one.trajectories for turn in seat.turns]

            assert batch.metrics["selfplay/unused_rows"] == len(turns) - 20
            assert batch.metrics["selfplay/kept_rows"] == batch.metrics["selfplay/carried_rows"] == 0.0
            used = sum(len(row.completion_ids) for row in batch.rows)
            assert batch.metrics["selfplay/unused_tokens"] == sum(len(turn.completion_ids) for turn in turns) - used
        assert collector.kept == []

    def test_with_no_rows_at_all_end_the_run(self):
        class Broken(ShortOrLong):
            def start(self, seed):
                raise AssertionError

        def nobody_learns(policy, seats, seed):
            from trl_spiral.players import RandomPlayer

            return (RandomPlayer(),) * seats

        collector, schedule = make()
        with pytest.raises(RuntimeError, match="games brought too few rows to train on. Their endings: {'finished'"):
            collector.collect(4, replace(schedule, matchmaker=nobody_learns), EchoEngine())


class TestUpdates:
    def test_come_once_per_batch_in_order_of_counters(self):
        seen = []

        class Recorder(ReturnsOnly):
            def update(self, results):
                seen.append([result.counter for result in results])

        tracker = Tracker()
        collector, schedule = make(estimator=Recorder(), tracker=tracker)
        batches = [collector.collect(12, schedule, EchoEngine()) for _ in range(2)]

        assert seen == [[one.counter for one in batch.episodes] for batch in batches]
        assert [[result.counter for result in results] for results in tracker.recorded] == seen
        assert {result.opponent for result in tracker.recorded[0]} == {"anyone"}
        assert batches[0].metrics["pool/games"] == 1.0

    def test_of_priming_games_come_first_and_once(self):
        seen = []

        class Recorder(ReturnsOnly):
            def update(self, results):
                seen.append(len(results))

        collector, schedule = make(SelfPlaySettings(priming_games=9), estimator=Recorder())
        for _ in range(2):
            collector.collect(12, schedule, EchoEngine())

        assert seen[0] == 9 and len(seen) == 3

    def test_leave_out_evaluation(self):
        tracker = Tracker()
        collector, schedule = make(tracker=tracker)
        collector.collect(12, schedule, EchoEngine())
        before = collector.state_dict()
        evaluation = replace(schedule, purpose="eval")
        first, again = (collector.evaluate(30, evaluation, EchoEngine()) for _ in range(2))

        assert len(first.rows) == 30 and first.metrics["selfplay/kept_rows"] == 0.0
        assert again == first
        assert collector.state_dict() == before
        assert len(tracker.recorded) == 1
        later = collector.evaluate(30, evaluation, EchoEngine(), first=len(first.episodes))
        assert not {one.seed for one in later.episodes} & {one.seed for one in first.episodes}


class TestState:
    def test_continues_after_json(self):
        collector, schedule = make()
        collector.collect(20, schedule, EchoEngine())
        resumed, _ = make()
        resumed.load_state_dict(json.loads(json.dumps(collector.state_dict())))

        for _ in range(2):
            assert resumed.collect(20, schedule, EchoEngine()) == collector.collect(20, schedule, EchoEngine())
        assert resumed.state_dict() == collector.state_dict()


class TestRanksThatShareAnEngine:
    def test_must_have_played_equal_games(self):
        class Other(Ranks):
            def gather(self, items):
                is_checksum = isinstance(items[0], tuple) and isinstance(items[0][1], str) and len(items[0][1]) == 16
                return [*items, (items[0][0], "another")] if is_checksum else items

        collector, schedule = make(ranks=Other())
        collector.collect(12, schedule, EchoEngine())
        with pytest.raises(RuntimeError, match="ranks of group 0 share one engine and have played different games"):
            collector.collect(12, replace(schedule, sharing=2), EchoEngine())
