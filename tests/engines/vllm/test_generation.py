"""Weight updates of the colocated vLLM generation, in a real trainer."""

import pytest

from trl_spiral.types import Request, Sampling


pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def trainer(vllm_model_dir, tmp_path_factory):
    """A trainer after four steps. vLLM has the weights of the first, since TRL syncs when it generates."""
    from tests.helpers.training_runs import RecordingTrainer, config, games
    from tests.helpers.vllm_in_process import trainer_with_vllm

    settings = config(
        tmp_path_factory.mktemp("colocated"),
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=1024,
        max_steps=4,
        vllm_engine_kwargs={"max_num_seqs": 7},
    )
    with trainer_with_vllm(lambda: RecordingTrainer(vllm_model_dir, settings, games=games(["Sum-v0"]))) as trainer:
        trainer.train()
        yield trainer


@pytest.fixture
def row(trainer):
    return trainer.rollout.batch.rows[0]


def max_difference(trainer, reply, prompt):
    """Return the largest difference between a reply's log-probabilities and the trainer's."""
    from tests.helpers.vllm_in_process import trainer_logprobs

    trainer.model.eval()
    known = trainer_logprobs(trainer.model, prompt, reply.completion_ids)
    return max(abs(ours - theirs) for ours, theirs in zip(reply.logprobs, known, strict=True))


def answer(engine, prompt):
    engine.add(0, Request(tuple(prompt), Sampling(max_new_tokens=8), seed=1))
    ((_, reply),) = engine.step()
    return reply


class TestEngineArguments:
    def test_reach_vllm(self, trainer):
        config = trainer.vllm_generation.llm.llm_engine.vllm_config

        assert config.scheduler_config.max_num_seqs == 7
        assert config.cache_config.block_size == 32
        assert config.cache_config.enable_prefix_caching
        assert str(config.model_config.dtype) == "torch.float32"


class TestWeights:
    def test_are_synced_before_a_callback_plays(self, trainer, row):
        from trl_spiral import _trl
        from trl_spiral.engines.vllm.colocated import VLLMEngine

        assert trainer._last_loaded_step < trainer.state.global_step
        stale = answer(VLLMEngine(trainer.vllm_generation.llm), row.prompt_ids)
        assert max_difference(trainer, stale, row.prompt_ids) > 1e-3
        with _trl.open_engine(trainer) as engine:
            fresh = answer(engine, row.prompt_ids)

        assert max_difference(trainer, fresh, row.prompt_ids) < 1e-5
        assert fresh.version == trainer.state.global_step == 4

    def test_do_not_change_while_requests_are_in_flight(self, trainer, row):
        from trl_spiral.engines.vllm.colocated import VLLMEngine

        engine = VLLMEngine(trainer.vllm_generation.llm)
        engine.add(0, Request(tuple(row.prompt_ids), Sampling(max_new_tokens=8)))
        with pytest.raises(RuntimeError, match="Weights cannot change while 1 requests are in flight"):
            trainer.vllm_generation.sync_weights()
        engine.abort([0])

        trainer.vllm_generation.sync_weights()

    def test_fail_to_change_if_the_prefix_cache_is_kept(self, trainer, monkeypatch):
        monkeypatch.setattr(trainer.vllm_generation.llm, "reset_prefix_cache", lambda: False)
        with pytest.raises(RuntimeError, match="vLLM declined to drop its prefix cache after its weights had changed"):
            trainer.vllm_generation.sync_weights()

    def test_clear_the_prefix_cache_when_they_change(self, trainer, row):
        import torch

        from trl_spiral import _trl

        prompt = (list(row.prompt_ids) * 8)[:200]  # several blocks
        with _trl.open_engine(trainer) as engine:
            answer(engine, prompt)
            engine.metrics()
            answer(engine, prompt)
            assert engine.metrics()["cached_prompt_share"] > 0.5
            with torch.no_grad():
                for parameter in trainer.model.parameters():
                    parameter.add_(0.02 * torch.ones_like(parameter))
            trainer.vllm_generation.sync_weights()
            reply = answer(engine, prompt)

            assert engine.metrics()["cached_prompt_share"] == 0
        assert max_difference(trainer, reply, prompt) < 1e-5
