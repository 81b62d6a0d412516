"""The code game: valid and invalid programs, scores, and observations."""

import ast
import os
import random

import pytest

from tests.helpers.hostile_replies import views
from trl_spiral.games import game_names, get_game
from trl_spiral.games.code_game import (
    FROZEN,
    MOST_OUTPUT,
    MOST_PROGRAM,
    NAME,
    CodeGame,
    read_program,
    tidy,
    write_program,
)
from trl_spiral.games.random_programs import KINDS
from trl_spiral.opponents import Opponents
from trl_spiral.players import PolicyPlayer, ScriptedPlayer, scripted_player
from trl_spiral.sandbox import CallResult, Job, JobResult, ProgramEnding
from trl_spiral.selfplay.advantages import RoleBaseline
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.selfplay.results import Result
from trl_spiral.text.replies import extract_code_move, read_move
from trl_spiral.types import POLICY, Ending, Observation, Reply, Turn


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    """Skip the module without a sandbox: most tests run programs."""
    try:
        get_game(NAME).check()
    except RuntimeError as missing:
        pytest.skip(str(missing))


def written(program: str, predicted: str = "5", game: str = NAME):
    """Return a match after the generator's move."""
    match = get_game(game).start(0)
    match.apply(write_program(program, predicted))
    return match


def text(match, seat: int) -> str:
    return match.observe(seat).messages[0]["content"]


INVALID = {
    "raises": ("1 / 0", "raised (ZeroDivisionError)"),
    "is not Python": ("print(", "not Python: SyntaxError"),
    "is indented": ("  print(5)", "not Python: IndentationError"),
    "exits": ("print(5, flush=True)\nimport os\nos._exit(0)", "killed (exit)"),
    "exhausts the parser": ("print(" + "-" * 1900 + "5)", "not Python: RecursionError"),
    "exhausts the stack": ("def f():\n    return f()\nprint(5 + f())", "raised (RecursionError)"),
    "never ends": ("while True:\n    pass", "timeout"),
    "prints without end": ("while True:\n    print(5)", "output_limit"),
    "prints nothing": ("x = 5", "it prints nothing"),
    "prints whitespace only": ("print('  ')", "it prints nothing"),
    "prints an order of hashes": ("print(list({'a', 'b', 'c'}))", "its output differs with another hash seed"),
    "prints a hash": ("print(hash('a'))", "its output differs with another hash seed"),
    "prints a random number": ("import random\nprint(random.random())", "its output differs with another hash seed"),
    "prints braces that no box can contain": ("print('}{')", "no guess can express its output"),
    "prints an open brace": ("print('{')", "no guess can express its output"),
    "prints a box": ("print(chr(92) + 'boxed{5}')", "no guess can express its output"),
    "prints more than a box holds": (f"print('5' * {MOST_OUTPUT + 1})", "no guess can express its output"),
    "prints digits of another script": ("print('\u0665')", "no guess can express its output"),
    "prints an invisible character": ("print('5\u200b')", "no guess can express its output"),
    "prints a fenced program": (
        "print('`' * 3 + 'python')\nprint('print(5)')\nprint('`' * 3)\nprint(5)",
        "no guess can express its output",
    ),
    "prints a start of thinking": ("print('<' + 'think>')", "no guess can express its output"),
    "prints thinking": ("print('<' + 'think>5</' + 'think>')", "no guess can express its output"),
    "contains a start of thinking": (
        "print(len('<think>'))",
        "its text contains a code fence or looks like a control",
    ),
    "contains a fence": ("print(len('```'))", "its text contains a code fence or looks like a control token"),
    "contains a tag in a format string": (
        "x = 5\nprint(len(f'{x}<b>'))",
        "its text contains a code fence or looks like a control",
    ),
    "answers in a comment": ("print(2 + 3)  # 5", "a comment contains its output"),
    "answers in words of a comment": ("# This prints 5.\nprint(2 + 3)", "a comment contains its output"),
    "answers in a docstring": ('"""Prints 5."""\nprint(2 + 3)', "a comment contains its output"),
    "answers in the docstring of a function": ('def f():\n    "5"\n    return 5\nprint(f())', "a comment contains"),
    "answers in a string statement": ("if True:\n    'It is 5.'\n    print(2 + 3)", "a comment contains its output"),
    "contains a null byte": ("print(5)\0", "not Python"),
    "contains half a character": ("print('\ud800')", "not Python"),
    "is too long when shown": ("print(5" + ",0" * 900 + ")", "longer than 2000 characters"),
}


