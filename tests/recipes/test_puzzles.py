"""The recipes for puzzles with barely trained models."""

import importlib.util
import sys
from pathlib import Path

import pytest
from trl import ModelConfig

from trl_spiral.algorithms import AlgorithmConfig
from trl_spiral.tasks import get_task
from trl_spiral.tasks.hanoi import Hanoi


RECIPES = Path(__file__).parents[2] / "recipes"


def load_recipe(name: str):
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up the types of fields there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["grpo_hanoi", "grpo_connections"])
def recipe(request):
    return load_recipe(request.param)


class TestRecipes:
    def test_print_scores_before_and_after_and_save_the_model(self, recipe, monkeypatch, capsys, tmp_path):
        make = recipe.make_tiny_solver

        def barely_trained(*args, **kwargs):
            return make(*args, **{**kwargs, "steps": 3, "batch_size": 4})

        monkeypatch.setattr(recipe, "make_tiny_solver", barely_trained)
        puzzles, args, model_args = recipe.parse(
            [
                *("--output_dir", str(tmp_path), "--max_steps", "2", "--per_device_train_batch_size", "8"),
                *("--problems", "40", "--held_out", "10", "--algorithm", "gpg", "--gpg_max_resamples", "1"),
            ]
        )
        recipe.main(puzzles, args, model_args)
        printed = capsys.readouterr().out

        assert "before: mean score 0." in printed and "after: mean score 0." in printed
        assert (tmp_path / "model.safetensors").exists()

    @pytest.mark.parametrize(
        ("arguments", "output", "longest"),
        [((), "", 24), (("--model_name_or_path", "someone/model", "--use_cpu", "--bf16", "False"), "-full", 2048)],
    )
    def test_choose_their_settings(self, recipe, arguments, output, longest):
        _, args, model_args = recipe.parse(list(arguments))

        assert isinstance(args, AlgorithmConfig) and isinstance(model_args, ModelConfig)
        assert args.output_dir == recipe.__name__.replace("_", "-") + output
        assert args.max_completion_length <= 2 * longest


class TestHanoi:
    def test_refuses_disks_that_need_longer_replies(self, tmp_path):
        recipe = load_recipe("grpo_hanoi")
        with pytest.raises(ValueError, match="5 disks may need 31 moves, some 62 tokens, and a reply has 24"):
            recipe.main(*recipe.parse(["--disks", "5", "--output_dir", str(tmp_path)]))

    def test_lessons_contain_no_held_out_problem(self):
        task = Hanoi((2, 3))
        lessons = load_recipe("grpo_hanoi").lessons(task, seed=0)
        trained = {problem.messages[0]["content"] for problem in task.problems("train", 3_000)}

        assert sum(messages[0]["content"] in trained for messages, _ in lessons) > 0.95 * len(lessons)
        held_out = {problem.messages[0]["content"] for problem in task.problems("validation", 3_000)}
        assert not any(messages[0]["content"] in held_out for messages, _ in lessons)


class TestConnections:
    def test_lessons_contain_puzzles_of_training_categories_only(self):
        task = get_task("connections-small")
        problems = {problem.messages[0]["content"]: problem for problem in task.problems("train", 6000)}
        lessons = load_recipe("grpo_connections").lessons(task, seed=0)
        puzzles = [(text, reply) for ((message,), reply) in lessons if (text := message["content"]) in problems]
        held_out = {word for words in task.split("validation").values() for word in words}

        assert len(puzzles) >= 6000
        assert all(task.score(problems[text], reply).solved for text, reply in puzzles)
        others = {message["content"] for (message,), _ in lessons if message["content"] not in problems}
        assert all(text.startswith(("Words like ", "Repeat: ")) for text in others)
        assert held_out <= {text.split()[-1].rstrip(".") for text in others}
        assert not any(held_out & set(problems[text].data["words"]) for text, _ in puzzles)

    def test_refuses_puzzles_that_need_longer_replies(self, tmp_path):
        recipe = load_recipe("grpo_connections")
        with pytest.raises(
            ValueError,
            match="An answer to 'connections' has 32 tokens of the tiny model, and `max_completion_length` is 16",
        ):
            recipe.main(*recipe.parse(["--task", "connections", "--output_dir", str(tmp_path)]))

    def test_refuses_other_tasks(self, tmp_path):
        recipe = load_recipe("grpo_connections")
        with pytest.raises(ValueError, match="'hanoi-3'.* is not a Connections task"):
            recipe.main(*recipe.parse(["--task", "hanoi-3", "--output_dir", str(tmp_path)]))
