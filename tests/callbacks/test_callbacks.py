"""
Callbacks in trainers of TRL: `SFTTrainer`, `GRPOTrainer` with its own generation, and `GRPOTrainer` with our rollout.

`tests/opponents/test_pool_training.py` and `tests/recipes/test_recipes.py` test them in `SpiralTrainer`.
"""

import logging
import shutil
import signal
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from tests.helpers.strategy_models import reply_model
from tests.helpers.training_runs import KillAt, StopAt, history, lora
from tests.training.test_resume import forked
from trl_spiral import OpponentPool, SelfPlayRollout, SelfPlaySettings
from trl_spiral.callbacks import OpponentPoolCallback, SelfPlayProgressCallback, TicTacToeCallback, TranscriptCallback
from trl_spiral.callbacks.pool import write_adapter
from trl_spiral.callbacks.trainer_policy import check_can_play, renderer_of
from trl_spiral.games import get_game
from trl_spiral.opponents import Opponents, Played
from trl_spiral.opponents.pool import INDEX
from trl_spiral.selfplay.advantages import ReturnsOnly
from trl_spiral.types import POLICY


SETTINGS = dict(
    per_device_train_batch_size=8,
    max_steps=6,
    learning_rate=1e-2,  # large, so that every step shows in the weights of a tiny model
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    disable_tqdm=True,
    # Dropout draws from torch's generator at every step: a callback that used it would change every later number.
    model_init_kwargs={"attention_dropout": 0.1, "dtype": "float32"},
)
SAVING = dict(save_strategy="steps", save_steps=3)
KINDS = ["sft", "grpo", "self-play"]


def any_reward(completion_ids, **kwargs):
    """A reward that differs between replies, so that the policy learns."""
    return [sum(ids) % 7 / 7 for ids in completion_ids]


@pytest.fixture(scope="module")
def make(model_dir, seen):
    """Make a trainer of TRL, by kind."""
    asked = [{"prompt": list(map(dict, o.messages))} for o, _ in seen[:64]]
    answered = [
        {**row, "completion": [{"role": "assistant", "content": f"\\boxed{{{move}}}"}]}
        for row, (_, move) in zip(asked, seen, strict=False)
    ]

    def make(kind, folder, adapter=False, model=model_dir, rollout=None, **changes):
        settings = {"output_dir": str(folder), **SETTINGS, **changes}
        peft_config = lora() if adapter else None
        if kind == "sft":
            return SFTTrainer(
                model, SFTConfig(**settings), train_dataset=Dataset.from_list(answered), peft_config=peft_config
            )
        settings = {"max_completion_length": 8, "num_generations": 8, "scale_rewards": "none", **settings}
        if kind == "grpo":
            data = {"reward_funcs": any_reward, "train_dataset": Dataset.from_list(asked)}
        else:
            rollout = rollout or SelfPlayRollout("TicTacToe-v0", estimator=ReturnsOnly())
            data = {"rollout_func": rollout, "reward_funcs": rollout.reward_func, "train_dataset": rollout.dataset(64)}
        return GRPOTrainer(model, args=GRPOConfig(**settings), peft_config=peft_config, **data)

    return make


def with_pool(trainer, capacity=2, every=1, **options):
    pool = OpponentPool(f"{trainer.args.output_dir}/opponents", capacity=capacity)
    trainer.add_callback(OpponentPoolCallback(trainer, pool, every=every, **options))
    return pool


def weights_file(adapter):
    return "adapter_model.safetensors" if adapter else "model.safetensors"


def names(pool):
    return [snapshot.name for snapshot in pool.snapshots]


@pytest.fixture(scope="module", params=[(kind, adapter) for kind in ("sft", "grpo") for adapter in (True, False)])
def finished(request, make, tmp_path_factory):
    """A run of six steps that keeps the two newest snapshots and saves every third step."""
    kind, adapter = request.param
    trainer = make(kind, tmp_path_factory.mktemp("finished"), adapter, **SAVING)
    pool = with_pool(trainer)
    trainer.train()
    return kind, adapter, trainer, pool


