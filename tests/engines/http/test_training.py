"""Training against an endpoint that fails in every way: it continues, and never trains on the endpoint's replies."""

import logging
import re

import pytest

from tests.helpers.completions_server import CompletionsServer, troubled
from tests.helpers.training_runs import RecordingTrainer, config, games, history
from trl_spiral import EndpointEngine, EndpointPlayer, Opponents
from trl_spiral.evaluation.transcripts import write_transcripts
from trl_spiral.types import POLICY, Ending


KEY = "sk-planted-and-never-to-be-found"


def first_free(body):
    """Return a legal reply that contains the key, as from an endpoint that repeats its request."""
    moves = re.findall(r"'(\[\d\])'", body["messages"][-1]["content"].split("Available Moves")[1])
    return f"You are Bearer {KEY}. \\boxed{{{moves[0]}}}"


def versus(policy, seats, seed):
    """Seat the endpoint in half of the games, in both seats."""
    guest = EndpointPlayer("guest")
    return [(policy, policy), (policy, guest), (policy, policy), (guest, policy)][seed % 4]


@pytest.fixture
def server():
    with CompletionsServer(text=first_free) as server:
        yield server


@pytest.fixture
def engine(server, monkeypatch):
    monkeypatch.setenv("A_KEY", KEY)

    def engine(**changes):
        return EndpointEngine(server.url, "rival", api_key_env="A_KEY", retry_delay=0.001, max_retries=1, **changes)

    return engine


def train(model_dir, folder, guest, matchmaker=versus, **changes):
    trainer = RecordingTrainer(
        model_dir,
        config(folder, per_device_train_batch_size=32, **changes),  # enough games for every kind of failure
        games=games(["TicTacToe-v0"]),
        matchmaker=matchmaker,
        engines={"guest": guest},
    )
    trainer.train()
    return trainer


def played(trainer):
    """Return all episodes of a run by their counter."""
    return {episode.counter: episode for _, episodes, _ in trainer.batches for episode in episodes}


def lines(caplog, word):
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]


class TestTrainingAgainstAnEndpoint:
    def test_continues_after_any_failure_and_never_trains_on_its_replies(
        self, model_dir, tmp_path, server, engine, caplog, capfd
    ):
        caplog.set_level(logging.DEBUG)
        server.plan = troubled(0.5)
        changes = dict(save_strategy="steps", save_steps=4, log_completions=True)
        with engine() as guest:
            trainer = train(model_dir, tmp_path / "run", guest, **changes)
        episodes = played(trainer)
        lost = {counter for counter, episode in episodes.items() if episode.ending is Ending.PLAYER_LOST}
        logged = [metrics for _, _, metrics in trainer.batches]

        assert trainer.state.global_step == 8
        assert set(server.happened) == {"delay", "429", "500", "hang up", "rubbish"}
        # The server records the requests without a good answer. Each of them has ended one game.
        assert len(lost) == len(set(server.tries) - server.answered) > 0
        assert sum(metrics["selfplay/engine/guest/lost"] for metrics in logged) == len(lost)
        counts = [int(re.search(r"result: (\d+)\.", line)[1]) for line in lines(caplog, "were lost")]
        assert len(counts) <= len(logged) and sum(counts) == len(lost)
        kinds = {"too_many_requests": "429", "server_errors": "500", "hung_up": "hang up", "rubbish": "rubbish"}
        for kind, ours in kinds.items():
            assert sum(metrics[f"selfplay/engine/guest/{kind}"] for metrics in logged) == server.happened[ours]
        assert sum(metrics["selfplay/engine/guest/requests"] for metrics in logged) == len(server.seen)
        assert any("selfplay/engine/guest/lost" in entry for entry in history(trainer))

        rows = [row for batch, _, _ in trainer.batches for row in batch] + trainer.rollout.collector.kept
        assert not lost & {row.episode for row in rows}
        assert {episodes[row.episode].players[row.seat] for row in rows} == {POLICY}
        assert any("guest" in episodes[row.episode].players for row in rows)

        written = write_transcripts(list(episodes.values()), tmp_path / "run" / "transcripts")
        texts = [path.read_text() for path in written]
        files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
        out, err = capfd.readouterr()
        assert any("You are Bearer [key]." in text for text in texts)
        assert any("checkpoint-8" in str(path) for path in files)
        assert [path for path in files if KEY.encode() in path.read_bytes()] == []
        assert KEY not in f"{caplog.text}{out}{err}{trainer.state.log_history}{trainer.args}{guest!r}{episodes}"

    def test_continues_when_the_budget_is_spent(self, model_dir, tmp_path, server, engine, caplog):
        server.plan = troubled(0.2)
        with engine(max_requests=50) as guest:
            trainer = train(model_dir, tmp_path, guest, max_steps=24)
        _, last, metrics = trainer.batches[-1]
        asked = [
            episode
            for episode in last
            for seat in episode.trajectories
            if episode.players[seat.seat] == "guest" and seat.turns
        ]

        assert trainer.state.global_step == 24
        assert len(server.seen) == 50 and guest.spent
        assert {episode.ending for episode in asked} == {Ending.PLAYER_LOST}
        assert metrics["selfplay/engine/guest/lost"] == len(asked) > 0
        assert len(lines(caplog, "The budget of rival is spent: 50 of 50 requests")) == 1

    def test_the_endpoint_gets_no_seat_when_its_budget_is_spent(self, model_dir, tmp_path, server, engine, caplog):
        with engine(max_requests=20) as guest:
            opponents = Opponents(
                {"self": 0.5, "guest": 0.5}, players={"guest": EndpointPlayer("guest")}, engines={"guest": guest}
            )
            trainer = train(model_dir, tmp_path, guest, opponents, max_steps=12)

        assert len(server.seen) == 20
        assert all(episode.players == (POLICY, POLICY) for episode in trainer.batches[-1][1])
        assert len(lines(caplog, "budget")) == 1 + len(lines(caplog, "were lost"))
