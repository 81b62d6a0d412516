import pytest

from tests.helpers.completions_server import CompletionsServer
from tests.helpers.games import AskingPlayer, EchoEngine, ShortOrLong
from trl_spiral.engines.http.vllm_server import ServerEngine
from trl_spiral.engines.policies import Router, SwappingEngine
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import Reply, Request


class FakeRemote(EchoEngine):
    """An engine that answers only what it was told to release."""

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


def ask(policy, index=0):
    return Request((index,), policy=policy)


class TestRouter:
    def test_each_policy_has_its_engine(self):
        mine, theirs = EchoEngine(), EchoEngine()
        router = Router({"rival": theirs}, default=mine)
        for ticket, policy in enumerate(["policy", "rival", "snapshot-1", "rival"]):
            router.add(ticket, ask(policy))

        assert (list(mine.waiting), list(theirs.waiting)) == ([0, 2], [1, 3])
        assert sorted(ticket for ticket, _ in router.step()) == [0, 1, 2, 3]

    def test_local_work_goes_on_while_a_remote_engine_thinks(self):
        mine, remote = EchoEngine("oldest"), FakeRemote()
        router = Router({"rival": remote}, default=mine)
        router.add(0, ask("rival"))
        for ticket in (1, 2):
            router.add(ticket, ask("policy"))

        assert [ticket for ticket, _ in router.step()] == [1]
        remote.released = 1
        assert [ticket for ticket, _ in router.step()] == [2, 0]
        assert set(remote.waits) == {0.0}

    def test_waits_for_whichever_remote_engine_answers_first(self):
        slow, fast = FakeRemote(), FakeRemote()
        router = Router({"slow": slow, "fast": fast}, default=EchoEngine())
        router.add(0, ask("slow"))
        router.add(1, ask("fast"))
        fast.released = 1

        assert [ticket for ticket, _ in router.step()] == [1]
        assert all(wait > 0 for wait in slow.waits)

    def test_an_engine_without_work_is_left_alone(self):
        mine, theirs = EchoEngine(), EchoEngine()
        router = Router({"rival": theirs}, default=mine)
        router.add(0, ask("rival"))
        router.step()

        assert (mine.answered, theirs.answered) == (0, 1)

    def test_aborts_reach_the_engine_that_was_asked(self):
        mine, theirs = EchoEngine(), EchoEngine()
        router = Router({"rival": theirs}, default=mine)
        for ticket, policy in enumerate(["policy", "rival", "policy"]):
            router.add(ticket, ask(policy))
        router.abort([1, 2, 99])

        assert (mine.aborted, theirs.aborted) == ([2], [1])
        assert [ticket for ticket, _ in router.step()] == [0]

    def test_a_request_that_is_refused_is_not_waited_for(self):
        class Refusing(EchoEngine):
            def add(self, ticket, request):
                raise ValueError("no")

        mine = EchoEngine()
        router = Router({"rival": Refusing()}, default=mine)
        with pytest.raises(ValueError, match="no"):
            router.add(0, ask("rival"))
        router.add(1, ask("policy"))

        assert [ticket for ticket, _ in router.step()] == [1]

    def test_metrics_bear_names_where_there_are_several_engines(self):
        remote = FakeRemote()

        assert Router({"a": remote, "b": remote}, default=remote).metrics() == {"requests": 1.0}
        assert Router({"a": remote, "b": remote}, default=FakeRemote()).metrics() == {
            "a/requests": 1.0,
            "default/requests": 1.0,
        }

    def test_weights_are_not_switched_while_another_engine_here_has_work(self):
        mine, theirs, remote, loads = EchoEngine("oldest"), EchoEngine(), FakeRemote(), []
        phased = SwappingEngine(theirs, loads.append, {"old", "older"}, resident="old")
        router = Router({"policy": mine, "remote": remote}, default=phased)
        for ticket, policy in enumerate(["policy", "older", "old", "policy", "remote"]):
            router.add(ticket, ask(policy))

        assert [ticket for ticket, _ in router.step()] == [0, 2]
        assert [ticket for ticket, _ in router.step()] == [3]
        assert loads == []
        # What works elsewhere is not waited for.
        assert [ticket for ticket, _ in router.step()] == [1]
        assert loads == ["older"]

    def test_switches_are_summed(self):
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