class TestOpponentPoolCallback:
    def test_keeps_the_newest_snapshots_and_logs_their_size(self, finished):
        _, adapter, trainer, pool = finished
        logged = [entry for entry in trainer.state.log_history if "pool/size" in entry]

        assert names(pool) == names(OpponentPool(pool.folder)) == ["step-5", "step-6"]
        assert {snapshot.kind for snapshot in pool.snapshots} == {"adapter" if adapter else "weights"}
        assert pool.problems() == []
        assert [(entry["step"], entry["pool/size"]) for entry in logged] == [
            (step, min(step, 2)) for step in range(1, 7)
        ]
        assert logged[-1]["pool/bytes"] == pool.size > 10_000

    def test_from_pretrained_reads_a_snapshot_with_the_weights_of_its_step(self, finished, model_dir):
        _, adapter, trainer, pool = finished
        for step in (5, 6):
            if adapter:
                from peft import PeftModel

                base = AutoModelForCausalLM.from_pretrained(model_dir)
                found = PeftModel.from_pretrained(base, pool.path(f"step-{step}")).state_dict()
            else:
                found = AutoModelForCausalLM.from_pretrained(pool.path(f"step-{step}")).state_dict()
            now = trainer.model.state_dict()

            assert found.keys() == now.keys()
            assert all(torch.equal(found[key], now[key].cpu()) for key in now) == (step == 6)

    def test_a_checkpoint_contains_its_snapshots(self, finished):
        _, _, trainer, pool = finished
        folder = pool.folder.parent
        held = {step: OpponentPool(folder / f"checkpoint-{step}" / "opponents") for step in (3, 6)}

        assert {step: names(kept) for step, kept in held.items()} == {3: ["step-2", "step-3"], 6: ["step-5", "step-6"]}
        assert [kept.problems() for kept in held.values()] == [[], []]
        assert {path.name for path in pool.folder.iterdir()} == {"step-5", "step-6", INDEX}

    def test_a_renamed_checkpoint_is_resumed_with_its_pool(self, finished, make, tmp_path):
        kind, adapter, old, expected = finished
        shutil.copytree(f"{old.args.output_dir}/checkpoint-3", tmp_path / "best")
        trainer = make(kind, tmp_path / "new", adapter, **SAVING, resume_from_checkpoint=str(tmp_path / "best"))
        pool = with_pool(trainer)
        trainer.train(resume_from_checkpoint=str(tmp_path / "best"))

        assert pool.problems() == []
        assert pool.state_dict() == expected.state_dict()

    def test_a_killed_run_resumes_with_the_pool_of_its_checkpoint(self, finished, make, tmp_path):
        kind, adapter, _, expected = finished

        def work():
            trainer = make(kind, tmp_path, adapter, **SAVING)
            with_pool(trainer)
            trainer.add_callback(KillAt(5))
            trainer.train()

        died_of = forked(work)
        left = names(OpponentPool(tmp_path / "opponents"))
        trainer = make(kind, tmp_path, adapter, **SAVING)
        pool = with_pool(trainer)
        trainer.train(resume_from_checkpoint=True)

        assert died_of == signal.SIGKILL
        assert left == ["step-4", "step-5"]
        assert {**pool.state_dict(), "run": None} == {**expected.state_dict(), "run": None}
        assert {path.name for path in pool.folder.iterdir()} == {path.name for path in expected.folder.iterdir()}

    def test_a_new_run_refuses_the_pool_of_another_run(self, finished, make):
        kind, adapter, old, _ = finished
        trainer = make(kind, old.args.output_dir, adapter)
        with_pool(trainer)

        with pytest.raises(ValueError, match="holds snapshots of another run. Resume that run"):
            trainer.train()

    def test_start_sets_the_first_snapshot_and_base_adds_the_initial_model(self, make, tmp_path, model_dir):
        trainer = make("sft", tmp_path)
        pool = with_pool(trainer, capacity=9, every=2, start=3, base=True)
        trainer.train()
        base, model = load_file(pool.path("base") / weights_file(False)), load_file(f"{model_dir}/model.safetensors")

        assert names(pool) == ["step-3", "step-5"]
        assert all(torch.equal(base[key], model[key]) for key in model)

    @pytest.mark.parametrize("adapter", [True, False], ids=["lora", "whole"])
    def test_snapshots_play_rating_games_in_a_trainer_without_games(self, adapter, make, tmp_path):
        trainer = make("sft", tmp_path, adapter, max_steps=2)
        pool = with_pool(trainer, rating_games=2, games=[get_game("TicTacToe-v0")])
        trainer.train()

        assert pool.ratings.matrix(["step-1", "step-2"]).counts == ((0, 2), (2, 0))

    @pytest.mark.parametrize("adapter", [True, False], ids=["lora", "whole"])
    def test_dtype_sets_the_precision_of_snapshots_only(self, adapter, make, tmp_path):
        tensors = []
        for dtype in (None, torch.bfloat16):
            trainer = make("sft", tmp_path / str(dtype), adapter, max_steps=1)
            pool = with_pool(trainer, dtype=dtype)
            trainer.train()
            tensors.append(load_file(pool.path("step-1") / weights_file(adapter)))
        full, half = tensors

        # The tied last layer is stored once, as in full precision.
        assert full.keys() == half.keys()
        assert {value.dtype for value in half.values()} == {torch.bfloat16}
        assert all(torch.equal(half[key], full[key].bfloat16()) for key in full)
        assert {value.dtype for value in trainer.model.state_dict().values()} == {torch.float32}

    def test_an_adapter_with_any_name_is_written_without_other_adapters(self, model_dir, tmp_path):
        from peft import PeftModel, get_peft_model

        base = AutoModelForCausalLM.from_pretrained(model_dir)
        model = get_peft_model(base, lora(init_lora_weights=False), adapter_name="player")
        model.add_adapter("ref", lora())
        write_adapter(model, tmp_path, model.state_dict(), torch.bfloat16)
        base = AutoModelForCausalLM.from_pretrained(model_dir)
        ids = torch.arange(9)[None]

        assert not any(path.is_dir() for path in tmp_path.iterdir())
        found = PeftModel.from_pretrained(base, tmp_path)(ids).logits
        assert torch.allclose(found, model(ids).logits, atol=0.1)  # bfloat16 has eight bits
        with model.disable_adapter():
            assert not torch.allclose(found, model(ids).logits, atol=0.1)


