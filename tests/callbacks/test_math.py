"""Grades at math in trainers of TRL."""

import json
from pathlib import Path

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from tests.helpers import run_math
from tests.helpers.forked_ranks import run_on_ranks
from trl_spiral.callbacks import MathCallback
from trl_spiral.callbacks import math as math_module
from trl_spiral.callbacks.problem_sets import load_math_problems
from trl_spiral.evaluation.problems.math_sets import MathSet
from trl_spiral.selfplay.referee import WeightsLost


TINY = Path(__file__).parents[1] / "data/math"
GSM8K, MATH = TINY / "gsm8k_tiny.jsonl", TINY / "math_tiny.jsonl"
FIELDS = {"accuracy", "accuracy_low", "accuracy_high", "truncated", "unboxed", "timeouts", "reply_length"}


def make(model_dir, folder, seen):
    rows = [{"prompt": list(map(dict, observation.messages))} for observation, _ in seen[:32]]
    config = GRPOConfig(
        output_dir=str(folder),
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=8,
        learning_rate=1e-2,  # large, so that every step shows in the weights of a tiny model
        logging_steps=1,
        save_strategy="steps",
        save_steps=2,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        # Dropout draws from torch's generator at every step: a callback that used it would change every later number.
        model_init_kwargs={"attention_dropout": 0.1, "dtype": "float32"},
    )

    def reward(completion_ids, **kwargs):
        return [sum(ids) % 7 / 7 for ids in completion_ids]

    return GRPOTrainer(model_dir, reward_funcs=reward, args=config, train_dataset=Dataset.from_list(rows))


def learned(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture(scope="module")
def graded(model_dir, seen, tmp_path_factory):
    """A run of three steps, graded before training and after each step."""
    trainer = make(model_dir, tmp_path_factory.mktemp("graded"), seen)
    callback = MathCallback(trainer, ["gsm8k", "math500"], 1, limit=2, path={"gsm8k": GSM8K, "math500": MATH})
    trainer.add_callback(callback)
    trainer.train()
    return trainer, callback


class TestMathCallback:
    def test_grades_before_every_n_steps_and_after(self, graded):
        _, callback = graded

        assert [entry["step"] for entry in callback.curve] == [0, 1, 2, 3]
        names = {f"math/{name}/{field}" for name in ("gsm8k", "math500") for field in FIELDS}
        assert all(names == {name for name in entry if name.startswith("math/")} for entry in callback.curve)

    def test_writes_every_reply(self, graded):
        trainer, callback = graded
        folder = Path(trainer.args.output_dir) / "math"
        last = [json.loads(line) for line in (folder / "gsm8k_step3.jsonl").read_text().splitlines()]

        assert {file.name for file in folder.iterdir()} == {
            f"{name}_step{step}.jsonl" for name in ("gsm8k", "math500") for step in range(4)
        }
        assert [(reply["number"], reply["gold"]) for reply in last] == [(0, "42"), (1, "1,800")]
        assert sum(reply["tokens"] for reply in last) / 2 == callback.curve[-1]["math/gsm8k/reply_length"]

    def test_the_run_equals_the_run_without_grades(self, graded, model_dir, seen, tmp_path):
        trainer, _ = graded
        plain = make(model_dir, tmp_path, seen)
        plain.train()

        assert learned(trainer) == learned(plain)
        assert len(learned(plain)) == 3

    def test_a_resumed_run_is_not_graded_at_its_start(self, graded, model_dir, seen):
        trainer, _ = graded
        resumed = make(model_dir, trainer.args.output_dir, seen)
        callback = MathCallback(resumed, "gsm8k", limit=2, path=GSM8K)
        resumed.add_callback(callback)
        resumed.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-2")

        # All but the last are grades of the run before its checkpoint.
        assert [entry["step"] for entry in callback.curve] == [0, 1, 2, 3]

    def test_two_ranks_give_the_grades_of_one(self, model_dir, tmp_path):
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        run_math.main(model_dir, str(tmp_path / "one"))
        done = run_on_ranks(run_math.main, model_dir, tmp_path / "two")
        assert done.returncode == 0, done.stderr

        alone, together = (json.loads((tmp_path / name / "rank_0.json").read_text()) for name in ("one", "two"))
        numbers = [
            [{name: value for name, value in entry.items() if name.startswith("math/")} for entry in curve]
            for curve in (alone, together)
        ]
        assert numbers[0] == numbers[1]
        assert len(numbers[0]) == 2
        assert (
            json.loads((tmp_path / "two" / "rank_1.json").read_text()) == together
        )  # or a resumed rank 1 grades alone
        files = ["gsm8k_step0.jsonl", "gsm8k_step1.jsonl"]
        for file in files:
            assert (tmp_path / "one/math" / file).read_text() == (tmp_path / "two/math" / file).read_text()

    def test_an_engine_that_lost_its_weights_gets_them_back(self, model_dir, seen, tmp_path, monkeypatch):
        trainer = make(model_dir, tmp_path, seen)
        callback = MathCallback(trainer, "gsm8k", limit=1, path=GSM8K, max_new_tokens=2)
        answer, restored = math_module.answer_problems, []

        def answer_once_restored(*asked):
            if not restored:
                raise WeightsLost("The server was started again.")
            return answer(*asked)

        monkeypatch.setattr(math_module, "answer_problems", answer_once_restored)
        monkeypatch.setattr(math_module._trl, "restore_weights", lambda *of: restored.append(of))
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)

        assert [of[0] for of in restored] == [trainer]
        assert len(callback.curve) == 1

    def test_an_engine_that_does_not_open_fails_on_all_ranks(self, model_dir, seen, tmp_path, monkeypatch):
        trainer = make(model_dir, tmp_path, seen)
        callback, sent = MathCallback(trainer, "gsm8k", limit=1, path=GSM8K), []

        def no_memory(trainer):
            raise RuntimeError("no memory")

        monkeypatch.setattr(math_module._trl, "open_engine", no_memory)
        monkeypatch.setattr("trl_spiral.distributed.gather_object", lambda mine: sent.append(mine) or mine)
        with pytest.raises(RuntimeError, match="no memory"):
            callback.grade(0)

        assert sent == [[(True, "RuntimeError: no memory")]]


