"""The command line as a whole. Each command has tests of its own."""

import subprocess
import sys

import pytest

from trl_spiral import __version__
from trl_spiral.cli import COMMANDS, main


class TestMain:
    def test_lists_every_command(self, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(["--help"])

        assert stopped.value.code == 0
        listed = capsys.readouterr().out
        assert all(name in listed for name in COMMANDS)

    @pytest.mark.parametrize("name", COMMANDS)
    def test_prints_the_help_of_each_command(self, name, capsys):
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])

        assert stopped.value.code == 0
        assert f"usage: trl-spiral {name}" in capsys.readouterr().out

    def test_refuses_an_unknown_command(self, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(["gmaes"])

        assert stopped.value.code == 2
        assert "gmaes" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("source", "why"),
        [
            (None, "No module named 'mine_of_tests'. Name a module on Python's path."),
            ("import no_such_package.inside", "it imports no_such_package, which is not installed. Install it."),
            ("1 / 0", "ZeroDivisionError: division by zero"),
        ],
    )
    def test_prints_why_an_import_failed(self, source, why, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        if source:
            (tmp_path / "mine_of_tests.py").write_text(source)

        assert main(["games", "--import", "mine_of_tests"]) == 2
        assert capsys.readouterr().err == f"trl-spiral games: `--import` (mine_of_tests) failed: {why}\n"

    def test_prints_its_version_without_loading_torch(self):
        script = (
            "import sys; from trl_spiral.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass\n"
            "sys.exit('torch' in sys.modules or 'textarena' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

        assert (done.returncode, done.stdout.strip()) == (0, __version__)

    def test_names_the_extra_of_a_missing_package(self, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules, "scipy", None)
        command = ["tournament", "random", "minimax", "--game", "TicTacToe-v0", "--output", "out"]

        assert main(command) == 2
        assert capsys.readouterr().err == (
            "trl-spiral tournament: Nash averaging needs scipy, which is not installed. Install it with `pip install "
            "trl-spiral[eval]`.\n"
        )
