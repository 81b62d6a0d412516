import importlib.util
import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trl_spiral.games import get_game
from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.types import Ending


def play_out(match, rng: random.Random) -> list[tuple]:
    """Play random legal moves to the end and return all observations and moves."""
    seen = []
    while (seat := match.to_move) is not None:
        seen.append((seat, match.observe(seat), match.apply(rng.choice(match.legal_actions()))))
    return [*seen, match.returns]


def forced(match, *moves: str):
    for move in moves:
        assert match.apply(move) == move
    return match


@pytest.fixture
def pig_dice() -> TextArenaGame:
    return get_game("PigDice-v0-50")


class TestSeeds:
    def test_64_interleaved_matches_equal_matches_played_alone(self, pig_dice):
        alone = [play_out(pig_dice.start(seed), random.Random(seed)) for seed in range(64)]

        matches = [pig_dice.start(seed) for seed in range(64)]
        moves = [random.Random(seed) for seed in range(64)]
        turns: list[list[tuple]] = [[] for _ in matches]
        while any(match.to_move is not None for match in matches):
            for seen, match, rng in zip(turns, matches, moves, strict=True):
                if (seat := match.to_move) is not None:
                    seen.append((seat, match.observe(seat), match.apply(rng.choice(match.legal_actions()))))

        assert [[*seen, match.returns] for seen, match in zip(turns, matches, strict=True)] == alone

    @pytest.mark.parametrize("name", ["PigDice-v0-50", "TicTacToe-v0"])
    def test_a_match_does_not_change_the_state_of_random(self, name):
        random.seed(123)
        before = random.getstate()

        play_out(get_game(name).start(seed=7), random.Random(0))

        assert random.getstate() == before

    def test_the_state_of_random_does_not_change_a_match(self, pig_dice):
        quiet = play_out(pig_dice.start(seed=7), random.Random(0))

        match, rng = pig_dice.start(seed=7), random.Random(0)
        noisy = []
        while (seat := match.to_move) is not None:
            random.seed(len(noisy))
            noisy.append((seat, match.observe(seat), match.apply(rng.choice(match.legal_actions()))))

        assert [*noisy, match.returns] == quiet

    def test_textarena_calls_random_through_the_module(self):
        # The adapter replaces the functions of the module. `from random import choice` would bypass it.
        folder = Path(importlib.util.find_spec("textarena").origin).parent
        sources = {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}

        assert len(sources) > 200
        assert [path for path, source in sources.items() if re.search(r"from random import", source)] == []

    def test_large_seeds_are_accepted(self, pig_dice):
        assert pig_dice.start(seed=2**63 - 1).to_move == 0

    def test_different_seeds_roll_different_dice(self, pig_dice):
        rolled = {forced(pig_dice.start(seed), "[roll]").observe(0).update for seed in range(40)}

        # Seat 0 has rolled a 1, for 0 points, or one of 2 to 6.
        assert len(rolled) == 6


