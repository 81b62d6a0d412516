"""Two ranks with a real vLLM server: failures of the server and of its replies."""

import json
import threading
import time

import pytest

from tests.helpers.faulty_proxy import faulty_proxy
from tests.training.test_two_ranks import SCRIPT, Launched, launch


pytestmark = pytest.mark.vllm

GAMES = ("TicTacToe-v0", "Sum-v0")
# Seconds from a failure to the end of all ranks, including 30 seconds of retries.
PATIENCE = 60
# Rows per batch of both ranks, and approximately the completions per batch.
BATCH = 32


@pytest.fixture
def proxy(server):
    with faulty_proxy(server.base_url) as proxy:
        yield proxy


def run(folder, model, proxy, patience=30, **changes):
    """Run two ranks for eight steps, which use two batches."""
    import vllm_on_cpu.trainer  # noqa: F401  # imported once here, instead of in each fork

    import tests.helpers.training_runs  # noqa: F401

    config = dict(
        output_dir=str(folder / "run"),
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=proxy.base_url,
        max_steps=8,
    )
    settings = dict(name="run", model=model, games=GAMES, config={**config, **changes}, patience=patience)
    (folder / "run.json").write_text(json.dumps([settings]))
    return launch(SCRIPT, folder / "run.json"), time.monotonic()


class Clock:
    """Time of an event."""

    def __init__(self):
        self.time = None

    def start(self):
        self.time = time.monotonic()


class TestServer:
    def test_a_failure_of_ten_seconds_is_retried(self, vllm_model_dir, proxy, tmp_path):
        proxy.at[BATCH // 2] = lambda: setattr(proxy, "fail_for", 10.0)
        done, _ = run(tmp_path, vllm_model_dir, proxy)

        assert done.returncode == 0, done.stderr
        assert proxy.failures > 1
        ran = Launched(tmp_path, "run")
        assert ran.ranks[0]["history"] == ran.ranks[1]["history"]
        # One reply for each turn, despite retries.
        turns = sum(
            len(seat.turns)
            for batches in ran.batches
            for _, episodes, _ in batches
            for episode in episodes
            for seat in episode.trajectories
        )
        assert proxy.completions == turns

    def test_a_dead_server_ends_the_run_on_both_ranks(self, vllm_model_dir, server, proxy, tmp_path):
        clock = Clock()

        def die():
            clock.start()
            server.kill()

        proxy.at[BATCH // 2] = die
        try:
            done, ended = run(tmp_path, vllm_model_dir, proxy)
        finally:
            server.restart()

        assert done.returncode != 0
        assert f"The server at {proxy.base_url} has answered nothing for 30 seconds" in done.stderr
        assert ended - clock.time < PATIENCE

    def test_a_restarted_server_receives_the_weights_again(self, vllm_model_dir, server, proxy, tmp_path):
        """The restart is in the second batch, when the weights differ from those of the server's folder."""
        threads = []

        def restart():
            threads.append(threading.Thread(target=server.restart))
            threads[0].start()

        proxy.at[BATCH * 2] = restart
        # A restart takes about 20 seconds, and longer on a busy machine.
        done, _ = run(tmp_path, vllm_model_dir, proxy, patience=120)
        for thread in threads:
            thread.join()

        assert threads
        assert done.returncode == 0, done.stderr
        assert "has restarted" in done.stderr
        ran = Launched(tmp_path, "run")
        differences = [
            entry["selfplay/logprob_difference/max"]
            for entry in ran.ranks[0]["history"]
            if "selfplay/logprob_difference/max" in entry
        ]
        assert len(differences) == 2
        assert max(differences) < 1e-5

    def test_missing_log_probabilities_end_the_run(self, vllm_model_dir, proxy, tmp_path):
        clock = Clock()

        def spoil(answer):
            if clock.time is None and proxy.completions > BATCH // 2:
                clock.start()
                answer["choices"][0]["logprobs"]["token_logprobs"].pop()

        proxy.spoil = spoil
        done, ended = run(tmp_path, vllm_model_dir, proxy)

        assert done.returncode != 0
        assert f"{proxy.base_url}/v1/completions answered with" in done.stderr
        assert "There must be one for each" in done.stderr
        assert "has failed, and this rank stops with it" in done.stderr
        assert ended - clock.time < PATIENCE


class TestTwoRanks:
    def test_lose_no_rows_and_log_equal_metrics(self, vllm_model_dir, proxy, tmp_path):
        done, _ = run(tmp_path, vllm_model_dir, proxy, max_steps=20)

        assert done.returncode == 0, done.stderr
        ran = Launched(tmp_path, "run")
        assert ran.ranks[0]["estimator"] == ran.ranks[1]["estimator"]
        assert ran.ranks[0]["history"] == ran.ranks[1]["history"]
        for batches in ran.batches:
            kept = 0
            for rows, episodes, _ in batches:
                written = sum(len(seat.turns) for episode in episodes for seat in episode.trajectories)
                kept += written - len(rows)
                assert kept >= 0
            assert len(batches) == 5
        logged = [entry for entry in ran.ranks[0]["history"] if "selfplay/kept_rows" in entry]
        for number, entry in enumerate(logged[: len(ran.batches[0])]):
            own = [batches[number][2]["selfplay/kept_rows"] for batches in ran.batches]
            assert entry["selfplay/kept_rows"] == sum(own) / 2
