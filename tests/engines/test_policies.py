"""Policies that are swapped into one set of weights, or routed to engines of their own."""

import random
from collections import Counter

import pytest

from tests.helpers.completions_server import CompletionsServer
from tests.helpers.games import AskingPlayer, EchoEngine, ShortOrLong
from trl_spiral.engines.http.vllm_server import ServerEngine
from trl_spiral.engines.policies import Router, SwappingEngine
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import POLICY, Reply, Request


class OneSetOfWeights(EchoEngine):
    """Answers with the number of the policy whose weights are in place, which must not change during a request."""

    def __init__(self, names, resident=None, answers="oldest"):
        super().__init__(answers)
        self.names = list(names)
        self.resident = resident
        self.loads = []
        self.began = {}

    def load(self, name):
        assert not self.waiting, "weights must not change during a reply"
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
        assert set(tickets) <= set(self.waiting), "these requests are unknown"
        super().abort(tickets)

    def metrics(self):
        return {"new_tokens": 3.0}


NAMES = [POLICY, "step-1", "step-2", "step-3"]


def swapping(names=NAMES, resident=None, answers="oldest"):
    inner = OneSetOfWeights(names, resident, answers)
    return SwappingEngine(inner, inner.load, names, resident), inner


def ask(policy, seed=0):
    return Request((0,), policy=policy, seed=seed)


class TestSwappingEngine:
    def test_the_queue_of_the_resident_policy_is_drained_first(self):
        engine, inner = swapping(resident="step-1")
        for ticket, policy in enumerate(["step-2", "step-1", "step-2", "step-1"]):
            engine.add(ticket, ask(policy))
        assert list(inner.waiting) == [1, 3]
        order = [ticket for _ in range(2) for ticket, _ in engine.step()]
        assert engine.would_switch
        engine.add(4, ask("step-1"))  # the next turn of its game
        assert not engine.would_switch
        order += [ticket for _ in range(3) for ticket, _ in engine.step()]

        assert order == [1, 3, 4, 0, 2]
        assert inner.loads == ["step-2"]

    def test_the_policy_with_the_oldest_request_is_loaded_next(self):
        engine, inner = swapping(answers="all")
        for ticket, policy in enumerate(["step-3", "step-1", "step-2", "step-2", "step-1", "step-2"]):
            engine.add(ticket, ask(policy))
        engine.add(6, ask("step-3"))
        while engine.would_switch:
            engine.step()

        assert inner.loads == ["step-3", "step-1", "step-2"]

    def test_only_replies_of_the_policy_have_a_version(self):
        engine, _ = swapping(answers="all")
        engine.add(0, ask("step-1"))
        engine.add(1, ask(POLICY))
        replies = dict([*engine.step(), *engine.step()])

        assert (replies[0].version, replies[1].version) == (0, 7)

    def test_requests_can_be_aborted_in_every_state(self):
        engine, inner = swapping(resident="step-1")
        for ticket, policy in enumerate(["step-1", "step-1", "step-2", "step-2", "step-3"]):
            engine.add(ticket, ask(policy))
        engine.abort([1, 3, 4, 99])  # in flight, waiting, and the only request of its policy

        assert inner.aborted == [1]
        assert [ticket for ticket, _ in engine.step()] == [0]
        engine.add(1, ask("step-3"))  # a ticket may be used again
        assert sorted(t for _ in range(2) for t, _ in engine.step()) == [1, 2]
        engine.abort([0, 1, 2])
        assert not engine.would_switch

    def test_aborting_all_requests_in_flight_allows_a_swap(self):
        engine, inner = swapping(resident="step-1")
        engine.add(0, ask("step-1"))
        engine.add(1, ask("step-2"))
        assert not engine.would_switch
        engine.abort([0])

        assert engine.would_switch
        assert [ticket for ticket, _ in engine.step()] == [1]
        assert engine.resident == inner.resident == "step-2"

    def test_a_ticket_can_be_used_again_for_another_policy(self):
        engine, inner = swapping(resident="step-1")
        engine.add(0, ask("step-1"))
        engine.step()
        engine.add(0, ask("step-2"))
        engine.abort([0])

        assert inner.aborted == []
        assert not engine.would_switch

    def test_after_a_failed_load_no_policy_is_resident(self):
        engine, inner = swapping(resident="step-1")

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
        engine, _ = swapping()

        with pytest.raises(
            ValueError, match="names the policy 'best', and this engine can load \\['policy', 'step-1'"
        ):
            engine.add(0, ask("best"))

    def test_switches_are_reported_even_if_there_were_none(self):
        engine, _ = swapping(resident="step-1")
        engine.add(0, ask("step-1"))
        engine.step()
        assert engine.metrics() == {"new_tokens": 3.0, "weight_switches": 0.0}
        engine.add(0, ask("step-2"))
        engine.step()

        assert engine.metrics()["weight_switches"] == 1.0
        assert engine.metrics()["weight_switches"] == 0.0

    @pytest.mark.parametrize("answers", ["all", "oldest", "newest"])
    def test_every_reply_comes_from_its_own_policy_in_any_order(self, answers):
        engine, inner = swapping(answers=answers)
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
    """Plays [a] after any reply, and counts the policies that have answered."""

    def __init__(self, name, answered_by):
        super().__init__(name=name, policy=name)
        self.answered_by = answered_by

    def answer(self, observation, request, reply):
        self.answered_by[self.policy, reply.completion_ids[0]] += 1
        return super().answer(observation, request, Reply((0,), (0.0,)))


