"""Policies that take turns at one set of weights, on an engine that tells with whose weights it answered."""

import random
from collections import Counter

import pytest

from tests.helpers.games import AskingPlayer, EchoEngine, ShortOrLong
from trl_spiral.engines.policies import Router, SwappingEngine
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import POLICY, Reply, Request


class OneSetOfWeights(EchoEngine):
    """Answers with the number of the policy whose weights were in place when the request came, and still are."""

    def __init__(self, names, resident=None, answers="oldest"):
        super().__init__(answers)
        self.names = list(names)
        self.resident = resident
        self.loads = []
        self.began = {}

    def load(self, name):
        assert not self.waiting, "weights change while a reply is being written"
        self.resident = name
        self.loads.append(name)

    def add(self, ticket, request):
        assert request.policy == POLICY
        self.began[ticket] = self.resident
        super().add(ticket, request)

    def step(self):
        answered = super().step()
        assert all(self.began.pop(ticket) == self.resident for ticket, _ in answered)
        return [(t, Reply((self.names.index(self.resident),), (-0.5,), version=7)) for t, _ in answered]

    def abort(self, tickets):
        assert set(tickets) <= set(self.waiting), "it was never asked these"
        super().abort(tickets)

    def metrics(self):
        return {"new_tokens": 3.0}


NAMES = [POLICY, "step-1", "step-2", "step-3"]


def phased(names=NAMES, resident=None, answers="oldest"):
    inner = OneSetOfWeights(names, resident, answers)
    return SwappingEngine(inner, inner.load, names, resident), inner


def ask(policy, seed=0):
    return Request((0,), policy=policy, seed=seed)


class TestPhasedEngine:
    def test_the_resident_policy_is_served_to_the_last(self):
        engine, inner = phased(resident="step-1")
        for ticket, policy in enumerate(["step-2", "step-1", "step-2", "step-1"]):
            engine.add(ticket, ask(policy))
        assert list(inner.waiting) == [1, 3]
        order = [ticket for _ in range(2) for ticket, _ in engine.step()]
        assert engine.would_switch
        engine.add(4, ask("step-1"))  # its game has come back
        assert not engine.would_switch
        order += [ticket for _ in range(3) for ticket, _ in engine.step()]

        assert order == [1, 3, 4, 0, 2]
        assert inner.loads == ["step-2"]

    def test_the_policy_that_was_waited_for_longest_is_next(self):
        engine, inner = phased(answers="all")
        for ticket, policy in enumerate(["step-3", "step-1", "step-2", "step-2", "step-1", "step-2"]):
            engine.add(ticket, ask(policy))
        engine.add(6, ask("step-3"))
        while engine.would_switch:
            engine.step()

        assert inner.loads == ["step-3", "step-1", "step-2"]

    def test_only_the_policy_bears_a_version(self):
        engine, _ = phased(answers="all")
        engine.add(0, ask("step-1"))
        engine.add(1, ask(POLICY))
        replies = dict([*engine.step(), *engine.step()])

        assert (replies[0].version, replies[1].version) == (0, 7)

    def test_requests_can_be_dropped_in_every_state(self):
        engine, inner = phased(resident="step-1")
        for ticket, policy in enumerate(["step-1", "step-1", "step-2", "step-2", "step-3"]):
            engine.add(ticket, ask(policy))
        engine.abort([1, 3, 4, 99])  # in flight, waiting, and the only one of its policy

        assert inner.aborted == [1]
        assert [ticket for ticket, _ in engine.step()] == [0]
        engine.add(1, ask("step-3"))  # a ticket may come again
        assert sorted(t for _ in range(2) for t, _ in engine.step()) == [1, 2]
        engine.abort([0, 1, 2])
        assert not engine.would_switch

    def test_dropping_all_that_is_in_flight_lets_the_others_in(self):
        engine, inner = phased(resident="step-1")
        engine.add(0, ask("step-1"))
        engine.add(1, ask("step-2"))
        assert not engine.would_switch
        engine.abort([0])

        assert engine.would_switch
        assert [ticket for ticket, _ in engine.step()] == [1]
        assert engine.resident == inner.resident == "step-2"

    def test_a_ticket_that_came_back_may_be_another_policys(self):
        engine, inner = phased(resident="step-1")
        engine.add(0, ask("step-1"))
        engine.step()
        engine.add(0, ask("step-2"))
        engine.abort([0])

        assert inner.aborted == []
        assert not engine.would_switch

    def test_weights_that_could_not_be_loaded_are_nobodys(self):
        engine, inner = phased(resident="step-1")

        def fail(name):
            raise OSError("disk gone")

        engine._load = fail
        engine.add(0, ask("step-2"))
        with pytest.raises(OSError, match="disk gone"):
            engine.step()
        engine._load = inner.load
        engine.add(1, ask("step-1"))

        assert list(inner.waiting) == []
        assert [[ticket for ticket, _ in engine.step()] for _ in range(2)] == [[0], [1]]
        assert inner.loads == ["step-2", "step-1"]

    def test_an_unknown_policy_is_refused(self):
        engine, _ = phased()

        with pytest.raises(
            ValueError, match="names the policy 'best', and this engine can load \\['policy', 'step-1'"
        ):
            engine.add(0, ask("best"))

    def test_switches_are_counted_even_where_there_were_none(self):
        engine, _ = phased(resident="step-1")
        engine.add(0, ask("step-1"))
        engine.step()
        assert engine.metrics() == {"new_tokens": 3.0, "weight_switches": 0.0}
        engine.add(0, ask("step-2"))
        engine.step()

        assert engine.metrics()["weight_switches"] == 1.0
        assert engine.metrics()["weight_switches"] == 0.0

    @pytest.mark.parametrize("answers", ["all", "oldest", "newest"])
    def test_replies_are_never_anothers_whatever_the_order(self, answers):
        engine, inner = phased(answers=answers)
        rng = random.Random(0)
        asked, right, dropped = {}, 0, 0
        for ticket in range(2000):
            asked[ticket] = rng.choice(NAMES)
            engine.add(ticket, ask(asked[ticket]))
            if rng.random() < 0.1:
                gone = rng.sample(sorted(asked), min(3, len(asked)))
                engine.abort(gone)
                dropped += len(gone)
                for one in gone:
                    del asked[one]
            while len(asked) > rng.randrange(1, 64):
                for one, reply in engine.step():
                    assert NAMES[reply.completion_ids[0]] == asked.pop(one)
                    right += 1

        assert right + dropped + len(asked) == 2000
        assert right > 1000


