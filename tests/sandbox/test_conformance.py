"""Local and bubblewrap sandbox give the same results for the same programs."""

import threading
from pathlib import Path

import pytest

from trl_spiral.sandbox import (
    BubblewrapSandbox,
    CallResult,
    Job,
    Limits,
    LocalSandbox,
    ProgramEnding,
    Trial,
    TrialResult,
)


# Low, so that programs reach them soon; with enough wall-clock time for a busy machine.
LIMITS = Limits(cpu_seconds=0.4, wall_seconds=3.0, memory_mb=256, output_bytes=4000)

FINE = ProgramEnding.FINISHED
DENIED = {"PermissionError", "FileNotFoundError", "OSError"}  # depends on the layer that denies


def answers(*values):
    return tuple(CallResult(value) for value in values)


# Job, ending, output, results of the calls, and error.
PROGRAMS: dict[str, tuple[Job, ProgramEnding, str, tuple[CallResult, ...], str | set[str] | None]] = {
    "output": (Job("import sys\nprint('é', 1, sep='\\n')"), FINE, "é\n1\n", (), None),
    "errors are output": (Job("import sys\nprint('oh', file=sys.stderr)"), FINE, "oh\n", (), None),
    "broken output": (Job("import os\nos.write(1, b'\\xff')"), FINE, "\ufffd", (), None),
    "main": (Job("if __name__ == '__main__': print(1)"), FINE, "1\n", (), None),
    "exit": (Job("import sys\nprint(1)\nsys.exit()"), FINE, "1\n", (), None),
    "exit with code zero": (Job("import sys\nprint(1)\nsys.exit(0)"), FINE, "1\n", (), None),
    "exit with a code": (Job("import sys\nprint(1)\nsys.exit(1)"), ProgramEnding.RAISED, "1\n", (), "SystemExit"),
    "exit with a message": (Job("raise SystemExit('boom')"), ProgramEnding.RAISED, None, (), "SystemExit"),
    "exit with calls left": (Job("raise SystemExit", ("1",)), ProgramEnding.RAISED, None, (), "SystemExit"),
    "exit with a code that raises": (
        Job("class E(SystemExit):\n    code = property(lambda self: 1 / 0)\nraise E"),
        ProgramEnding.RAISED,
        None,
        (),
        "E",
    ),
    "calls": (
        Job("n = 0\ndef f(x):\n    global n\n    n += x\n    return n", ("f(1)", "f(2)", "n")),
        FINE,
        "",
        answers(1, 3, 3),
        None,
    ),
    "values": (
        Job("", ("None, True, -7, 2**100, 0.5, 1j", "'é', b'\\xff', [()], {1: {2}}", "frozenset({'a'})", "-0.0")),
        FINE,
        "",
        answers((None, True, -7, 2**100, 0.5, 1j), ("é", b"\xff", [()], {1: {2}}), frozenset({"a"}), -0.0),
        None,
    ),
    "calls that raise": (
        Job("class Mine(Exception): pass\ndef f(): raise Mine", ("f()", "1 / 0", "1 +", "object()", "2")),
        FINE,
        "",
        (
            CallResult(error="Mine"),
            CallResult(error="ZeroDivisionError"),
            CallResult(error="SyntaxError"),
            CallResult(error="NotPlain"),
            CallResult(2),
        ),
        None,
    ),
    "a subclass of int": (
        Job("class N(int): pass", ("N(1)", "[N(1)]")),
        FINE,
        "",
        (CallResult(error="NotPlain"),) * 2,
        None,
    ),
    "syntax": (Job("def f(:"), ProgramEnding.SYNTAX_ERROR, "", (), "SyntaxError"),
    "indentation": (Job("if 1:\nprint(1)"), ProgramEnding.SYNTAX_ERROR, "", (), "IndentationError"),
    "raised": (Job("print(1)\n1 / 0", ("1",)), ProgramEnding.RAISED, None, (), "ZeroDivisionError"),
    "undefined name": (Job("nobody"), ProgramEnding.RAISED, None, (), "NameError"),
    "message that cannot be printed": (
        Job("raise ValueError('\\ud800')"),
        ProgramEnding.RAISED,
        None,
        (),
        "ValueError",
    ),
    "loop": (Job("while True: pass"), ProgramEnding.TIMEOUT, "", (), None),
    "loop in a call": (
        Job("def f():\n    while True: pass", ("1", "f()")),
        ProgramEnding.TIMEOUT,
        "",
        answers(1),
        None,
    ),
    "sleep": (Job("print(1, flush=True)\nimport time\ntime.sleep(60)"), ProgramEnding.TIMEOUT, "1\n", (), None),
    "endless output": (Job("while True: print('x' * 99)"), ProgramEnding.OUTPUT_LIMIT, None, (), None),
    "large value": (Job("", ("1", "'x' * 5000")), ProgramEnding.OUTPUT_LIMIT, "", answers(1), None),
    "memory": (Job("x = bytearray(2**29)"), ProgramEnding.RAISED, None, (), "MemoryError"),
    "exits": (Job("import os\nprint(1, flush=True)\nos._exit(0)", ("1",)), ProgramEnding.KILLED, "1\n", (), "exit"),
    "crashes": (Job("import ctypes\nctypes.string_at(0)"), ProgramEnding.KILLED, None, (), "SIGSEGV"),
    "fork": (Job("import os\nos.fork()"), ProgramEnding.RAISED, None, (), DENIED),
    "other programs": (Job("import os\nos.execv('/bin/true', ['true'])"), ProgramEnding.RAISED, None, (), DENIED),
    "network": (Job("import socket\nsocket.socket()"), ProgramEnding.RAISED, None, (), DENIED),
    "kill all": (Job("import os\nos.kill(-1, 9)"), ProgramEnding.RAISED, None, (), DENIED),
    "read": (Job("open('/etc/passwd')"), ProgramEnding.RAISED, None, (), DENIED),
    "write": (Job("open('/tmp/made-by-a-test', 'w')"), ProgramEnding.RAISED, None, (), DENIED),
    "environment": (
        Job("import os", ("'PATH' in os.environ", "os.environ.get('HF_TOKEN')")),
        FINE,
        "",
        answers(False, None),
        None,
    ),
    "nothing": (Job(""), FINE, "", (), None),
}
SEEDED = [Job("", ("hash('a')",), seed) for seed in (1, 1, 2)]

