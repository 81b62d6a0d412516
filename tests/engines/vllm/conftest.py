"""One server for all tests without special flags, since a start takes half a minute."""

import pytest


@pytest.fixture(scope="session")
def server(vllm_model_dir):
    """A server with the weights that a trainer sent last. A test that stops it restarts it."""
    from tests.helpers.vllm_server import vllm_server

    with vllm_server(vllm_model_dir) as server:
        yield server


@pytest.fixture(scope="module")
def fresh_server(server, vllm_model_dir):
    """The same server, reset to the weights of its folder."""
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
