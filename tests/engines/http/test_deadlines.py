"""Endpoints that never end an answer: replies are lost at their deadline, and training continues."""

import re
import time
from dataclasses import replace

import pytest

from tests.engines.http.test_openai import ASKED, failed
from tests.helpers.faulty_endpoint import ANSWERS, FAILS, FAULTS, HANGS, REFUSES, STEP, FaultyEndpoint
from tests.helpers.training_runs import RecordingTrainer, config, games
from trl_spiral.engines.http import retrying
from trl_spiral.engines.http.client import BadAnswer
from trl_spiral.engines.http.openai import EndpointEngine
from trl_spiral.types import Ending


TIMEOUT = 0.5
RETRIES = 2
# A reply has one attempt and two retries, each up to its timeout, with at most 0.2 s in between. The rest is for a
# busy machine.
LONGEST = (1 + RETRIES) * TIMEOUT + RETRIES * 0.2 + 20.0


@pytest.fixture
def make(monkeypatch):
    """Make engines with short delays before retries, and close them at the end."""
    monkeypatch.setattr(retrying, "_LONGEST_RETRY_AFTER", 0.2)
    made = []

    def make(server, scheme="http", **changes):
        settings = dict(api_key_env=None, max_retries=RETRIES, retry_delay=0.01, timeout=TIMEOUT)
        made.append(EndpointEngine(f"{scheme}://{server.address}", "rival", **{**settings, **changes}))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def ask(engine, count):
    """Return the finish reasons of `count` requests at once. Fails if one of them takes too long."""
    for ticket in range(count):
        engine.add(ticket, replace(ASKED, seed=ticket))
    replies, deadline = {}, time.monotonic() + LONGEST
    while len(replies) < count and time.monotonic() < deadline:
        replies.update(engine.poll(0.1))
    engine.abort(range(count))
    assert len(replies) == count, f"{count - len(replies)} replies have not come"
    return [replies[ticket].finish_reason for ticket in range(count)]


def sent(engine):
    """Return the requests sent since the last call."""
    return engine.metrics()["requests"]


class TestDeadline:
    @pytest.mark.parametrize("fault", HANGS.values(), ids=HANGS)
    def test_a_reply_after_its_deadline_is_lost(self, fault, make):
        with FaultyEndpoint(fault) as server:
            engine = make(server)

            assert ask(engine, 2) == ["lost"] * 2
            assert engine.state_dict()["requests"] == 2
            assert failed(engine) == {"timed_out": 2}

    @pytest.mark.parametrize("fault", {**HANGS, "no HTTP": FAILS["no HTTP"]}.values(), ids=[*HANGS, "no HTTP"])
    def test_a_tls_handshake_after_its_deadline_is_lost_and_free(self, fault, make):
        with FaultyEndpoint(fault) as server:
            engine = make(server, scheme="https")

            assert ask(engine, 2) == ["lost"] * 2
            assert set(failed(engine)) <= {"timed_out", "hung_up"}
            # No request was sent, so none was counted.
            assert engine.state_dict()["requests"] == engine.state_dict()["tokens"] == 0

    @pytest.mark.parametrize("fault", FAILS.values(), ids=FAILS)
    def test_a_failure_that_ends_is_retried_and_then_lost(self, fault, make):
        with FaultyEndpoint(fault) as server:
            engine = make(server, timeout=20.0)

            assert ask(engine, 1) == ["lost"]
            assert sum(failed(engine).values()) == server.seen == 1 + RETRIES

    @pytest.mark.parametrize("fault", REFUSES.values(), ids=REFUSES)
    def test_redirects_are_not_followed(self, fault, make):
        with FaultyEndpoint(fault) as server:
            engine = make(server, timeout=20.0)
            with pytest.raises(BadAnswer, match="refused a request with HTTP 302"):
                ask(engine, 1)
            server.fault = None
            assert ask(engine, 1) == ["stop"]
            server.fault = fault

            assert ask(engine, 1) == ["lost"]
            assert server.seen == 3

    @pytest.mark.parametrize("fault", ANSWERS.values(), ids=ANSWERS)
    def test_a_filtered_answer_is_empty(self, fault, make):
        with FaultyEndpoint(fault) as server:
            engine = make(server, timeout=20.0)

            assert ask(engine, 3) == ["stop"] * 3
            assert failed(engine) == {}
            assert server.seen == 3

    def test_a_server_that_never_accepts_is_lost(self, make):
        server = FaultyEndpoint(None)  # listens, but is never started
        try:
            assert ask(make(server), 1) == ["lost"]
        finally:
            server.server_close()


