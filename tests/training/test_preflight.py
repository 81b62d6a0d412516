"""
Wrong input is refused in one sentence, before any weights are loaded.

The model folder contains only a tokenizer, so an attempt to load weights would fail with another message.
"""

import importlib.util
import time

import pytest

from tests.helpers.training_runs import config
from trl_spiral import SpiralConfig, SpiralTrainer


@pytest.fixture(scope="module")
def no_weights(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("no_weights")
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def fast():
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 5.0


def one_line(error):
    """Return the message, which must be one line and end like a sentence."""
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith((".", "?")), message
    return message


class TestConfig:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (dict(games=["TicTacToe"]), "There is no game called 'TicTacToe'. Did you mean 'TicTacToe-v0'"),
            (dict(games=["tictactoe-v0"]), "Did you mean 'TicTacToe-v0'"),
            (dict(games=["Chess-v0"]), "There is no game called 'Chess-v0'."),
            (dict(games=["$%&"]), "`trl-spiral games` lists them all"),
            (dict(games=[]), "`games` is empty: name at least one game."),
            (
                dict(per_device_train_batch_size=3, steps_per_generation=1),
                "generation_batch_size (3) must be divisible by num_generations (2).",
            ),
            (
                dict(generation_batch_size=10, steps_per_generation=None, per_device_train_batch_size=8),
                "generation_batch_size (10) must be divisible by the global batch size (8).",
            ),
            (dict(num_generations=1), "`num_generations` (1) must be at least 2"),
            (dict(num_generations=None), "`num_generations` (None) must be at least 2"),
            (dict(advantage_estimator="gae"), "`advantage_estimator` ('gae') must be one of 'role', 'batch', 'group'"),
            (dict(sample_unit="game"), "`sample_unit` ('game') must be 'turn' or 'trajectory'."),
            (dict(prompt_style="qwen"), "`prompt_style` ('qwen') must be 'chat' or one of 'qwen3', "),
            (dict(advantage_kwargs={"decay": 1.0}), "`decay` (1.0) must be in [0, 1)"),
            (dict(advantage_kwargs={"decay": -0.1}), "`decay` (-0.1) must be in [0, 1)"),
            (dict(advantage_kwargs={"discount": 0.0}), "`discount` (0.0) must be in (0, 1]"),
            (dict(advantage_kwargs='{"discount": 1.1}'), "`discount` (1.1) must be in (0, 1]"),
            (
                dict(advantage_kwargs={"trace": 1.0}),
                "`advantage_kwargs` names 'trace'; it takes decay, discount, per_",
            ),
            (dict(advantage_estimator="position", advantage_kwargs={"trace": 2.0}), "`trace` (2.0) must be in [0, 1]"),
            (dict(advantage_estimator="position", advantage_kwargs={"rate": 0.0}), "`rate` (0.0) must be in (0, 1]"),
            (
                dict(advantage_estimator="position", advantage_kwargs={"rivals": ["Kuhn-v0"]}),
                "`advantage_kwargs` names 'rivals'; it takes trace, rate, discount.",
            ),
            (
                dict(advantage_estimator="group"),
                "`games_per_start` (1) in `advantage_kwargs` must be at least 2 for `advantage_estimator='group'`",
            ),
            (dict(forfeit=[-1.0, 0.5, 0.5]), "`forfeit` ([-1.0, 0.5, 0.5]) must be one or two numbers"),
            (dict(forfeit=[]), "`forfeit` ([]) must be one or two numbers"),
            (dict(scale_rewards="group"), "`scale_rewards` ('group') must be 'none'"),
            (dict(scale_rewards=True), "`scale_rewards` ('group') must be 'none'"),
            (dict(opening_moves=-1), "`opening_moves` (-1) must be at least 0."),
            (dict(max_draw_retries=-1), "`max_draw_retries` (-1) must be at least 0."),
            (dict(games_in_flight=0), "`games_in_flight` (0) must be at least 1, or unset."),
            (dict(vllm_engine_kwargs={"dtype": "float32"}), "`vllm_engine_kwargs` are for an engine that the trainer"),
            (
                dict(use_vllm=True, vllm_mode="server", vllm_engine_kwargs={"dtype": "float32"}),
                "`vllm_engine_kwargs` are for an engine that the trainer",
            ),
            (dict(eval_sampling={"heat": 1}), "`eval_sampling` names 'heat'; it takes temperature, top_p,"),
            (dict(generation_kwargs={"seed": 1}), "`generation_kwargs` must not set 'seed': every reply has"),
            (dict(generation_kwargs={"temperature": 1}), "`generation_kwargs` must not set 'temperature': every"),
            (
                dict(constrain_moves=True),
                "`constrain_moves` needs `use_vllm` and `vllm_importance_sampling_correction`",
            ),
            (
                dict(use_vllm=True, constrain_moves=True, vllm_importance_sampling_correction=False),
                "`constrain_moves` needs `use_vllm` and `vllm_importance_sampling_correction`",
            ),
            (
                dict(use_vllm=True, constrain_moves=True, vllm_structured_outputs_regex="x"),
                "`constrain_moves` and `vllm_structured_outputs_regex` both constrain a reply.",
            ),
            (
                dict(use_vllm=True, top_p=0.9, vllm_importance_sampling_correction=False),
                "vLLM's log-probabilities of filtered sampling",
            ),
            (
                dict(use_vllm=True, generation_kwargs={"top_p": 0.9}, vllm_importance_sampling_correction=False),
                "vLLM's log-probabilities of filtered sampling",
            ),
            (
                dict(use_vllm=True, vllm_structured_outputs_regex="x", vllm_importance_sampling_correction=False),
                "vLLM's log-probabilities of filtered sampling",
            ),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
    )
    def test_refuses_wrong_options(self, changes, message, tmp_path):
        with pytest.raises(ValueError) as error:
            config(tmp_path, **changes)

        assert message in one_line(error)

    def test_refuses_before_anything_is_written(self, tmp_path):
        with pytest.raises(ValueError):
            SpiralConfig(str(tmp_path / "out"), games=["Chess-v0"])

        assert not (tmp_path / "out").exists()


