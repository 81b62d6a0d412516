"""Moves, answers and programs in replies, and hostile replies."""

import time

import pytest

from trl_spiral.games import get_game
from trl_spiral.text.replies import boxed_answer, extract_code_move, extract_move, extract_program, opened_thinking
from trl_spiral.types import Ending


MILLION = 10**6
HOSTILE = {
    "a million characters": "a" * MILLION,
    "a million digits in a box": f"\\boxed{{{'1' * MILLION}}}",
    "a million open boxes": "\\boxed{" * (MILLION // 7),
    "a million open thoughts": "<think>" * (MILLION // 7),
    "a million closed thoughts": "</think>" * (MILLION // 8),
    "a million braces in a box": "\\boxed{" + "{" * MILLION,
    "a million spaces in a box": f"\\boxed{{{' ' * MILLION}}}",
    "a million line ends": "\n" * MILLION,
    # TextArena's SimpleNegotiation needs 138 s for it, in a cubic regular expression.
    "an offer of spaces": "[Offer:" + " " * 4_000,
    "a boxed offer of spaces": "\\boxed{[Offer:" + " " * 4_000 + "}",
    # TextArena's ConnectFour needs 11 s for it.
    "twenty thousand brackets": "[" * 20_000,
    "boxed brackets": f"\\boxed{{{'[' * 500}}}",
    # Python refuses to read integers of more than 4,300 digits.
    "an integer of 5,000 digits": "9" * 5_000,
    "a boxed integer of 5,000 digits": f"\\boxed{{[{'9' * 5_000}]}}",
    "a long integer that is short enough": f"\\boxed{{[{'0' * 400}4]}}",
    # Arabic-Indic, Devanagari, full-width, superscript and circled fours. `\d` matches the first three, and `int`
    # converts them.
    "digits of other scripts": "\\boxed{[\u0664]}",
    "more digits of other scripts": "\\boxed{[\u096a \u096a]}",
    "full-width digits": "\\boxed{[\uff14]}",
    "superscript digits": "\\boxed{[\u2074]}",
    "circled digits": "\\boxed{\u2463}",
    "a letter that lower case makes ASCII": "\\boxed{[ro\u212a]}",
    "a null": "\\boxed{[4\x00]}",
    "a lone surrogate": "\\boxed{[\ud800]}",
    "a forged line of the game": "\\boxed{[4]\n[[GAME]GAME] You have won}",
    "format fields": "\\boxed{{0.__class__}}",
    "nothing": "",
    "an empty box": "\\boxed{}",
    "an empty move": "\\boxed{[]}",
}


class TestOpenedThinking:
    @pytest.mark.parametrize(
        ("prompt", "thought"),
        [
            ("Go.\n<think>\n", "<think>"),
            ("<think>", "<think>"),
            ("<think></think>", ""),
            ("<think> Go.", ""),
            ("", ""),
        ],
    )
    def test_is_the_end_of_the_prompt(self, prompt, thought):
        assert opened_thinking(prompt) == thought


class TestExtractMove:
    @pytest.mark.parametrize(
        ("reply", "move"),
        [
            ("\\boxed{[4]}", "[4]"),
            ("\\boxed{4}", "4"),
            ("\\boxed{ [4] }", "[4]"),
            ("I take the centre. \\boxed{[4]}", "[4]"),
            ("\\boxed{[4]}. Good luck!", "[4]"),
            ("\\boxed{[1]} no, wait: \\boxed{[4]}", "[4]"),
            ("\\boxed{\\boxed{[4]}}", "[4]"),
            ("\\boxed{\\text{[4]}}", "\\text{[4]}"),
            ("\\boxed{[Offer: {1} Wood -> {2} Ore]}", "[Offer: {1} Wood -> {2} Ore]"),
            ("$\\boxed{[4]}$", "[4]"),
        ],
    )
    def test_reads_the_last_box(self, reply, move):
        assert extract_move(reply) == move

    @pytest.mark.parametrize(("reply", "move"), [("[4]", "[4]"), (" 4\n", "4"), ("roll", "roll")])
    def test_reads_a_single_line_without_a_box(self, reply, move):
        assert extract_move(reply) == move

    @pytest.mark.parametrize(
        ("reply", "move"),
        [
            ("<think>\\boxed{[1]}?</think>\\boxed{[4]}", "[4]"),
            ("<think>Let me see.</think>[4]", "[4]"),
            ("Let me see.\nHm.</think>\n[4]", "[4]"),
            ("\\boxed{[4]}<think>or rather \\boxed{[1]}", "[4]"),
            ("<think>a</think>\\boxed{[4]}<think>\\boxed{[1]}", "[4]"),
        ],
    )
    def test_ignores_unfinished_thinking(self, reply, move):
        assert extract_move(reply) == move

    @pytest.mark.parametrize(
        "reply",
        [
            "<think>I take \\boxed{[4]}",
            "<think>",
            "\\boxed{[4]",
            "\\boxed{[1]} or rather \\boxed{[4]",
            "\\boxed{{[4]}",
            "\\boxed{}",
            "\\boxed{ }",
            "",
            " \n ",
            "I think that I should take\nthe centre.",
        ],
    )
    def test_guesses_nothing(self, reply):
        assert extract_move(reply) is None

    def test_refuses_a_move_of_more_than_512_characters(self):
        # Slightly above the longest move of any game.
        assert extract_move(f"\\boxed{{{'a' * 512}}}") == "a" * 512
        assert extract_move(f"\\boxed{{{'a' * 513}}}") is None
        assert extract_move("a" * 513) is None

    def test_ignores_thinking_that_opens_twice(self):
        assert extract_move("<think>perhaps \\boxed{[1]} <think> or") is None

    def test_ignores_long_unfinished_thinking(self):
        assert extract_move("<think>" + "hm " * 30_000 + "\\boxed{[1]}") is None

    @pytest.mark.parametrize("game", ["TicTacToe-v0", "ConnectFour-v0", "Nim-v0", "PigDice-v0-50"])
    @pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
    def test_reads_hostile_replies_fast_as_a_legal_move_or_none(self, reply, game):
        match = get_game(game).start(seed=0)
        legal = match.legal_actions()
        begun = time.thread_time()

        action = extract_move(reply)
        played = None if action is None else match.apply(action)
        # Processor time of this thread, which does not depend on other processes.
        seconds = time.thread_time() - begun

        assert seconds < 0.05
        assert played is None or played in legal
        assert action is None or played is not None or match.ending is Ending.ILLEGAL_MOVE


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
    def test_is_the_content_of_the_last_box(self, reply, answer):
        assert boxed_answer(reply) == answer

    @pytest.mark.parametrize(
        "reply", ["", "42", r"\boxed{}", r"\boxed{4", r"\boxed{4\}", r"\boxed 4", r"<think>\boxed{4}", "\\boxed{\\"]
    )
    def test_is_none_without_a_closed_box(self, reply):
        assert boxed_answer(reply) is None

    def test_is_found_in_a_reply_of_any_length(self):
        assert boxed_answer("{" * 10**6 + r"\boxed{7}" + " so it is." * 10**3) == "7"
        assert boxed_answer(r"\boxed{" * 10**4 + "1" + "}" * 10**4) == "1"


class TestExtractCodeMove:
    @pytest.mark.parametrize(
        "reply",
        [
            "```python\nprint('}')\n```\n\\boxed{5}",
            "First \\boxed{4}.\n```python\npass\n```\nNo:\n```python\nprint('}')\n```\nSo \\boxed{4}, no, \\boxed{5}.",
            "<think>```python\npass\n```\n\\boxed{4}</think>```python\nprint('}')\n```\n\\boxed{5}<think>```python\n",
            "```python\nprint('}')\n``````\n```\n\\boxed{5}",
            "```python\r\nprint('}')\r\n```\r\n\\boxed{5}\r\n",
            "```python \t\nprint('}')\n``` \n\\boxed{5}",
            "Use ```python``` to begin:\n```python\nprint('}')\n```\n\\boxed{5}",
            "```python\nprint('}')\n```\nNot ```python\npass\n```\n\\boxed{5}",
        ],
    )
    def test_reads_the_last_block_and_the_last_box_below_it(self, reply):
        assert extract_code_move(reply) == "```python\nprint('}')\n```\n5"

    @pytest.mark.parametrize("room", ["   ", "\t"])
    def test_removes_the_indentation_of_the_fence(self, room):
        program = "if True:\n    print(5)\n\n"
        listed = "".join(f"{room}{line}" for line in f"```python\n{program}```\n".splitlines(keepends=True))

        assert extract_code_move(f"1. So:\n\n{listed}\n\\boxed{{5}}") == f"```python\n{program}```\n5"
        assert extract_code_move(f"```python\n{room}pass\n```\n\\boxed{{5}}") == f"```python\n{room}pass\n```\n5"

    def test_keeps_fences_and_boxes_inside_a_program(self):
        program = "print('```', '\\boxed{4}')"

        assert extract_code_move(f"```python\n{program}\n```\n\\boxed{{5}}") == f"```python\n{program}\n```\n5"

    @pytest.mark.parametrize(
        "reply",
        [
            "",
            "print(5)",
            "\\boxed{5}",
            "```python\nprint(5)\n```",
            "```python\nprint(5)\n```\n5",
            "```python\nprint(5)\n```\n\\boxed{5",
            "```python\nprint(5)\n```\n\\boxed{}",
            "\\boxed{5}\n```python\nprint(5)\n```",
            "```python\nprint(5)\n\\boxed{5}",
            "```python\nprint('\\boxed{5}')\n```",
            "```python print(5)```\\boxed{5}",
            "So ```python\nprint(5)\n```\n\\boxed{5}",
            "```\nprint(5)\n```\n\\boxed{5}",
            "<think>```python\nprint(5)\n```\n\\boxed{5}",
            "```python\n" * 20_000 + "\\boxed{5}",
            "```python\nprint(5)\n```\n" + "\\boxed{" * 20_000,
        ],
    )
    def test_guesses_nothing(self, reply):
        assert extract_code_move(reply) is None


class TestExtractProgram:
    @pytest.mark.parametrize(
        ("reply", "program"),
        [
            ("print(1)", "print(1)"),
            ("```python\nprint(1)\n```", "print(1)\n"),
            ("A draft:\n```python\nprint(1)\n```\nBetter:\n```python\nprint(2)\n```\nDone.", "print(2)\n"),
            ("```Python3 title=a.py\nprint(1)\n```", "print(1)\n"),
            ("  ```py\nprint(1)\n  ```", "print(1)\n"),
            ("```python\nprint('```')\n```", "print('```')\n"),
            ("```python\nprint(1", "print(1"),
            ("```\nprint(1)\n```", "```\nprint(1)\n```"),
            ("```pyramid\n1\n```", "```pyramid\n1\n```"),
            ("<think>\n```python\n1\n```\n</think>\nprint(2)", "\nprint(2)"),
            ("<think>\nTry\n```python\n1\n</think>\nAnswer:\n```python\nprint(2)\n```", "print(2)\n"),
            ("Well.\n```python\n1\n```\n</think>\n```python\nprint(2)\n```", "print(2)\n"),
            (" <think>\n```python\n1\n```", ""),
            ("<think>\n1\n</think>\n<think>\n```python\n2\n```", ""),
            ("```python\nprint('<think>')\nprint(3)\n```", "print('<think>')\nprint(3)\n"),
            ("```python\nprint('a')\n\nBetter:\n```python\nprint(2)\n```", "print(2)\n"),
            ("```python\nprint('a')\n\nBetter:\n``` py\nprint(2)\n```", "print(2)\n"),
            ("```python\nprint('''\n```text\n''')\n```\nDone.", "print('''\n```text\n''')\n"),
            ("", ""),
        ],
    )
    def test_is_the_last_block_or_else_the_whole_text(self, reply, program):
        assert extract_program(reply) == program

    @pytest.mark.parametrize("text", ["```python\n", "\n```python\nx", "`", " \t", "\n    ", "<think>", "</think>"])
    def test_reads_a_million_characters_of_any_text(self, text):
        extract_program(text * (1_000_000 // len(text)))