@pytest.fixture(scope="module")
def until_five(make, tmp_path_factory):
    """A run that stopped two steps after its only checkpoint."""
    folder = tmp_path_factory.mktemp("until_five")
    trainer = make("sft", folder, **SAVING)
    with_pool(trainer)
    trainer.add_callback(StopAt(5))
    trainer.train()
    return folder


class TestDamagedPool:
    def resume(self, make, folder, **options):
        trainer = make("sft", folder, **SAVING)
        pool = with_pool(trainer, **options)
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
        return pool

    def test_refuses_a_checkpoint_without_a_pool(self, until_five, make, tmp_path):
        folder = tmp_path / "out"
        shutil.copytree(until_five, folder)
        shutil.rmtree(folder / "checkpoint-3" / "opponents")

        with pytest.raises(ValueError, match="checkpoint-3/opponents holds no pool to resume with"):
            self.resume(make, folder)

    def test_a_damaged_snapshot_is_refused_or_left_out_by_repair(self, until_five, make, tmp_path, caplog):
        folder = tmp_path / "out"
        shutil.copytree(until_five, folder)
        (folder / "checkpoint-3" / "opponents" / "step-3" / weights_file(False)).unlink()

        with pytest.raises(ValueError, match="checkpoint-3/opponents is damaged: step-3/model.safetensors is missing"):
            self.resume(make, folder)
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            pool = self.resume(make, folder, repair=True, capacity=9)

        assert "Going on without step-3" in caplog.text
        assert names(pool) == ["step-2", "step-4", "step-5", "step-6"]