class TestWrongInput:
    @pytest.mark.parametrize("wrong", [{"every": 0}, {"temperature": -1.0}, {"max_new_tokens": 0}])
    def test_refuses_numbers_out_of_range(self, wrong):
        ((name, number),) = wrong.items()

        with pytest.raises(ValueError, match=rf"`{name}` \({number}\) must"):
            MathCallback(None, "gsm8k", path=GSM8K, **wrong)


class TestLoadMathProblems:
    def test_loads_user_defined_sets(self, tmp_path):
        file = tmp_path / "sums.jsonl"
        file.write_text('{"q": "1+1?", "a": 2}\n')

        problems = load_math_problems([MathSet("sums", "user/sums", "test", "q", "a")], file)
        assert problems["sums"][0].answer == "2"

    def test_loads_sets_without_a_file_from_the_hub(self, monkeypatch):
        asked = []

        def load_dataset(*args, **kwargs):
            asked.append((args, kwargs))
            return Dataset.from_list([{"problem": "1+1?", "answer": "2"}] * 3)

        monkeypatch.setattr("datasets.load_dataset", load_dataset)
        problems = load_math_problems(["gsm8k", "math500"], {"gsm8k": GSM8K}, limit=2)

        assert asked == [(("HuggingFaceH4/MATH-500", None), {"split": "test"})]
        assert [len(found) for found in problems.values()] == [2, 2]

    @pytest.mark.parametrize(
        ("sets", "path", "message"),
        [
            ([], None, "`sets` is empty"),
            (["gsm8k", "math500"], "file.jsonl", r"`path` \(file.jsonl\) is one file for 2 sets"),
            (["gsm8k"], {"math500": MATH}, "`path` names 'math500', which is not among the sets"),
        ],
    )
    def test_refuses_sets_and_paths_that_do_not_match(self, sets, path, message):
        with pytest.raises(ValueError, match=message):
            load_math_problems(sets, path)
