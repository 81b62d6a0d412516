"""Grades at MBPP: in trainers of TRL, on the command line, and the precedence of settings."""

import json
from pathlib import Path

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from tests.helpers import run_mbpp
from tests.helpers.code_models import HUMANEVAL, MBPP, save_coder
from tests.helpers.forked_ranks import run_on_ranks
from trl_spiral.callbacks import MBPPArguments, MBPPCallback, MBPPParser
from trl_spiral.callbacks.problem_sets import load_code_problems
from trl_spiral.cli import main
from trl_spiral.evaluation.problems.code_settings import ENVIRONMENT
from trl_spiral.sandbox import CannotContain, LocalSandbox, TrialResult


FIELDS = {"pass_rate", "pass_rate_low", "pass_rate_high", "pass@1", "pass@1_low", "pass@1_high", "problems_passed"}
FIELDS |= {"total_problems", "eval_time", "truncated", "timeouts", "reply_length"}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """Unset the variables of the user's environment."""
    for variable, _ in ENVIRONMENT.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="module")
def contained():
    """Skip if this machine cannot contain programs."""
    try:
        LocalSandbox(workers=1).close()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def coder_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coder")
    save_coder(folder)
    return str(folder)


def make(model_dir, folder):
    config = GRPOConfig(
        output_dir=str(folder),
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=48,
        learning_rate=1e-3,  # large, so that every step shows in the weights of a tiny model
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

    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": f"Count to {number}."}]} for number in range(8)])
    return GRPOTrainer(model_dir, reward_funcs=reward, args=config, train_dataset=rows)


def learned(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture(scope="module")
def graded(coder_dir, contained, tmp_path_factory):
    """A run of three steps, graded before training and after each step."""
    trainer = make(coder_dir, tmp_path_factory.mktemp("graded"))
    callback = MBPPCallback(trainer, MBPP, every=1)
    trainer.add_callback(callback)
    trainer.train()
    return trainer, callback


class TestMBPPCallback:
    def test_grades_before_every_n_steps_and_after(self, graded):
        _, callback = graded

        assert [entry["step"] for entry in callback.curve] == [0, 1, 2, 3]
        names = {f"mbpp_eval/{field}" for field in FIELDS}
        assert all(names == {name for name in entry if name.startswith("mbpp_eval/")} for entry in callback.curve)

    def test_counts_the_problems_that_the_model_solves(self, graded):
        _, callback = graded
        first = callback.curve[0]

        # It was trained on two of the five, and on a right and a wrong program for a third.
        assert first["mbpp_eval/total_problems"] == 5
        assert first["mbpp_eval/problems_passed"] in (2, 3)
        assert first["mbpp_eval/pass_rate"] == first["mbpp_eval/problems_passed"] / 5
        assert first["mbpp_eval/pass_rate_low"] > 0 and first["mbpp_eval/pass_rate_high"] < 1

    def test_writes_a_summary_and_every_program(self, graded):
        trainer, callback = graded
        folder = Path(trainer.args.output_dir) / "mbpp_eval"
        said = json.loads((folder / "step0.json").read_text())

        assert {file.name for file in folder.iterdir()} == {f"step{step}.json" for step in range(4)}
        assert {f"mbpp_eval/{name}": value for name, value in said["summary"].items()}.items() <= callback.curve[
            0
        ].items()
        assert [problem["task"] for problem in said["problems"]] == [11, 12, 13, 14, 15]
        assert said["problems"][0]["passed"] == 1
        assert "def evens(" in said["problems"][0]["samples"][0]["program"]
        assert said["problems"][1]["samples"][0]["error"] == "AssertionError"

    def test_the_run_equals_the_run_without_grades(self, graded, coder_dir, tmp_path):
        trainer, _ = graded
        plain = make(coder_dir, tmp_path)
        plain.train()

        assert learned(trainer) == learned(plain)
        assert len(learned(plain)) == 3

    def test_a_resumed_run_is_not_graded_at_its_start(self, graded, coder_dir):
        trainer, _ = graded
        resumed = make(coder_dir, trainer.args.output_dir)
        callback = MBPPCallback(resumed, MBPP)
        resumed.add_callback(callback)
        resumed.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-2")

        # All but the last are grades of the run before its checkpoint.
        assert [entry["step"] for entry in callback.curve] == [0, 1, 2, 3]

    def test_two_ranks_give_the_grades_of_one(self, coder_dir, contained, tmp_path):
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        run_mbpp.main(coder_dir, str(tmp_path / "one"))
        done = run_on_ranks(run_mbpp.main, coder_dir, tmp_path / "two")
        assert done.returncode == 0, done.stderr

        curves = [json.loads((tmp_path / name).read_text()) for name in ("one/rank_0.json", "two/rank_0.json")]
        numbers = [
            [
                {name: value for name, value in entry.items() if name.startswith("mbpp_eval/") and "time" not in name}
                for entry in curve
            ]
            for curve in curves
        ]
        assert numbers[0] == numbers[1]
        assert len(numbers[0]) == 2
        for file in ("mbpp_eval/step0.json", "mbpp_eval/step1.json"):
            alone, together = (json.loads((tmp_path / name / file).read_text())["problems"] for name in ("one", "two"))
            assert alone == together
            assert [len(problem["samples"]) for problem in alone] == [3] * 5

    def test_accepts_a_sandbox_and_leaves_it_open(self, coder_dir, tmp_path):
        class Lenient:
            def judge(self, trials):
                return [TrialResult(True) for _ in trials]

            def close(self):
                raise AssertionError("the caller closes it")

        trainer = make(coder_dir, tmp_path)
        callback = MBPPCallback(trainer, HUMANEVAL, problem_set="humaneval", max_new_tokens=4, sandbox=Lenient())
        trainer.add_callback(callback)
        trainer.args.max_steps = 1
        trainer.train()

        assert [entry["humaneval_eval/pass_rate"] for entry in callback.curve] == [1.0, 1.0]
        assert (tmp_path / "humaneval_eval" / "step1.json").is_file()

    def test_two_callbacks_with_different_names_write_different_files(self, coder_dir, tmp_path):
        trainer = make(coder_dir, tmp_path)
        trainer.args.max_steps = 1
        short = dict(limit=1, max_new_tokens=4, sandbox=Unused())
        callbacks = [MBPPCallback(trainer, MBPP, **short), MBPPCallback(trainer, MBPP, name="again", **short)]
        for callback in callbacks:
            trainer.add_callback(callback)
        trainer.train()

        assert [[entry["step"] for entry in callback.curve] for callback in callbacks] == [[0, 1], [0, 1]]
        assert callbacks[1].curve[0]["again/pass_rate"] == 1.0
        for folder in ("mbpp_eval", "again"):
            assert {file.name for file in (tmp_path / folder).iterdir()} == {"step0.json", "step1.json"}

    def test_refuses_two_callbacks_with_the_same_name(self, coder_dir, tmp_path):
        trainer = make(coder_dir, tmp_path)
        for samples in (1, 10):
            trainer.add_callback(MBPPCallback(trainer, MBPP, samples=samples, temperature=1.0, sandbox=Unused()))

        with pytest.raises(ValueError, match=r"Two `MBPPCallback`s have the same `name` \(mbpp_eval\)"):
            trainer.train()

    def test_a_sandbox_that_does_not_open_fails_on_all_ranks(self, coder_dir, tmp_path, monkeypatch):
        trainer = make(coder_dir, tmp_path)
        callback, sent = MBPPCallback(trainer, MBPP, sandbox=Unused()), []

        def no_kernel():
            raise CannotContain("no Landlock")

        monkeypatch.setattr(callback, "_opened", no_kernel)
        monkeypatch.setattr("trl_spiral.distributed.gather_object", lambda mine: sent.append(mine) or mine)
        with pytest.raises(CannotContain, match="no Landlock"):
            callback.grade(0)

        assert sent == [[(True, "CannotContain: no Landlock")]]

    def test_no_engine_is_opened_if_another_rank_has_no_sandbox(self, coder_dir, tmp_path, monkeypatch):
        trainer = make(coder_dir, tmp_path)
        callback = MBPPCallback(trainer, MBPP, sandbox=Unused())
        monkeypatch.setattr(
            "trl_spiral.distributed.gather_object", lambda mine: [*mine, (True, "CannotContain: no Landlock")]
        )
        monkeypatch.setattr("trl_spiral._trl.open_engine", lambda trainer: pytest.fail("an engine was opened"))

        with pytest.raises(RuntimeError, match="Rank 1 has failed.*no Landlock"):
            callback.grade(0)


class Untrained:
    """A trainer of a callback that never runs."""

    class state:  # noqa: N801
        log_history = []


class Unused:
    def judge(self, trials):
        return [TrialResult(True) for _ in trials]


class TestPrecedence:
    """Precedence: argument, environment, YAML, platform default."""

    def callback(self, **given):
        return MBPPCallback(Untrained, sandbox=Unused(), **given)

    def parsed(self, tmp_path, *command):
        (tmp_path / "run.yaml").write_text(
            f"mbpp_limit: 3\nmbpp_temperature: 0.3\nmbpp_samples: 3\nmbpp_path: {MBPP}\n"
        )
        parser = MBPPParser(MBPPArguments)
        # Platform defaults are set before anything is read.
        parser.set_defaults(mbpp_limit=4, mbpp_temperature=0.4, mbpp_samples=4, mbpp_every=4)
        (arguments,) = parser.parse_args_and_config(["--config", str(tmp_path / "run.yaml"), *command])
        return self.callback(**arguments.given())

    def test_each_source_overrides_the_next(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MBPP_EVAL_NUM_QUESTIONS", "2")
        monkeypatch.setenv("MBPP_EVAL_TEMPERATURE", "0.2")
        callback = self.parsed(tmp_path, "--mbpp_limit", "1")

        assert len(callback.problems) == 1  # argument
        assert callback.temperature == 0.2  # environment
        assert callback.samples == 3  # YAML
        assert callback.every == 4  # platform
        assert callback.max_new_tokens is None  # its own

    def test_the_environment_overrides_the_file(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MBPP_EVAL_NUM_QUESTIONS", "2")

        assert len(self.parsed(tmp_path).problems) == 2

    def test_the_file_is_used_without_environment(self, tmp_path):
        assert len(self.parsed(tmp_path).problems) == 3

    def test_the_callback_reads_the_environment(self, monkeypatch):
        settings = {"MBPP_DATASET_PATH": str(MBPP), "MBPP_EVAL_SPLIT": "all", "MBPP_EVAL_NUM_QUESTIONS": "4"}
        settings |= {"MBPP_EVAL_INTERVAL": "7", "MBPP_EVAL_SAMPLES": "2", "MBPP_EVAL_TEMPERATURE": "0.5"}
        for variable, text in (settings | {"MBPP_EVAL_MAX_NEW_TOKENS": "9"}).items():
            monkeypatch.setenv(variable, text)
        read, given = self.callback(), self.callback(limit=1, every=1, samples=1, temperature=0.0, split="test")

        assert [problem.task for problem in read.problems] == [3, 11, 12, 13]
        assert (read.every, read.samples, read.temperature, read.max_new_tokens) == (7, 2, 0.5, 9)
        assert [problem.task for problem in given.problems] == [11]
        assert (given.every, given.samples, given.temperature, given.max_new_tokens) == (1, 1, 0.0, 9)

    def test_humaneval_ignores_the_path_of_mbpp(self, monkeypatch):
        monkeypatch.setenv("MBPP_DATASET_PATH", str(MBPP))

        with pytest.raises(ValueError, match="HumanEval needs a `path`"):
            self.callback(problem_set="humaneval")

    def test_names_a_variable_that_is_not_a_number(self, monkeypatch):
        monkeypatch.setenv("MBPP_EVAL_NUM_QUESTIONS", "few")

        with pytest.raises(ValueError, match=r"MBPP_EVAL_NUM_QUESTIONS \(few\) must be a whole number"):
            self.callback(path=MBPP)


class TestWrongInput:
    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"every": 0}, r"`every` \(0\) must be at least 1"),
            ({"max_new_tokens": 0}, r"`max_new_tokens` \(0\) must be at least 1"),
            ({"temperature": -1.0}, r"`temperature` \(-1.0\) must not be negative"),
            ({"samples": 2}, r"`samples` \(2\) at temperature 0 are all the same"),
            ({"ks": [2]}, "pass@2 cannot be estimated from 1 programs per problem"),
            ({"problem_set": "apps"}, "There is no code set 'apps'. Choose one of mbpp, humaneval"),
            ({"problem_set": "humaneval", "split": "test"}, r"and no `split` \(test\)"),
            ({"limit": 0}, r"`limit` \(0\) must be at least 1"),
        ],
    )
    def test_refuses_wrong_settings(self, wrong, message):
        with pytest.raises(ValueError, match=message):
            MBPPCallback(Untrained, path=MBPP, sandbox=Unused(), **wrong)

    def test_refuses_other_operating_systems(self, monkeypatch):
        monkeypatch.setattr("sys.platform", "darwin")
        monkeypatch.delattr("os.sched_getaffinity", raising=False)  # as there
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

        with pytest.raises(CannotContain, match="needs Linux"):
            MBPPCallback(Untrained, path=MBPP)

    def test_refuses_a_broken_sandbox_before_training(self):
        class Broken:
            def judge(self, trials):
                raise RuntimeError("The kernel has no Landlock.")

        with pytest.raises(RuntimeError, match="no Landlock"):
            MBPPCallback(Untrained, path=MBPP, sandbox=Broken())