class TestWandb:
    def test_logs_the_picture_of_win_rates(self, make, tmp_path, monkeypatch):
        wandb = pytest.importorskip("wandb")
        pytest.importorskip("matplotlib")
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_DIR", str(tmp_path))
        monkeypatch.setenv("WANDB_SILENT", "true")
        trainer = make("sft", tmp_path, report_to="wandb", run_name="test", **SAVING)
        pool = with_pool(trainer, every=2)
        pool.ratings.update([Played((POLICY, "random"), (1.0, -1.0), counter) for counter in range(3)])
        trainer.train()
        wandb.finish()

        assert list(tmp_path.glob("wandb/offline-run-*/files/media/images/pool/win_rates_*.png"))


def grades(callback):
    return [{name: x for name, x in entry.items() if name.startswith("tictactoe/")} for entry in callback.curve]


class TestTicTacToeCallback:
    def test_the_same_weights_have_the_same_exact_grades_in_every_trainer(self, make, tmp_path, monkeypatch):
        sft = make("sft", tmp_path / "sft")
        before = TicTacToeCallback(sft, temperatures=(1.0,))
        before.on_train_begin(sft.args, sft.state, sft.control)
        grpo = make("grpo", tmp_path / "grpo", max_steps=1)
        callback = TicTacToeCallback(grpo, temperatures=(1.0,))
        monkeypatch.setattr(
            callback, "on_train_end", TrainerCallback().on_train_end
        )  # a second grade, which the test does not need
        grpo.add_callback(callback)
        grpo.train()
        alone = make("grpo", tmp_path / "alone", max_steps=1)
        alone.train()

        assert grades(callback) == grades(before)
        assert 0.01 < grades(callback)[0]["tictactoe/random/non_loss"] < 0.99
        assert history(alone) == [entry for entry in history(grpo) if entry not in callback.curve]
        for key, value in alone.model.state_dict().items():
            assert torch.equal(value, grpo.model.state_dict()[key])

    def test_the_same_weights_play_the_same_in_every_trainer(self, make, tmp_path):
        first = {}
        for kind in KINDS:
            # The token limit of an `SFTTrainer`, which has none of its own.
            longest = {} if kind == "sft" else {"max_completion_length": 256}
            trainer = make(kind, tmp_path / kind, max_steps=1, **longest)
            callback = TicTacToeCallback(trainer, games=4)
            callback.on_train_begin(trainer.args, trainer.state, trainer.control)
            first[kind] = grades(callback)[0]

        assert first["sft"] == first["grpo"] == first["self-play"]
        assert len(first["sft"]) == 2 * (2 * 5 + 3), (
            "two rivals: five shares in each of two seats, and three over both"
        )

    @pytest.mark.parametrize(("reply", "longest", "kind"), [("[4]", 1, "truncated"), ("nine", 8, "illegal")])
    def test_the_table_separates_truncated_replies_from_illegal_ones(
        self, reply, longest, kind, make, tokenizer, tmp_path
    ):
        reply_model(tokenizer, {reply: 1.0}).save_pretrained(tmp_path / "player")
        tokenizer.save_pretrained(tmp_path / "player")
        trainer = make("self-play", tmp_path, model=str(tmp_path / "player"), max_completion_length=longest)
        callback = TicTacToeCallback(trainer, games=2)
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)
        _, _, header, _, *rows = callback.table().splitlines()
        found = {"illegal": "0.0 %", "truncated": "0.0 %", kind: "100.0 %"}

        assert header.endswith("| loss | illegal | truncated |")
        assert all(row.endswith(f"| 100.0 % | {found['illegal']} | {found['truncated']} |") for row in rows)


