import io
import os
import pty
import subprocess
import sys
from dataclasses import replace

import pytest

from trl_spiral.games import get_game
from trl_spiral.players import HumanPlayer, RandomPlayer
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.selfplay.results import learning_seats
from trl_spiral.types import Ending, Observation, Turn


MOVES = Observation("Game", 1, ({"role": "user", "content": "The rules."},), legal_actions=("[0]", "[1 2]"))


def make_human(typed, **changes):
    """Return a player that types the given text, and its screen."""
    screen = io.StringIO()
    return HumanPlayer(lines=io.StringIO(typed), screen=screen, **changes), screen


class TestHumanPlayer:
    @pytest.mark.parametrize(
        ("typed", "move"), [("[0]", "[0]"), ("0", "[0]"), (" 1 2 ", "[1 2]"), ("I say \\boxed{[1 2]}", "[1 2]")]
    )
    def test_reads_a_move_with_or_without_its_brackets(self, typed, move):
        human, screen = make_human(f"{typed}\n")
        turn = human.ask(MOVES)

        assert (turn.action, turn.text, turn.policy, turn.lost) == (move, typed.strip(), None, False)
        assert screen.getvalue() == "\nGame, seat 1\nThe rules.\nLegal moves: [0] [1 2]\nYour move: "

    def test_shows_only_the_update_after_the_first_decision(self):
        human, screen = make_human("0\n0\n")
        news = Observation("Game", 0, MOVES.messages, update="The other one took [4].", legal_actions=("[0]",))
        human.ask(news)

        assert "The rules." in screen.getvalue()
        assert "The other one took [4]." not in screen.getvalue()

        human.ask(replace(news, turns=(Turn("[0]"),)))

        assert "The other one took [4]." in screen.getvalue()
        assert screen.getvalue().count("The rules.") == 1

    def test_asks_again_after_an_illegal_move(self):
        human, screen = make_human("[7]\n\n0\n")

        assert human.ask(MOVES).action == "[0]"
        assert "'[7]' is not a legal move.\nYour move: Type a move" in screen.getvalue()

    def test_forfeits_after_the_last_try(self):
        human, screen = make_human("[7]\n" * 9, max_tries=3)
        turn = human.ask(MOVES)

        assert (turn.action, turn.text, turn.lost) == (None, "[7]", False)
        assert screen.getvalue().count("Your move") == 3

    def test_accepts_any_text_if_moves_cannot_be_listed(self):
        human, screen = make_human("I offer two sheep\n")

        assert human.ask(Observation("Talk", 0, MOVES.messages)).action == "I offer two sheep"
        assert "Legal moves" not in screen.getvalue()

    def test_reads_a_program_of_several_lines(self):
        human, screen = make_human("print(5)\n.\n.\n```python\nif True:\n    print(5)\n```\n\\boxed{5}\n.\n0\n")
        asked = Observation("Code", 0, MOVES.messages, asks_program=True)
        turn = human.ask(asked)

        move = "```python\nif True:\n    print(5)\n```\n"
        assert (turn.action, turn.text) == (f"{move}5", f"{move}\\boxed{{5}}")
        assert screen.getvalue().count("Your move, then a line with a single dot (.):\n") == 3
        assert screen.getvalue().count("A move is a ```python block with a \\boxed{} below it.\n") == 1
        assert screen.getvalue().count("Type a move, or Ctrl-D") == 1
        assert human.ask(asked).lost

    def test_the_player_is_lost_at_the_end_of_the_input(self):
        human, _ = make_human("[7]\n")
        turn = human.ask(MOVES)

        assert (turn.action, turn.lost) == (None, True)

    def test_control_characters_of_an_opponent_are_not_printed(self):
        human, screen = make_human("0\n")
        human.ask(
            Observation(
                "Game",
                0,
                MOVES.messages,
                update="\x1b[2J\x1b]0;owned\x07\r[bold]né",
                legal_actions=("[0]",),
                turns=(Turn("[0]"),),
            )
        )

        assert not set("\x1b\x07\r") & set(screen.getvalue())
        assert "[bold]né" in screen.getvalue()

    def test_plays_a_whole_game(self):
        game = get_game("TicTacToe-v0")
        human, screen = make_human("".join(f"{cell}\n" for _ in range(5) for cell in range(9)), max_tries=9)
        [episode] = play([referee(Start(game, (human, RandomPlayer()), 0, 0))])

        assert episode.ending is Ending.FINISHED
        assert episode.players == ("human", "random")
        assert learning_seats(episode) == ()
        assert "Your move: " in screen.getvalue()

    def test_a_game_ends_without_result_if_the_person_leaves(self):
        game = get_game("TicTacToe-v0")
        human, _ = make_human("4\n")
        [episode] = play([referee(Start(game, (human, RandomPlayer()), 0, 0))])

        assert (episode.ending, episode.offender, episode.returns) == (Ending.PLAYER_LOST, 0, (0.0, 0.0))

    @pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
    def test_plays_at_a_real_terminal(self):
        script = (
            "from trl_spiral import RandomPlayer, Start, get_game, play, referee\n"
            "from trl_spiral.players import HumanPlayer\n"
            "game = get_game('TicTacToe-v0')\n"
            "[episode] = play([referee(Start(game, (HumanPlayer(), RandomPlayer()), 0, 0))])\n"
            "raise SystemExit(f'moves {episode.moves[0]}, ending {episode.ending}')\n"
        )
        ours, theirs = pty.openpty()
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", script], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            os.write(ours, b"4\n\x04")  # the middle, and Ctrl-D
            shown, error = process.communicate(timeout=120)
        finally:
            os.close(ours)
            os.close(theirs)

        assert "Legal moves: [0] [1]" in shown
        assert error.strip() == "moves (0, '[4]'), ending player_lost"
