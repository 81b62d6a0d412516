from types import SimpleNamespace

import pytest
import torch

from trl_spiral.engines.local.memory import rows_that_fit


def model(device="cuda", **changes):
    """Return a stand-in with the shape of Qwen3-4B."""
    config = dict(num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128, hidden_size=2560)
    text = SimpleNamespace(**{**config, **changes})
    return SimpleNamespace(
        device=torch.device(device), dtype=torch.bfloat16, config=SimpleNamespace(get_text_config=lambda: text)
    )


@pytest.fixture
def free(monkeypatch):
    """40 GB free on the accelerator."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40e9, 80e9))


class TestRowsThatFit:
    def test_counts_keys_and_values(self, free):
        # 2 x 36 layers x 8 heads x 128 x 2 bytes = 147,456 bytes a token; 24e9 / (147,456 x 4,096) = 39.7.
        assert rows_that_fit(model(), 4096, most=512) == 39

    def test_returns_at_least_one_and_at_most_the_limit(self, free):
        assert rows_that_fit(model(), 16, most=512) == 512
        assert rows_that_fit(model(), 10**9, most=512) == 1

    def test_counts_all_heads_of_models_without_grouped_heads(self, free):
        old = model(num_key_value_heads=None, head_dim=None, num_attention_heads=20)

        # 2 x 36 x 20 x (2560 / 20) x 2 bytes.
        assert rows_that_fit(old, 1000, most=512) == int(24e9 / (2 * 36 * 20 * 128 * 2 * 1000))

    def test_returns_the_limit_on_a_cpu(self):
        assert rows_that_fit(model("cpu"), 10**9, most=512) == 512
