"""Grading by math-verify, in a process of its own."""

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
from trl_spiral.evaluation.problems.math_grading import Verdict, boxed_answer, check_can_grade, grade
from trl_spiral.evaluation.problems.math_sets import get_maths_set, problems_in


CORRECT, WRONG, TIMEOUT = Verdict.CORRECT, Verdict.WRONG, Verdict.TIMEOUT
TINY = Path(__file__).parents[2] / "data/math"
DATA = os.environ.get("TRL_SPIRAL_DATA")

# Each of them keeps SymPy busy for hours, or for ever.
ENDLESS = [
    r"9^{9^{9^9}}",
    r"999999999!",
    r"\prod_{n=1}^{10^{9}} n^{n}",
    r"\int_0^{\infty} \frac{\sin(x^{7}) e^{-x^3} \ln(1+x^2)}{1+x^{11}+\cos x} dx",
    r"(x+y+z+w)^{9999}",
]
# These end by themselves, or are not read at all.
HOSTILE = [
    "{" * 10**6 + "1" + "}" * 10**6,
    r"\frac{1}{" * 40 + "2" + "}" * 40,
    "٣٤٥²\ud800\x00",
    "9" * 500,
    r"\begin{pmatrix} 9^9 & x^{99} \\ y & \frac{1}{0} \end{pmatrix}^{99}",
]


def answers(name):
    """The gold answers of a set: all of them where there is the data, and otherwise a few of our own."""
    full = {"gsm8k": "gsm8k_test.jsonl", "math500": "math500_test.jsonl"}
    tiny = {"gsm8k": "gsm8k_tiny.jsonl", "math500": "math_tiny.jsonl"}
    path = Path(DATA) / full[name] if DATA else TINY / tiny[name]
    return [problem.answer for problem in problems_in(read_rows(path), get_maths_set(name))]


class TestBoxedAnswer:
    @pytest.mark.parametrize(
        ("reply", "answer"),
        [
            (r"So \boxed{42}.", "42"),
            (r"First \boxed{1}, then \boxed{ 2 }", "2"),
            (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
            (r"\boxed{\left\{ 1 \right.} and }", r"\left\{ 1 \right."),
            (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
            (r"\boxed{\boxed{3}}", "3"),
            (r"<think>\boxed{1}</think> It is \boxed{2}", "2"),
            (r"\boxed{1} <think> or \boxed{2}", "1"),
        ],
    )
    def test_is_what_the_last_box_holds(self, reply, answer):
        assert boxed_answer(reply) == answer

    @pytest.mark.parametrize(
        "reply", ["", "42", r"\boxed{}", r"\boxed{4", r"\boxed{4\}", r"\boxed 4", r"<think>\boxed{4}", "\\boxed{\\"]
    )
    def test_is_none_without_a_whole_box(self, reply):
        assert boxed_answer(reply) is None

    def test_is_found_in_a_reply_of_any_length(self):
        assert boxed_answer("{" * 10**6 + r"\boxed{7}" + " so it is." * 10**3) == "7"
        assert boxed_answer(r"\boxed{" * 10**4 + "1" + "}" * 10**4) == "1"


# Some of the answers, or all.
SHARES = pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)], ids=["a fifth", "all"])


