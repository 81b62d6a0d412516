"""Rewards for programs that were really run: what each ending is worth, what is told to TRL, and what hostile text can do."""

import json

import pytest

from trl_spiral.rewards import ExecutionReward, UnitTestReward
from trl_spiral.sandbox import CallResult, JobResult, Limits, LocalSandbox, ProgramEnding, TrialResult
from trl_spiral.text.programs import computes_nothing, entry_points, extract_program, is_blank
from trl_spiral.text.prompts import PromptRenderer


def fenced(program):
    return f"Here it is:\n```python\n{program}\n```\n"


@pytest.fixture(scope="module")
def sandbox():
    try:
        opened = LocalSandbox(Limits(cpu_seconds=1.0, wall_seconds=1.5, output_bytes=2000))
    except RuntimeError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    with opened:
        yield opened


class FakeSandbox:
    """Answers with what it was given, and remembers what it was asked."""

    def __init__(self, outcomes=(), verdicts=()):
        self.outcomes, self.verdicts, self.asked = list(outcomes), list(verdicts), []

    def run(self, jobs):
        self.asked.append(list(jobs))
        return [self.outcomes.pop(0) for _ in jobs]

    def judge(self, trials):
        self.asked.append(list(trials))
        return [self.verdicts.pop(0) for _ in trials]


class Log:
    """TRL's `log_metric` and `log_extra`."""

    def __init__(self):
        self.metrics, self.columns = {}, {}

    def __call__(self, reward, completions, **columns):
        return reward(
            completions=completions,
            prompts=[""] * len(completions),
            log_metric=self.metrics.__setitem__,
            log_extra=self.columns.__setitem__,
            **columns,
        )


