"""The remote sandbox against real servers: ours, and some that are not what they should be. What programs do to it is in
`test_sandbox_conformance.py`."""

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from trl_spiral.cli import main
from trl_spiral.sandbox import Answer, Ending, Job, Limits, LocalSandbox, Outcome, RemoteSandbox, Trial, Verdict
from trl_spiral.sandbox import remote as remote_module
from trl_spiral.sandbox.messages import MAX_OUTPUT, MAX_REQUEST, TOKEN_VARIABLE, limits_to, outcome_to, verdict_to
from trl_spiral.sandbox.server import SandboxServer
from trl_spiral.sandbox.values import encode


TOKEN = "t0ken-of-the-tests"
# One of each type that travels, and what JSON alone would lose.
VALUES = (
    None,
    True,
    -1,
    10**4000,
    0.1,
    -0.0,
    float("inf"),
    2j,
    "\ud800é",
    b"\xff",
    [()],
    {(1, "a"): {2}},
    frozenset(),
)


class Parrot:
    """A sandbox that repeats each job's code as its output, and answers each call with all values."""

    def __init__(self, workers=100):
        self.batches = []
        self.workers = workers

    def run(self, jobs):
        self.batches.append(len(jobs))
        return [
            Outcome(Ending.FINISHED, job.code[:9], (Answer(VALUES),) * len(job.calls), cpu_seconds=0.5) for job in jobs
        ]

    def judge(self, trials):
        return [Verdict(trial.tests == "", "AssertionError", Ending.FINISHED, trial.code) for trial in trials]

    def close(self):
        raise AssertionError("a server does not close what it serves")


class Broken(Parrot):
    def run(self, jobs):
        raise RuntimeError("the helper\nis gone")


@contextmanager
def running(server):
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def serving(sandbox, token=None, limits=None, kind=SandboxServer):
    return running(kind(sandbox, limits or Limits(), token=token))


@contextmanager
def saying(*answers):
    """
    A server that gives these answers, one after the other and the last for ever. Each is a status, content, and how many
    bytes it says to have sent besides.
    """
    waiting = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content, *missing = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(content) + sum(missing)))
            self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *args):
            pass

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


def greeting(**changes):
    return 200, json.dumps({"version": 1, "limits": limits_to(Limits())} | changes).encode()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(remote_module, "_RETRY_DELAYS", (0.01, 0.01, 0.01))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


