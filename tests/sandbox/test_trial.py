"""Trials: programs and their tests, each in its own process."""

import pytest

from trl_spiral.sandbox import Limits, LocalSandbox, ProgramEnding, Trial, TrialResult
from trl_spiral.sandbox.kernel import features


LACKING = [layer.name for layer in features() if layer.needed and layer.found is None]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"this kernel lacks {', '.join(LACKING)}")

# Low, so that programs reach them soon.
LIMITS = Limits(cpu_seconds=0.5, wall_seconds=2.0, memory_mb=256, output_bytes=4096)


@pytest.fixture(scope="module")
def sandbox():
    with LocalSandbox(LIMITS, workers=2) as sandbox:
        yield sandbox


def judge(sandbox, code, tests, names=("f",), in_place=False):
    return sandbox.judge([Trial(code, tests, names, in_place)])[0]


PASSING = {
    "values of every kind": (
        "def f(*a, **k): return [a, k]",
        "assert f(1, (2,), x={3}, y=None) == [(1, (2,)), {'x': {3}, 'y': None}]",
    ),
    "an expected exception": (
        "def f(x): raise KeyError(x)",
        "try:\n    f(1)\nexcept KeyError as error:\n    assert type(error) is KeyError\nelse:\n    assert False",
    ),
    "an exception of the program's own": (
        "class Mine(Exception): pass\ndef f(): raise Mine",
        "try:\n    f()\nexcept RuntimeError as error:\n    assert type(error).__name__ == 'Mine'",
    ),
    "an exception with several arguments": (
        "def f(): return b'\\xff'.decode()",
        "try:\n    f()\nexcept RuntimeError as error:\n    assert type(error).__name__ == 'UnicodeDecodeError'",
    ),
    "the truth value of a value that is not plain": (
        "import re\ndef f(x): return re.match('a', x)",
        "assert f('a')\nassert not f('b')",
    ),
    "state of the program": (
        "n = 0\ndef f():\n    global n\n    n += 1\n    return n",
        "assert [f(), f()] == [1, 2]",
    ),
    "a class that the tests only call": ("class f:\n    def __new__(cls, x): return x", "assert f(3) == 3"),
    "tests that print": ("def f(): return 1", "print('x' * 9999)\nassert f() == 1"),
    "tests without a call": ("def f(): pass", ""),
}

IN_PLACE = {
    "arguments that the program changes": (
        "def f(x, y, *, z):\n    x.sort()\n    y[1]['b'] = (2,)\n    z.discard(1)\n    z.add(3)\n    del y[0]",
        "x, b, z = [3, 1, 2], {}, {1, 2}\ny = [0, b]\nassert f(x, y, z=z) is None\n"
        "assert (x, y, b, z) == ([1, 2, 3], [{'b': (2,)}], {'b': (2,)}, {2, 3})\nassert y[0] is b",
    ),
    "lists in a list that the program sorts": (
        "def f(x): x.sort()",
        "a, b = [2], [1]\nx = [a, b]\nf(x)\nassert (x, a, b) == ([[1], [2]], [2], [1])\nassert x[0] is b",
    ),
    "an argument given twice": ("def f(x, y): x.append(1)", "x = []\nf(x, x)\nassert x == [1]"),
    "a counter that the program changes": (
        "def f(x): x['a'] = 2",
        "from collections import Counter\nx = Counter('a')\nf(x)\n"
        "assert x == Counter('aa')\nassert type(x) is Counter",
    ),
    "an argument changed before an exception": (
        "def f(x):\n    x.pop()\n    raise KeyError",
        "x = [1]\ntry:\n    f(x)\nexcept KeyError: pass\nassert x == []",
    ),
    "many numbers as an argument": (
        "def f(x): x.reverse()",
        "x = list(range(20_000))\nf(x)\nassert x == list(range(19_999, -1, -1))",
    ),
}