class TestGone:
    """Games do not wait for an endpoint for which all requests of a round have timed out."""

    @pytest.mark.parametrize("fault", HANGS.values(), ids=HANGS)
    def test_an_endpoint_that_hangs_is_not_waited_for_until_it_answers(self, fault, make):
        with FaultyEndpoint(fault) as server:
            engine = make(server)
            assert ask(engine, 8) == ["lost"] * 8
            assert sent(engine) == 8
            began = time.monotonic()
            for _ in range(3):
                assert ask(engine, 8) == ["lost"] * 8
            elapsed = time.monotonic() - began

            # One request at a time checks the endpoint, up to its timeout. No game waits for it.
            assert sent(engine) <= 1 + elapsed / TIMEOUT
            server.fault = None
            while ask(engine, 8) != ["stop"] * 8:
                time.sleep(0.05)

    def test_a_slow_error_counts_as_a_timeout(self, make, monkeypatch):
        monkeypatch.setattr(retrying, "_SLOW", 0.1)

        def slow():
            yield from [b""] * 4
            yield from FAILS["500"]()

        with FaultyEndpoint(slow) as server:
            engine = make(server, timeout=20.0)
            ask(engine, 1)
            assert sent(engine) == 1 + RETRIES
            began = time.monotonic()
            assert ask(engine, 8) == ["lost"] * 8

            assert sent(engine) <= 1 + (time.monotonic() - began) / (4 * STEP)

    def test_single_slow_replies_do_not_make_an_endpoint_gone(self, make):
        with FaultyEndpoint(None) as server:
            engine = make(server, max_in_flight=1, max_retries=1, timeout=2.0)
            for _ in range(3):
                server.fault = HANGS["never answers"]
                assert ask(engine, 1) == ["lost"]
                server.fault = None
                assert ask(engine, 1) == ["stop"]

    def test_fewer_timeouts_than_retries_do_not_make_an_endpoint_gone(self, make):
        with FaultyEndpoint(HANGS["never answers"]) as server:
            engine = make(server)
            assert ask(engine, RETRIES) == ["lost"] * RETRIES
            sent(engine)
            ask(engine, 8)

            assert sent(engine) == 8

    def test_background_checks_take_from_the_budget(self, make):
        with FaultyEndpoint(HANGS["never answers"]) as server:
            engine = make(server, max_requests=9)
            while not engine.spent:
                assert ask(engine, 8) == ["lost"] * 8

            assert ask(engine, 8) == ["lost"] * 8
            assert sent(engine) == 9
            assert server.seen <= 9


def first_free(body):
    """Return a legal reply."""
    moves = re.findall(r"'(\[\d\])'", body["messages"][-1]["content"].split("Available Moves")[1])
    return f"\\boxed{{{moves[0]}}}"


# One of each kind: a request that hangs, one that fails, one that is refused, and an answer without a move.
BY_DEFAULT = {"never answers", "500", "a redirect to itself", "content filter"}


class TestTraining:
    @pytest.mark.parametrize(
        "name", [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
    )
    def test_reaches_its_last_step(self, name, model_dir, tmp_path, monkeypatch):
        monkeypatch.setattr(retrying, "_LONGEST_RETRY_AFTER", 0.2)
        timeout = TIMEOUT if name in HANGS else 20.0
        with FaultyEndpoint(FAULTS[name], good=5, text=first_free) as server:
            args = config(
                tmp_path,
                per_device_train_batch_size=16,
                opponents=f"self:0.5,http://{server.address}#rival:0.5",
                endpoint_kwargs={"timeout": timeout, "max_retries": RETRIES, "retry_delay": 0.01, "api_key_env": ""},
            )
            trainer = RecordingTrainer(model_dir, args, games=games(["TicTacToe-v0"]))
            trainer.train()
        met = [episode for _, episodes, _ in trainer.batches for episode in episodes if "rival" in episode.players]
        lost = sum(episode.ending is Ending.PLAYER_LOST for episode in met)

        assert trainer.state.global_step == 8
        assert len(trainer.batches) == 2
        assert (lost > 0) is (name not in ANSWERS)