class TestGrade:
    @SHARES
    @pytest.mark.parametrize("name", ["gsm8k", "math500"])
    def test_every_right_answer_is_right(self, name, every):
        gold = answers(name)[::every]

        assert set(grade([(answer, answer) for answer in gold])) == {CORRECT}

    @SHARES
    @pytest.mark.parametrize("name", ["gsm8k", "math500"])
    def test_the_next_problems_answer_is_wrong(self, name, every):
        gold = answers(name)
        # Two neighbours in MATH-500 have one answer in two forms.
        plain = [
            answer.replace(",", "").removeprefix("x=") if name == "gsm8k" or "=" in answer else answer
            for answer in gold
        ]
        pairs = [(gold[i - 1], gold[i]) for i in range(len(gold)) if plain[i - 1] != plain[i]]

        assert len(gold) - len(pairs) == ({"gsm8k": 15, "math500": 3}[name] if DATA else 0)
        assert set(grade(pairs[::every])) == {WRONG}

    def test_other_forms_of_an_answer_are_right(self):
        pairs = [("1,800", r"\$1800.00"), (r"\frac{1}{2}", "0.5"), ("025", "25"), (r"\text{(A)}", "A"), ("5", "x=5")]
        pairs += [("x^2+2x+1", "(x+1)^2"), (r"90^\circ", "90"), ("4.5e33", r"4.5 \times 10^{33}")]

        assert grade(pairs) == [CORRECT] * len(pairs)

    def test_a_reply_without_an_answer_is_wrong(self):
        assert grade([("1", None), ("1", "1"), ("1", "")]) == [WRONG, CORRECT, WRONG]
        assert grade([]) == []

    def test_hostile_answers_end_and_are_not_right(self, monkeypatch):
        monkeypatch.setattr(grading, "SECONDS", 0.2)  # right answers below take a fiftieth of that
        before = os.times()
        found = grade([("5", hostile) for hostile in ENDLESS + HOSTILE] + [("5", "5")] * 4)
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system

        assert found[: len(ENDLESS)] == [TIMEOUT] * len(ENDLESS)
        assert CORRECT not in found[: len(ENDLESS + HOSTILE)]
        # Whoever is graded behind them in the same lane is none the worse for it.
        assert found[-4:] == [CORRECT] * 4
        # Processor time, which does not depend on what else the machine does: their limits, and 2 s for the libraries.
        assert spent < 0.2 * len(ENDLESS + HOSTILE) + 2

    def test_an_answer_that_wants_too_much_memory_fails_alone(self, monkeypatch):
        monkeypatch.setattr(grading, "MEMORY", 160 * 2**20)
        monkeypatch.setattr(grading, "MAX_LANES", 1)  # whoever is graded behind it is none the worse for it
        found = grade([("5", "5"), ("5", "2^{4000000000}"), ("5", "5")])

        # math-verify swallows most errors of what it compares, and says that the two differ.
        assert found[1] in (WRONG, TIMEOUT)
        assert found[0] is found[2] is CORRECT

    @pytest.mark.parametrize(
        ("happens", "verdicts"),
        [
            # Out of memory where math-verify does not catch it.
            ("raise MemoryError", "[2, 0, 2]"),
            # Dies after its last answer.
            ("import atexit, os; atexit.register(lambda: os.kill(os.getpid(), 9)); return False", "[2, 1, 2]"),
        ],
    )
    def test_a_lane_that_fails_costs_no_other_answer(self, happens, verdicts):
        script = f"import grading_worker as worker\ndef equal(gold, answer):\n    if answer == 'bad': {happens}\n"
        script += "    return True\nworker.equal = equal\nprint(worker.grade([['5', a] for a in ('5', 'bad', '5')], 60.0, 1))"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(grading.__file__).parent
        )

        assert done.stdout == f"{verdicts}\n", done.stderr

    def test_works_beside_other_threads_and_off_the_main_one(self):
        found = []
        thread = threading.Thread(target=lambda: found.extend(grade([("5", "5"), ("5", "6")])))
        thread.start()
        thread.join()

        assert found == [CORRECT, WRONG]

    def test_a_script_without_a_main_guard_is_not_run_again(self, tmp_path):
        script = tmp_path / "train.py"
        script.write_text(
            "from trl_spiral.evaluation.problems.math_grading import grade\nprint('once', *grade([('5', '5')]))\n"
        )
        done = subprocess.run([sys.executable, script], capture_output=True, text=True)

        assert (done.stdout, done.stderr) == ("once correct\n", "")

    def test_leaves_no_process_behind_even_if_killed(self, tmp_path):
        script = "from trl_spiral.evaluation import grading; grading.SECONDS = 3600; grading.MAX_LANES = 2\n"
        script += "grading.grade([('5', '9^{9^{9^9}}')] * 2)"
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

    def test_what_is_wrong_with_the_process_is_said(self, monkeypatch):
        monkeypatch.setattr(grading, "MEMORY", "much")

        with pytest.raises(RuntimeError, match="The process that grades answers has failed .*TypeError"):
            grade([("5", "5")])

    def test_needs_math_verify_and_says_so(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "math_verify", None)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

        with pytest.raises(ImportError, match=r"needs math-verify.*`pip install trl-spiral\[eval\]`"):
            check_can_grade()


def descendants(pid):
    """Ids of a process's children, and of theirs."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found


def is_grading(pid):
    """Whether a process is still one of ours, and not merely waiting for somebody to read its status."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" and b"grading_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
