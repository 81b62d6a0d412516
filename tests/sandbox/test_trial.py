"""Programs and the tests that judge them, each in a process of its own."""

import pytest

from trl_spiral.sandbox import Limits, LocalSandbox, ProgramEnding, Trial, TrialResult
from trl_spiral.sandbox.kernel import features


LACKING = [layer.name for layer in features() if layer.needed and layer.found is None]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"this kernel lacks {', '.join(LACKING)}")

# Little, so that those that use it up do so soon.
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
    "an exception that is expected": (
        "def f(x): raise KeyError(x)",
        "try:\n    f(1)\nexcept KeyError as error:\n    assert type(error) is KeyError\nelse:\n    assert False",
    ),
    "an exception of the program's own": (
        "class Mine(Exception): pass\ndef f(): raise Mine",
        "try:\n    f()\nexcept RuntimeError as error:\n    assert type(error).__name__ == 'Mine'",
    ),
    "an exception that wants more than words": (
        "def f(): return b'\\xff'.decode()",
        "try:\n    f()\nexcept RuntimeError as error:\n    assert type(error).__name__ == 'UnicodeDecodeError'",
    ),
    "what does not travel counts as true": (
        "import re\ndef f(x): return re.match('a', x)",
        "assert f('a')\nassert not f('b')",
    ),
    "what the program remembers": (
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
        "from collections import Counter\nx = Counter('a')\nf(x)\nassert x == Counter('aa')\nassert type(x) is Counter",
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

# Each alters, by its arguments, what it is compared with. The tests hold where nothing is altered.
ALTERING = {
    "emptying": ("def f(a):\n    a.clear()\n    return a", "x = [3, 1, 2]\nassert f(x) == sorted(x)"),
    "emptying a dict": ("def f(a):\n    a.clear()\n    return 0", "x = {1: 2}\nassert f(x) == sum(x.values())"),
    "emptying a set": ("def f(a):\n    a.clear()\n    return 0", "x = {1, 2}\nassert f(x) == len(x)"),
    "emptying what is nested": (
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
# The program's ways to pass these where it should not, and what the verdict calls it.
CHEATS = {
    "leaving": ("import os\nos._exit(0)", "Killed"),
    "leaving in the call": ("import os\ndef f(x): os._exit(0)", "Killed"),
    "leaving politely": ("import sys\nsys.exit(0)", "SystemExit"),
    "leaving politely in the call": ("import sys\ndef f(x): sys.exit(0)", "SystemExit"),
    "what equals everything": ("class A:\n    def __eq__(self, other): return True\ndef f(x): return A()", "NotPlain"),
    "a number that equals everything": (
        "class I(int):\n    __eq__ = lambda *a: True\n    __hash__ = int.__hash__\ndef f(x): return I(3)",
        "NotPlain",
    ),
    "starting anew without asserts": (
        "import os, sys\ndef f(x): os.execv(sys.executable, ['python', '-O', '-c', ''])",
        "PermissionError",
    ),
    "looking for the answer": (
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
    "raising what is not caught": ("def f(x): raise KeyboardInterrupt", "KeyboardInterrupt"),
    "saying that all is well": (
        "import os\ndef f(x):\n    for fd in range(3, 64):\n        try:\n"
        "            os.write(fd, b'\\0\\0\\0\\x17t\\0\\0\\0\\3s\\0\\0\\0\\x08finisheds\\0\\0\\0\\0s\\0\\0\\0\\0')\n"
        "        except OSError: pass\n    os._exit(0)",
        None,
    ),
    "answering with nonsense": (
        "import os\ndef f(x):\n    for fd in range(3, 64):\n        try:\n            os.write(fd, b'\\0\\0\\0\\1X' * 9)\n"
        "        except OSError: pass\n    return 3",
        "Killed",
    ),
    "never answering": ("def f(x):\n    while True: pass", "Timeout"),
    "answering with too much": ("def f(x): return 'a' * 10 ** 6", "OutputLimit"),
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
        verdict = judge(sandbox, code, TESTS)

        assert not verdict.passed
        assert error is None or verdict.error == error

    @pytest.mark.parametrize("name", IN_PLACE)
    def test_shows_changes_of_arguments_to_tests_that_ask_for_it(self, name, sandbox):
        assert judge(sandbox, *IN_PLACE[name], in_place=True) == TrialResult(True)
        assert judge(sandbox, *IN_PLACE[name]).error == "AssertionError"

    @pytest.mark.parametrize("name", ALTERING)
    def test_does_not_let_a_program_alter_what_it_is_compared_with(self, name, sandbox):
        program, tests = ALTERING[name]
        # The tests see what they would see where `f` got a copy of everything.
        copying = "import copy\ninner = f\ndef f(*a, **k): return inner(*copy.deepcopy(a), **copy.deepcopy(k))"
        copied = f"{program}\n{copying}\n{tests}"
        try:
            exec(copied, {})
        except AssertionError:
            passes = False
        else:
            passes = True

        assert judge(sandbox, program, tests).passed is passes

    def test_fails_where_an_argument_is_changed_that_should_not_be(self, sandbox):
        tests = "a = [3, 1]\nassert f(a) == [1, 3]\nassert a == [3, 1]"

        assert judge(sandbox, "def f(x): return sorted(x)", tests, in_place=True).passed
        assert judge(sandbox, "def f(x):\n    x.sort()\n    return x", tests, in_place=True).error == "AssertionError"

    def test_fails_where_an_argument_is_given_what_does_not_travel(self, sandbox):
        assert judge(sandbox, "def f(x): x.append(f)", "f([])", in_place=True).error == "NotPlain"
        assert judge(sandbox, "def f(x): x.append(f)", "f([])").passed

    def test_passes_what_is_right_beside_what_is_wrong(self, sandbox):
        right, wrong = "def f(x): return 2", "def f(x): return 3"
        verdicts = sandbox.judge([Trial(code, "assert f(1) == 2", ("f",)) for code in (right, wrong) * 10])

        assert [verdict.passed for verdict in verdicts] == [True, False] * 10
        assert {verdict.error for verdict in verdicts[1::2]} == {"AssertionError"}

    def test_does_not_end_a_loop_for_the_program(self, sandbox):
        # `map` would stop at the first call, and `all` of nothing is true.
        verdict = judge(sandbox, "def f(x): raise StopIteration", "assert all(map(f, [1, 2]))")

        assert verdict == TrialResult(False, "StopIteration")

    @pytest.mark.parametrize(
        "comparison",
        ["f() == 1", "f() != 1", "1 == f()", "f() < 1", "f() in (1, 2)", "f() in {1}", "f() + 1", "len(f())"],
    )
    def test_says_of_what_does_not_travel_whether_it_is_true_and_no_more(self, comparison, sandbox):
        verdict = judge(sandbox, "import re\ndef f(): return re.match('', '')", f"assert {comparison}")

        assert verdict.error in ("NotPlain", "TypeError")

    def test_tells_how_the_program_ended_and_what_it_printed(self, sandbox):
        verdict = judge(sandbox, "print('hello')\ndef f(x):\n    print(x)\n    return 1 / x", "f(1)\nf(0)")

        assert verdict == TrialResult(False, "ZeroDivisionError", ProgramEnding.FINISHED, "hello\n1\n0\n")

    def test_stops_tests_that_hang(self, sandbox):
        hang = judge(sandbox, "def f(): return 1", "while f(): pass")
        sleep = judge(sandbox, "def f(): return 1", "import time\ntime.sleep(60)")

        assert hang.error == sleep.error == "Timeout"

    def test_contains_the_tests_as_well(self, sandbox):
        verdict = judge(sandbox, "def f(): return 1", "open('/etc/passwd')")

        assert verdict == TrialResult(False, "PermissionError")

    def test_fails_where_a_program_leaves_behind_the_tests_backs(self, sandbox):
        # It answers as it should, and is gone when the tests, which need no more of it, have run to their end.
        verdict = judge(
            sandbox,
            "import os, signal\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
            "def f():\n    signal.setitimer(signal.ITIMER_REAL, 0.05)\n    return 1",
            "assert f() == 1\nimport time\ntime.sleep(0.5)",
        )

        assert verdict == TrialResult(False, "Killed", ProgramEnding.KILLED)