# Each changes its arguments, on which the expected value depends. The tests are right if nothing is changed.
ALTERING = {
    "emptying": ("def f(a):\n    a.clear()\n    return a", "x = [3, 1, 2]\nassert f(x) == sorted(x)"),
    "emptying a dict": ("def f(a):\n    a.clear()\n    return 0", "x = {1: 2}\nassert f(x) == sum(x.values())"),
    "emptying a set": ("def f(a):\n    a.clear()\n    return 0", "x = {1, 2}\nassert f(x) == len(x)"),
    "emptying a nested list": (
        "def f(a):\n    a[0].clear()\n    return 0",
        "x = ([1, 2],)\nassert f(x) == len(x[0])",
    ),
    "emptying a keyword": ("def f(*, a):\n    a.clear()\n    return 0", "x = [1]\nassert f(a=x) == len(x)"),
    "the expectation as an argument": (
        "def f(a, b):\n    b[:] = [a]\n    return [a]",
        "x = [7]\nassert f(1, x) == x",
    ),
    "emptying before an exception": (
        "def f(a):\n    a.clear()\n    raise KeyError",
        "x = [1]\ntry:\n    f(x)\nexcept KeyError:\n    pass\nassert len(x) == 1 and f",
    ),
    "a loop over the cases": (
        "def f(a):\n    a.clear()\n    return a",
        "cases = [[2, 1], [3]]\nfor x in cases:\n    assert f(x) == sorted(x)",
    ),
    "cases that are all emptied": (
        "def f(a):\n    a.clear()\n    return 0",
        "x = [1]\nassert f(x) == 0\nassert x == [1]",
    ),
}

TESTS = "assert f(1) == 987654321012"
# Programs that try to pass without a solution, and the error of the trial.
CHEATS = {
    "exiting": ("import os\nos._exit(0)", "Killed"),
    "exiting in the call": ("import os\ndef f(x): os._exit(0)", "Killed"),
    "sys.exit": ("import sys\nsys.exit(0)", "SystemExit"),
    "sys.exit in the call": ("import sys\ndef f(x): sys.exit(0)", "SystemExit"),
    "an object that equals everything": (
        "class A:\n    def __eq__(self, other): return True\ndef f(x): return A()",
        "NotPlain",
    ),
    "a number that equals everything": (
        "class I(int):\n    __eq__ = lambda *a: True\n    __hash__ = int.__hash__\ndef f(x): return I(3)",
        "NotPlain",
    ),
    "a restart without asserts": (
        "import os, sys\ndef f(x): os.execv(sys.executable, ['python', '-O', '-c', ''])",
        "PermissionError",
    ),
    "searching for the answer": (
        "import gc, re, sys\n"
        "def f(x):\n"
        "    frame, seen = sys._getframe(), []\n"
        "    while frame:\n"
        "        seen += [frame.f_locals, frame.f_globals, frame.f_code.co_consts]\n"
        "        frame = frame.f_back\n"
        "    seen += gc.get_objects() + [m.__dict__ for m in list(sys.modules.values())]\n"
        "    return int((re.findall('[0-9]{12}', repr(seen)) or [0])[0])",
        "AssertionError",
    ),
    "patched builtins": (
        "import builtins\nclass AssertionError(Exception): pass\nbuiltins.AssertionError = Exception\n"
        "builtins.all = lambda *a: True\ndef f(x): return 3",
        "AssertionError",
    ),
    "ending the loops of the tests": ("def f(x): raise StopIteration", "StopIteration"),
    "raising KeyboardInterrupt": ("def f(x): raise KeyboardInterrupt", "KeyboardInterrupt"),
    "forging the report": (
        "import os\ndef f(x):\n    for fd in range(3, 64):\n        try:\n"
        "            os.write(fd, b'\\0\\0\\0\\x17t\\0\\0\\0\\3s\\0\\0\\0\\x08finisheds\\0\\0\\0\\0s\\0\\0\\0\\0')\n"
        "        except OSError: pass\n    os._exit(0)",
        None,
    ),
    "sending malformed messages": (
        "import os\ndef f(x):\n    for fd in range(3, 64):\n        try:\n"
        "            os.write(fd, b'\\0\\0\\0\\1X' * 9)\n"
        "        except OSError: pass\n    return 3",
        "Killed",
    ),
    "an endless call": ("def f(x):\n    while True: pass", "Timeout"),
    "a value over the limit": ("def f(x): return 'a' * 10 ** 6", "OutputLimit"),
    "tracing": ("import sys\nsys.settrace(lambda *a: sys.exit(0))\ndef f(x): return 3", None),
    "no such function": ("g = 1", "NameError"),
    "no program": ("def f(", "SyntaxError"),
    "a program that fails": ("1 / 0", "ZeroDivisionError"),
}


