"""Grading by math-verify, in a separate process."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trl_spiral.evaluation.problems import math_grading as grading
from trl_spiral.evaluation.problems.files import read_rows
from trl_spiral.evaluation.problems.math_grading import MathVerdict, check_can_grade, grade_answers
from trl_spiral.evaluation.problems.math_sets import get_math_set, math_problems


CORRECT, WRONG, TIMEOUT = MathVerdict.CORRECT, MathVerdict.WRONG, MathVerdict.TIMEOUT
TINY = Path(__file__).parents[2] / "data/math"
DATA = os.environ.get("TRL_SPIRAL_DATA")

# Each of them keeps SymPy busy for hours or forever.
ENDLESS = [
    r"9^{9^{9^9}}",
    r"999999999!",
    r"\prod_{n=1}^{10^{9}} n^{n}",
    r"\int_0^{\infty} \frac{\sin(x^{7}) e^{-x^3} \ln(1+x^2)}{1+x^{11}+\cos x} dx",
    r"(x+y+z+w)^{9999}",
]
# These end by themselves, or are not parsed.
HOSTILE = [
    "{" * 10**6 + "1" + "}" * 10**6,
    r"\frac{1}{" * 40 + "2" + "}" * 40,
    "٣٤٥²\ud800\x00",
    "9" * 500,
    r"\begin{pmatrix} 9^9 & x^{99} \\ y & \frac{1}{0} \end{pmatrix}^{99}",
]


def answers(name):
    """Return the gold answers of a set: all of them if its file is available, else a few of our own."""
    full = {"gsm8k": "gsm8k_test.jsonl", "math500": "math500_test.jsonl"}
    tiny = {"gsm8k": "gsm8k_tiny.jsonl", "math500": "math_tiny.jsonl"}
    path = Path(DATA) / full[name] if DATA else TINY / tiny[name]
    return [problem.answer for problem in math_problems(read_rows(path), get_math_set(name))]


# Some of the answers, or all.
SHARES = pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)], ids=["a fifth", "all"])


class TestGrade:
    @SHARES
    @pytest.mark.parametrize("name", ["gsm8k", "math500"])
    def test_every_gold_answer_is_correct(self, name, every):
        gold = answers(name)[::every]

        assert set(grade_answers([(answer, answer) for answer in gold])) == {CORRECT}

    @SHARES
    @pytest.mark.parametrize("name", ["gsm8k", "math500"])
    def test_the_answer_of_the_next_problem_is_wrong(self, name, every):
        gold = answers(name)
        # Two consecutive problems of MATH-500 have the same answer in two forms.
        plain = [
            answer.replace(",", "").removeprefix("x=") if name == "gsm8k" or "=" in answer else answer
            for answer in gold
        ]
        pairs = [(gold[i - 1], gold[i]) for i in range(len(gold)) if plain[i - 1] != plain[i]]

        assert len(gold) - len(pairs) == ({"gsm8k": 15, "math500": 3}[name] if DATA else 0)
        assert set(grade_answers(pairs[::every])) == {WRONG}

    def test_other_forms_of_an_answer_are_correct(self):
        pairs = [("1,800", r"\$1800.00"), (r"\frac{1}{2}", "0.5"), ("025", "25"), (r"\text{(A)}", "A"), ("5", "x=5")]
        pairs += [("x^2+2x+1", "(x+1)^2"), (r"90^\circ", "90"), ("4.5e33", r"4.5 \times 10^{33}")]

        assert grade_answers(pairs) == [CORRECT] * len(pairs)

    def test_a_reply_without_an_answer_is_wrong(self):
        assert grade_answers([("1", None), ("1", "1"), ("1", "")]) == [WRONG, CORRECT, WRONG]
        assert grade_answers([]) == []

    def test_hostile_answers_end_and_are_not_correct(self, monkeypatch):
        monkeypatch.setattr(grading, "SECONDS", 0.2)  # the correct answers below take a fiftieth of that
        before = os.times()
        found = grade_answers([("5", hostile) for hostile in ENDLESS + HOSTILE] + [("5", "5")] * 4)
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system

        assert found[: len(ENDLESS)] == [TIMEOUT] * len(ENDLESS)
        assert CORRECT not in found[: len(ENDLESS + HOSTILE)]
        # Later answers in the same lane are not affected.
        assert found[-4:] == [CORRECT] * 4
        # Processor time, which does not depend on other processes: their limits, and 2 s for the libraries.
        assert spent < 0.2 * len(ENDLESS + HOSTILE) + 2

    def test_an_answer_that_needs_too_much_memory_fails_alone(self, monkeypatch):
        monkeypatch.setattr(grading, "MEMORY", 160 * 2**20)
        monkeypatch.setattr(grading, "MAX_LANES", 1)  # later answers in the same lane
        found = grade_answers([("5", "5"), ("5", "2^{4000000000}"), ("5", "5")])

        # math-verify catches most errors of its comparisons, and reports that the answers differ.
        assert found[1] in (WRONG, TIMEOUT)
        assert found[0] is found[2] is CORRECT

    @pytest.mark.parametrize(
        ("happens", "verdicts"),
        [
            # Out of memory outside math-verify's handlers.
            ("raise MemoryError", "[2, 0, 2]"),
            # Dies after its last answer.
            ("import atexit, os; atexit.register(lambda: os.kill(os.getpid(), 9)); return False", "[2, 1, 2]"),
        ],
    )
    def test_a_failed_lane_loses_no_other_answer(self, happens, verdicts):
        # Appended to the path, because the folder's `math.py` would hide Python's.
        script = f"import sys; sys.path.append({str(Path(grading.__file__).parent)!r})\n"
        script += (
            f"import math_grading_worker as worker\ndef equal(gold, answer):\n    if answer == 'bad': {happens}\n"
        )
        script += "    return True\nworker.equal = equal\n"
        script += "print(worker.grade_pairs([['5', a] for a in ('5', 'bad', '5')], 60.0, 1))"
        done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)

        assert done.stdout == f"{verdicts}\n", done.stderr

    def test_works_in_another_thread(self):
        found = []
        thread = threading.Thread(target=lambda: found.extend(grade_answers([("5", "5"), ("5", "6")])))
        thread.start()
        thread.join()

        assert found == [CORRECT, WRONG]

    def test_a_script_without_a_main_guard_is_not_run_again(self, tmp_path):
        script = tmp_path / "train.py"
        script.write_text(
            "from trl_spiral.evaluation.problems.math_grading import grade_answers\n"
            "print('once', *grade_answers([('5', '5')]))\n"
        )
        done = subprocess.run([sys.executable, script], capture_output=True, text=True)

        assert (done.stdout, done.stderr) == ("once correct\n", "")

    def test_leaves_no_process_if_killed(self, tmp_path):
        script = "from trl_spiral.evaluation.problems import math_grading as grading\n"
        script += "grading.SECONDS = 3600; grading.MAX_LANES = 2\n"
        script += "grading.grade_answers([('5', '9^{9^{9^9}}')] * 2)"
        asker = subprocess.Popen([sys.executable, "-c", script])
        workers = []
        while len(workers) < 3:  # the program and its two lanes
            assert asker.poll() is None
            workers = descendants(asker.pid)
            time.sleep(0.05)
        asker.send_signal(signal.SIGKILL)
        asker.wait()
        for _ in range(400):
            if not (left := [pid for pid in workers if is_grading(pid)]):
                break
            time.sleep(0.05)

        assert left == []

    def test_reports_the_error_of_the_process(self, monkeypatch):
        monkeypatch.setattr(grading, "MEMORY", "much")

        with pytest.raises(RuntimeError, match="The grading process has failed .*TypeError"):
            grade_answers([("5", "5")])

    def test_reports_a_missing_math_verify(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "math_verify", None)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

        with pytest.raises(ImportError, match=r"needs math-verify.*`pip install trl-spiral\[eval\]`"):
            check_can_grade()


def descendants(pid):
    """Return the process ids of all descendants."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found


def is_grading(pid):
    """Return whether a process is a grading process, and not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" and b"grading_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