class TestRemoteSandbox:
    def test_hands_over_outcomes_as_they_are(self):
        jobs = [Job("é\n\x00", ("f()", "g()")), Job("", hash_seed=2**32 - 1)]
        with serving(Parrot()) as server, RemoteSandbox(server.url) as sandbox:
            outcomes = sandbox.run(jobs)
            none = sandbox.run([])

        assert outcomes == Parrot().run(jobs)
        assert repr(outcomes) == repr(Parrot().run(jobs))  # 0.0 and -0.0 are equal
        assert none == []

    def test_hands_over_verdicts_as_they_are(self):
        trials = [Trial("a", "", ("f",)), Trial("b", "assert f()", ("f", "g"))]
        with serving(Parrot()) as server, RemoteSandbox(server.url) as sandbox:
            verdicts = sandbox.judge(trials)

        assert verdicts == Parrot().judge(trials)

    def test_knows_the_limits_over_there(self):
        limits = Limits(0.5, 1, 64, 1000, ("/usr/share",), (), True)
        with serving(Parrot(), limits=limits) as server, RemoteSandbox(server.url) as sandbox:
            assert sandbox.limits == limits

    def test_asks_for_a_few_jobs_at_a_time(self):
        parrot = Parrot()
        with serving(parrot) as server, RemoteSandbox(server.url) as sandbox:
            outcomes = sandbox.run([Job(str(number)) for number in range(150)])

        assert [outcome.output for outcome in outcomes] == [str(number) for number in range(150)]
        assert parrot.batches == [64, 64, 22]

    def test_asks_for_fewer_where_jobs_are_long(self):
        parrot = Parrot()
        with serving(parrot, limits=Limits(output_bytes=MAX_OUTPUT)) as server, RemoteSandbox(server.url) as sandbox:
            # By the length of their answers, 64 MiB / 12 MiB; then by that of the request.
            sandbox.run([Job("")] * 6)
            sandbox.run([Job("x" * (MAX_REQUEST // 2))] * 2)

        assert parrot.batches == [5, 1, 1, 1]

    def test_refuses_a_job_that_no_server_takes(self):
        with serving(Parrot()) as server, RemoteSandbox(server.url) as sandbox:
            with pytest.raises(ValueError, match="too long for a remote sandbox"):
                sandbox.run([Job("x" * MAX_REQUEST)])

    @pytest.mark.parametrize(
        "url", ["10.0.0.2:8200", "ftp://host", "http://", "http://me:secret@host", "http://host/?key=secret"]
    )
    def test_refuses_an_address_without_showing_it(self, url):
        with pytest.raises(ValueError, match="must read like `http://10.0.0.2:8200`") as refused:
            RemoteSandbox(url)

        assert "secret" not in str(refused.value)

    @pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
    def test_refuses_a_timeout_that_is_none(self, timeout):
        with pytest.raises(ValueError, match="`timeout`"):
            RemoteSandbox("http://127.0.0.1:1", timeout=timeout)

    @pytest.mark.parametrize("token", ["", "two words", "é", "line\n"])
    def test_refuses_a_token_that_no_header_carries(self, token):
        with pytest.raises(ValueError, match="visible ASCII"):
            RemoteSandbox("http://127.0.0.1:1", token)

    def test_knows_the_token_from_its_argument_or_the_environment(self, monkeypatch):
        with serving(Parrot(), TOKEN) as server:
            RemoteSandbox(server.url, TOKEN).run([Job("")])
            monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
            RemoteSandbox(server.url).run([Job("")])

    @pytest.mark.parametrize("token", [None, "another", TOKEN + "x", TOKEN[:-1]])
    def test_says_that_the_token_is_wrong(self, token):
        with serving(Parrot(), TOKEN) as server:
            with pytest.raises(PermissionError, match="refuses the token") as refused:
                RemoteSandbox(server.url, token)

        assert TOKEN not in str(refused.value)

    def test_says_that_nobody_is_there(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]

        with pytest.raises(ConnectionError, match=r"cannot be reached \(ConnectionRefusedError"):
            RemoteSandbox(f"http://127.0.0.1:{port}")

    @pytest.mark.parametrize("hang_ups", [1, 3])
    def test_tries_again_where_a_connection_breaks(self, hang_ups):
        class Shaky(SandboxServer):
            left = hang_ups

            def verify_request(self, request, client_address):
                self.left -= 1
                return self.left < 0

        with serving(Parrot(), kind=Shaky) as server, RemoteSandbox(server.url) as sandbox:
            server.left = hang_ups

            assert sandbox.run([Job("alive")])[0].output == "alive"

    def test_tries_again_where_an_answer_breaks_off(self):
        whole = json.dumps([outcome_to(Outcome(Ending.FINISHED, "whole"))]).encode()
        with saying(greeting(), (200, whole[:-1], 1), (200, whole)) as url, RemoteSandbox(url) as sandbox:
            assert sandbox.run([Job("")])[0].output == "whole"

    @pytest.mark.parametrize("drop", [b"", b" "], ids=["silent", "dripping"])
    def test_does_not_wait_for_ever(self, drop):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            over = threading.Event()

            def stall():
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n" if drop else b"")
                    while not over.wait(0.02):
                        try:
                            connection.sendall(drop)
                        except OSError:
                            return

            thread = threading.Thread(target=stall)
            thread.start()
            try:
                with pytest.raises(TimeoutError, match="not answered within 0.3 seconds"):
                    RemoteSandbox(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=0.3)
            finally:
                over.set()
                thread.join()

    def test_refuses_a_server_of_another_version(self):
        with saying(greeting(version=2, more="things")) as url:
            with pytest.raises(ConnectionError, match="speaks version 2, and this is version 1. Install"):
                RemoteSandbox(url)

    @pytest.mark.parametrize(
        "answer",
        [
            (200, b"<html>"),
            (200, b"[" * 60_000),
            (200, b" " * 70_000),
            (200, b"[]"),
            (404, b"no such page"),
            (302, b""),
            (200, b'{"version": true, "limits": {}}'),
            greeting(limits={}),
            greeting(limits=limits_to(Limits()) | {"output_bytes": MAX_OUTPUT + 1}),
            greeting(limits=limits_to(Limits()) | {"cpu_seconds": float("inf")}),
            greeting(limits=limits_to(Limits()) | {"cpu_seconds": -1}),
            greeting(limits=limits_to(Limits()) | {"readable": [1]}),
        ],
        ids=lambda answer: answer[1][-20:].decode(),
    )
    def test_refuses_a_server_that_is_none_of_ours(self, answer):
        with saying(answer) as url:
            with pytest.raises(ConnectionError, match="not answered as a sandbox server does"):
                RemoteSandbox(url)

    GOOD = outcome_to(Outcome(Ending.FINISHED, "fine", (Answer(1),)))

    @pytest.mark.parametrize(
        "forged",
        [
            {},
            [],
            [GOOD, GOOD],
            [None],
            [GOOD | {"extra": 1}],
            [GOOD | {"ending": "won"}],
            [GOOD | {"output": 1}],
            [GOOD | {"output": "x" * 70_000}],
            [GOOD | {"output": "\ud800"}],
            [GOOD | {"error": "x" * 2000}],
            [GOOD | {"message": None}],
            [GOOD | {"cpu_seconds": float("nan")}],
            [GOOD | {"cpu_seconds": -1}],
            [GOOD | {"cpu_seconds": True}],
            [GOOD | {"answers": GOOD["answers"] * 2}],
            [GOOD | {"answers": []}],  # finished, and yet it has not answered
            [GOOD | {"answers": [{"value": "TgA=", "error": None}]}],  # `None`, and a byte too many
            [GOOD | {"answers": [{"value": "no base64", "error": None}]}],
            [GOOD | {"answers": [{"value": "Tg==", "error": 3}]}],
        ],
        ids=str,
    )
    def test_believes_no_outcome_that_a_sandbox_would_not_hand_over(self, forged):
        with saying(greeting(), (200, json.dumps(forged).encode())) as url, RemoteSandbox(url) as sandbox:
            with pytest.raises(ConnectionError, match="not answered as a sandbox server does"):
                sandbox.run([Job("", ("f()",))])

    def test_believes_no_value_larger_than_its_limits_allow(self):
        forged = []
        for size in (65_000, 66_000):  # of 65,536
            value = base64.b64encode(encode("x" * size, size + 5)).decode()
            forged.append((200, json.dumps([self.GOOD | {"answers": [{"value": value, "error": None}]}]).encode()))
        with saying(greeting(), *forged) as url, RemoteSandbox(url) as sandbox:
            assert sandbox.run([Job("", ("f()",))])[0].answers == (Answer("x" * 65_000),)
            with pytest.raises(ConnectionError, match="a value larger than its limits allow"):
                sandbox.run([Job("", ("f()",))])

    @pytest.mark.parametrize("change", [{"passed": 1}, {"ending": ""}, {"error": 0}, {"output": "\udfff"}], ids=str)
    def test_believes_no_verdict_that_a_sandbox_would_not_hand_over(self, change):
        forged = [verdict_to(Verdict(True)) | change]
        with saying(greeting(), (200, json.dumps(forged).encode())) as url, RemoteSandbox(url) as sandbox:
            with pytest.raises(ConnectionError, match="not answered as a sandbox server does"):
                sandbox.judge([Trial("", "", ())])

    def test_reads_no_more_than_an_answer_can_be(self):
        with saying(greeting(), (200, b" " * 2_000_000)) as url, RemoteSandbox(url) as sandbox:
            with pytest.raises(ConnectionError, match="more bytes than its limits allow"):
                sandbox.run([Job("")])

    def test_says_what_the_server_has_to_complain_of(self):
        with serving(Broken()) as server, RemoteSandbox(server.url) as sandbox:
            with pytest.raises(ConnectionError, match="failed with HTTP 500: RuntimeError: the helper is gone"):
                sandbox.run([Job("")])

    def test_runs_nothing_after_it_is_closed(self):
        with serving(Parrot()) as server:
            sandbox = RemoteSandbox(server.url)
            sandbox.close()
            sandbox.close()

            with pytest.raises(RuntimeError, match="closed"):
                sandbox.run([Job("")])


def post(server, content, path="/v1/run", **headers):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    try:
        connection.request("POST", path, content, {"Content-Type": "application/json"} | headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())["error"]
    finally:
        connection.close()


class TestSandboxServer:
    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "sandbox.example.org"])
    def test_is_open_to_other_machines_with_a_token_only(self, host):
        with pytest.raises(ValueError, match=f"Set a token in {TOKEN_VARIABLE}"):
            SandboxServer(Parrot(), Limits(), host)

    def test_refuses_limits_whose_answers_no_client_takes(self):
        with pytest.raises(ValueError, match="`output_bytes`"):
            SandboxServer(Parrot(), Limits(output_bytes=MAX_OUTPUT + 1))

    def test_listens_at_an_address_of_version_six(self):
        try:
            server = SandboxServer(Parrot(), Limits(), "::1")
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
        with running(server), RemoteSandbox(server.url) as sandbox:
            assert server.url.startswith("http://[::1]:")
            assert sandbox.run([Job("six")])[0].output == "six"

    @pytest.mark.parametrize(
        ("content", "headers", "why"),
        [
            ("[]", {"Content-Type": "text/plain"}, "application/json"),  # what a web page can send unasked
            ("[]", {"Content-Length": str(MAX_REQUEST + 1)}, "at most"),
            ("[]", {"Content-Length": "-1"}, "at most"),
            ("[]", {"Content-Length": "many"}, "length"),
            ("{}", {}, "not a list"),
            ("[", {}, "not JSON"),
            ('[{"code": ""}]', {}, "not an object of code, calls, hash_seed"),
            ('[{"code": "", "calls": [1], "hash_seed": 0}]', {}, "not only texts"),
            ('[{"code": "", "calls": [], "hash_seed": "0"}]', {}, "`hash_seed` of another type"),
        ],
    )
    def test_refuses_a_request_that_none_of_ours_sends(self, content, headers, why):
        parrot = Parrot()
        with serving(parrot) as server:
            status, error = post(server, content, **headers)

        assert status == 400
        assert why in error
        assert parrot.batches == []

    @pytest.mark.parametrize("port", [-1, 65536])
    def test_refuses_what_is_no_port(self, port):
        with pytest.raises(ValueError, match=f"`port` \\({port}\\) must be in"):
            SandboxServer(Parrot(), Limits(), port=port)

    @pytest.mark.parametrize("host", ["evil.example:8200", "192.0.2.1", "", "[", "127.0.0.1.evil.example"])
    def test_answers_to_its_own_machines_name_only_without_a_token(self, host):
        parrot = Parrot()
        with serving(parrot) as server:
            status, error = post(server, "[]", Host=host)

        assert status == 403
        assert "without a token" in error
        assert parrot.batches == []

    def test_answers_to_any_name_with_a_token(self):
        with serving(Parrot(), TOKEN) as server:
            status, _ = post(server, "{}", Host="sandbox.example:8200", Authorization=f"Bearer {TOKEN}")

        assert status == 400  # and not 403

    def test_runs_as_many_programs_at_a_time_as_there_are_workers(self):
        parrot = Parrot(workers=2)
        with serving(parrot) as server, RemoteSandbox(server.url) as sandbox:
            outcomes = sandbox.run([Job(f"{number}") for number in range(5)])

        assert [outcome.output for outcome in outcomes] == ["0", "1", "2", "3", "4"]
        assert parrot.batches == [2, 2, 1]

    def test_drops_what_nobody_waits_for(self):
        class Slow(Parrot):
            def __init__(self):
                super().__init__(workers=1)
                self.begun, self.go_on = threading.Event(), threading.Event()

            def run(self, jobs):
                self.begun.set()
                self.go_on.wait(10)
                return super().run(jobs)

        slow = Slow()
        body = json.dumps([{"code": code, "calls": [], "hash_seed": 0} for code in "abc"])
        server = SandboxServer(slow, Limits())
        server.daemon_threads = False  # so that to close it waits for requests
        with running(server):
            client = http.client.HTTPConnection(*server.server_address[:2])
            client.request("POST", "/v1/run", body, {"Content-Type": "application/json"})
            slow.begun.wait(10)
            client.close()
            slow.go_on.set()

        assert slow.batches == [1]

    def test_has_no_other_pages(self):
        with serving(Parrot()) as server:
            assert post(server, "[]", "/v2/run") == (404, "no such page; this sandbox server speaks version 1")

    def test_runs_nothing_for_whoever_has_no_token(self):
        parrot = Parrot()
        with serving(parrot, TOKEN) as server:
            refused = [post(server, "[]", **headers)[0] for headers in ({}, {"Authorization": f"Basic {TOKEN}"})]

        assert refused == [401, 401]
        assert parrot.batches == []


@contextmanager
def served_from_the_command_line(*options, **environment):
    program = "import sys; from trl_spiral.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "serve-sandbox", "--port", "0", "--workers", "1", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as process:
        try:
            url = process.stdout.readline().split(" asks at ")[1].split()[0].rstrip(".")
            yield process, url
        finally:
            process.kill()


class TestServeSandbox:
    @pytest.fixture(autouse=True)
    def contained(self):
        try:
            LocalSandbox(workers=1).close()
        except RuntimeError as error:
            pytest.skip(str(error))

    def test_runs_programs_until_it_is_told_to_end(self):
        with served_from_the_command_line("--memory-mb", "256", **{TOKEN_VARIABLE: TOKEN}) as (process, url):
            with RemoteSandbox(url, TOKEN) as sandbox:
                outcome = sandbox.run([Job("print(1)", ("{1, 2}",))])[0]
                limits = sandbox.limits
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=30)

        assert (outcome.output, outcome.answers) == ("1\n", (Answer({1, 2}),))
        assert limits == Limits(memory_mb=256)
        assert (process.returncode, said) == (0, "Ended.\n")

    def test_dies_in_the_middle_of_a_program_without_hanging_its_client(self):
        options = "--cpu-seconds", "60", "--wall-seconds", "60"
        with served_from_the_command_line(*options) as (process, url), RemoteSandbox(url) as sandbox:
            killer = threading.Timer(0.5, process.kill)
            killer.start()
            with pytest.raises(ConnectionError, match="cannot be reached"):
                sandbox.run([Job("while True: pass")])
            killer.join()

    def test_refuses_to_be_open_to_all(self, capsys):
        assert main(["serve-sandbox", "--host", "0.0.0.0"]) == 2

        error = capsys.readouterr().err
        assert error.startswith("trl-spiral serve-sandbox: `host` (0.0.0.0) can be reached from other machines")
        assert error.count("\n") == 1