TRIALS: dict[str, tuple[Trial, bool, str | None, ProgramEnding]] = {
    "passes": (Trial("def f(x):\n    return x + 1", "assert f(1) == 2\nassert f(x=2) == 3", ("f",)), True, None, FINE),
    "fails": (
        Trial("def f(x): return 2", "assert f(1) == 2\nassert f(2) == 3", ("f",)),
        False,
        "AssertionError",
        FINE,
    ),
    "raises": (Trial("def f(): return {}[1]", "f()", ("f",)), False, "KeyError", FINE),
    "raises as expected": (
        Trial("def f(): return {}[1]", "try:\n    f()\nexcept KeyError: pass\nelse: assert 0", ("f",)),
        True,
        None,
        FINE,
    ),
    "lacks the function": (Trial("g = 1", "f()", ("f",)), False, "NameError", FINE),
    "syntax": (Trial("def f(:", "f()", ("f",)), False, "SyntaxError", ProgramEnding.SYNTAX_ERROR),
    "loops": (Trial("def f():\n    while True: pass", "f()", ("f",)), False, "Timeout", ProgramEnding.TIMEOUT),
    "exits": (Trial("import os\ndef f(): os._exit(0)", "f()", ("f",)), False, "Killed", ProgramEnding.KILLED),
    "exits at once": (
        Trial("import os\nos._exit(0)", "assert f() == 1", ("f",)),
        False,
        "Killed",
        ProgramEnding.KILLED,
    ),
    "equals everything": (
        Trial("class A:\n    def __eq__(self, other): return True\ndef f(): return A()", "assert f() == 1", ("f",)),
        False,
        "NotPlain",
        FINE,
    ),
}


@pytest.fixture(scope="module", params=[LocalSandbox, BubblewrapSandbox])
def sandbox(request):
    """One sandbox for all tests of its class. Skips them if it cannot be opened."""
    try:
        opened = request.param(LIMITS, workers=2)
    except RuntimeError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture(scope="module")
def results(sandbox):
    """Results of all programs in one batch, so that good ones run next to bad ones, and after them."""
    return dict(zip(PROGRAMS, sandbox.run([job for job, *_ in PROGRAMS.values()]), strict=True))


@pytest.fixture(scope="module")
def trial_results(sandbox):
    return dict(zip(TRIALS, sandbox.judge([trial for trial, *_ in TRIALS.values()]), strict=True))


class TestSandbox:
    @pytest.mark.parametrize("name", PROGRAMS)
    def test_reports_how_a_program_ended(self, name, results):
        _, ending, output, answered, error = PROGRAMS[name]
        result = results[name]

        assert (result.ending, result.answers) == (ending, answered)
        assert result.error in error if isinstance(error, set) else result.error == error
        assert output is None or result.output == output
        assert len(result.output) <= LIMITS.output_bytes
        assert 0 < result.cpu_seconds < 1

    def test_values_keep_their_exact_types(self, results):
        values = results["values"].answers

        assert repr(values) == repr(PROGRAMS["values"][3])  # `True == 1` and `-0.0 == 0.0`

    def test_hash_seed_determines_hashes(self, sandbox):
        (one,), (same,), (other,) = (result.answers for result in sandbox.run(SEEDED))

        assert one == same
        assert one != other

    @pytest.mark.parametrize("name", TRIALS)
    def test_reports_whether_a_program_passed(self, name, trial_results):
        _, passed, error, ending = TRIALS[name]

        assert trial_results[name] == TrialResult(passed, error, ending)

    def test_empty_lists_give_empty_results(self, sandbox):
        assert (sandbox.run([]), sandbox.judge([])) == ([], [])

    def test_serves_several_threads(self, sandbox):
        printed = {}

        def ask(thread):
            printed[thread] = [each.output for each in sandbox.run([Job(f"print({thread}, {n})") for n in range(3)])]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert printed == {thread: [f"{thread} {n}\n" for n in range(3)] for thread in range(3)}

    def test_left_no_file(self, sandbox, results):
        assert not Path("/tmp/made-by-a-test").exists()
