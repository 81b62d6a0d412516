import io
import os
import pty
import subprocess
import sys

import pytest

from trl_spiral.cli import main
from trl_spiral.cli.play import ShownPlayer, ending_sentence
from trl_spiral.games import get_game
from trl_spiral.players import HumanPlayer, ScriptedPlayer
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import Ending, Turn


SILENT = ScriptedPlayer("silent", lambda observation: observation.legal_actions[0])


class Thinker:
    """A player that explains its move, which is the first legal one."""

    name = "thinker"

    def ask(self, observation):
        move = observation.legal_actions[0]
        return Turn(move, text=f"Mine is the \x1b[2Jbest card. \\boxed{{{move}}}")


def watch(game, typed, seat=0, player=None):
    """Play a person against a player that thinks; return the screen before and after the end, and the episode."""
    screen = io.StringIO()
    game = get_game(game)
    shown_player = ShownPlayer(player or Thinker(), at_once=game.traits.perfect_information, screen=screen)
    human = HumanPlayer(lines=io.StringIO(typed), screen=screen)
    players = [human if place == seat else shown_player for place in range(game.traits.seats)]
    (episode,) = play([referee(Start(game, players, 0, 0))])
    before = screen.getvalue()
    shown_player.show_hidden()
    return before, screen.getvalue().removeprefix(before), episode


class TestShownPlayer:
    def test_shows_the_thinking_of_a_model_after_its_move(self):
        shown, kept, _ = watch("TicTacToe-v0", "4\n")

        thought = shown.index("thinker (seat 1) thought, to play [0]:\nMine is the ")
        assert shown.index("Your move: ") < thought < shown.index("thinker (seat 1) plays [0].") < len(shown)
        assert kept == ""

    def test_hides_thinking_about_hidden_cards_until_the_end(self):
        shown, kept, _ = watch("Kuhn-v0", "check\ncheck\ncall\nfold\n", seat=1)

        assert "best card" not in shown
        assert "thinker (seat 0) thought, to play [check]:\nMine is the " in kept
        assert "thinker (seat 0) plays [check]." in kept

    def test_hides_simultaneous_moves(self):
        shown, kept, _ = watch("RockPaperScissors-v0", "rock\n" * 9, seat=1, player=SILENT)

        before, asked, _ = shown.partition("Your move: ")
        assert asked and "silent" not in before
        assert "silent (seat 0) plays [rock]." in kept

    def test_a_move_alone_is_not_thinking(self):
        shown, _, _ = watch("TicTacToe-v0", "4\n", player=SILENT)

        assert "silent (seat 1) plays [0]." in shown
        assert "thought" not in shown

    def test_removes_control_characters_of_a_model(self):
        shown, _, _ = watch("TicTacToe-v0", "4\n")

        assert "\x1b" not in shown


class TestEndingSentence:
    @pytest.mark.parametrize(
        ("typed", "seat", "words"),
        [("4\n", 0, "You left: no result."), ("x\n" * 9, 0, "You lose, by an illegal move of seat 0: -1.")],
    )
    def test_names_the_seat_that_ended_the_game(self, typed, seat, words):
        _, _, episode = watch("TicTacToe-v0", typed, seat)

        assert ending_sentence(episode, seat).startswith(words)

    def test_names_the_winner(self):
        _, _, episode = watch("TicTacToe-v0", "4\n2\n6\n")

        assert episode.ending is Ending.FINISHED
        assert [ending_sentence(episode, seat)[:8] for seat in (0, 1)] == ["You win:", "You lose"]


class TestPlay:
    @pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
    def test_plays_at_a_real_terminal(self, model_dir):
        script = (
            "import sys; from trl_spiral.cli import main\n"
            f"sys.exit(main(['play', {model_dir!r}, '--game', 'TicTacToe-v0', '--max-new-tokens', '8', "
            "'--seat', '1']))"
        )
        ours, theirs = pty.openpty()
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", script], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            os.write(ours, b"\x04")  # Ctrl-D, at the first question
            shown, errors = process.communicate(timeout=300)
        finally:
            os.close(ours)
            os.close(theirs)

        assert process.returncode == 0, errors
        assert "(seat 0) plays [" in shown
        assert "Your move: " in shown
        assert shown.rstrip().endswith("You left: no result.")

    def test_refuses_a_seat_that_does_not_exist(self, capsys):
        assert main(["play", "random", "--game", "TicTacToe-v0", "--seat", "2"]) == 2
        assert "`--seat` (2) must be in 0 to 1: TicTacToe-v0 has 2 seats." in capsys.readouterr().err