class OneMove(AskingPlayer):
    """Plays [a] whatever it is told, and notes who told it."""

    def __init__(self, name, heard):
        super().__init__(name=name, policy=name)
        self.heard = heard

    def answer(self, observation, request, reply):
        self.heard[self.policy, reply.completion_ids[0]] += 1
        return super().answer(observation, request, Reply((0,), (0.0,)))


class TestSwitches:
    """Sixty-four games of up to nine turns, a quarter of them mirror and the rest against eight opponents."""

    OPPONENTS = [f"step-{number}" for number in range(8)]

    def games(self, heard):
        policy, *opponents = (OneMove(name, heard) for name in [POLICY, *self.OPPONENTS])
        for seed in range(64):
            rival = policy if seed % 4 == 0 else opponents[seed // 2 % 8]
            seats = (policy, rival) if seed // 16 % 2 else (rival, policy)
            yield referee(Start(ShortOrLong(), seats, seed, seed))

    @pytest.mark.parametrize("answers", ["all", "oldest", "newest"])
    def test_a_second_set_of_weights_loads_every_opponent_once(self, answers):
        heard = Counter()
        inner = OneSetOfWeights([POLICY, *self.OPPONENTS], answers=answers)
        second = SwappingEngine(inner, inner.load, self.OPPONENTS)
        first = OneSetOfWeights([POLICY, *self.OPPONENTS], POLICY, answers=answers)
        router = Router({POLICY: first}, default=second)
        episodes = list(play(self.games(heard), router, in_flight=64))

        assert len(episodes) == 64
        # Nobody can be heard without being loaded, so eight is the least there can be.
        assert len(heard) == 9
        assert sorted(inner.loads) == self.OPPONENTS
        assert router.metrics()["weight_switches"] == 8.0
        assert all(name == [POLICY, *self.OPPONENTS][told] for name, told in heard)

    def test_one_set_of_weights_for_all_switches_as_rarely_as_turns_allow(self):
        heard = Counter()
        engine, inner = phased([POLICY, *self.OPPONENTS], POLICY, answers="all")
        list(play(self.games(heard), engine, in_flight=64))

        assert all(name == [POLICY, *self.OPPONENTS][told] for name, told in heard)
        # Of nine turns the first seat has five and the second four. Every opponent has the first seat somewhere, so it
        # must be loaded five times, and the policy four times between them.
        assert Counter(inner.loads) == {POLICY: 4, **dict.fromkeys(self.OPPONENTS, 5)}
