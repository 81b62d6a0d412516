"""`trl-spiral games`."""

import json
import sys

import pytest

from trl_spiral.cli import main
from trl_spiral.games import base, game_names


@pytest.fixture
def registry(monkeypatch):
    """Restore the registry after the test."""
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    monkeypatch.setattr(base, "_GAMES", dict(base._GAMES))


class TestGames:
    def test_prints_a_table(self, capsys):
        assert main(["games", "tictactoe"]) == 0

        printed = capsys.readouterr().out
        assert "UltimateTicTacToe-v0" in printed
        assert "perfect information" in printed
        assert printed.rstrip().endswith(" games.")

    def test_lists_only_games_that_can_be_played(self, capsys):
        assert main(["games", "--json"]) == 0

        assert [game["name"] for game in json.loads(capsys.readouterr().out)] == game_names()

    def test_prints_json(self, capsys):
        assert main(["games", "Briscola", "--json"]) == 0

        (game,) = json.loads(capsys.readouterr().out)
        assert (game["name"], game["seats"]) == ("Briscola-v0", 2)

    def test_imports_a_module_that_registers_games(self, registry, capsys, tmp_path, monkeypatch):
        source = (
            "from tests.helpers.games import LastStone\nfrom trl_spiral.games import register_game\n"
            "register_game('LastStone-v9', LastStone)\n"
        )
        (tmp_path / "my_games.py").write_text(source)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))

        assert main(["games", "LastStone", "--import", "my_games"]) == 0
        assert "LastStone-v9" in capsys.readouterr().out

    def test_refuses_a_module_that_does_not_exist(self, capsys, monkeypatch):
        monkeypatch.setattr(sys, "path", list(sys.path))

        assert main(["games", "--import", "no_such_games"]) == 2
        assert "`--import` (no_such_games) failed" in capsys.readouterr().err

    def test_refuses_a_text_that_no_game_contains(self, capsys, monkeypatch):
        monkeypatch.setattr(sys, "path", list(sys.path))

        assert main(["games", "no such game"]) == 2
        assert "No game's name, kind or note contains 'no such game'" in capsys.readouterr().err
