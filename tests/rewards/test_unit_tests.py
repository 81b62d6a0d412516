"""Rewards for programs that pass tests."""

import pytest

from tests.helpers.reward_fakes import FakeSandbox, Log, fenced
from trl_spiral.rewards import UnitTestReward
from trl_spiral.sandbox import TrialResult


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

    def test_puts_imports_before_each_test_and_after_the_program(self):
        fake = FakeSandbox(verdicts=[TrialResult(True)] * 3)
        tests = [["assert math.isclose(area(1), 3.14, abs_tol=0.1)"], ["assert f() == 1", "assert f() == 2"]]
        rewards = UnitTestReward(fake)(["a", "b"], test_list=tests, test_imports=[["import math"], []])

        assert rewards == [1.0, 1.0]
        assert [(trial.code, trial.tests.split("\n")[0], trial.entry_points) for trial in fake.asked[0]] == [
            ("a\n\nimport math\n", "import math", ("area",)),
            ("b", "assert f() == 1", ("f",)),
            ("b", "assert f() == 2", ("f",)),
        ]

    def test_the_program_can_use_the_imports_of_the_tests(self, sandbox):
        # MBPP's programs may depend on them.
        program = "from __future__ import annotations\ndef area(r):\n    return math.pi * r * r"
        columns = dict(
            test_list=[["assert math.isclose(area(1), 3.1416, abs_tol=0.1)"]], test_imports=[["import math"]]
        )

        assert UnitTestReward(sandbox)([fenced(program)], **columns) == [1.0]

    def test_a_row_may_name_the_functions_that_its_tests_call(self, sandbox):
        # By default, names of Python's builtins are not the program's. This `sum` adds lists, Python's does not.
        program = fenced("def sum(x):\n    return [n for each in x for n in each]")
        tests = [["assert sum([[1], [2]]) == [1, 2]"]]

        assert UnitTestReward(sandbox)([program] * 2, test_list=tests * 2, entry_points=[["sum"], None]) == [1.0, 0.0]

    def test_changed_arguments_count_if_a_row_asks_for_it(self, sandbox):
        emptied = fenced("def f(a):\n    a.clear()\n    return a")
        sorts = fenced("def f(a):\n    a.sort()\n    return a")
        compares = ["a = [3, 1, 2]\nassert f(a) == sorted(a)"]
        looks = ["a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]"]
        reward = UnitTestReward(sandbox)

        assert reward([emptied, sorts], test_list=[compares] * 2) == [0.0, 1.0]
        assert reward([emptied, sorts, sorts], test_list=[looks] * 3, in_place=[True, True, None]) == [0.0, 1.0, 0.0]

    @pytest.mark.parametrize("test", ["assert f( == 1", "assert f() == '\0'"])
    @pytest.mark.parametrize("columns", [{}, {"entry_points": [["f"], ["f"]]}])
    def test_refuses_a_test_that_is_not_python(self, test, columns):
        with pytest.raises(ValueError, match=r"Row 1 of the batch has a test that is not Python .*: .assert f\("):
            UnitTestReward(FakeSandbox())(["x", "y"], test_list=[["assert f() == 1"], [test]], **columns)

    def test_refuses_a_row_without_tests(self):
        with pytest.raises(ValueError, match="`test_list` is empty in a row"):
            UnitTestReward(FakeSandbox())(["x"], test_list=[[]])
