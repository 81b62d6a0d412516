"""Proxies, certificates and connections of the HTTP client."""

import shutil
import subprocess
from dataclasses import replace

import pytest

from tests.engines.http.test_openai import ASKED, ask, failed
from tests.engines.http.test_vllm_server import drain, request
from tests.helpers.completions_server import CompletionsServer
from tests.helpers.faulty_endpoint import FaultyEndpoint
from trl_spiral.engines.http import client
from trl_spiral.engines.http.openai import EndpointEngine
from trl_spiral.engines.http.vllm_server import ServerEngine


NOWHERE = "http://endpoint.invalid/v1"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def make(address, **changes):
    settings = dict(model="rival", api_key_env=None, max_retries=0, retry_delay=0.001, timeout=20.0)
    return EndpointEngine(address, **{**settings, **changes})


class TestProxy:
    def test_of_the_environment_is_used(self, monkeypatch):
        with FaultyEndpoint(None) as proxy:
            monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
            with make(NOWHERE) as engine:
                assert [reply.finish_reason for reply in ask(engine, 3)] == ["stop"] * 3
            assert proxy.seen == 3

    def test_is_not_used_for_hosts_in_no_proxy(self, monkeypatch):
        with FaultyEndpoint(None) as proxy, FaultyEndpoint(None) as server:
            monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            with make(f"http://{server.address}") as engine:
                ask(engine)
            assert (proxy.seen, server.seen) == (0, 1)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command, to make a certificate")
class TestCertificates:
    @pytest.fixture
    def certificate(self, tmp_path):
        path = tmp_path / "certificate.pem"
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
        extra = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", str(tmp_path / "public")]
        subprocess.run([*command.split(), *extra], check=True, capture_output=True)
        path.write_bytes(path.read_bytes() + (tmp_path / "public").read_bytes())
        return path

    @pytest.fixture(autouse=True)
    def read_again(self):
        client._tls.cache_clear()
        yield
        client._tls.cache_clear()

    def test_nothing_is_sent_to_an_endpoint_without_a_trusted_one(self, certificate, caplog):
        with FaultyEndpoint(None, certificate=certificate) as server:
            with make(f"https://{server.address}") as engine:
                assert ask(engine)[0].finish_reason == "lost"
                assert failed(engine) == {"hung_up": 1}
            assert server.seen == 0
        assert "certificate verify failed" in caplog.text

    def test_named_by_the_environment_are_trusted(self, certificate, monkeypatch):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with FaultyEndpoint(None, certificate=certificate) as server:
            with make(f"https://{server.address}") as engine:
                assert [reply.finish_reason for reply in ask(engine, 8)] == ["stop"] * 8
            assert server.seen == 8


class TestConnections:
    def test_are_as_many_as_requests_in_flight_and_are_reused(self):
        with CompletionsServer() as server, ServerEngine(server.url, "tiny", max_in_flight=256) as engine:
            server.gate.clear()
            for ticket in range(256):
                engine.add(ticket, request(seed=ticket))
            while server.at_once < 256:
                assert engine.poll(0.01) == []
            server.gate.set()
            drain(engine, 256)
            connections = engine.client.connections
            for ticket in range(8):
                engine.add(ticket, request(seed=ticket))
                engine.step()

            assert connections == engine.client.connections == 256

    def test_answers_are_not_logged(self, caplog):
        # The level at which the library logs each request and its headers.
        caplog.set_level(0)
        with CompletionsServer() as server, make(server.url) as engine:
            server.headers = {"X-Word": "abracadabra"}
            ask(engine, 2)

        assert "abracadabra" not in caplog.text
        assert [record for record in caplog.records if record.name.startswith("http")] == []

    def test_an_unused_engine_starts_no_thread(self, monkeypatch):
        monkeypatch.setattr(client.threading, "Thread", None)
        engine = make(NOWHERE)
        engine.close()

        with pytest.raises(RuntimeError, match="is closed"):
            engine.add(0, replace(ASKED))
