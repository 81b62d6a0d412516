import gc
import json
import re
import threading
from dataclasses import replace

import pytest

from tests.helpers.completions_server import CompletionsServer
from tests.helpers.games import AskingPlayer, ShortOrLong
from trl_spiral.engines.http.client import BadAnswer, ServerLost
from trl_spiral.engines.http.vllm_server import ServerEngine
from trl_spiral.games import get_game
from trl_spiral.players import PolicyPlayer
from trl_spiral.selfplay.referee import Start, WeightsLost, play, referee
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import POLICY, Ending, Request, Sampling


SAMPLING = Sampling(max_new_tokens=8)


@pytest.fixture
def server():
    with CompletionsServer() as server:
        yield server


@pytest.fixture
def engine(server):
    with ServerEngine(server.url) as engine:
        yield engine


def drain(engine, count):
    """Step until there are `count` answers, and return them by ticket."""
    replies = {}
    while len(replies) < count:
        for ticket, reply in engine.step():
            assert ticket not in replies
            replies[ticket] = reply
    return replies


def wait_until(condition):
    """Wait for another thread, up to the timeout of the test."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.005)


def request(*prompt, seed=0, **sampling):
    return Request(prompt or (1, 2, 3), replace(SAMPLING, **sampling), seed=seed)


class TestServerEngine:
    def test_returns_the_tokens_and_log_probabilities_of_the_server(self, engine):
        engine.version = 5
        engine.add(3, request())

        [(ticket, reply)] = engine.step()

        assert (ticket, reply.completion_ids, reply.logprobs) == (3, (7, 7, 7), (-0.25, -0.25, -0.25))
        assert (reply.finish_reason, reply.version) == ("stop", 5)

    def test_a_reply_at_the_token_limit_is_truncated(self, engine):
        engine.add(0, request(max_new_tokens=3))

        assert engine.step()[0][1].finish_reason == "length"

    def test_sends_token_ids_seed_and_all_sampling_options(self, server, engine):
        sampling = Sampling(
            0.7, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1, max_new_tokens=9, stop=("}",)
        )
        engine.add(0, Request((4, 5), sampling, seed=2**63 - 1))
        engine.step()

        assert server.bodies == [
            {
                "model": "tiny",
                "prompt": [4, 5],
                "temperature": 0.7,
                "top_p": 0.9,
                "top_k": 20,
                "min_p": 0.05,
                "repetition_penalty": 1.1,
                "max_tokens": 9,
                "stop": ["}"],
                "include_stop_str_in_output": True,
                "seed": 2**63 - 1,
                "logprobs": 0,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            }
        ]

    def test_extra_fields_override_ours(self, server):
        with ServerEngine(server.url, "other", extra={"top_k": 3, "ignore_eos": True}) as engine:
            engine.add(0, request())
            engine.step()

        assert [server.bodies[0][name] for name in ("model", "top_k", "ignore_eos")] == ["other", 3, True]

    def test_legal_moves_become_a_regular_expression(self, server, engine):
        engine.add(0, replace(request(), legal_moves=("[0 1]", "[a.b]")))
        engine.step()

        pattern = server.bodies[0]["structured_outputs"]["regex"]
        assert re.fullmatch(pattern, "I see.\nSo \\boxed{[0 1]}")
        assert not re.fullmatch(pattern, "\\boxed{[a-b]}")

    def test_the_server_gets_all_requests_at_once(self, server, engine):
        server.gate.clear()
        for ticket in range(64):
            engine.add(ticket, request(seed=ticket))
        wait_until(lambda: server.at_once == 64)
        server.gate.set()

        assert set(drain(engine, 64)) == set(range(64))

    def test_no_more_requests_at_once_than_allowed(self, server):
        with ServerEngine(server.url, max_in_flight=4) as engine:
            for ticket in range(32):
                engine.add(ticket, request())
            drain(engine, 32)

        assert server.most_at_once <= 4

    def test_answers_in_any_order_match_their_requests(self, server, engine):
        # The first ones are slower, so answers arrive in another order than requests were sent.
        server.tokens = lambda body: threading.Event().wait(0.05 / (1 + body["seed"])) or (body["seed"] + 100,)
        for ticket in range(20):
            engine.add(ticket, request(seed=ticket))

        assert {ticket: reply.completion_ids for ticket, reply in drain(engine, 20).items()} == {
            ticket: (ticket + 100,) for ticket in range(20)
        }

    def test_poll_does_not_wait(self, server, engine):
        server.gate.clear()
        engine.add(0, request())

        assert engine.poll() == []
        server.gate.set()
        assert [ticket for ticket, _ in engine.step()] == [0]
        assert engine.poll() == []

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_temporary_errors_are_retried(self, server, engine, status):
        server.failures = [(status, {"error": "busy"})] * 2
        engine.add(0, request(seed=8))

        assert drain(engine, 1)[0].completion_ids == (7, 7, 7)
        assert [body["seed"] for body in server.bodies] == [8, 8, 8]
        assert engine.metrics()["retries"] == 2

    def test_a_broken_connection_is_retried(self, server, engine):
        server.dropped = 1
        engine.add(0, request())

        assert drain(engine, 1)[0].completion_ids == (7, 7, 7)

    def test_a_closed_idle_connection_is_not_a_failure(self, server, engine):
        engine.add(0, request())
        engine.step()
        server.hang_up()
        engine.add(1, request())
        engine.step()

        assert engine.metrics()["retries"] == 0
        assert len(server.bodies) == 2

    def test_a_server_that_restarts_in_time_answers_all_requests(self, server, engine):
        server.gate.clear()
        for ticket in range(8):
            engine.add(ticket, request(seed=ticket))
        wait_until(lambda: server.at_once == 8)
        server.kill()
        server.gate.set()
        server.start()

        assert set(drain(engine, 8)) == set(range(8))

    def test_a_server_that_stays_down_is_lost(self, server):
        with ServerEngine(server.url, patience=0.3) as engine:
            engine.add(0, request())
            engine.step()
            server.kill()
            engine.add(1, request())

            with pytest.raises(ServerLost, match=rf"{server.url} has answered nothing for 0.3 seconds \(last: Conn"):
                engine.step()

    def test_failures_of_an_aborted_request_do_not_count_for_later_ones(self, server):
        with ServerEngine(server.url, patience=0.3) as engine:
            for _ in range(2):
                server.failures = [(500, "")]
                engine.add(0, request())
                wait_until(lambda: engine.metrics()["retries"] == 1)
                engine.abort([0])
                threading.Event().wait(0.4)

            server.failures = [(500, "")]
            engine.add(1, request())
            assert [ticket for ticket, _ in engine.step()] == [1]

    def test_a_server_that_answers_after_the_timeout_is_lost(self, server):
        with ServerEngine(server.url, "tiny", patience=0.0, timeout=0.05) as engine:
            server.gate.clear()
            engine.add(0, request())

            with pytest.raises(ServerLost, match="TimeoutError"):
                engine.step()

    def test_a_server_that_dies_in_mid_game_raises_in_the_player(self, server):
        server.tokens = lambda body: (body["prompt"][0],)
        players = (AskingPlayer(), AskingPlayer())
        with ServerEngine(server.url, patience=0.0) as engine:
            games = play((referee(Start(ShortOrLong(), players, seed, seed)) for seed in range(20)), engine)
            next(games)
            server.kill()

            with pytest.raises(ServerLost):
                list(games)
            assert engine.poll() == []  # the scheduler has aborted the other requests

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({"error": {"message": "The prompt is too long.", "code": 400}}, "HTTP 400: The prompt is too long."),
            ({"detail": "No such page"}, "HTTP 400: No such page"),
            ([1], r"HTTP 400: \[1\]"),
        ],
    )
    def test_a_refusal_raises_at_once_with_the_servers_message(self, server, engine, content, message):
        server.failures = [(400, content)]
        engine.add(0, request())

        with pytest.raises(BadAnswer, match=f"{server.url}/v1/completions refused a request with {message}"):
            engine.step()
        assert len(server.bodies) == 1

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("token_ids", None, "not one or more token ids: None"),
            ("token_ids", [], "not one or more token ids"),
            ("token_ids", [7, 7.5, 7], "not one or more token ids"),
            ("token_ids", [7, 7], "2 tokens and 3 log-probabilities"),
            ("logprobs", None, "3 tokens and no log-probabilities"),
            ("logprobs", {"token_logprobs": [-1.0, -1.0]}, "3 tokens and 2 log-probabilities"),
            ("logprobs", {"token_logprobs": [-1.0, None, -1.0]}, "log-probability None"),
            ("logprobs", {"token_logprobs": [-1.0, float("nan"), -1.0]}, "log-probability nan"),
            ("logprobs", {"token_logprobs": [-1.0, 0.5, -1.0]}, "log-probability 0.5"),
            ("logprobs", {"token_logprobs": [-1.0, -9999.0, -1.0]}, "log-probability -9999.0"),
            ("prompt_token_ids", [1, 2], "another prompt, of 2 tokens, than the one of 3"),
            ("finish_reason", "abort", "finish reason 'abort'"),
            ("finish_reason", None, "finish reason None"),
        ],
    )
    def test_a_wrong_answer_raises_an_error_with_the_servers_address(self, server, engine, field, value, message):
        def spoil(answer):
            answer["choices"][0][field] = value
            return answer

        server.spoil = spoil
        engine.add(0, request())

        with pytest.raises(BadAnswer, match=f"{server.url}/v1/completions answered .*{message}"):
            engine.step()

    @pytest.mark.parametrize("answer", [{"choices": []}, {"error": "late"}, [], None])
    def test_an_answer_without_a_choice_raises(self, server, engine, answer):
        server.spoil = lambda _: answer
        engine.add(0, request())

        with pytest.raises(BadAnswer, match="without exactly one choice"):
            engine.step()

    def test_invalid_json_raises(self, server, engine):
        server.spoil = lambda _: b"<html>Welcome</html>"
        engine.add(0, request())

        with pytest.raises(BadAnswer, match="invalid JSON: '<html>Welcome</html>'"):
            engine.step()

    def test_an_answer_without_an_echoed_prompt_is_accepted(self, server, engine):
        server.spoil = lambda answer: answer["choices"][0].pop("prompt_token_ids") and answer
        engine.add(0, request())

        assert len(engine.step()) == 1

    def test_an_aborted_request_is_disconnected_and_never_answered(self, server, engine):
        server.gate.clear()
        for ticket in range(4):
            engine.add(ticket, request())
        wait_until(lambda: server.at_once == 4)
        engine.abort([0, 2])
        wait_until(lambda: server.hung_up == 2)
        server.gate.set()

        assert set(drain(engine, 2)) == {1, 3}
        assert engine.poll(0.05) == []

    def test_a_ticket_used_again_gets_the_later_answer(self, server, engine):
        server.tokens = lambda body: (body["seed"],)
        engine.add(0, request(seed=1))
        wait_until(lambda: not engine._answers.empty())  # answered, and not taken
        engine.abort([0])
        engine.add(0, request(seed=2))

        assert [reply.completion_ids for _, reply in engine.step()] == [(2,)]
        assert engine.poll(0.05) == []

    def test_replies_do_not_depend_on_the_order_of_requests(self, server, engine):
        server.tokens = lambda body: (body["seed"] % 1000, body["prompt"][0])
        games = {}
        for order in (range(30), reversed(range(30))):
            for ticket in order:
                engine.add(ticket, request(ticket, seed=ticket))
            replies = drain(engine, 30)
            games.setdefault("seen", replies)

            assert replies == games["seen"]

    def test_refuses_requests_that_the_server_cannot_answer(self, server, engine):
        with pytest.raises(ValueError, match="names the policy 'rival'"):
            engine.add(0, replace(request(), policy="rival"))
        with pytest.raises(ValueError, match="empty prompt"):
            engine.add(0, Request(()))
        assert server.seen == []

    def test_may_serve_another_policy(self, server):
        with ServerEngine(server.url) as engine:
            engine.adapters = {"rival": "tiny"}
            engine.add(0, replace(request(), policy="rival"))

            assert len(engine.step()) == 1

    @pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://me:secret@host", "http://"])
    def test_refuses_an_invalid_address(self, url):
        with pytest.raises(ValueError, match="must read like") as error:
            ServerEngine(url)
        assert "secret" not in str(error.value)

    def test_a_server_without_models_raises(self, server, engine):
        server.pages["/v1/models"] = b'{"data": []}'

        with pytest.raises(BadAnswer, match="lists no model"):
            engine.add(0, request())

    def test_metrics_count_the_work_since_the_last_call(self, server, engine):
        server.gate.clear()
        for ticket in range(3):
            engine.add(ticket, request())
        server.gate.set()
        drain(engine, 3)

        metrics = engine.metrics()
        assert (metrics["requests"], metrics["retries"], metrics["new_tokens"]) == (3, 0, 9)
        assert 1 <= metrics["in_flight"] <= 3
        assert set(engine.metrics().values()) == {0.0}

    def test_close_leaves_no_thread_and_no_connection(self, server):
        before = threading.active_count()
        server.gate.clear()
        engine = ServerEngine(server.url)
        for ticket in range(8):
            engine.add(ticket, request())
        wait_until(lambda: server.at_once == 8)
        engine.close()
        engine.close()
        wait_until(lambda: server.hung_up == 8)
        gc.collect()  # an open socket would warn, and a warning fails the test

        wait_until(lambda: threading.active_count() == before)
        with pytest.raises(RuntimeError, match="is closed"):
            engine.add(0, request())

    def test_plays_a_real_game(self, server, engine, tokenizer):
        renderer = PromptRenderer(tokenizer)

        def legal(body):
            moves = re.findall(r"'(\[\d\])'", renderer.text(body["prompt"]).split("Available Moves")[1])
            return renderer.reply(f"\\boxed{{{moves[body['seed'] % len(moves)]}}}")

        server.tokens = legal
        player = PolicyPlayer(renderer, Sampling(max_new_tokens=32))
        game = get_game("TicTacToe-v0")
        episodes = list(play((referee(Start(game, (player, player), s, s)) for s in range(20)), engine))
        again = list(play((referee(Start(game, (player, player), s, s)) for s in range(20)), engine))

        assert {episode.ending for episode in episodes} == {Ending.FINISHED}
        assert all(turn.policy == POLICY for e in episodes for seat in e.trajectories for turn in seat.turns)
        assert {e.seed: e.moves for e in episodes} == {e.seed: e.moves for e in again}


class TestBootId:
    def test_differs_between_two_starts(self, server, engine):
        first, same = engine.boot_id(), engine.boot_id()
        server.kill()
        server.start()

        assert first == same != engine.boot_id()

    def test_falls_back_to_the_name_of_the_instance(self, server, engine):
        server.pages["/metrics"] = b"# no such line\n"
        server.pages["/server_info?config_format=json"] = json.dumps(
            {"vllm_config": {"instance_id": "a1b2c"}}
        ).encode()

        assert engine.boot_id() == "a1b2c"

    def test_a_restarted_server_has_lost_its_weights(self, server, engine):
        engine.boot = engine.boot_id()
        engine.add(0, request())
        engine.step()
        server.gate.clear()
        for ticket in range(1, 5):
            engine.add(ticket, request())
        wait_until(lambda: server.at_once == 4)
        server.kill()
        server.gate.set()
        server.start()

        with pytest.raises(WeightsLost, match="Send them again"):
            engine.step()

    def test_a_restart_between_two_requests_is_detected(self, server, engine):
        engine.boot = engine.boot_id()
        engine.add(0, request())
        engine.step()
        server.kill()
        server.start()
        engine.add(1, request())

        with pytest.raises(WeightsLost):
            engine.step()

    def test_continues_after_the_new_boot_id_is_set(self, server, engine):
        engine.boot = "an earlier one"
        engine.add(0, request())
        with pytest.raises(WeightsLost, match="expected an earlier one"):
            engine.step()
        engine.boot = engine.boot_id()
        engine.add(1, request())

        assert [ticket for ticket, _ in engine.step()] == [1]

    def test_is_checked_only_after_a_new_connection(self, server, engine):
        engine.boot = engine.boot_id()
        engine.add(0, request())
        engine.step()
        del server.pages["/metrics"]
        engine.add(1, request())

        assert [ticket for ticket, _ in engine.step()] == [1]

    def test_a_server_that_reports_neither_raises(self, server, engine):
        del server.pages["/metrics"]

        with pytest.raises(BadAnswer, match="a restart would not be detected"):
            engine.boot_id()

    def test_a_server_that_is_down_is_lost(self, server):
        server.kill()

        with ServerEngine(server.url, patience=0.0) as engine, pytest.raises(ServerLost):
            engine.boot_id()
