"""The recipe of code execution with a barely trained coder, its exercises, and its faulty examples."""

import ast
import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest

from trl_spiral.rewards import ExecutionReward, UnitTestReward
from trl_spiral.sandbox import LocalSandbox
from trl_spiral.text.replies import extract_program
from trl_spiral.tiny.lessons import FAULTS, TASKS, clumsy_lessons, make_exercises


@pytest.fixture(scope="module")
def sandbox():
    try:
        opened = LocalSandbox()
    except RuntimeError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    with opened:
        yield opened


@pytest.fixture
def recipe():
    path = Path(__file__).parents[2] / "recipes" / "grpo_code_execution.py"
    spec = importlib.util.spec_from_file_location("grpo_code_execution", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestExercises:
    def test_are_distinct_and_contain_every_task_of_their_split(self):
        train, test = make_exercises(216), make_exercises(56, split="test")

        def functions(exercises):
            return {exercise.program.split("\nprint")[0] for exercise in exercises}

        assert len({exercise.question for exercise in train + test}) == 216 + 56
        assert len(functions(train)) == 108 and len(functions(test)) == 28
        assert len(functions(train) | functions(test)) == len(TASKS)

    @pytest.mark.parametrize(
        ("count", "message"), [(0, r"`count` \(0\) must be at least 1"), (3000, r"Ask for 24\d\d at most")]
    )
    def test_refuse_an_invalid_number_of_exercises(self, count, message):
        # The smallest of the 28 tasks have 29 numbers in 3 phrasings, about 87 exercises.
        with pytest.raises(ValueError, match=message):
            make_exercises(count, split="test")

    def test_are_equal_for_equal_seeds(self):
        assert make_exercises(20, seed=1) == make_exercises(20, seed=1) != make_exercises(20, seed=2)

    def test_are_solved_by_their_own_programs_only(self, sandbox):
        exercises = make_exercises(108) + make_exercises(28, split="test")
        replies = [exercise.program for exercise in exercises]
        tests = [exercise.tests for exercise in exercises]
        # Programs of other exercises. There are 17 kinds, so the seventh next exercise is rarely of the same kind.
        others = UnitTestReward(sandbox)(replies[7:] + replies[:7], test_list=tests)

        assert ExecutionReward(sandbox)(replies) == [1.0] * 136
        assert UnitTestReward(sandbox)(replies, test_list=tests) == [1.0] * 136
        assert sum(others) < 14

    def test_do_not_contain_their_answer(self):
        for exercise in make_exercises(108):
            body = ast.unparse(ast.parse(exercise.program).body[0].body[0].value)

            assert body not in exercise.question

    def test_each_fault_has_its_reward(self, sandbox):
        exercise = make_exercises(1)[0]
        rewards = ExecutionReward(sandbox)([fault(exercise.program) for fault in FAULTS.values()])

        assert dict(zip(FAULTS, rewards, strict=True)) == {
            "none": 1.0,
            "a bracket that stays open": -0.5,
            "a line out of line": -0.5,
            "a name that is not there": -1.0,
            "nothing printed": 0.5,
            "no attempt": 1.0,
        }

    def test_one_in_six_clumsy_lessons_is_right(self):
        exercises = make_exercises(108)
        right = {exercise.question: exercise.program for exercise in exercises}
        lessons = clumsy_lessons(exercises, 600)
        well = sum(extract_program(reply).strip() == right[prompt[0]["content"]] for prompt, reply in lessons)

        # Expected 100, with a margin of 4 standard deviations of 9.1.
        assert 63 < well < 137


class TestRecipe:
    QUICK = [
        *("--max_steps", "1", "--logging_steps", "1", "--num_generations", "2", "--max_completion_length", "8"),
        *("--per_device_train_batch_size", "8", "--per_device_eval_batch_size", "8", "--test_exercises", "4"),
    ]

    def test_prints_its_scores_and_saves_code_and_verdicts(self, sandbox, recipe, tmp_path, monkeypatch, capsys):
        import pandas

        monkeypatch.setattr(recipe, "make_tiny_coder", partial(recipe.make_tiny_coder, steps=3, batch_size=8))
        recipe.main(*recipe.parse([*self.QUICK, "--output_dir", str(tmp_path), "--triviality_penalty", "0.5"]))

        printed = capsys.readouterr().out
        log = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
        (first,) = (pandas.read_parquet(path) for path in (tmp_path / "completions").iterdir() if "00001" in path.name)
        assert "| before | " in printed and "| after | " in printed
        assert {"execution/success_rate", "execution/trivial_rate", "unit_tests/pass_rate"} <= set(log[0])
        assert {"code", "verdict", "tests"} <= set(first.columns)
        assert (tmp_path / "model.safetensors").exists()

    def test_with_a_model_trains_an_adapter(self, sandbox, recipe, model_dir, tmp_path, capsys):
        # No checkpointing: TRL uses a name for it that transformers 5.23 deprecates.
        arguments = ["--model_name_or_path", model_dir, "--gradient_checkpointing", "False"]
        recipe.main(*recipe.parse([*self.QUICK, *arguments, "--output_dir", str(tmp_path)]))

        assert "| after | " in capsys.readouterr().out
        assert json.loads((tmp_path / "adapter_config.json").read_text())["r"] == 16

    def test_with_a_model_has_the_full_size_settings(self, recipe, monkeypatch):
        from trl_spiral import machine as platforms

        monkeypatch.setattr(platforms, "this_device", lambda: platforms.Device("cuda", (7, 5), 14.6))
        _, args, model = recipe.parse(["--model-name-or-path", "someone/model", "--learning_rate", "1e-5"])

        assert (model.use_peft, model.lora_r, model.lora_alpha, args.num_generations) == (True, 16, 32, 2)
        # On a T4, a quarter of the batch of 8, in float16, and still 32 rows per step.
        assert (args.fp16, args.per_device_train_batch_size, args.gradient_accumulation_steps) == (True, 2, 16)
        assert args.per_device_eval_batch_size == 2
        assert args.learning_rate == 1e-5 and recipe.FULL["learning_rate"] == 2e-5
