"""What the README shows, run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import forks
from tests.helpers.reward_hacks import CHEATS
from tests.tasks.test_connections import PROBLEM as WORDS
from tests.tasks.test_connections import RIGHT, SWAPPED, written
from tests.tasks.test_hanoi import BEST
from tests.tasks.test_hanoi import PROBLEM as TOWER
from trl_spiral.rewards import UnitTestReward
from trl_spiral.sandbox import CannotContain
from trl_spiral.tasks import get_task


ROOT = Path(__file__).parents[1]
CONFORMANCE = Path(__file__).parent / "games/test_conformance.py"


def blocks(section: str) -> list[str]:
    """The Python code of a section of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


class TestYourOwnGame:
    @pytest.fixture
    def folder(self, tmp_path):
        (code,) = blocks("Your own game")
        (tmp_path / "my_games.py").write_text(code, encoding="utf-8")
        return tmp_path

    def test_takes_less_than_fifty_lines(self, folder):
        assert len((folder / "my_games.py").read_text().splitlines()) < 50

    def test_keeps_the_promises_of_a_game(self, folder):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-k", "race", "-p", "no:cacheprovider", CONFORMANCE],
            env={**os.environ, "TRL_SPIRAL_GAMES": "my_games", "PYTHONPATH": str(folder)},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )

        assert "8 passed" in done.stdout, done.stdout

    def test_can_be_evaluated_by_name(self, folder):
        command = ["eval", "random", "--against", "random", "--game", "race", "--pairs", "5", "--import", "my_games"]
        (folder / "script.py").write_text("import sys; from trl_spiral.cli import main; sys.exit(main())")
        done = forks.run([sys.executable, folder / "script.py", *command], cwd=folder)

        assert done.returncode == 0, done.stderr
        assert "| random | race |" in done.stdout


GROUPS = {
    "two groups right, two with one word swapped": SWAPPED,
    "the worst partition": [list(words) for words in zip(*RIGHT, strict=True)],
    "one right group": RIGHT[:1],
    "the same right group four times": RIGHT[:1] * 4,
    "three right groups alone": RIGHT[:3],
    "one right group in upper case": [[word.upper() for word in RIGHT[0]]],
    "the solution in upper case": [[word.upper() for word in group] for group in RIGHT],
    "a word not in the puzzle": [*RIGHT[:3], [*RIGHT[3][:3], "zebra"]],
    "overlapping groups": [*RIGHT[:3], [*RIGHT[3][:3], RIGHT[0][0]]],
    "five groups": [*RIGHT, RIGHT[0]],
    "all words in one group": [[word for group in RIGHT for word in group]],
}
BACK_AND_FORTH = [[1, 2, 0], [1, 0, 2]]
MOVES = {
    "the first 1 of the shortest solution": [BEST[:1]],
    "the first 3 of the shortest solution": [BEST[:3]],
    "the first 6 of the shortest solution": [BEST[:6]],
    "a solution with a detour of two": [[[1, 0, 1], [1, 1, 0], *BEST]],
    "shuttling, ending where one move leads (11 moves)": [BEST[:1] + BACK_AND_FORTH * 5],
    "shuttling back to the start": [[[1, 0, 1], [1, 1, 0]] * 6],
    "10,000 moves": [BEST[:1] + BACK_AND_FORTH * 5_000],
    "1,361 moves (as many as are read)": [[[1, 0, 2], *BACK_AND_FORTH * 680]],
    "the solution, and one move on": [[*BEST, [1, 2, 0]]],
    "the solution, and an illegal move": [[*BEST, [9, 0, 2]]],
    "3 right moves, then a wrong disk id": [[*BEST[:3], [9, 0, 2]]],
    "non-integers, a list of text, code": [[[1.0, 0, 2]], [["1", "0", "2"]], "moves(3)"],
}
EQUAL = "class A{base}:\n    __eq__ = lambda *a: True\n    __hash__ = None\ndef f(a): return A()"
PROGRAMS = {
    "`return sorted(a)`": "def f(a): return sorted(a)",
    "right in one test of three": "def f(a): return [1, 2]",
    "emptying the argument, and returning it": "def f(a):\n    a.clear()\n    return a",
    "emptying the argument, and returning 0": "def f(a):\n    a.clear()\n    return 0",
    "an object that equals everything": EQUAL.format(base=""),
    "a list that equals everything": EQUAL.format(base="(list)"),
    "`os._exit(0)`": "import os\ndef f(a): os._exit(0)",
    "`sys.exit(0)`": "import sys\ndef f(a): sys.exit(0)",
    "`StopIteration`": "def f(a): raise StopIteration",
    "looking for the answer in frames": CHEATS["frames"].format(name="f"),
    "another `sorted` in `builtins`": "import builtins\nbuiltins.sorted = lambda a: a\ndef f(a): return sorted(a)",
}
TESTS = [
    f"x = {numbers}\nassert all(map(lambda a: f(a) == sorted(a), [x]))" for numbers in ([2, 1], [9, 3, 5], [0, -1])
]


class TestWhatCannotBeGained:
    @pytest.fixture
    def table(self):
        """Scores by name, of each of the three columns."""
        text = (ROOT / "README.md").read_text(encoding="utf-8").split("\n### What cannot be gained\n", 1)[1]
        cells = [cell.strip("* ") for line in text.split("\n\n")[0].split("\n")[3:] for cell in line.split("|")]
        names = [cell for cell in cells if cell]
        pairs = zip(names[::2], names[1::2], strict=True)
        return {name: float(score) for name, score in pairs}

    def test_names_no_reply_that_is_not_scored_here(self, table):
        assert table.keys() == {*GROUPS, *MOVES, *PROGRAMS}

    @pytest.mark.parametrize("name", GROUPS)
    def test_at_connections(self, name, table):
        score = get_task("connections").score(WORDS, f"\\boxed{{{written(GROUPS[name])}}}")

        assert round(score.value, 3) == table[name]

    @pytest.mark.parametrize("name", MOVES)
    def test_at_hanoi(self, name, table):
        for moves in MOVES[name]:
            score = get_task("hanoi-3").score(TOWER, f"\\boxed{{{moves}}}")

            assert round(score.value, 3) == table[name]

    def test_at_programs(self, table):
        try:
            reward = UnitTestReward()
        except CannotContain as error:
            pytest.skip(str(error))
        replies = [f"```python\n{program}\n```" for program in PROGRAMS.values()]
        with reward.sandbox:
            scores = reward(replies, test_list=[TESTS] * len(replies))

        assert dict(zip(PROGRAMS, scores, strict=True)) == pytest.approx({n: table[n] for n in PROGRAMS}, abs=5e-4)


class TestReproducibility:
    PROMISES = re.compile(
        r"same\s+seed|same\s+numbers|number\s+for\s+number|file\s+by\s+file|depends\s+on\s+the\s+seed"
    )

    def test_every_promise_of_equal_numbers_names_its_conditions(self):
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        before, section = text.split("\n### Reproducibility\n")
        conditions, after = section.split("\n### ", 1)
        paragraphs = re.split(r"\n\n|\n(?=\* )", f"{before}\n\n{after}")
        promising = [paragraph for paragraph in paragraphs if self.PROMISES.search(paragraph)]

        assert len(promising) >= 6
        assert [paragraph for paragraph in promising if "(#reproducibility)" not in paragraph] == []
        for condition in ("instruction set", "threads", "processes", "versions", "vLLM", "GPU"):
            assert condition in conditions