class TestExtractProgram:
    @pytest.mark.parametrize(
        ("reply", "program"),
        [
            ("print(1)", "print(1)"),
            ("```python\nprint(1)\n```", "print(1)\n"),
            ("A draft:\n```python\nprint(1)\n```\nBetter:\n```python\nprint(2)\n```\nDone.", "print(2)\n"),
            ("```Python3 title=a.py\nprint(1)\n```", "print(1)\n"),
            ("  ```py\nprint(1)\n  ```", "print(1)\n"),
            ("```python\nprint('```')\n```", "print('```')\n"),
            ("```python\nprint(1", "print(1"),
            ("```\nprint(1)\n```", "```\nprint(1)\n```"),
            ("```pyramid\n1\n```", "```pyramid\n1\n```"),
            ("<think>\n```python\n1\n```\n</think>\nprint(2)", "\nprint(2)"),
            ("<think>\nTry\n```python\n1\n</think>\nAnswer:\n```python\nprint(2)\n```", "print(2)\n"),
            ("Well.\n```python\n1\n```\n</think>\n```python\nprint(2)\n```", "print(2)\n"),
            (" <think>\n```python\n1\n```", ""),
            ("<think>\n1\n</think>\n<think>\n```python\n2\n```", ""),
            ("```python\nprint('<think>')\nprint(3)\n```", "print('<think>')\nprint(3)\n"),
            ("```python\nprint('a')\n\nBetter:\n```python\nprint(2)\n```", "print(2)\n"),
            ("```python\nprint('a')\n\nBetter:\n``` py\nprint(2)\n```", "print(2)\n"),
            ("```python\nprint('''\n```text\n''')\n```\nDone.", "print('''\n```text\n''')\n"),
            ("", ""),
        ],
    )
    def test_takes_the_last_block_or_else_the_whole_text(self, reply, program):
        assert extract_program(reply) == program

    @pytest.mark.parametrize("text", ["```python\n", "\n```python\nx", "`", " \t", "\n    ", "<think>", "</think>"])
    def test_reads_a_million_characters_of_anything(self, text):
        extract_program(text * (1_000_000 // len(text)))


class TestEntryPoints:
    @pytest.mark.parametrize(
        ("tests", "names"),
        [
            ("assert double(2) == 4", ("double",)),
            ("import math\nassert math.isclose(area(2), 3.1)", ("area",)),
            (
                "from math import pi as p\ndef same(a, b):\n    return a == b\nassert same(f(p), [g(n) for n in 'ab'])",
                "fg",
            ),
            ("assert len([]) == 0", ()),
        ],
    )
    def test_are_the_names_that_tests_leave_to_the_program(self, tests, names):
        assert sorted(entry_points(tests)) == list(names)


class TestComputesNothing:
    @pytest.mark.parametrize(
        "program",
        ["print(1)", "x = 'a'\nprint(x, -1)", "print(f'{1}')", "if True:\n    print([1, 2][0])", "import os"],
    )
    def test_of_what_was_only_written_down(self, program):
        assert computes_nothing(program)

    @pytest.mark.parametrize(
        "program",
        ["print(2 * 3)", "for n in [1]:\n    print(n)", "print(len('ab'))", "print('ab'[::-1])", "def f(): pass\nf()"],
    )
    def test_not_of_what_was_worked_out(self, program):
        assert not computes_nothing(program)

    @pytest.mark.parametrize(
        ("program", "blank"),
        [
            ("", True),
            (" \n# x\n", True),
            ("# x\r# y\r\n", True),
            ("# x\u2028print(1)", True),
            ("pass", False),
            ("'x'", False),
            ("# x\rpass", False),
        ],
    )
    def test_a_blank_program_holds_nothing_to_run(self, program, blank):
        assert is_blank(program) is blank


class TestExecutionReward:
    CASES = (
        ("print(6 * 7)", 1.0, "printed"),
        ("x = 1", 0.5, "printed nothing"),
        ("print()", 0.5, "printed nothing"),
        ("import sys\nprint(1)\nsys.exit(0)", 1.0, "printed"),
        ("print(1", -0.5, "syntax_error: SyntaxError"),
        ("if True:\nprint(1)", -0.5, "syntax_error: IndentationError"),
        ("", -0.5, "syntax_error: NoProgram"),
        ("# print(1)", -0.5, "syntax_error: NoProgram"),
        ("print(1 / 0)", -1.0, "raised: ZeroDivisionError"),
        ("while True:\n    pass", -1.0, "timeout"),
        ("while True:\n    print('x' * 1000)", -1.0, "output_limit"),
        # What it says on stderr is not what happened.
        ("import sys\nprint('SyntaxError: invalid syntax', file=sys.stderr)", 1.0, "printed"),
        ("raise SyntaxError('not the parser')", -1.0, "raised: SyntaxError"),
        ("import os\nprint(1, flush=True)\nos._exit(0)", -1.0, "killed"),
    )

    def test_is_what_the_ending_is_worth(self, sandbox):
        log = Log()
        rewards = log(ExecutionReward(sandbox), [fenced(program) for program, _, _ in self.CASES])
        count = len(self.CASES)

        verdicts = log.columns["verdict"]
        assert rewards == [reward for _, reward, _ in self.CASES]
        assert [each.split(":")[0] if each.startswith("killed") else each for each in verdicts] == [
            verdict for _, _, verdict in self.CASES
        ]
        assert [code.rstrip("\n") for code in log.columns["code"]] == [program for program, _, _ in self.CASES]
        assert log.metrics == pytest.approx(
            {
                "execution/success_rate": 5 / count,
                "execution/timeout_rate": 1 / count,
                "execution/syntax_error_rate": 4 / count,
                "execution/avg_batch_reward": sum(reward for _, reward, _ in self.CASES) / count,
            }
        )

    @pytest.mark.parametrize(
        "completion",
        [
            "(" * 100_000,
            "-" * 100_000 + "1",
            "[" * 90 + "]" * 90 + "\nprint(" + "1+" * 100_000 + "1)",
            "print('\ud800')",
            "print(1)\x00",
            "9" * 10_000,
            "é" * 50_000,
            "class E(Exception): pass\nE.__name__ = '\\ud800[/bold]' * 1000\nraise E",
        ],
        ids=["brackets", "minuses", "sum", "surrogate", "null", "digits", "letters", "name"],
    )
    def test_is_given_whatever_the_text(self, sandbox, completion):
        log = Log()
        (reward,) = log(ExecutionReward(sandbox, triviality_penalty=0.5), [completion])

        assert reward in (1.0, 0.5, 0.0, -0.5, -1.0)
        assert log.columns["verdict"][0].isascii() and len(log.columns["verdict"][0]) < 100

    def test_reads_messages_as_it_reads_text(self):
        fake = FakeSandbox([JobResult(ProgramEnding.FINISHED, output="2\n")])
        reward = ExecutionReward(fake)
        messages = [{"role": "assistant", "content": "```python\nprint(1)\n```"}, {"role": "tool", "content": "1"}]
        answer = {"role": "assistant", "content": fenced("print(2)")}

        assert reward([[*messages, answer]]) == [1.0]
        assert [job.code for job in fake.asked[0]] == ["print(2)\n"]

    def test_values_are_the_ones_that_were_set(self):
        endings = [
            JobResult(ProgramEnding.FINISHED, output="1"),
            JobResult(ProgramEnding.FINISHED),
            JobResult(ProgramEnding.SYNTAX_ERROR),
        ]
        fake = FakeSandbox([*endings, JobResult(ProgramEnding.RAISED)])

        assert ExecutionReward(fake, printed=4, silent=3, syntax_error=2, failed=1)(["x"] * 4) == [4, 3, 2, 1]

    def test_a_program_that_computes_nothing_earns_less_on_request(self, sandbox):
        completions = ["print(1)", "x = 1", "print(1 + 1)", "print(1 / 0)", "print(", ""]
        log = Log()
        plain, strict = ExecutionReward(sandbox), ExecutionReward(sandbox, triviality_penalty=0.75)

        assert plain(completions) == [1.0, 0.5, 1.0, -1.0, -0.5, -0.5]
        assert log(strict, completions) == [0.25, -0.25, 1.0, -1.0, -0.5, -0.5]
        assert log.columns["verdict"][:3] == ["printed, trivial", "printed nothing, trivial", "printed"]
        assert log.metrics["execution/trivial_rate"] == pytest.approx(2 / 6)

    def test_a_source_that_cannot_be_judged_is_not_called_trivial(self):
        ran = JobResult(ProgramEnding.FINISHED, output="1")
        fake = FakeSandbox(
            [
                ran,
                ran,
                JobResult(ProgramEnding.KILLED),
                JobResult(ProgramEnding.FINISHED, answers=(CallResult(error="RecursionError"),)),
            ]
        )

        assert ExecutionReward(fake, triviality_penalty=1.0)(["x", "y"]) == [1.0, 1.0]

    def test_a_negative_penalty_is_refused(self):
        with pytest.raises(ValueError, match=r"`triviality_penalty` \(-1\) must not be below 0"):
            ExecutionReward(FakeSandbox(), triviality_penalty=-1)


class TestUnitTestReward:
    DOUBLE = ["assert double(2) == 4", "assert double(-1) == -2", "assert double('a') == 'aa'"]

    def test_is_the_share_of_tests_that_pass(self, sandbox):
        programs = [
            "def double(x):\n    return x * 2",
            "def double(x):\n    return abs(x) * 2",
            "def double(x):\n    return 4",
            "def double(x",
            "class Same:\n    def __eq__(self, other): return True\ndef double(x):\n    return Same()",
            "import os\ndef double(x):\n    os._exit(0)",
        ]
        log = Log()
        rewards = log(UnitTestReward(sandbox), [fenced(program) for program in programs], test_list=[self.DOUBLE] * 6)

        assert rewards == pytest.approx([1, 1 / 3, 1 / 3, 0, 0, 0])
        assert log.columns["tests"][:2] == ["3 of 3", "1 of 3: AssertionError, TypeError"]
        assert log.metrics == pytest.approx({"unit_tests/pass_rate": 5 / 18, "unit_tests/all_passed_rate": 1 / 6})

    def test_puts_a_row_s_imports_before_each_of_its_tests_and_behind_the_program(self):
        fake = FakeSandbox(verdicts=[TrialResult(True)] * 3)
        tests = [["assert math.isclose(area(1), 3.14, abs_tol=0.1)"], ["assert f() == 1", "assert f() == 2"]]
        rewards = UnitTestReward(fake)(["a", "b"], test_list=tests, test_imports=[["import math"], []])

        assert rewards == [1.0, 1.0]
        assert [(trial.code, trial.tests.split("\n")[0], trial.entry_points) for trial in fake.asked[0]] == [
            ("a\n\nimport math\n", "import math", ("area",)),
            ("b", "assert f() == 1", ("f",)),
            ("b", "assert f() == 2", ("f",)),
        ]

    def test_imports_of_the_tests_are_the_program_s_too(self, sandbox):
        # As at MBPP, where a program may count on them.
        program = "from __future__ import annotations\ndef area(r):\n    return math.pi * r * r"
        columns = dict(
            test_list=[["assert math.isclose(area(1), 3.1416, abs_tol=0.1)"]], test_imports=[["import math"]]
        )

        assert UnitTestReward(sandbox)([fenced(program)], **columns) == [1.0]

    def test_a_row_may_say_what_its_tests_call(self, sandbox):
        # Where a name is Python's, nothing says that the program's is meant: this `sum` is right with lists, Python's is not.
        program = fenced("def sum(x):\n    return [n for each in x for n in each]")
        tests = [["assert sum([[1], [2]]) == [1, 2]"]]

        assert UnitTestReward(sandbox)([program] * 2, test_list=tests * 2, entry_points=[["sum"], None]) == [1.0, 0.0]

    def test_changes_of_arguments_count_where_a_row_asks_for_it(self, sandbox):
        emptied = fenced("def f(a):\n    a.clear()\n    return a")
        sorts = fenced("def f(a):\n    a.sort()\n    return a")
        compares = ["a = [3, 1, 2]\nassert f(a) == sorted(a)"]
        looks = ["a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]"]
        reward = UnitTestReward(sandbox)

        assert reward([emptied, sorts], test_list=[compares] * 2) == [0.0, 1.0]
        assert reward([emptied, sorts, sorts], test_list=[looks] * 3, in_place=[True, True, None]) == [0.0, 1.0, 0.0]

    @pytest.mark.parametrize("test", ["assert f( == 1", "assert f() == '\0'"])
    @pytest.mark.parametrize("columns", [{}, {"entry_points": [["f"], ["f"]]}])
    def test_a_test_that_is_not_python_is_named(self, test, columns):
        with pytest.raises(ValueError, match=r"Row 1 of the batch has a test that is not Python .*: .assert f\("):
            UnitTestReward(FakeSandbox())(["x", "y"], test_list=[["assert f() == 1"], [test]], **columns)

    def test_a_row_without_tests_is_refused(self):
        with pytest.raises(ValueError, match="`test_list` is empty in a row"):
            UnitTestReward(FakeSandbox())(["x"], test_list=[[]])


class TestLimits:
    def test_leave_a_busy_machine_time_for_right_programs(self, monkeypatch):
        monkeypatch.setattr("trl_spiral.rewards.LocalSandbox", lambda limits: limits)

        for reward in (ExecutionReward(), UnitTestReward()):
            assert reward.sandbox.wall_seconds >= 5 * reward.sandbox.cpu_seconds


class TestThinking:
    # What a prompt that ends in `<think>` is gone on with, once cut off and once closed.
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

    def test_that_is_unfinished_holds_no_program(self, tokenizer):
        opens = "{{ messages[0]['content'] }}{% if add_generation_prompt %}<think>\n{% endif %}"
        renderer = PromptRenderer(tokenizer, chat_template=opens)
        conversation = [[{"role": "user", "content": "Print 1."}]] * 2

        assert self.rewards(renderer=renderer, prompts=conversation) == [1, [False, True]]
        assert self.rewards(prompts=["Print 1.\n<think>\n"] * 2) == [1, [False, True]]
        assert self.rewards(prompts=["Print 1.\n"] * 2) == [2, [True, True]]


class TestInPlainTrl:
    def test_both_reach_the_log_and_the_completions_table(self, sandbox, model_dir, tmp_path):
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