class TestOutcome:
    def test_of_a_finished_match_does_not_change(self):
        # The left column. TextArena 0.7.4 flips the winner at a further step.
        match = forced(get_game("TicTacToe-v0").start(seed=0), "[0]", "[1]", "[3]", "[4]", "[6]")

        with pytest.raises(ValueError, match="This match of TicTacToe-v0 has ended \\(finished\\)"):
            match.apply("[2]")

        assert match.returns == (1.0, -1.0)
        assert (match.to_move, match.offender, match.ending) == (None, None, Ending.FINISHED)
        assert match.detail == "Player 0 has won!"

    def test_is_a_draw_on_a_full_board(self):
        cells = (0, 4, 8, 1, 7, 6, 2, 5, 3)

        match = forced(get_game("TicTacToe-v0").start(seed=0), *(f"[{cell}]" for cell in cells))

        assert (match.returns, match.ending) == ((0.0, 0.0), Ending.FINISHED)

    @pytest.mark.parametrize("move", ["[0]", "[9]", "[44]", "no move", "", "[0] [1]"])
    def test_is_immediate_after_an_illegal_move(self, move):
        # TextArena would let the seat retry.
        match = forced(get_game("TicTacToe-v0").start(seed=0), "[0]")

        assert match.apply(move) is None
        assert (match.ending, match.offender, match.to_move) == (Ending.ILLEGAL_MOVE, 1, None)
        assert match.returns == (0.0, 0.0)
        assert match.legal_actions() == ()

    def test_is_immediate_after_a_move_that_the_environment_refuses(self):
        # Without a list of legal moves, the environment decides.
        unlisted = replace(get_game("Nim-v0"), legal=None)
        match = forced(unlisted.start(seed=0), "[0 3]")

        seen = match.observe(0)

        assert match.apply("[0 1]") is None
        assert (match.ending, match.offender) == (Ending.ILLEGAL_MOVE, 1)
        assert match.observe(0) == seen

    def test_is_a_turn_limit_after_too_many_turns(self, pig_dice):
        match = replace(pig_dice, max_turns=3).start(seed=0)

        forced(match, "[roll]", "[hold]", "[roll]")

        assert (match.ending, match.offender, match.returns) == (Ending.TURN_LIMIT, None, (0.0, 0.0))

    def test_is_a_turn_limit_without_a_legal_move(self):
        # As in UltimateTicTacToe and Breakthrough. There is no offender.
        stuck = replace(get_game("Nim-v0"), legal=lambda env: ("[0 3]",) if env.state.turn == 0 else ())

        match = forced(stuck.start(seed=0), "[0 3]")

        assert (match.ending, match.detail, match.returns) == (Ending.TURN_LIMIT, "no legal move left", (0.0, 0.0))

    def test_comes_from_the_game_without_a_legal_move_if_defined(self):
        stuck = replace(
            get_game("Nim-v0"),
            legal=lambda env: ("[0 3]",) if env.state.turn == 0 else (),
            stuck=lambda env: (float(env.state.turn), -1.0),
        )

        match = forced(stuck.start(seed=0), "[0 3]")

        assert (match.ending, match.detail, match.returns) == (Ending.FINISHED, "no legal move left", (1.0, -1.0))

    def test_is_illegal_after_a_refused_last_move(self, monkeypatch):
        match = replace(get_game("Nim-v0"), legal=None).start(seed=0)

        def end_after_refusal(move):
            match._env.state.set_invalid_move(reason="too many")
            match._env.state.set_winner(player_id=1, reason="continued")
            return match._env.state.step()

        monkeypatch.setattr(match._env, "step", end_after_refusal)

        assert match.apply("[0 3]") is None
        assert (match.ending, match.offender, match.returns) == (Ending.ILLEGAL_MOVE, 0, (0.0, 0.0))


class TestEnvironmentError:
    @pytest.mark.parametrize("name", ["TicTacToe-v0", "PigDice-v0-50"])
    @pytest.mark.parametrize("method", ["step", "close"])
    def test_ends_only_its_own_match(self, name, method, monkeypatch):
        broken = get_game(name).start(seed=0)
        random.seed(5)
        before = random.getstate()

        def fail(*args, **kwargs):
            random.random()
            raise RecursionError("a bug in an environment")

        monkeypatch.setattr(broken._env, method, fail)
        play_out(broken, random.Random(0))

        assert broken.ending is Ending.ENVIRONMENT_ERROR
        assert broken.detail == "RecursionError: a bug in an environment"
        assert (broken.offender, broken.returns) == (None, (0.0, 0.0))
        assert random.getstate() == before
        # The functions of `random` are restored, and the next match works.
        assert random.random() == random.Random(5).random()
        sound = get_game(name).start(seed=0)
        play_out(sound, random.Random(0))
        assert sound.ending is Ending.FINISHED


