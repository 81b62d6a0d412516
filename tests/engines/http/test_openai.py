import asyncio
import json
import logging
import random
import re
import threading
import traceback
from dataclasses import replace

import pytest

from tests.engines.http.test_vllm_server import drain, wait_until
from tests.helpers.completions_server import BROKEN, RUBBISH, CompletionsServer, troubled
from trl_spiral.engines.http import retrying
from trl_spiral.engines.http.client import BadAnswer
from trl_spiral.engines.http.openai import EndpointEngine
from trl_spiral.engines.http.retrying import FAILURES
from trl_spiral.types import Request, Sampling


KEY = "sk-a-very-secret-key"
ASKED = Request((), Sampling(max_new_tokens=8), "rival", 11, messages=({"role": "user", "content": "Your move?"},))


@pytest.fixture
def server():
    with CompletionsServer() as server:
        yield server


@pytest.fixture
def make(server, monkeypatch):
    """Make engines with short delays before retries, and close them at the end."""
    monkeypatch.setenv("A_KEY", KEY)
    made = []

    def make(**changes):
        settings = dict(model="rival", api_key_env="A_KEY", max_retries=2, retry_delay=0.001)
        made.append(EndpointEngine(server.url, **{**settings, **changes}))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def endpoint(make):
    return make()


@pytest.fixture
def waits(monkeypatch):
    """Delays in seconds, which are recorded and not waited for."""
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(retrying, "sleep", sleep)
    return waits


def ask(engine, count=1, **changes):
    """Return the replies to `count` requests that differ only in their seeds."""
    for ticket in range(count):
        engine.add(ticket, replace(ASKED, seed=100 + ticket, **changes))
    replies = drain(engine, count)
    return [replies[ticket] for ticket in range(count)]


def failed(engine):
    """Return the failed attempts by kind, without zeros."""
    return {kind: number for kind, number in engine.metrics().items() if kind in FAILURES and number}


class TestEndpointEngine:
    def test_sends_messages_and_returns_text(self, server, endpoint):
        endpoint.add(0, ASKED)

        [(ticket, reply)] = endpoint.step()

        assert (ticket, reply.text, reply.completion_ids, reply.logprobs) == (0, server.text({}), (), ())
        assert server.seen[0][0] == "/chat/completions"
        assert server.seen[0][1]["Authorization"] == f"Bearer {KEY}"
        assert server.bodies == [
            {
                "model": "rival",
                "messages": [{"role": "user", "content": "Your move?"}],
                "temperature": 1.0,
                "top_p": 1.0,
                "max_tokens": 8,
                "seed": 11,
            }
        ]
        assert endpoint.metrics() == {
            "requests": 1,
            "retries": 0,
            "lost": 0,
            "tokens": 15,
            "new_tokens": 5,
            "in_flight": 1,
            **dict.fromkeys(FAILURES, 0),
        }
        assert set(endpoint.metrics().values()) == {0.0}

    def test_sends_less_common_sampling_only_if_it_changes_anything(self, server, endpoint):
        endpoint.add(0, replace(ASKED, sampling=Sampling(top_k=5, min_p=0.1, repetition_penalty=1.2, stop=("END",))))
        endpoint.step()

        sent = {name: server.bodies[0][name] for name in ("top_k", "min_p", "repetition_penalty", "stop")}
        assert sent == {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "stop": ["END"]}

    @pytest.mark.parametrize(("theirs", "ours"), [("length", "length"), ("stop", "stop"), ("content_filter", "stop")])
    def test_finish_reasons(self, server, endpoint, theirs, ours):
        def spoil(answer):
            answer["choices"][0]["finish_reason"] = theirs
            return answer

        server.spoil = spoil

        assert ask(endpoint)[0].finish_reason == ours

    def test_a_reply_cut_off_within_its_reasoning_is_truncated(self, server, endpoint):
        server.spoil = lambda answer: {"choices": [{"message": {"content": None}, "finish_reason": "length"}]}
        [reply] = ask(endpoint)

        assert (reply.text, reply.finish_reason) == ("", "length")

    def test_single_surrogates_are_replaced(self, server, endpoint):
        server.text = lambda body: "\ud83d [4]"

        assert ask(endpoint)[0].text == "? [4]"

    def test_an_endpoint_may_need_no_key(self, server, make):
        ask(make(api_key_env=None, extra={"temperature": 0}))

        assert "Authorization" not in server.seen[0][1]
        assert server.bodies[0]["temperature"] == 0

    def test_refuses_requests_without_messages_or_with_legal_moves(self, endpoint):
        for bad in (replace(ASKED, messages=()), replace(ASKED, legal_moves=("[4]",))):
            with pytest.raises(ValueError, match="Let an `EndpointPlayer` ask it"):
                endpoint.add(0, bad)


