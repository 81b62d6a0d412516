"""Limits, unfinished thinking and logs of the rewards for programs."""

import json

import pytest

from tests.helpers.reward_fakes import FakeSandbox, fenced
from trl_spiral.rewards import ExecutionReward, UnitTestReward
from trl_spiral.sandbox import JobResult, ProgramEnding, TrialResult
from trl_spiral.text.prompts import PromptRenderer


class TestLimits:
    def test_allow_for_a_busy_machine(self, monkeypatch):
        for module in ("execution", "unit_tests"):
            monkeypatch.setattr(f"trl_spiral.rewards.{module}.LocalSandbox", lambda limits: limits)

        for reward in (ExecutionReward(), UnitTestReward()):
            assert reward.sandbox.wall_seconds >= 5 * reward.sandbox.cpu_seconds


class TestThinking:
    # Completions of a prompt that ends in `<think>`: cut off, and closed.
    COMPLETIONS = [fenced("print(1)"), "Hm.</think>" + fenced("print(1)")]

    def rewards(self, **given):
        passed = TrialResult(passed=True)
        run, tested = (
            FakeSandbox(outcomes=[JobResult(ProgramEnding.FINISHED, output="1")] * 2),
            FakeSandbox(verdicts=[passed] * 2),
        )
        prompts = given.pop("prompts", None)
        ExecutionReward(run, **given)(self.COMPLETIONS, prompts=prompts)
        UnitTestReward(tested, **given)(self.COMPLETIONS, prompts=prompts, test_list=[["assert f() == 1"]] * 2)
        return [len(run.asked[0]), [bool(trial.code) for trial in tested.asked[0]]]

    def test_that_is_unfinished_contains_no_program(self, tokenizer):
        opens = "{{ messages[0]['content'] }}{% if add_generation_prompt %}<think>\n{% endif %}"
        renderer = PromptRenderer(tokenizer, chat_template=opens)
        conversation = [[{"role": "user", "content": "Print 1."}]] * 2

        assert self.rewards(renderer=renderer, prompts=conversation) == [1, [False, True]]
        assert self.rewards(prompts=["Print 1.\n<think>\n"] * 2) == [1, [False, True]]
        assert self.rewards(prompts=["Print 1.\n"] * 2) == [2, [True, True]]


class TestInPlainTrl:
    def test_rewards_are_in_the_log_and_the_table_of_completions(self, sandbox, model_dir, tmp_path):
        import pandas
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        prompt = [{"role": "user", "content": "Print something."}]
        trainer = GRPOTrainer(
            model=model_dir,
            args=GRPOConfig(
                str(tmp_path),
                max_steps=1,
                per_device_train_batch_size=4,
                num_generations=2,
                max_completion_length=4,
                logging_steps=1,
                log_completions=True,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to="none",
                save_strategy="no",
            ),
            train_dataset=Dataset.from_list([{"prompt": prompt, "test_list": ["assert f() == 1"]}] * 4),
            reward_funcs=[ExecutionReward(sandbox), UnitTestReward(sandbox)],
        )
        trainer.train()
        logged = trainer.state.log_history[0]
        (table,) = (pandas.read_parquet(path) for path in (tmp_path / "completions").iterdir())

        assert {"rewards/execution_reward/mean", "rewards/unit_test_reward/mean"} <= set(logged)
        assert logged["execution/avg_batch_reward"] == pytest.approx(logged["rewards/execution_reward/mean"])
        assert {"code", "verdict", "tests", "execution_reward", "unit_test_reward"} <= set(table.columns)
        assert len(table) == 4 and json.dumps(list(table["code"]))