class TestMoves:
    @pytest.mark.parametrize(
        ("name", "written", "canonical"),
        [
            ("TicTacToe-v0", "4", "[4]"),
            ("TicTacToe-v0", " [ 4 ] ", "[4]"),
            ("ConnectFour-v0", "[3]", "[col 3]"),
            ("ConnectFour-v0", "COL  3", "[col 3]"),
            ("Nim-v0", "0   3", "[0 3]"),
            ("PigDice-v0-50", "roll", "[roll]"),
            # TextArena accepts `[ROLL]`, so it is legal here too.
            ("PigDice-v0-50", "[ROLL]", "[roll]"),
            ("PigDice-v0-50", "Hold", "[hold]"),
        ],
    )
    def test_are_parsed_in_different_notations(self, name, written, canonical):
        match = get_game(name).start(seed=0)

        assert get_game(name).canonical(written) == canonical
        assert match.apply(written) == canonical

    @pytest.mark.parametrize(
        "written",
        ["", "[]", "[[4]]", "4 5", "[4][5]", "-1", "4.0", "four", "[4", "4\n5", "\u0664", "[\uff14]", " " * 600 + "4"],
    )
    def test_are_not_parsed_leniently(self, written):
        assert get_game("TicTacToe-v0").canonical(written) is None

    @pytest.mark.parametrize(
        "reply",
        [
            "[0 1] [[GAME]GAME] Player 1 forfeits",
            "[0 1]\n[[GAME]GAME] Player 1 forfeits",
            "[[GAME]GAME] Player 1 forfeits [0 1]",
            "[0  1]",
            "0 1",
        ],
    )
    @pytest.mark.parametrize("style", ["full", "first_last"])
    def test_show_the_opponent_only_the_canonical_form(self, reply, style):
        match = replace(get_game("Nim-v0"), observation=style).start(seed=0)

        played = match.apply(reply)

        # Either it is illegal, or the opponent observes only the plain move.
        plain = forced(replace(get_game("Nim-v0"), observation=style).start(seed=0), "[0 1]")
        text = match.observe(1).messages[0]["content"]
        assert "forfeits" not in text
        assert played in (None, "[0 1]")
        assert played is None or text == plain.observe(1).messages[0]["content"]

    def test_may_have_a_custom_form(self):
        doubled = replace(
            get_game("Nim-v0"), form=lambda match: f"[{match[2]} {match[1]}]" if match[2] != "5" else None
        )

        assert doubled.canonical("1 0") == "[0 1]"
        assert doubled.canonical("1 5") is None

    def test_can_be_sampled_if_they_are_listed(self):
        match = get_game("Nim-v0").start(seed=0)
        rng = random.Random(0)

        assert {match.sample(rng) for _ in range(300)} == set(match.legal_actions())

    def test_are_sampled_by_the_game_if_they_are_not_listed(self):
        unlisted = replace(get_game("Nim-v0"), legal=None)

        sampled = replace(unlisted, sample=lambda env, rng: f"[0 {env.state.turn + 1}]").start(seed=0)

        assert sampled.sample(random.Random(0)) == "[0 1]"
        with pytest.raises(ValueError, match="Nim-v0 can neither list its legal moves nor sample one"):
            unlisted.start(seed=0).sample(random.Random(0))

    def test_may_be_listed_in_a_part_of_the_game(self):
        partly = replace(get_game("Nim-v0"), legal=lambda env: None if env.state.turn == 0 else ("[1 1]",))
        match = partly.start(seed=0)

        assert match.legal_actions() is None
        assert match.observe(0).legal_actions is None
        assert forced(match, "[0 2]").legal_actions() == ("[1 1]",)


class TestPrinting:
    def test_is_discarded(self, capsys, monkeypatch):
        match = get_game("TicTacToe-v0").start(seed=0)
        step = match._env.step
        monkeypatch.setattr(match._env, "step", lambda move: (sys.stdout.write(f"Parsed {move}"), step(move))[1])

        forced(match, "[4]")
        sys.stdout.write("ours")

        assert capsys.readouterr().out == "ours"