class TestJudge:
    @pytest.mark.parametrize("name", PASSING)
    def test_passes(self, name, sandbox):
        assert judge(sandbox, *PASSING[name]) == TrialResult(True)

    @pytest.mark.parametrize("name", CHEATS)
    def test_fails(self, name, sandbox):
        code, error = CHEATS[name]
        result = judge(sandbox, code, TESTS)

        assert not result.passed
        assert error is None or result.error == error

    @pytest.mark.parametrize("name", IN_PLACE)
    def test_changes_of_arguments_are_applied_with_in_place_only(self, name, sandbox):
        assert judge(sandbox, *IN_PLACE[name], in_place=True) == TrialResult(True)
        assert judge(sandbox, *IN_PLACE[name]).error == "AssertionError"

    @pytest.mark.parametrize("name", ALTERING)
    def test_a_program_cannot_change_the_expected_value(self, name, sandbox):
        program, tests = ALTERING[name]
        # The result must be the same as if `f` received copies of all arguments.
        copying = "import copy\ninner = f\ndef f(*a, **k): return inner(*copy.deepcopy(a), **copy.deepcopy(k))"
        copied = f"{program}\n{copying}\n{tests}"
        try:
            exec(copied, {})
        except AssertionError:
            passes = False
        else:
            passes = True

        assert judge(sandbox, program, tests).passed is passes

    def test_fails_if_an_argument_is_changed_that_should_not_be(self, sandbox):
        tests = "a = [3, 1]\nassert f(a) == [1, 3]\nassert a == [3, 1]"

        assert judge(sandbox, "def f(x): return sorted(x)", tests, in_place=True).passed
        assert judge(sandbox, "def f(x):\n    x.sort()\n    return x", tests, in_place=True).error == "AssertionError"

    def test_fails_if_an_argument_receives_a_value_that_is_not_plain(self, sandbox):
        assert judge(sandbox, "def f(x): x.append(f)", "f([])", in_place=True).error == "NotPlain"
        assert judge(sandbox, "def f(x): x.append(f)", "f([])").passed

    def test_passes_right_programs_among_wrong_ones(self, sandbox):
        right, wrong = "def f(x): return 2", "def f(x): return 3"
        results = sandbox.judge([Trial(code, "assert f(1) == 2", ("f",)) for code in (right, wrong) * 10])

        assert [result.passed for result in results] == [True, False] * 10
        assert {result.error for result in results[1::2]} == {"AssertionError"}

    def test_stop_iteration_of_a_program_does_not_end_loops_of_the_tests(self, sandbox):
        # `map` would stop at the first call, and `all` of nothing is true.
        result = judge(sandbox, "def f(x): raise StopIteration", "assert all(map(f, [1, 2]))")

        assert result == TrialResult(False, "StopIteration")

    @pytest.mark.parametrize(
        "comparison",
        ["f() == 1", "f() != 1", "1 == f()", "f() < 1", "f() in (1, 2)", "f() in {1}", "f() + 1", "len(f())"],
    )
    def test_a_value_that_is_not_plain_has_only_a_truth_value(self, comparison, sandbox):
        result = judge(sandbox, "import re\ndef f(): return re.match('', '')", f"assert {comparison}")

        assert result.error in ("NotPlain", "TypeError")

    def test_reports_ending_and_output_of_the_program(self, sandbox):
        result = judge(sandbox, "print('hello')\ndef f(x):\n    print(x)\n    return 1 / x", "f(1)\nf(0)")

        assert result == TrialResult(False, "ZeroDivisionError", ProgramEnding.FINISHED, "hello\n1\n0\n")

    def test_stops_tests_that_hang(self, sandbox):
        hang = judge(sandbox, "def f(): return 1", "while f(): pass")
        sleep = judge(sandbox, "def f(): return 1", "import time\ntime.sleep(60)")

        assert hang.error == sleep.error == "Timeout"

    def test_contains_the_tests_as_well(self, sandbox):
        result = judge(sandbox, "def f(): return 1", "open('/etc/passwd')")

        assert result == TrialResult(False, "PermissionError")

    def test_fails_if_a_program_exits_before_its_tests_end(self, sandbox):
        # The program returns the right value and exits while the tests, which need no further call, still run.
        result = judge(
            sandbox,
            "import os, signal\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
            "def f():\n    signal.setitimer(signal.ITIMER_REAL, 0.05)\n    return 1",
            "assert f() == 1\nimport time\ntime.sleep(0.5)",
        )

        assert result == TrialResult(False, "Killed", ProgramEnding.KILLED)
