"""Models from disk or the Hub that answer without a trainer: when their replies end, and which weights write them."""

import sys

import pytest
import torch
from accelerate.utils import is_peft_model
from peft import PeftModel
from transformers import AutoTokenizer, GenerationConfig, Qwen3ForCausalLM

from tests.helpers import forks
from tests.helpers.hub_server import HubServer
from tests.helpers.lora_policies import lora_model
from trl_spiral.engines.load import saved_player
from trl_spiral.types import Request, Sampling


GREEDY = Sampling(max_new_tokens=8, temperature=0.0)
PROMPT = (20, 21, 22, 23)


def reply_of(path):
    """What a saved model says, and its engine's metrics."""
    player, engine = saved_player(str(path), GREEDY)
    engine.add(0, Request(PROMPT, GREEDY, player.policy))
    ((_, reply),) = engine.step()
    return reply, engine.metrics()


@pytest.fixture
def adapter(model_dir, tmp_path):
    """Folder of an adapter."""
    torch.manual_seed(0)
    lora_model(model_dir).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def greedy_reply(model):
    """By a model's own `generate`."""
    config = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    return model.eval().generate(torch.tensor([PROMPT]), generation_config=config)[0, len(PROMPT) :].tolist()


class TestEnds:
    def test_are_the_tokenizers_and_the_models(self, model_dir, tmp_path):
        model, tokenizer = Qwen3ForCausalLM.from_pretrained(model_dir), AutoTokenizer.from_pretrained(model_dir)
        first = greedy_reply(model)[0]
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, first]
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        reply, _ = reply_of(tmp_path)

        assert reply.completion_ids == (first,)
        assert reply.finish_reason == "stop"


class TestWeights:
    def test_are_in_place_from_the_start(self, model_dir):
        _, metrics = reply_of(model_dir)

        assert metrics["weight_switches"] == 0

    def test_of_an_adapter_stand_on_its_base(self, model_dir, adapter):
        told = PeftModel.from_pretrained(Qwen3ForCausalLM.from_pretrained(model_dir), adapter)
        reply, _ = reply_of(adapter)

        assert list(reply.completion_ids) == greedy_reply(told)
        assert list(reply.completion_ids) != greedy_reply(Qwen3ForCausalLM.from_pretrained(model_dir))

    def test_of_an_adapter_on_the_hub_stand_on_its_base(self, adapter, tmp_path):
        script = (
            "import sys\nfrom huggingface_hub import HfApi\nfrom tests.engines.test_load import reply_of\n"
            "HfApi().create_repo('tester/adapter')\n"
            "HfApi().upload_folder(repo_id='tester/adapter', folder_path=sys.argv[1])\n"
            "print(*reply_of('tester/adapter')[0].completion_ids)\n"
        )
        with HubServer() as hub:
            done = forks.run([sys.executable, "-c", script, adapter], env=hub.environment(tmp_path))

        assert done.returncode == 0, done.stderr
        assert list(map(int, done.stdout.split())) == list(reply_of(adapter)[0].completion_ids)


class TestModelsThatTransformersGaveAnAdapter:
    """`AutoModelForCausalLM` puts an adapter into the layers itself, and makes no PEFT model of it."""

    def test_are_answered_for_as_they_are(self, model_dir, adapter):
        from transformers import AutoModelForCausalLM

        from trl_spiral.engines.local.second_copy import FrozenCopy
        from trl_spiral.engines.local.transformers import TransformersEngine, generation_config

        model = AutoModelForCausalLM.from_pretrained(adapter).eval()
        assert model.peft_config and not isinstance(model, PeftModel)
        engine = TransformersEngine(model, generation_config(model, AutoTokenizer.from_pretrained(model_dir)))
        engine.add(0, Request(PROMPT, GREEDY))
        ((_, reply),) = engine.step()

        assert list(reply.completion_ids) == greedy_reply(model)
        # No layer of it is taken for one that is shared: what is trained of it may be anything.
        shared = {p.data_ptr() for p in FrozenCopy(model).model.parameters()} & {
            p.data_ptr() for p in model.parameters()
        }
        assert not shared
        assert not is_peft_model(model)