class TestPrograms:
    @pytest.mark.parametrize(("program", "why"), INVALID.values(), ids=INVALID)
    def test_invalid_programs_end_the_match_at_the_cost_of_the_generator(self, program, why):
        match = written(program)

        assert (match.ending, match.to_move, match.returns) == (Ending.FINISHED, None, (-1.0, 0.0))
        assert why in match.detail

    def test_invalid_programs_cost_the_same_with_a_frozen_guesser(self):
        match = written("1 / 0", game=FROZEN)

        assert (match.ending, match.to_move, match.returns) == (Ending.FINISHED, None, (-1.0, 0.0))

    @pytest.mark.parametrize(
        ("program", "output"),
        [
            ("print(2 + 3)  # in 15 steps", "5"),
            ("print('{}', [])", "{} []"),
            ("print(1)\nprint(2, ' ')\nprint()", "1\n2"),
            ("import math, sys\nprint(math.gcd(12, 18))\nsys.exit()", "6"),
            ("print(sorted({'b', 'a'}))", "['a', 'b']"),
            ("print('5')\nraise SystemExit", "5"),
        ],
    )
    def test_valid_programs_go_to_the_guesser(self, program, output):
        match = written(program, output)

        assert match.to_move == 1
        assert match.examined.output == output

    def test_examined_programs_are_not_run_again(self):
        sandbox = Scripted(
            [JobResult(ProgramEnding.FINISHED, answers=(CallResult(["print(5)", []]),))],
            [JobResult(ProgramEnding.FINISHED, "5\n")] * 2,
        )
        game = CodeGame(sandbox=sandbox)

        outputs = [game.examine("print(5)").output for _ in range(3)]

        assert outputs == ["5"] * 3
        assert [job.hash_seed for job in sandbox.asked] == [0, 0, 1]


# From the vocabularies of Qwen, Llama 2 and 3, Mistral, Gemma, DeepSeek, BERT, Phi, Cohere and StarCoder.
CONTROL_TOKENS = """
<|im_start|> <|im_end|> <|endoftext|> <|vision_start|> <tool_call> </tool_call> <think> </think> <s> </s>
<unk> <pad> <<SYS>> <</SYS>> <|begin_of_text|> <|start_header_id|> <|eot_id|> <|python_tag|>
<|reserved_special_token_0|> [INST] [/INST] [TOOL_CALLS] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS]
[/TOOL_RESULTS] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [IMG] [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX]
[THINK] [/THINK] <SPECIAL_20> <bos> <eos> <mask> <start_of_turn> <end_of_turn> <start_of_image> <unused0>
<\uff5cend\u2581of\u2581sentence\uff5c> <\uff5cUser\uff5c> [CLS] [SEP] [PAD] [MASK] [UNK] <|assistant|>
<|START_OF_TURN_TOKEN|> <BOS_TOKEN> <fim_prefix> <fim_middle> <|fim_pad|>
""".split()


def guessed(game: str, program: str, thought: str):
    """Return the guesser's return for the right output in a box; `None` if the program is invalid."""
    match = written(program, game=game)
    if match.to_move is None:
        assert match.returns == (-1.0, 0.0)
        return None
    match.apply(read_move(match.observe(1), f"{thought}\\boxed{{{match.examined.output}}}") or "")
    return match.returns[1]