class TestTranscriptCallback:
    @pytest.mark.parametrize("kind", KINDS)
    def test_writes_games_of_the_final_policy(self, kind, make, tmp_path):
        trainer = make(kind, tmp_path, max_steps=1)
        trainer.add_callback(TranscriptCallback(trainer, "TicTacToe-v0", games=3))
        trainer.train()
        written = sorted((tmp_path / "transcripts").iterdir())

        assert [path.name for path in written] == [
            "000_policy_vs_policy.md",
            "001_policy_vs_random.md",
            "002_random_vs_policy.md",
        ]
        assert "Wrote:\n\n```text\n\\boxed{" in written[0].read_text()


class TestSelfPlayProgressCallback:
    @pytest.mark.parametrize("kind", ["sft", "grpo"])
    def test_prints_a_line_for_each_log(self, kind, make, tmp_path, capsys):
        trainer = make(kind, tmp_path, max_steps=2)
        trainer.add_callback(SelfPlayProgressCallback)
        trainer.train()
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]

        assert [line.split("  loss ")[0] for line in lines] == ["step    1", "step    2"]

    def test_prints_self_play_metrics_and_the_rating(self, make, tmp_path, capsys):
        pool = OpponentPool(tmp_path / "opponents")
        rollout = SelfPlayRollout(
            "TicTacToe-v0", estimator=ReturnsOnly(), matchmaker=Opponents({"self": 0.5, "pool": 0.5}, pool)
        )
        trainer = make("self-play", tmp_path, rollout=rollout, max_steps=3)
        trainer.add_callback(OpponentPoolCallback(trainer, pool, every=1))
        trainer.add_callback(SelfPlayProgressCallback)
        trainer.train()
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]

        for label in ("loss", "draws", "illegal", "truncated", "entropy", "rating"):
            assert f"  {label} " in lines[-1]
        assert max(map(len, lines)) <= 100