class TestSwitches:
    """Sixty-four games of up to nine turns, a quarter of them mirror and the rest against eight opponents."""

    OPPONENTS = [f"step-{number}" for number in range(8)]

    def games(self, answered_by):
        policy, *opponents = (OneMove(name, answered_by) for name in [POLICY, *self.OPPONENTS])
        for seed in range(64):
            rival = policy if seed % 4 == 0 else opponents[seed // 2 % 8]
            seats = (policy, rival) if seed // 16 % 2 else (rival, policy)
            yield referee(Start(ShortOrLong(), seats, seed, seed))

    @pytest.mark.parametrize("answers", ["all", "oldest", "newest"])
    def test_a_second_set_of_weights_loads_every_opponent_once(self, answers):
        answered_by = Counter()
        inner = OneSetOfWeights([POLICY, *self.OPPONENTS], answers=answers)
        second = SwappingEngine(inner, inner.load, self.OPPONENTS)
        first = OneSetOfWeights([POLICY, *self.OPPONENTS], POLICY, answers=answers)
        router = Router({POLICY: first}, default=second)
        episodes = list(play(self.games(answered_by), router, in_flight=64))

        assert len(episodes) == 64
        # A policy answers only after it is loaded, so eight is the minimum.
        assert len(answered_by) == 9
        assert sorted(inner.loads) == self.OPPONENTS
        assert router.metrics()["weight_switches"] == 8.0
        assert all(name == [POLICY, *self.OPPONENTS][number] for name, number in answered_by)

    def test_one_set_of_weights_for_all_swaps_as_rarely_as_turns_allow(self):
        answered_by = Counter()
        engine, inner = swapping([POLICY, *self.OPPONENTS], POLICY, answers="all")
        list(play(self.games(answered_by), engine, in_flight=64))

        assert all(name == [POLICY, *self.OPPONENTS][number] for name, number in answered_by)
        # Of nine turns the first seat has five and the second four. Every opponent has the first seat somewhere, so it
        # must be loaded five times, and the policy four times between them.
        assert Counter(inner.loads) == {POLICY: 4, **dict.fromkeys(self.OPPONENTS, 5)}


class FakeRemote(EchoEngine):
    """A remote engine that answers only as many requests as `released`."""

    def __init__(self):
        super().__init__()
        self.released = 0
        self.waits = []

    def step(self):
        raise AssertionError("a router never blocks on a remote engine")

    def poll(self, timeout=0.0):
        self.waits.append(timeout)
        tickets = list(self.waiting)[: self.released]
        self.released -= len(tickets)
        return [(ticket, Reply(self.waiting.pop(ticket).prompt_ids, (-0.5,))) for ticket in tickets]

    def metrics(self):
        return {"requests": 1.0}


class TestRouter:
    def test_each_policy_has_its_engine(self):
        mine, theirs = EchoEngine(), EchoEngine()
        router = Router({"rival": theirs}, default=mine)
        for ticket, policy in enumerate(["policy", "rival", "snapshot-1", "rival"]):
            router.add(ticket, ask(policy))

        assert (list(mine.waiting), list(theirs.waiting)) == ([0, 2], [1, 3])
        assert sorted(ticket for ticket, _ in router.step()) == [0, 1, 2, 3]

    def test_local_work_continues_while_a_remote_engine_works(self):
        mine, remote = EchoEngine("oldest"), FakeRemote()
        router = Router({"rival": remote}, default=mine)
        router.add(0, ask("rival"))
        for ticket in (1, 2):
            router.add(ticket, ask("policy"))

        assert [ticket for ticket, _ in router.step()] == [1]
        remote.released = 1
        assert [ticket for ticket, _ in router.step()] == [2, 0]
        assert set(remote.waits) == {0.0}

    def test_waits_for_the_first_answer_of_any_remote_engine(self):
        slow, fast = FakeRemote(), FakeRemote()
        router = Router({"slow": slow, "fast": fast}, default=EchoEngine())
        router.add(0, ask("slow"))
        router.add(1, ask("fast"))
        fast.released = 1

        assert [ticket for ticket, _ in router.step()] == [1]
        assert all(wait > 0 for wait in slow.waits)

    def test_an_engine_without_work_is_not_stepped(self):
        mine, theirs = EchoEngine(), EchoEngine()
        router = Router({"rival": theirs}, default=mine)
        router.add(0, ask("rival"))
        router.step()

        assert (mine.answered, theirs.answered) == (0, 1)

    def test_an_abort_reaches_the_engine_of_the_request(self):
        mine, theirs = EchoEngine(), EchoEngine()
        router = Router({"rival": theirs}, default=mine)
        for ticket, policy in enumerate(["policy", "rival", "policy"]):
            router.add(ticket, ask(policy))
        router.abort([1, 2, 99])

        assert (mine.aborted, theirs.aborted) == ([2], [1])
        assert [ticket for ticket, _ in router.step()] == [0]

    def test_a_refused_request_is_not_waited_for(self):
        class Refusing(EchoEngine):
            def add(self, ticket, request):
                raise ValueError("no")

        mine = EchoEngine()
        router = Router({"rival": Refusing()}, default=mine)
        with pytest.raises(ValueError, match="no"):
            router.add(0, ask("rival"))
        router.add(1, ask("policy"))

        assert [ticket for ticket, _ in router.step()] == [1]

    def test_metrics_of_several_engines_have_prefixes(self):
        remote = FakeRemote()

        assert Router({"a": remote, "b": remote}, default=remote).metrics() == {"requests": 1.0}
        assert Router({"a": remote, "b": remote}, default=FakeRemote()).metrics() == {
            "a/requests": 1.0,
            "default/requests": 1.0,
        }

    def test_weights_are_not_swapped_while_another_local_engine_has_work(self):
        mine, theirs, remote, loads = EchoEngine("oldest"), EchoEngine(), FakeRemote(), []
        swapping = SwappingEngine(theirs, loads.append, {"old", "older"}, resident="old")
        router = Router({"policy": mine, "remote": remote}, default=swapping)
        for ticket, policy in enumerate(["policy", "older", "old", "policy", "remote"]):
            router.add(ticket, ask(policy))

        assert [ticket for ticket, _ in router.step()] == [0, 2]
        assert [ticket for ticket, _ in router.step()] == [3]
        assert loads == []
        # The remote engine is not waited for.
        assert [ticket for ticket, _ in router.step()] == [1]
        assert loads == ["older"]

    def test_weight_switches_are_summed(self):
        engines = {name: SwappingEngine(EchoEngine(), print, {name}) for name in "ab"}
        router = Router(engines, default=EchoEngine())
        for ticket, name in enumerate("ab"):
            router.add(ticket, ask(name))
        router.step()

        assert router.metrics() == {"weight_switches": 2.0}

    def test_games_between_a_local_and_a_remote_engine(self):
        with CompletionsServer(tokens=lambda body: (body["prompt"][0],)) as server:
            with ServerEngine(server.url) as remote:
                remote.adapters = {"rival": "tiny"}
                mine = EchoEngine()
                players = (AskingPlayer(), AskingPlayer(name="rival", policy="rival"))
                starts = [Start(ShortOrLong(), players, seed, seed) for seed in range(40)]
                routed = list(play(map(referee, starts), Router({"rival": remote}, default=mine)))
        alone = list(play(map(referee, starts), EchoEngine()))

        assert {episode.seed: episode.moves for episode in routed} == {e.seed: e.moves for e in alone}
        assert mine.answered > 0
        assert len(server.bodies) > 0