class TestOutputs:
    PIECES = [
        *(
            "5",
            "a b",
            "\n",
            " ",
            "{",
            "}",
            "{}",
            "[",
            "]",
            "\\",
            "\\boxed{",
            "boxed",
            "`",
            "```",
            "```python",
            "\n```",
            "```\n",
        ),
        *(
            "<",
            ">",
            "|",
            "<think>",
            "</think>",
            "think>",
            "<|im_end|>",
            "[INST]",
            "</s>",
            "print(5)",
            "'",
            "\t",
            "\r",
            "\x00",
            "é",
        ),
    ]

    @pytest.mark.parametrize("game", [NAME, FROZEN])
    @pytest.mark.parametrize("thought", ["", "<think></think>", "<think>I see.</think>\n"])
    def test_of_valid_programs_can_be_guessed(self, game, thought):
        rng = random.Random(0)
        outputs = ["".join(rng.choices(self.PIECES, k=rng.randint(1, 7))) for _ in range(150)]
        outputs += [
            "```python\nprint(5)\n```\n5",
            "<think>",
            "a <think> b",
            "<think>5</think>",
            "3  |True|< b>",
            "[1, 2]",
        ]
        # Written as numbers, so that only the output decides, not the text of the program.
        programs = [f"print(''.join(map(chr, {[*map(ord, output)]})))" for output in outputs]
        found = [guessed(game, program, thought) for program in programs]

        assert set(found) == {None, 1.0}
        assert found[-2:] == [1.0, 1.0]

    @pytest.mark.parametrize("token", CONTROL_TOKENS)
    def test_control_tokens_are_invalid_in_outputs_and_programs(self, token):
        printing = written(f"print(''.join(map(chr, {[*map(ord, f'a{token}b')]})))")
        holding = written(f"print(len({token!r}))")

        assert printing.examined.flaw == "no guess can express its output"
        assert holding.examined.flaw == "its text contains a code fence or looks like a control token"

    @pytest.mark.parametrize(
        ("program", "output"),
        [
            ("d = {'<b': 1}\nprint(f'{d[\"<b\"]}')", "1"),
            ("x, y = 3, 2\nprint(x<y, f'{x<y}', f'{x:<3}|{x:>3}')", "False False 3  |  3"),
            ("print(f\"{'<' + '/x' + '>'!r:>6}\".strip()[:2])", "'<"),
            ("SIZE, x = 0, [5]\nprint(x[SIZE], type(x))", "5 <class 'list'>"),
            ("print('a<' 'b', 'it\\'s \\x3c|'[:4])", None),
            ("a = '\\u2028\\x00\\u00e9'\nprint(len(a))", "3"),
        ],
    )
    def test_come_from_the_shown_text(self, program, output):
        match = written(program)
        shown = match.examined.shown

        if output is None:  # Python joins the strings to a token
            assert match.examined.flaw == "its text contains a code fence or looks like a control token"
            return
        assert f"```python\n{shown}\n```" in text(match, 1)
        assert shown == ast.unparse(ast.parse(program))
        assert match.examined.output == output


class Scripted:
    """A sandbox with prepared outcomes."""

    def __init__(self, *batches: list[JobResult]) -> None:
        self.batches = list(batches)
        self.asked: list[Job] = []

    def run(self, jobs):
        self.asked += jobs
        return self.batches.pop(0)


class TestScores:
    @pytest.mark.parametrize(
        ("game", "predicted", "guess", "returns"),
        [
            (NAME, "5", "6", (1.0, -1.0)),
            (NAME, "5", "5", (-1.0, 1.0)),
            (NAME, "6", "5", (-1.0, 1.0)),
            (NAME, "6", "6", (-1.0, -1.0)),
            (NAME, "6", "7", (-1.0, -1.0)),
            (FROZEN, "6", "7", (1.0, -1.0)),
            (FROZEN, "5", "5", (-1.0, 1.0)),
        ],
    )
    def test_depend_on_prediction_and_guess(self, game, predicted, guess, returns):
        match = written("print(2 + 3)", predicted, game)

        assert match.apply(guess) == guess
        assert (match.ending, match.returns) == (Ending.FINISHED, returns)

    def test_a_guess_is_the_text_of_the_guesser(self):
        match = written("answer = 5\nprint(answer)")

        match.apply("I do not know")

        assert match.returns == (1.0, -1.0)

    @pytest.mark.parametrize("guess", ["5.0", "05", "'5'", "\u0665", "5 6", "5\n5"])
    def test_a_guess_must_match_exactly(self, guess):
        match = written("print(2 + 3)")
        match.apply(guess)

        assert match.returns == (1.0, -1.0)

    def test_whitespace_at_the_ends_of_lines_is_ignored(self):
        match = written("print('a ')\nprint(' b')", "a\n b")
        match.apply(" a  \n b\n")

        assert match.returns == (-1.0, 1.0)