class TestAllTogether:
    # TRL 1.16 switches checkpointing off and on around a roll-out, by names that transformers 5.23 deprecates.
    # https://github.com/huggingface/trl/blob/v1.16.0/trl/models/utils.py#L138
    @pytest.mark.filterwarnings("ignore:`gradient_checkpointing_(dis|en)able` is deprecated:FutureWarning")
    @pytest.mark.parametrize("adapter", [True, False], ids=["lora", "whole"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_run_equals_the_run_without_callbacks(self, kind, adapter, make, tmp_path):
        settings = {"adapter": adapter, "max_steps": 4, "gradient_checkpointing": True}
        alone = make(kind, tmp_path / "alone", **settings)
        alone.train()
        watched = make(kind, tmp_path / "watched", **settings)
        grades = TicTacToeCallback(watched, every=1, games=2)
        watched.add_callback(grades)
        watched.add_callback(TranscriptCallback(watched, "TicTacToe-v0", games=3))
        with_pool(watched)
        watched.train()
        ours = [entry for entry in history(watched) if any(name.startswith(("tictactoe/", "pool/")) for name in entry)]

        assert [entry["step"] for entry in grades.curve] == [0, 1, 2, 3, 4]
        assert "| after | minimax | second |" in grades.table()
        # All other entries are unchanged, including the loss at steps where a callback logged too.
        assert [entry for entry in history(watched) if entry not in ours] == history(alone)
        for (key, value), (_, other) in zip(state_of(alone), state_of(watched), strict=True):
            assert torch.equal(value, other), key
        for module, other in zip(alone.model.modules(), watched.model.modules(), strict=True):
            assert module.training and other.training
            assert getattr(module, "gradient_checkpointing", None) == getattr(other, "gradient_checkpointing", None)
        for parameter, other in zip(alone.model.parameters(), watched.model.parameters(), strict=True):
            assert parameter.requires_grad == other.requires_grad
        assert alone.model.generation_config == watched.model.generation_config


def state_of(trainer):
    """Yield the weights and the optimizer's state."""
    moments = trainer.optimizer.state_dict()["state"]
    yield from trainer.model.state_dict().items()
    yield from ((f"{place}/{name}", moments[place][name]) for place in moments for name in moments[place])


class TestRefusals:
    def test_a_model_without_a_chat_template_needs_a_prompt_style_at_the_start(self, make, tmp_path):
        text = Dataset.from_list([{"text": "Nine cells, and three in a row win."}] * 8)

        def train(**options):
            trainer = make("sft", tmp_path, max_steps=1)
            tokenizer = AutoTokenizer.from_pretrained(trainer.model.config._name_or_path, chat_template=None)
            tokenizer.chat_template = None
            trainer = SFTTrainer(trainer.model, trainer.args, train_dataset=text, processing_class=tokenizer)
            trainer.add_callback(TranscriptCallback(trainer, "TicTacToe-v0", games=3, **options))
            trainer.train()
            return trainer

        with pytest.raises(ValueError, match="no chat template, and `prompt_style` is 'chat'. Choose a style"):
            train()
        assert not train(prompt_style="qwen3").state.log_history == []
        assert "Observation: " in next((tmp_path / "transcripts").iterdir()).read_text()

    def test_prompts_have_the_style_of_the_rollout(self, make, tmp_path):
        trainer = make(
            "self-play", tmp_path, rollout=SelfPlayRollout("TicTacToe-v0", SelfPlaySettings(prompt_style="qwen3"))
        )

        assert renderer_of(trainer).style == "qwen3"
        assert renderer_of(trainer, "r1").style == "r1"
        assert renderer_of(make("grpo", tmp_path)).style == "chat"

    def test_a_model_that_cannot_generate_gets_snapshots_and_no_grades(self, model_dir, tmp_path):
        rows = [{"chosen": [{"role": "user", "content": "4"}], "rejected": [{"role": "user", "content": "5"}]}] * 8
        settings = {**SETTINGS, "max_steps": 2, "model_init_kwargs": None}
        trainer = RewardTrainer(
            model_dir, RewardConfig(str(tmp_path), **settings), train_dataset=Dataset.from_list(rows)
        )
        pool = with_pool(trainer)
        trainer.train()
        callback = TicTacToeCallback(trainer)

        assert names(pool) == ["step-1", "step-2"]
        with pytest.raises(
            ValueError, match="Qwen3ForSequenceClassification.* cannot generate text, so it cannot play"
        ):
            callback.on_train_begin(trainer.args, trainer.state, trainer.control)

    def test_refuses_fsdp_without_vllm(self, make, tmp_path):
        trainer = make("sft", tmp_path)
        trainer.is_fsdp_enabled = True

        transcripts = TranscriptCallback(trainer, "TicTacToe-v0")
        for callback in (TicTacToeCallback(trainer), TicTacToeCallback(trainer, games=2), transcripts):
            with pytest.raises(ValueError, match="FSDP shards the weights"):
                callback.on_train_begin(trainer.args, trainer.state, trainer.control)

    def test_exact_grades_refuse_zero3(self, model_dir, tokenizer):
        plugin = SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=3))
        trainer = SimpleNamespace(
            model=AutoModelForCausalLM.from_pretrained(model_dir),
            accelerator=SimpleNamespace(unwrap_model=lambda model: model, state=plugin, num_processes=2),
            processing_class=tokenizer,
            args=None,
            is_fsdp_enabled=False,
            is_deepspeed_enabled=True,
        )
        check_can_play(trainer)

        with pytest.raises(ValueError, match="ZeRO-3 shards its weights over all ranks. Grade sampled replies"):
            check_can_play(trainer, alone=True)
