"""Self-play with a real vLLM, in the trainer's process and behind a server, for whole weights and for adapters."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.training.test_two_ranks import Launched, command


pytestmark = pytest.mark.vllm

SCRIPT = Path(__file__).parents[2] / "helpers/training_runs.py"
GAMES = ("TicTacToe-v0", "Sum-v0")
# Largest difference between sampler and trainer after a sync, in nats.
FLOAT32, BFLOAT16 = 1e-5, 2e-2
RUN = dict(use_vllm=True, max_steps=8, vllm_max_model_length=1024)


class Ran:
    """One run and its results."""

    def __init__(self, folder, name, model, lora=None, plain=False, **changes):
        from trl.generation import vllm_generation
        from vllm_on_cpu.trainer import GlooVLLMClient

        from tests.helpers import training_runs
        from tests.helpers.vllm_in_process import trainer_with_vllm

        settings = {"output_dir": str(folder / name), **RUN, **changes}

        def make():
            if plain:
                return training_runs.plain_trainer(model, names=GAMES, **settings)[0]
            return training_runs.RecordingTrainer(
                model,
                training_runs.config(**settings),
                games=training_runs.games(GAMES),
                peft_config=training_runs.lora(**lora) if lora else None,
            )

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vllm_generation, "VLLMClient", GlooVLLMClient)
            with trainer_with_vllm(make) as trainer:
                trainer.train()
                self.history = training_runs.history(trainer)
                self.transcripts, self.batches = ([], []) if plain else (trainer.transcripts, trainer.batches)

    def logged(self, metric):
        return [entry[metric] for entry in self.history if metric in entry]

    def turns(self):
        """Yield every turn of the policy, with the step at which its batch was generated."""
        cycle = 4  # optimizer steps, as in `training_runs.config`
        for number, (_, episodes, _) in enumerate(self.batches):
            for episode in episodes:
                for seat in episode.trajectories:
                    for turn in seat.turns:
                        yield number * cycle, turn


@pytest.fixture(scope="module", params=["colocate", "colocate, adapters", "server", "server, adapters"])
def ran(request, vllm_model_dir, tmp_path_factory):
    mode, *adapters = request.param.split(", ")
    changes = dict(vllm_mode=mode)
    if mode == "server":
        changes["vllm_server_base_url"] = request.getfixturevalue("server").base_url
    folder = tmp_path_factory.mktemp("vllm")
    return Ran(folder, "run", vllm_model_dir, lora={"r": 8} if adapters else None, **changes)


class TestTraining:
    def test_samples_with_the_trainers_weights(self, ran):
        differences = ran.logged("selfplay/logprob_difference/max")

        assert len(differences) == 2  # cycles
        assert max(differences) < FLOAT32

    def test_has_changed_the_weights_by_the_second_batch(self, ran, vllm_model_dir):
        """Otherwise the test above would hold without any sync."""
        import torch
        from transformers import AutoModelForCausalLM

        from tests.helpers.vllm_in_process import trainer_logprobs

        at_first = AutoModelForCausalLM.from_pretrained(vllm_model_dir, dtype=torch.float32).eval()
        differences = {0: 0.0, 4: 0.0}
        for step, turn in ran.turns():
            known = trainer_logprobs(at_first, turn.prompt_ids, turn.completion_ids)
            difference = max(abs(ours - theirs) for ours, theirs in zip(turn.logprobs, known, strict=True))
            differences[step] = max(differences[step], difference)

        assert differences[0] < FLOAT32
        assert differences[4] > 1000 * FLOAT32

    def test_records_the_version_of_the_weights(self, ran):
        assert all(turn.version == step for step, turn in ran.turns())

    def test_keeps_all_sampled_rows(self, ran):
        kept = 0
        for rows, episodes, metrics in ran.batches:
            written = sum(len(seat.turns) for episode in episodes for seat in episode.trajectories)
            assert len(rows) == 16
            assert metrics["selfplay/carried_rows"] == kept
            kept += written - len(rows)
            assert metrics["selfplay/kept_rows"] == kept

    def test_logs_the_metrics_of_the_engine(self, ran):
        assert min(ran.logged("selfplay/engine/new_tokens")) > 0


class TestPlainTrainer:
    @pytest.mark.parametrize("mode", ["colocate", "server"])
    def test_plays_through_vllm(self, mode, request, vllm_model_dir, tmp_path):
        changes = dict(vllm_mode=mode, max_steps=2)
        if mode == "server":
            changes["vllm_server_base_url"] = request.getfixturevalue("server").base_url
        ran = Ran(tmp_path, "plain", vllm_model_dir, plain=True, **changes)

        # TRL's own metric, over all rows: none is left over from an earlier batch. Its colocated engine uses bfloat16.
        differences = ran.logged("sampling/sampling_logp_difference/mean")
        assert len(differences) == 2
        assert max(differences) < (FLOAT32 if mode == "server" else BFLOAT16)
        assert min(ran.logged("selfplay/games")) > 0


class TestColocate:
    def test_plays_the_same_games_twice(self, vllm_model_dir, tmp_path):
        first, second = (
            Ran(tmp_path, name, vllm_model_dir, vllm_mode="colocate", max_steps=4) for name in ("first", "second")
        )

        assert first.transcripts == second.transcripts
        assert first.history == second.history

    def test_is_close_to_the_trainer_in_bfloat16(self, vllm_model_dir, tmp_path):
        ran = Ran(tmp_path, "bf16", vllm_model_dir, vllm_mode="colocate", bf16=True)
        # The worst token of a batch reaches 0.022. The lower bound shows that the run used bfloat16.
        assert FLOAT32 < max(ran.logged("selfplay/logprob_difference/mean")) < BFLOAT16
        assert max(ran.logged("selfplay/logprob_difference/max")) < 2 * BFLOAT16

    # vLLM 0.31 passes a deprecated argument to xgrammar 0.2, in the thread that compiles a constraint.
    @pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated:DeprecationWarning")
    def test_trains_on_constrained_moves(self, vllm_model_dir, tmp_path):
        ran = Ran(
            tmp_path, "legal", vllm_model_dir, vllm_mode="colocate", constrain_moves=True, max_completion_length=16
        )

        assert max(ran.logged("selfplay/illegal_rate")) == 0
        # TRL weights each token by the trainer's probability over the sampler's, which the constraint raises.
        ratios = ran.logged("sampling/importance_sampling_ratio/mean")
        assert max(ratios) < 1
        assert max(ran.logged("sampling/importance_sampling_ratio/max")) < 1 + 1e-4


class TestTensorParallelism:
    """Two ranks that share one engine."""

    def test_ranks_play_identical_games_and_divide_the_rows(self, vllm_model_dir, tmp_path):
        config = dict(
            output_dir=str(tmp_path / "run"),
            **{**RUN, "vllm_mode": "colocate"},
            vllm_tensor_parallel_size=2,
        )
        (tmp_path / "run.json").write_text(
            json.dumps([dict(name="run", model=vllm_model_dir, games=GAMES, config=config)])
        )
        # Not forks: vLLM's shared memory between two ranks hangs in forks of a process that has run torch.
        done = subprocess.run(
            command(SCRIPT, tmp_path / "run.json"),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "GLOO_SOCKET_IFNAME": "lo"},
            timeout=300,
        )

        assert done.returncode == 0, done.stderr
        ran = Launched(tmp_path, "run")
        assert ran.ranks[0]["transcripts"] == ran.ranks[1]["transcripts"]
        assert ran.ranks[0]["history"] == ran.ranks[1]["history"]
        for (first, _, _), (second, _, _) in zip(*ran.batches, strict=True):
            assert (len(first), len(second)) == (16, 16)
            assert len({(row.episode, row.seat, tuple(row.prompt_ids)) for row in first + second}) == 32
        differences = [
            entry["selfplay/logprob_difference/max"]
            for entry in ran.ranks[0]["history"]
            if "selfplay/logprob_difference/max" in entry
        ]
        assert len(differences) == 2
        assert max(differences) < FLOAT32