class TestMoves:
    @pytest.mark.parametrize(
        "move",
        [
            "5",
            "print(5)",
            "```python\nprint(5)\n```",
            "```python\nprint(5)\n```\n ",
            "```python\n\n```\n5",
            "```\nprint(5)\n```\n5",
            write_program("x" * (MOST_PROGRAM + 1), "5"),
            write_program("print(5)", "5" * (MOST_OUTPUT + 1)),
            write_program("#" * 100_000, "5"),
        ],
    )
    def test_need_a_program_and_a_prediction(self, move):
        match = get_game(NAME).start(0)

        assert match.apply(move) is None
        assert (match.ending, match.offender) == (Ending.ILLEGAL_MOVE, 0)

    @pytest.mark.parametrize(
        "move", ["", " \n", "5" * (MOST_OUTPUT + 1), write_program("print(5)", "5"), "5" * 100_000]
    )
    def test_need_a_guess(self, move):
        match = written("print(2 + 3)")

        assert match.apply(move) is None
        assert (match.ending, match.offender) == (Ending.ILLEGAL_MOVE, 1)

    def test_are_parsed_from_replies(self):
        program = "print(5)\n\nprint('`````')"
        reply = f"Let me see.\n```python\nprint(4)\n```\nNo:\n```python\n{program}\n```\nIt prints \\boxed{{{{5}}}}."

        move = extract_code_move(reply)

        assert read_program(move) == (program, "{5}")
        assert get_game(NAME).canonical(move) == move == write_program(program, "{5}")


class TestViews:
    def test_the_guesser_reads_neither_prediction_nor_comments(self):
        secret = "print(2 + 3)  # zebra\n'zebra'\ndef f():\n    '''zebra'''"
        match = written(secret, "zebra")

        assert "zebra" not in text(match, 1)
        assert "```python\nprint(2 + 3)\n\ndef f():\n    pass\n```" in text(match, 1)
        assert match.observe(1).history == ()

    def test_the_guesser_reads_the_text_that_ran(self):
        match = written("def f():\n    'zebra'\nprint(f.__doc__)", "None")

        assert match.examined.output == "None"

    @pytest.mark.parametrize("string", ["\u2028\x00", "\n``", "\x1b[2J", "\u202e5"])
    def test_a_program_cannot_leave_its_code_block(self, string):
        match = written(f"print(len({string!r}))", str(len(string)))

        _, shown = text(match, 1).split("```python\n")
        assert shown.removesuffix("\n```").count("```") == 0
        assert all(letter.isprintable() or letter == "\n" for letter in shown)
        assert match.examined.output == str(len(string))

    def test_the_observation_of_the_generator_does_not_change(self):
        match = get_game(NAME).start(0)
        before = views(match, [0])
        match.apply(write_program("print(2 + 3)", "5"))

        assert views(match, [0]) == before


class TestGame:
    def test_both_forms_are_registered(self):
        assert {NAME, FROZEN} <= set(game_names())

    def test_random_programs_print_their_output_and_are_shown_unchanged(self):
        for kind in KINDS:
            for seed in range(3):
                program, output = kind(random.Random(seed))
                examined = get_game(NAME).examine(program)

                assert (examined.shown, examined.output, examined.flaw) == (program, output, "")

    def test_check_raises_without_a_sandbox(self, monkeypatch):
        import trl_spiral.games.code_game as code_game

        def refuse(limits):
            raise RuntimeError("No sandbox here.")

        monkeypatch.setattr("trl_spiral.sandbox.local.LocalSandbox", refuse)
        code_game._local_sandbox.cache_clear()

        with pytest.raises(RuntimeError, match="No sandbox here"):
            CodeGame().check()

        monkeypatch.undo()
        assert CodeGame(sandbox=Scripted()).check() is None

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks")
    def test_opens_one_sandbox_per_process(self):
        from trl_spiral.games.code_game import _local_sandbox

        mine = get_game(NAME)._open()

        assert CodeGame()._open() is mine
        assert _local_sandbox(os.getpid() + 1) is not mine
        _local_sandbox.cache_clear()


