"""One server for all tests that need nothing special of theirs: it takes half a minute to start."""

import pytest


@pytest.fixture(scope="session")
def server(vllm_model_dir):
    """A server whose weights are those that a trainer sent last. A test that ends it starts it again."""
    from tests.helpers.vllm_server import vllm_server

    with vllm_server(vllm_model_dir) as server:
        yield server


@pytest.fixture(scope="module")
def fresh_server(server, vllm_model_dir):
    """The same server, with the weights of its folder."""
    import torch
    from transformers import AutoModelForCausalLM
    from vllm_on_cpu.trainer import GlooVLLMClient

    client = GlooVLLMClient(base_url=server.base_url)
    client.init_communicator()
    client.update_model_params(AutoModelForCausalLM.from_pretrained(vllm_model_dir, dtype=torch.float32))
    client.reset_prefix_cache()
    client.close_communicator()
    client.session.close()
    return server
