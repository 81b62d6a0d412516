"""What the README shows, run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
CONFORMANCE = Path(__file__).parent / "test_conformance.py"


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
        done = subprocess.run(
            [sys.executable, "-c", "import sys; from trl_spiral.cli import main; sys.exit(main())", *command],
            cwd=folder,
            capture_output=True,
            text=True,
        )

        assert done.returncode == 0, done.stderr
        assert "| random | race |" in done.stdout


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