class TruncatedPlayer(ScriptedPlayer):
    """A player that runs out of tokens."""

    def __init__(self):
        super().__init__("truncated", lambda observation: None)

    def ask(self, observation):
        return Turn(action=None, truncated=True)


def episode_of(players, game: str = NAME):
    (episode,) = play([referee(Start(get_game(game), players, seed=0, play_seed=0))])
    return episode


class TestEpisodes:
    def test_a_seat_without_a_turn_does_not_change_a_baseline(self):
        crash = ScriptedPlayer("crash", lambda observation: write_program("1 / 0", "5"))
        episode = episode_of([crash, crash])
        baseline = RoleBaseline()
        baseline.update([Result.of(episode)])

        assert episode.returns == (-1.0, 0.0)
        assert episode.trajectories[1].turns == ()
        assert not any("seat1" in name for name in baseline.metrics())

    def test_the_random_player_fills_both_seats(self):
        player = scripted_player("random", get_game(NAME))
        episode = episode_of([player, player])

        assert episode.ending is Ending.FINISHED
        assert len(episode.order) == 2

    def test_a_snapshot_can_be_the_guesser(self):
        class Renderer:
            def prompt(self, observation: Observation) -> tuple[int, ...]:
                return (observation.seat,)

            def text(self, ids):
                return "```python\nprint(2 + 3)\n```\n\\boxed{5}" if ids == (0,) else "\\boxed{6}"

            def move(self, text, is_program):
                return extract_code_move(text) if is_program else "6"

        class Echo:
            """An engine that returns the prompt and records the policies of requests."""

            def __init__(self):
                self.waiting, self.policies = [], []

            def add(self, ticket, request):
                self.policies.append(request.policy)
                self.waiting.append((ticket, Reply(request.prompt_ids, (0.0,))))

            def step(self):
                done, self.waiting = self.waiting, []
                return done

        policy = PolicyPlayer(Renderer(), None)
        players = {"snapshot-0": policy.playing_as("snapshot-0")}
        seated = Opponents({"snapshot-0": 1.0}, players=players)
        # The first seed with the policy in seat 0.
        table = next(t for seed in range(9) if (t := seated(policy, 2, seed))[0] is policy)
        engine = Echo()
        (episode,) = play([referee(Start(get_game(NAME), table, seed=0, play_seed=0))], engine)

        assert engine.policies == [POLICY, "snapshot-0"]
        assert (episode.players, episode.returns) == ((POLICY, "snapshot-0"), (1.0, -1.0))

    @pytest.mark.parametrize(("predicted", "returns"), [("5", (1.0, -1.0)), ("6", (-1.0, -1.0))])
    def test_a_missing_guess_counts_as_wrong(self, predicted, returns):
        writer = ScriptedPlayer("writer", lambda observation: write_program("print(2 + 3)", predicted))

        episode = episode_of([writer, TruncatedPlayer()])

        assert (episode.ending, episode.offender, episode.returns) == (Ending.TRUNCATED, 1, returns)

    def test_a_missing_program_costs_the_generator_only(self):
        episode = episode_of([TruncatedPlayer(), TruncatedPlayer()])

        assert (episode.ending, episode.offender, episode.returns) == (Ending.TRUNCATED, 0, (-1.0, 0.0))


class TestTidy:
    def test_strips_the_ends_of_lines_and_texts_only(self):
        assert tidy("  a  \n   b \n\n") == "a\n   b"
        assert tidy(tidy(" \n a\t\nb ")) == tidy(" \n a\t\nb ")

    def test_shown_programs_are_python(self):
        assert ast.parse(get_game(NAME).examine("print('<s>')").shown)
