"""Training against snapshots with a real vLLM: every turn comes from the policy that it names."""

import pytest

from tests.engines.vllm.test_training import FLOAT32, Ran


pytestmark = pytest.mark.vllm

ADAPTER = {"r": 8}
RUN = dict(
    per_device_train_batch_size=32,
    max_steps=12,
    opponents="self:0.3,pool:0.5,base:0.2",
    pool_every=2,
    pool_capacity=6,
    learning_rate=0.02,
)


@pytest.fixture(scope="module", params=["colocate, adapters", "server, adapters", "colocate"])
def ran(request, vllm_model_dir, tmp_path_factory):
    mode, *adapters = request.param.split(", ")
    folder = tmp_path_factory.mktemp("vllm_pool")
    changes = dict(RUN, vllm_mode=mode)
    if mode == "colocate":
        return folder, Ran(folder, "run", vllm_model_dir, lora=ADAPTER if adapters else None, **changes)
    from tests.helpers.vllm_server import vllm_server

    with vllm_server(vllm_model_dir, enable_lora=True, max_loras=4, max_lora_rank=8) as server:
        changes["vllm_server_base_url"] = server.base_url
        return folder, Ran(folder, "run", vllm_model_dir, lora=ADAPTER, **changes)


def models(folder, model_dir):
    """Return models by policy name, loaded from the folder of the pool."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def load(path):
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    found = {"base": load(model_dir)}
    for path in (folder / "run" / "opponents").glob("step-*"):
        whole = not (path / "adapter_config.json").exists()
        found[path.name] = load(path) if whole else PeftModel.from_pretrained(load(model_dir), path).eval()
    return found


class TestOpponents:
    def test_play_games(self, ran):
        _, run = ran
        met = {name for _, episodes, _ in run.batches for episode in episodes for name in episode.players}

        assert met >= {"policy", "base", "step-4", "step-6"}

    def test_generate_their_own_turns(self, ran, vllm_model_dir):
        from tests.helpers.vllm_in_process import trainer_logprobs

        folder, run = ran
        known = models(folder, vllm_model_dir)
        checked = dict.fromkeys(known, 0)
        difference = 0.0
        for _, episodes, _ in run.batches:
            for turn in (turn for e in episodes for seat in e.trajectories for turn in seat.turns):
                if turn.policy not in known:
                    continue
                own = trainer_logprobs(known[turn.policy], turn.prompt_ids, turn.completion_ids)
                assert max(abs(a - b) for a, b in zip(turn.logprobs, own, strict=True)) < 10 * FLOAT32
                checked[turn.policy] += 1
                if turn.policy != "base":
                    base = trainer_logprobs(known["base"], turn.prompt_ids, turn.completion_ids)
                    difference = max(difference, *(abs(a - b) for a, b in zip(turn.logprobs, base, strict=True)))

        assert checked["base"] > 5
        assert sum(number for name, number in checked.items() if name != "base") > 5
        assert difference > 1000 * FLOAT32

    def test_the_policy_still_samples_with_the_trainers_weights(self, ran):
        _, run = ran

        assert max(run.logged("selfplay/logprob_difference/max")) < 10 * FLOAT32

    def test_switches_are_counted(self, ran, request):
        _, run = ran
        whole_weights = "adapters" not in request.node.callspec.params["ran"]
        switches = [
            value
            for entry in run.history
            for name, value in entry.items()
            if name.startswith("selfplay/engine") and name.endswith("weight_switches")
        ]

        assert len(switches) == 3
        if whole_weights:
            assert max(switches) > 2  # the policies take turns
        else:
            assert switches == [0, 0, 0]