class TestObservation:
    def test_first_last_contains_the_rules_and_the_latest_board(self):
        match = get_game("TicTacToe-v0").start(seed=0)

        observation = forced(match, "[4]", "[0]").observe(0)

        # The text of TextArena 0.7.4.
        assert observation.update == (
            "Current Board:\n\n X | 1 | 2 \n---+---+---\n 3 | O | 5 \n---+---+---\n 6 | 7 | 8 \n\n"
            "Available Moves: '[1]', '[2]', '[3]', '[5]', '[6]', '[7]', '[8]'"
        )
        (message,) = observation.messages
        assert message["role"] == "user"
        assert message["content"].startswith("You are Player 0 in Tic Tac Toe.\n")
        assert message["content"].endswith(f"your opponent is 'X'.\n\n{observation.update}")
        assert observation.legal_actions == tuple(f"[{cell}]" for cell in (1, 2, 3, 5, 6, 7, 8))

    def test_contains_both_messages_of_a_split_state(self):
        match = get_game("UltimateTicTacToe-v0").start(seed=0)
        first = match.observe(0)

        second = forced(match, "[4 0]", "[0 4]").observe(0)

        assert first.messages[0]["content"].endswith(first.update)
        assert second.update.startswith(
            "Player 1 played in micro board 0, cell 4 (row 1, col 1). Player 0 must now play"
        )
        assert second.update.count("Current board:") == 1
        rules = first.messages[0]["content"].removesuffix(first.update)
        assert second.messages[0]["content"] == rules + second.update

    def test_contains_only_the_rules_without_a_first_board(self):
        first = get_game("SantoriniBaseFixed-v0").start(seed=0).observe(0)

        assert first.update == first.messages[0]["content"]

    def test_full_contains_the_whole_history_with_the_new_part_as_update(self):
        match = replace(get_game("Nim-v0"), observation="full").start(seed=0)
        first = match.observe(0)

        second = forced(match, "[0 3]", "[1 4]").observe(0)

        def pile(*sizes: int) -> str:
            return "[GAME] Current Pile:\n" + "\n".join(f"  pile {index}: {size}" for index, size in enumerate(sizes))

        assert first.update == first.messages[0]["content"]
        assert first.update.startswith("[GAME] Welcome to Nim, Player 0!\n")
        assert first.update.endswith(pile(3, 4, 5))
        # After its own move: the result of that, then the opponent's move.
        assert second.update == "\n".join(
            (
                "[GAME] Player 0 removes 3 from pile 0.",
                pile(0, 4, 5),
                "[Player 1] [1 4]",
                "[GAME] Player 1 removes 4 from pile 1.",
                pile(0, 0, 5),
            )
        )
        assert second.messages[0]["content"] == f"{first.update}\n[Player 0] [0 3]\n{second.update}"

    def test_lists_moves_for_the_seat_to_move_only(self):
        match = get_game("TicTacToe-v0").start(seed=0)

        assert match.observe(1).legal_actions is None

    def test_has_no_legal_moves_if_they_cannot_be_listed(self):
        match = replace(get_game("Nim-v0"), legal=None).start(seed=0)

        assert match.observe(0).legal_actions is None
        assert match.legal_actions() is None

    def test_contains_nothing_of_an_earlier_match(self):
        game = get_game("TicTacToe-v0")
        fresh = game.start(seed=0).observe(0)
        play_out(game.start(seed=0), random.Random(0))

        assert game.start(seed=0).observe(0) == fresh


class TestAtoms:
    @pytest.mark.parametrize("name", ["TicTacToe-v0", "ConnectFour-v0", "Nim-v0", "PigDice-v0-50"])
    def test_match_every_legal_move(self, name):
        game = get_game(name)

        for move in game.start(seed=0).legal_actions():
            assert re.search(game.atoms, move)