class TestTrouble:
    """Failures of an endpoint are retried, and then the reply is lost. Nothing raises."""

    @pytest.mark.parametrize("content", RUBBISH.values(), ids=RUBBISH)
    def test_rubbish_is_retried_and_then_lost(self, server, endpoint, content):
        answers = [content, None, content, content, content]
        server.spoil = lambda answer: answer if (sent := answers.pop(0)) is None else sent

        assert ask(endpoint)[0].finish_reason == "stop"
        assert failed(endpoint) == {"rubbish": 1}
        assert ask(endpoint)[0].finish_reason == "lost"
        assert failed(endpoint) == {"rubbish": 3}
        assert len(server.seen) == 5

    @pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
    def test_broken_answers_are_retried_and_then_lost(self, server, endpoint, raw):
        server.raw = [raw]
        assert ask(endpoint)[0].finish_reason == "stop"
        server.raw = [raw] * 3
        assert ask(endpoint)[0].finish_reason == "lost"

        kind = "rubbish" if raw == BROKEN["headers without end"] else "hung_up"  # 15 kB of them and no content
        assert failed(endpoint) == {kind: 4}
        assert len(server.seen) == 5

    @pytest.mark.parametrize(
        ("status", "kind"),
        [(408, "server_errors"), (429, "too_many_requests"), (500, "server_errors"), (204, "rubbish")],
    )
    def test_temporary_errors_are_retried_and_then_lost(self, server, endpoint, status, kind):
        server.failures = [(status, {"error": "busy"})]
        assert ask(endpoint)[0].finish_reason == "stop"
        server.failures = [(status, {"error": "busy"})] * 3
        assert ask(endpoint)[0].finish_reason == "lost"

        assert failed(endpoint) == {kind: 4}

    def test_random_bytes_never_raise(self, server, make):
        # A thousand answers with random damage.
        rng = random.Random(0)
        whole = b'HTTP/1.1 200 OK\r\nContent-Length: 46\r\n\r\n{"choices": [{"message": {"content": "[4]"}}]}'

        def twisted():
            answer = bytearray(whole)
            for _ in range(rng.randrange(1, 6)):
                place = rng.randrange(len(answer))
                answer[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
            return bytes(answer[: rng.randrange(len(answer))] if rng.random() < 0.3 else answer)

        engine = make(timeout=5.0, max_retries=0)
        ask(engine)  # before the first good answer, a status such as 404 raises
        server.raw = [twisted() for _ in range(1000)]

        assert {reply.finish_reason for reply in ask(engine, 1000)} == {"stop", "lost"}

    def test_extra_bytes_of_an_answer_do_not_reach_the_next(self, server, make):
        answer = b'{"choices": [{"message": {"content": "[4]"}}]}'
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\n\r\n".encode()
        server.raw = [head + answer + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]
        engine = make(max_in_flight=1)

        assert [reply.text for reply in ask(engine, 2)] == ["[4]", server.text({})]

    def test_a_huge_answer_is_not_read_to_its_end(self, server, endpoint):
        server.spoil = lambda answer: b" " * 10_000_000 + json.dumps(answer).encode()

        assert ask(endpoint)[0].finish_reason == "lost"
        assert failed(endpoint) == {"rubbish": 3}

    def test_a_reply_after_the_timeout_is_lost(self, server, make):
        engine = make(timeout=0.5, max_in_flight=1)
        server.gate.clear()

        # The first does not delay the second, which uses the same slot.
        assert {reply.finish_reason for reply in ask(engine, 2)} == {"lost"}
        assert failed(engine) == {"timed_out": 2}

    def test_single_bytes_do_not_extend_the_timeout(self, server, make):
        # One byte at a time, each sooner than the timeout.
        engine = make(timeout=0.2)
        over = threading.Event()

        def drip(self, status, content):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            while not over.wait(0.05):
                self.wfile.write(b" ")

        server.server.RequestHandlerClass = type("Drips", (server.server.RequestHandlerClass,), {"answer": drip})
        try:
            assert ask(engine)[0].finish_reason == "lost"
        finally:
            over.set()
        assert failed(engine) == {"timed_out": 1}

    def test_a_closed_idle_connection_is_not_a_failure(self, server, endpoint):
        ask(endpoint)
        server.hang_up()
        wait_until(lambda: not server.connections)
        ask(endpoint)

        assert failed(endpoint) == {}
        assert len(server.seen) == 2

    def test_the_delay_grows_from_retry_to_retry(self, server, make, waits):
        server.failures = [(500, "")] * 6
        ask(make(max_retries=6, retry_delay=4.0))

        nominal = [4.0, 8.0, 16.0, 16.0, 16.0, 16.0]
        assert all(delay / 2 <= wait <= delay for wait, delay in zip(waits, nominal, strict=True))

    def test_delays_depend_on_the_request_alone(self, server, endpoint, waits):
        for seed in (1, 1, 2):
            server.failures = [(500, "")]
            endpoint.add(0, replace(ASKED, seed=seed))
            endpoint.step()

        assert waits[0] == waits[1] != waits[2]

    @pytest.mark.parametrize(
        ("value", "waited"),
        [("7", 7.0), ("7.5", 7.5), ("3600", 60.0), ("nan", 0.001), ("-5", 0.001), ("1e999", 0.001), ("soon", 0.001)],
    )
    def test_waits_for_retry_after_up_to_a_limit(self, server, endpoint, waits, value, waited):
        server.failures, server.headers = [(429, "")], {"Retry-After": value}
        ask(endpoint)

        assert waits == [pytest.approx(waited, abs=0.0006)]

    def test_an_endpoint_that_is_gone_gets_no_retries_until_it_answers(self, server, endpoint):
        server.failures = [(500, "")] * 3
        ask(endpoint)
        endpoint.metrics()
        server.failures = [(500, "")] * 4
        assert {reply.finish_reason for reply in ask(endpoint, 4)} == {"lost"}
        assert endpoint.metrics()["requests"] == 4
        ask(endpoint)
        server.failures = [(500, "")]

        assert ask(endpoint)[0].finish_reason == "stop"

    def test_a_request_that_always_fails_does_not_cost_others_their_retries(self, server, make):
        server.plan = lambda body, attempt: "500" if body["seed"] == 100 or (attempt == 0) else None

        replies = ask(make(max_retries=1, max_in_flight=1), 1) + ask(make(max_in_flight=8), 40)

        assert [reply.finish_reason for reply in replies] == ["lost", "lost"] + ["stop"] * 39

    def test_one_line_reports_lost_replies_and_their_causes(self, server, endpoint, caplog):
        server.plan = troubled(0.7)
        lost = sum(reply.finish_reason == "lost" for reply in ask(endpoint, 60))
        metrics = endpoint.metrics()

        assert lost == metrics["lost"] == len(set(server.tries) - server.answered) > 0
        assert metrics["requests"] == len(server.seen)
        assert {kind: metrics[kind] for kind in ("too_many_requests", "server_errors", "hung_up", "rubbish")} == {
            "too_many_requests": server.happened["429"],
            "server_errors": server.happened["500"],
            "hung_up": server.happened["hang up"],
            "rubbish": server.happened["rubbish"],
        }
        [line] = [record.getMessage() for record in caplog.records]
        assert line.startswith("Replies of rival that were lost, each of which has ended a game without a result: ")
        assert f"result: {lost}. Failed" in line
        assert f"{server.happened['429']} HTTP 429, {server.happened['500']} HTTP 5xx" in line
        assert "\n" not in line

    def test_an_error_message_is_logged_on_one_line(self, server, endpoint, caplog):
        server.failures = [(500, {"error": "two\nlines\x1b[2J \ud83d"})] * 3
        ask(endpoint)
        endpoint.metrics()

        assert caplog.records[0].getMessage().endswith("Last: HTTP 500: two lines\ufffd[2J \ufffd")

    def test_close_reports_replies_lost_since_the_last_report(self, server, make, caplog):
        server.kill()
        engine = make()
        ask(engine, 3)
        before = list(caplog.records)
        engine.close()
        engine.close()

        assert before == []
        assert len(caplog.records) == 1
        assert "result: 3." in caplog.text and "ConnectionRefusedError" in caplog.text

    @pytest.mark.parametrize("status", [302, 400, 401, 402, 403, 404])
    def test_a_refusal_before_the_first_answer_raises(self, server, endpoint, status):
        server.failures = [(status, {"error": {"message": "No such luck."}})]
        endpoint.add(0, ASKED)

        with pytest.raises(
            BadAnswer, match=f"{server.url}/chat/completions refused a request with HTTP {status}: No such luck."
        ):
            endpoint.step()
        assert len(server.seen) == 1

    @pytest.mark.parametrize("status", [302, 400, 401, 402, 403, 404])
    def test_a_refusal_after_the_first_answer_only_ends_a_game(self, server, endpoint, status, caplog):
        ask(endpoint)
        server.failures = [(status, {"error": {"message": "No such luck."}})]

        assert ask(endpoint)[0].finish_reason == "lost"
        assert failed(endpoint) == {"refused": 1}
        assert len(server.seen) == 2
        assert "1 refused" in caplog.text and f"HTTP {status}: No such luck." in caplog.text

    def test_a_refusal_after_a_resume_only_ends_a_game(self, server, make):
        first, resumed = make(), make()
        ask(first)
        resumed.load_state_dict(first.state_dict())
        server.failures = [(401, "")]

        assert ask(resumed)[0].finish_reason == "lost"


class TestBudget:
    def test_the_endpoint_never_gets_more_requests(self, server, make, caplog):
        engine = make(max_requests=10, max_in_flight=16)
        replies = ask(engine, 64)

        assert len(server.seen) == 10
        assert [reply.finish_reason for reply in replies].count("lost") == 54
        assert engine.spent
        [line] = [record.getMessage() for record in caplog.records]
        # The number of tokens depends on the answers that were in by then.
        assert re.match(r"The budget of rival is spent: 10 of 10 requests and \d+ tokens\. Games", line)

    def test_retries_count_as_requests(self, server, make):
        server.plan = troubled(0.7)
        engine = make(max_requests=50, max_in_flight=16)
        ask(engine, 64)

        assert len(server.seen) == engine.metrics()["requests"] == 50

    def test_an_unreachable_endpoint_costs_nothing(self, server, make):
        engine = make(max_requests=1)
        server.kill()
        ask(engine, 3)
        spent = engine.spent
        server.start()

        assert not spent
        assert ask(engine)[0].finish_reason == "stop"

    def test_requests_after_the_end_are_lost_at_once(self, server, make):
        engine = make(max_requests=2, max_in_flight=2)
        server.gate.clear()
        for ticket in range(2):
            engine.add(ticket, ASKED)
        wait_until(lambda: server.at_once == 2)
        engine.add(2, ASKED)

        # The first two are still in flight, and may finish.
        assert [(ticket, reply.finish_reason) for ticket, reply in engine.step()] == [(2, "lost")]
        server.gate.set()
        assert {reply.finish_reason for reply in drain(engine, 2).values()} == {"stop"}

    def test_tokens_are_never_exceeded(self, server, make):
        # The endpoint reports ten tokens for a prompt and five for a reply.
        engine = make(max_tokens=500, max_in_flight=16)
        replies = ask(engine, 64)
        used = 15 * len(server.seen)

        assert engine.metrics()["tokens"] == used <= 500
        # It ends when the next request might exceed it, by the bytes of its body and 8 new tokens.
        assert used + len(json.dumps(server.bodies[0])) + 8 > 500
        assert [reply.finish_reason for reply in replies].count("stop") == len(server.seen)

    @pytest.mark.parametrize(
        "usage", [None, [], {"prompt_tokens": "many"}, {"prompt_tokens": -9, "completion_tokens": 1e400}]
    )
    def test_unreported_tokens_are_estimated(self, server, make, usage):
        def spoil(answer):
            return {**answer, "usage": usage}

        server.spoil = spoil
        engine = make(max_tokens=10_000)
        ask(engine)

        estimate = len(json.dumps(server.bodies[0])) // 4 + len(server.text({})) // 4
        assert engine.metrics()["tokens"] == estimate

    def test_a_try_without_an_answer_costs_its_prompt_and_its_limit(self, server, make):
        server.raw = [BROKEN["half an answer"]]
        engine = make(max_retries=0)
        ask(engine)

        assert engine.metrics()["tokens"] == len(json.dumps(server.bodies[0])) // 4 + 8

    def test_an_error_costs_no_tokens(self, server, make):
        server.failures = [(500, "")]
        engine = make(max_retries=0)
        ask(engine)

        assert engine.metrics()["tokens"] == 0

    def test_a_resumed_run_gets_no_new_budget(self, server, make, caplog):
        engine = make(max_requests=5)
        ask(engine, 3)
        resumed = make(max_requests=5)
        resumed.load_state_dict(json.loads(json.dumps(engine.state_dict())))
        replies = ask(resumed, 4)

        assert [reply.finish_reason for reply in replies].count("stop") == 2
        assert len(server.seen) == 5
        assert resumed.metrics()["requests"] == 2

    def test_a_resumed_run_without_any_budget_left_logs_it(self, make, caplog):
        engine = make(max_requests=5)
        engine.load_state_dict({"requests": 5, "tokens": 75, "answered": 5})
        engine.metrics()

        assert engine.spent
        assert "5 of 5 requests" in caplog.text

    def test_requests_aborted_before_they_were_sent_cost_nothing(self, server, make):
        engine = make(max_in_flight=1)
        server.gate.clear()
        for ticket in range(20):
            engine.add(ticket, ASKED)
        wait_until(lambda: server.at_once == 1)
        engine.abort(range(20))
        server.gate.set()
        ask(engine)

        assert engine.metrics()["requests"] == len(server.seen) == 2

    def test_a_request_aborted_after_its_reservation_costs_nothing(self, server, make, monkeypatch):
        engine = make(max_in_flight=1)
        budget = engine._budget
        reserve = budget.reserve

        reserved = threading.Event()

        async def reserve_and_abort(tokens):
            granted = await reserve(tokens)
            while 0 not in engine._waiting:  # `add` runs in the other thread
                await asyncio.sleep(0)
            engine.abort([0])
            reserved.set()
            return granted

        monkeypatch.setattr(budget, "reserve", reserve_and_abort)
        engine.add(0, ASKED)
        reserved.wait()
        wait_until(lambda: not budget._reserved)
        state = engine.state_dict()

        assert (state["requests"], state["tokens"], len(server.seen)) == (0, 0, 0)

    def test_refuses_a_limit_below_1(self, make):
        with pytest.raises(ValueError, match=r"`max_requests` \(0\) must be at least 1"):
            make(max_requests=0)


class TestKey:
    """The key is sent to the endpoint and shown nowhere."""

    def test_is_not_in_errors_logs_or_the_engines_own_state(self, server, endpoint, caplog):
        caplog.set_level(logging.DEBUG)
        server.failures = [(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})]
        endpoint.add(0, ASKED)
        with pytest.raises(BadAnswer) as error:
            endpoint.step()
        server.failures = [(503, f"no {KEY}")] * 3
        ask(endpoint)
        endpoint.metrics()

        assert "provided: [key]" in str(error.value)
        assert "no [key]" in caplog.text
        shown = f"{caplog.text}{''.join(traceback.format_exception(error.value))}"
        shown += f"{error.getrepr(style='long', showlocals=True)}{endpoint!r}{endpoint.state_dict()}"
        shown += f"{vars(endpoint)}{vars(endpoint._attempts)}{vars(endpoint.client)}{endpoint.metrics()}"
        assert KEY not in shown

    @pytest.mark.parametrize(
        "raw",
        [
            f"{KEY} is no protocol\r\n\r\n",
            f"HTTP/1.1 {KEY} OK\r\n\r\n",
            f"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{KEY}",
            f'HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{{"{KEY}"',
            f"HTTP/1.1 500 {KEY}\r\nContent-Length: 20\r\n\r\n{KEY}",
            f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/{KEY}\r\nContent-Length: 0\r\n\r\n",
        ],
    )
    def test_is_not_logged_if_the_endpoint_returns_it(self, server, endpoint, caplog, raw):
        ask(endpoint)
        server.raw = [raw.encode()] * 3

        assert ask(endpoint)[0].finish_reason == "lost"
        endpoint.metrics()
        assert len(caplog.records) == 1
        assert KEY not in f"{caplog.text}{vars(endpoint._attempts)}{vars(endpoint.client)}"

    @pytest.mark.parametrize(
        ("status", "answer"), [(200, {"a": "x" * 183 + KEY}), (500, {"error": {"message": "x" * 490 + KEY}})]
    )
    def test_no_part_of_it_is_logged_where_an_answer_is_cut(self, server, endpoint, caplog, status, answer):
        # The error shows the answer up to a character within the key.
        server.spoil = lambda _: answer
        server.failures = [] if status == 200 else [(status, answer)] * 3
        ask(endpoint)
        endpoint.metrics()

        assert "xxx" in caplog.text
        assert KEY[:6] not in caplog.text

    @pytest.mark.parametrize("written", [KEY, KEY.replace("s", "\\u0073")])
    def test_is_not_in_a_reply(self, server, endpoint, written):
        server.spoil = lambda answer: json.dumps(answer).replace("middle", written).encode()

        assert ask(endpoint)[0].text == "I take the [key]: \\boxed{[4]}"

    def test_a_short_key_is_not_hidden(self, server, make, monkeypatch):
        monkeypatch.setenv("A_KEY", "null")
        server.text = lambda body: "null \\boxed{[4]}"
        server.spoil = lambda answer: {**answer, "refusal": None}

        assert ask(make())[0].text == "null \\boxed{[4]}"

    def test_is_not_sent_to_the_target_of_a_redirect(self, server, endpoint):
        with CompletionsServer() as other:
            for status in (301, 302, 307, 308):
                server.failures, server.headers = [(status, "")], {"Location": f"{other.url}/chat/completions"}
                endpoint.add(0, ASKED)
                with pytest.raises(BadAnswer, match=f"HTTP {status}"):
                    endpoint.step()

            assert other.seen == []

    @pytest.mark.parametrize("value", ["", "two\nlines", "schlüssel-secret"])
    def test_an_invalid_key_is_refused_and_not_shown(self, monkeypatch, value):
        monkeypatch.setenv("A_KEY", value)

        with pytest.raises(ValueError, match="environment variable A_KEY must hold") as error:
            EndpointEngine("http://localhost", "rival", api_key_env="A_KEY")
        assert not value or value not in str(error.getrepr(style="short"))

    @pytest.mark.parametrize("url", [f"http://localhost/v1?key={KEY}", f"http://me:{KEY}@localhost"])
    def test_in_an_address_is_refused_and_not_shown(self, url):
        with pytest.raises(ValueError, match="must read like") as error:
            EndpointEngine(url, "rival", api_key_env=None)
        assert KEY not in str(error.value)
