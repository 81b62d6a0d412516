import json
import random

import pytest

from trl_spiral.tasks import (
    Problem,
    Score,
    Task,
    base,
    get_task,
    read_answer,
    register_task,
    task_dataset,
    task_names,
)


class Sums(Task):
    """The task of the README."""

    name = "sums"

    def problems(self, split, number, seed=0):
        rng = random.Random(f"{split}-{seed}")
        # Even sums are for training, odd ones for validation.
        return [self.problem(2 * rng.randrange(50) + (split == "validation")) for _ in range(number)]

    def problem(self, total):
        question = {"role": "user", "content": f"Name two numbers whose sum is {total}, as \\boxed{{a + b}}."}
        return Problem(f"sums-{total}", (question,), {"total": total})

    def score(self, problem, response):
        numbers = [part.strip() for part in (read_answer(response) or "").split("+")]
        if len(numbers) != 2 or not all(number.isascii() and number.isdigit() for number in numbers):
            return Score(0.0, False, {"numbers": 0})
        right = sum(int(number[:9]) for number in numbers) == problem.data["total"]
        return Score(float(right), right, {"numbers": 2})


@pytest.fixture
def registry(monkeypatch):
    """The registry, restored afterwards."""
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    monkeypatch.setattr(base, "_TASKS", dict(base._TASKS))


class TestRegistry:
    def test_has_the_built_in_tasks(self):
        assert {"connections", "connections-hard", "connections-small", "hanoi", "hanoi-small"} <= set(task_names())

    def test_accepts_the_task_of_a_user(self, registry):
        register_task("sums", Sums)

        assert get_task("sums") is get_task("sums")
        assert "sums" in task_names()

    @pytest.mark.parametrize("own", ["inner", None])
    def test_refuses_a_task_of_another_name(self, registry, own):
        class Other(Sums):
            name = own

        register_task("outer", Other)

        with pytest.raises(ValueError, match=f"registered as 'outer' has {own!r} for its `name`, which files"):
            get_task("outer")

    def test_refuses_a_registered_name(self):
        with pytest.raises(ValueError, match="'hanoi' is registered already"):
            register_task("hanoi", Sums)

    @pytest.mark.parametrize(
        ("name", "hint"), [("Conections", "Did you mean 'connections'"), ("zzz", "There are connections, ")]
    )
    def test_suggests_the_closest_names(self, name, hint):
        with pytest.raises(ValueError, match=f"There is no task called {name!r}. {hint}"):
            get_task(name)


@pytest.fixture(params=task_names())
def task(request):
    return get_task(request.param)


class TestEveryTask:
    def test_has_the_name_of_its_registration(self):
        assert [get_task(name).name for name in task_names()] == task_names()

    def test_has_problems_that_survive_json(self, task):
        for problem in task.problems("train", 5):
            assert json.loads(json.dumps(problem.data)) == problem.data
            assert {message["role"] for message in problem.messages} == {"user"}

    def test_has_one_problem_for_each_id(self, task):
        known = {}
        for problem in task.problems("validation", 30):
            assert known.setdefault(problem.id, problem.data) == problem.data

    def test_scores_any_text(self, task):
        (problem,) = task.problems("train", 1)
        hostile = [
            *("[" * 10**6, "\\boxed{" * 10**5, "<think>" * 10**5, "9" * 10**6, ",;" * 10**6, "\\boxed{" + "{" * 10**6),
            *("[[１, ２, ３]]", "[[²,0,1]]", "\x00", "\ud800", "\u202e[[1,0,2]]", "__import__('os').abort()"),
        ]
        for response in hostile:
            score = task.score(problem, response)

            assert (score.value, score.solved) == (0.0, False)
            assert json.dumps(score.detail)
            assert all(isinstance(frame, str) for frame in task.steps(problem, response))

    def test_runs_nothing_in_a_reply(self, task, monkeypatch):
        for name in ("eval", "exec", "compile", "__import__"):
            monkeypatch.setattr(f"builtins.{name}", lambda *_, **__: pytest.fail("a reply was evaluated"))

        assert task.score(PROBLEMS[task.name], "[[__import__('os').abort(), 0, 2]]").value == 0.0


PROBLEMS = {name: get_task(name).problems("train", 1)[0] for name in task_names()}


class TestReadAnswer:
    def test_reads_a_box_of_several_lines(self):
        assert read_answer("So:\n\\boxed{a, b;\nc, d}\nDone.") == "a, b;\nc, d"

    def test_refuses_an_answer_above_the_maximum(self):
        assert read_answer("\\boxed{" + "1" * base.MAX_ANSWER + "}") == "1" * base.MAX_ANSWER
        assert read_answer("\\boxed{" + "1" * (base.MAX_ANSWER + 1) + "}") is None


class TestScore:
    @pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
    def test_is_between_0_and_1(self, value):
        with pytest.raises(ValueError, match="must be in \\[0, 1\\]"):
            Score(value, False)


class TestTaskDataset:
    def test_has_the_problems_of_the_task(self, task):
        problems = task.problems("validation", 4, seed=3)
        rows = task_dataset(task, "validation", 4, seed=3)

        assert [json.loads(row["problem"])["id"] for row in rows] == [problem.id for problem in problems]
        assert [row["prompt"] for row in rows] == [[dict(m) for m in problem.messages] for problem in problems]