class TestLoadCodeProblems:
    @pytest.mark.parametrize(
        ("split", "asked"), [(None, "test"), ("train", "train"), ("all", "prompt+test+validation+train")]
    )
    def test_loads_sets_without_a_file_from_the_hub(self, split, asked, monkeypatch):
        seen = []

        def load_dataset(*args, **kwargs):
            seen.append((args, kwargs))
            return json.loads(MBPP.read_text())

        monkeypatch.setattr("datasets.load_dataset", load_dataset)
        problems = load_code_problems("mbpp", split=split, limit=1)

        assert seen == [(("google-research-datasets/mbpp", "sanitized"), {"split": asked})]
        assert len(problems) == 1

    def test_an_unreachable_hub_raises_one_sentence(self, monkeypatch):
        def offline(*args, **kwargs):
            raise ConnectionError("Couldn't reach the Hub\nwith more")

        monkeypatch.setattr("datasets.load_dataset", offline)
        with pytest.raises(
            ValueError, match=r"The MBPP dataset cannot be loaded from the Hub \(Couldn't reach the Hub\)\. Give"
        ):
            load_code_problems("mbpp")


class TestCommand:
    def command(self, coder_dir, *more):
        return main(["eval-mbpp", coder_dir, "--max-new-tokens", "48", "--device", "cpu", *map(str, more)])

    def test_two_evaluations_of_a_model_are_equal(self, coder_dir, contained, tmp_path, capsys):
        files = [tmp_path / "one.json", tmp_path / "two.json"]
        statuses = [
            self.command(coder_dir, "--path", MBPP, "--json", file, *more)
            for file, more in zip(files, [[], ["--in-flight", 1]], strict=True)
        ]
        first, second = (json.loads(file.read_text()) for file in files)

        assert statuses == [0, 0]
        assert first == second
        assert [problem["task"] for problem in first["problems"]] == [11, 12, 13, 14, 15]
        passed = int(first["summary"]["problems_passed"])
        assert 0 < passed < 5
        assert f"| mbpp | 5 | {passed} | 1 | {passed / 5:.1%} | " in capsys.readouterr().out

    def test_prints_pass_at_k(self, coder_dir, contained, tmp_path, capsys):
        out = tmp_path / "out.json"
        options = ["--path", MBPP, "--samples", 4, "--temperature", 1, "--k", "1,2,4", "--limit", 3, "--json", out]

        assert self.command(coder_dir, *options) == 0
        summary = json.loads(out.read_text())["summary"]
        assert summary["pass@1"] <= summary["pass@2"] <= summary["pass@4"] == summary["problems_passed"] / 3
        assert capsys.readouterr().out.count("| mbpp | 3 | ") == 3

    def test_grades_humaneval(self, coder_dir, contained, capsys):
        assert self.command(coder_dir, "--set", "humaneval", "--path", HUMANEVAL) == 0
        assert "| humaneval | 2 | " in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("options", "environment", "sentence"),
        [
            (["--samples", "2"], {}, "`samples` (2) at temperature 0 are all the same"),
            (["--k", "5"], {}, "pass@5 cannot be estimated from 1 programs per problem"),
            (["--path", "none.json"], {}, "There is no file none.json"),
            ([], {"MBPP_DATASET_PATH": "none.json"}, "There is no file none.json"),
            ([], {"MBPP_EVAL_SAMPLES": "2"}, "`samples` (2) at temperature 0 are all the same"),
            (["--path", str(HUMANEVAL)], {}, "Row 0 of MBPP needs the columns"),
        ],
    )
    def test_refuses_in_one_sentence(self, options, environment, sentence, capsys, monkeypatch):
        for variable, text in environment.items():
            monkeypatch.setenv(variable, text)

        assert self.command("no/model", *options) == 2
        assert sentence in capsys.readouterr().err

    def test_numbers_in_the_environment_are_parsed_as_arguments(self, capsys, monkeypatch):
        monkeypatch.setenv("MBPP_EVAL_SAMPLES", "few")

        with pytest.raises(SystemExit):
            self.command("no/model")
        assert "argument --samples: invalid int value: 'few'" in capsys.readouterr().err

    def test_refuses_a_machine_without_a_sandbox(self, capsys, monkeypatch):
        def refuse(*args):
            raise CannotContain("The kernel has no Landlock.")

        monkeypatch.setattr("trl_spiral.sandbox.local.LocalSandbox.__init__", refuse)

        assert self.command("no/model", "--path", MBPP) == 2
        assert "trl-spiral eval-mbpp: The kernel has no Landlock." in capsys.readouterr().err