class TestTrainer:
    def test_a_missing_model(self, tmp_path):
        with pytest.raises(ValueError) as error:
            SpiralTrainer(str(tmp_path / "nothing"), config(tmp_path / "out"))

        assert "neither a folder nor a model on the Hub" in one_line(error)

    def test_a_folder_without_a_tokenizer(self, tmp_path):
        (tmp_path / "empty").mkdir()
        with pytest.raises(ValueError) as error:
            SpiralTrainer(str(tmp_path / "empty"), config(tmp_path / "out"))

        assert "has no readable tokenizer" in one_line(error)

    def test_no_chat_template_and_no_prompt_style(self, no_weights, tmp_path):
        from transformers import AutoTokenizer

        base = AutoTokenizer.from_pretrained(no_weights)
        base.chat_template = None
        base.save_pretrained(tmp_path / "base")
        (tmp_path / "base" / "chat_template.jinja").unlink(missing_ok=True)
        with pytest.raises(ValueError) as error:
            SpiralTrainer(str(tmp_path / "base"), config(tmp_path / "out"))

        assert "no chat template, and `prompt_style` is 'chat'. Choose a style for base models: 'qwen3'" in one_line(
            error
        )

    @pytest.mark.parametrize("below", ["file", "file/deeper"])
    def test_an_output_folder_that_cannot_be_written(self, below, no_weights, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError) as error:
            SpiralTrainer(no_weights, config(tmp_path / below))

        assert "Cannot write to the output folder" in one_line(error)
        assert "Choose another `output_dir`." in str(error.value)

    def test_a_launcher_with_more_processes_than_the_trainer_sees(self, no_weights, tmp_path, monkeypatch):
        settings = config(tmp_path / "out")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ValueError) as error:
            SpiralTrainer(no_weights, settings)

        assert "The launcher started 2 processes and the trainer sees 1." in one_line(error)

    @pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is there")
    def test_vllm_that_is_not_installed(self, no_weights, tmp_path):
        with pytest.raises(ImportError) as error:
            SpiralTrainer(no_weights, config(tmp_path / "out", use_vllm=True))

        assert "`use_vllm` is set and vLLM is not installed" in one_line(error)

    def test_sync_ref_model_with_an_adapter(self, no_weights, tmp_path):
        from peft import LoraConfig

        settings = config(tmp_path / "out", beta=0.1, sync_ref_model=True)
        with pytest.raises(ValueError) as error:
            SpiralTrainer(no_weights, settings, peft_config=LoraConfig())

        assert "`sync_ref_model` needs a separate reference model, and with an adapter (`use_peft`)" in one_line(error)

    def test_weights_are_loaded_last(self, no_weights, tmp_path):
        # Nothing else is wrong here, and the folder has no weights: this is what the cases above never came to.
        with pytest.raises((OSError, ValueError)) as error:
            SpiralTrainer(no_weights, config(tmp_path / "out"))

        assert "tokenizer" not in str(error.value).split("\n")[0]
