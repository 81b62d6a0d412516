r"""
The code game: one seat writes a program, the other predicts its output.

Seat 0, the generator, writes a program and a prediction of its output in a box. Seat 1, the guesser, reads the program
and writes the output in a box. The generator scores 1 if its prediction is right and the guess is wrong, and -1
otherwise. The guesser scores 1 if the guess is right, and -1 otherwise. In the frozen form, for a guesser that is not
trained, the prediction does not count: the generator scores 1 if the guess is wrong, and -1 otherwise.

A program is invalid if it fails, prints nothing, prints text that no guess can express, prints other text with another
hash seed, or names its output in a comment. Its text and output must not look like control tokens: a model that
repeats one ends its reply, and a decoder omits it. For an invalid program the generator scores -1, and the guesser 0
without a turn. Comments are not shown. The guesser reads the program as unparsed by Python's `ast`, and exactly that
text runs. Output that depends on the date or on the process is not detected, since two runs print the same.
"""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass
from functools import cache, lru_cache

from trl_spiral.games.base import Game, Match, Traits
from trl_spiral.games.random_programs import random_program
from trl_spiral.sandbox import Job, JobResult, Limits, Sandbox
from trl_spiral.text.replies import read_move
from trl_spiral.types import Ending, Observation


NAME = "CodeGame-v0"
FROZEN = f"{NAME}-frozen"
GENERATOR, GUESSER = 0, 1

PROGRAM_LIMITS = Limits(cpu_seconds=0.5, wall_seconds=2.0, memory_mb=256, output_bytes=16_384)
"""Limits of one run. Programs that a person can follow take milliseconds. The longest output is a shown program."""
MOST_PROGRAM = 2_000
"""Maximum length of a program in characters, both as written and as shown."""
MOST_OUTPUT = 200
"""Maximum length of an output in characters. A box may contain 512."""

# The game has no tokenizer. These patterns match control tokens of ChatML, Llama, Mistral, Gemma, DeepSeek, BERT and
# models for code, and thinking tags. Words in brackets are listed, since `x[SIZE]` is ordinary code.
_CONTROL = re.compile(
    r"<[|\uff5c]|</?[A-Za-z_][\w.:-]*>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|MODEL_SETTINGS|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|CALL_ID|ARGS|THINK)\]"
    r"|\[(?:IMG|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|PREFIX|MIDDLE|SUFFIX|CLS|SEP|PAD|MASK|UNK|BOS|EOS)\]"
)
_SEEDS = (0, 1)
_OPEN, _CLOSE = "```python\n", "\n```"

_WRITES = (
    "You are the generator in a code game. Write a Python program. Another player reads it and says what it prints.\n"
    "Write the program in a ```python block and below it, in \\boxed{{}}, exactly what it prints. {scores}\n"
    "You lose in any case if the program fails, prints nothing, too much or something that a box cannot hold, prints "
    "something else when it is run again, says in a comment what it prints, or if its text or output looks like a "
    "control token. Comments are not shown to the other player."
)
_SCORES = {
    False: "You win if you are right and the other player is wrong.",
    True: "You win if the other player is wrong; what you put in the box does not count.",
}
_READS = "You are the guesser in a code game. What does this Python program print? Put exactly that in \\boxed{}."

# Runs in the sandbox too: parsing untrusted programs can exhaust memory and stack.
_SHOW = """
import ast, io, tokenize

def is_remark(statement):
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)

def show(source):
    tokens = tokenize.generate_tokens(io.StringIO(source).readline) if "#" in source else ()
    tree = ast.parse(source)
    remarks = [token.string for token in tokens if token.type == tokenize.COMMENT]
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                remarks += [statement.value.value for statement in statements if is_remark(statement)]
                kept = [statement for statement in statements if not is_remark(statement)]
                setattr(node, field, kept or ([ast.Pass()] if statements else []))
    return [ast.unparse(tree), remarks]
"""


class CodeGame(Game):
    """
    The code game: one program, one guess.

    Args:
        name (`str`, defaults to `"CodeGame-v0"`):
            Name of the game.
        is_frozen (`bool`, defaults to `False`):
            Whether to ignore the generator's prediction.
        sandbox ([`~sandbox.Sandbox`], *optional*):
            Sandbox of the programs. By default a [`~sandbox.LocalSandbox`] with `PROGRAM_LIMITS`, opened at its first
            use, one per process.
    """

    def __init__(self, name: str = NAME, is_frozen: bool = False, sandbox: Sandbox | None = None) -> None:
        self.name = name
        # Both seats can lose, and an invalid program costs the generator only.
        self.traits = Traits(zero_sum=False, perfect_information=False, free_text=True)
        self.is_frozen = is_frozen
        self._sandbox = sandbox
        # Cached, so that a program close to a limit always has the same result.
        self.examine = lru_cache(maxsize=16_384)(self._examine)

    def check(self) -> None:
        self._open()

    def start(self, seed: int) -> CodeMatch:
        del seed  # nothing is dealt
        return CodeMatch(self)

    def canonical(self, action: str) -> str | None:
        written = read_program(action)
        return read_guess(action) if written is None else write_program(*written)

    @property
    def atoms(self) -> str:
        return r"[0-9]"

    def _open(self) -> Sandbox:
        return self._sandbox or _local_sandbox(os.getpid())

    def _examine(self, program: str) -> ExaminedProgram:
        """Return a program as shown to the guesser, with its output or its flaw."""
        sandbox = self._open()
        (parsed,) = sandbox.run([Job(_SHOW, calls=(f"show({program!a})",))])
        if parsed.ending.failed or parsed.answers[0].error:
            return ExaminedProgram(flaw=f"not Python: {parsed.error or parsed.answers[0].error}")
        shown, remarks = parsed.answers[0].value
        if len(shown) > MOST_PROGRAM:
            return ExaminedProgram(flaw=f"longer than {MOST_PROGRAM} characters")
        if "```" in shown or _CONTROL.search(shown):
            return ExaminedProgram(flaw="its text contains a code fence or looks like a control token")
        first, again = sandbox.run([Job(shown, hash_seed=seed) for seed in _SEEDS])
        return ExaminedProgram(shown, tidy(first.output), _flaw(first, again, remarks))


@dataclass(frozen=True, slots=True)
class ExaminedProgram:
    """
    A program and its output.

    Attributes:
        shown (`str`):
            The program as the guesser reads it and as it ran.
        output (`str`):
            Its output.
        flaw (`str`):
            Why it is invalid; empty if it is valid.
    """

    shown: str = ""
    output: str = ""
    flaw: str = ""


class CodeMatch(Match):
    """
    One match of the code game.

    Args:
        game ([`CodeGame`]):
            The rules.

    Attributes:
        examined ([`ExaminedProgram`], *optional*):
            The program, after the generator's move.
    """

    def __init__(self, game: CodeGame) -> None:
        self.game = game
        self.examined: ExaminedProgram | None = None
        self._is_predicted = False
        self._returns: tuple[float, ...] = (0.0, 0.0)

    @property
    def to_move(self) -> int | None:
        return None if self.ending is not None else GENERATOR if self.examined is None else GUESSER

    @property
    def returns(self) -> tuple[float, ...]:
        return self._returns

    def observe(self, seat: int) -> Observation:
        if seat == GENERATOR:
            content = _WRITES.format(scores=_SCORES[self.game.is_frozen])
        else:
            content = guesser_prompt(self.examined.shown) if self.examined and self.examined.shown else _READS
        return Observation(
            game=self.game.name,
            seat=seat,
            messages=({"role": "user", "content": content},),
            update=content,
            asks_program=seat == GENERATOR,
        )

    def legal_actions(self) -> None:
        return None

    def sample(self, rng: random.Random) -> str:
        """Return a random legal move: see [`random_code_move`]."""
        return random_code_move(self.to_move, rng)

    def apply(self, action: str) -> str | None:
        if (seat := self.to_move) is None:
            raise ValueError(f"This match of {self.game.name} has ended ({self.ending}). Start a new one.")
        move = self.game.canonical(action)
        if move is not None and seat == GENERATOR and (written := read_program(move)) is not None:
            self._write(*written)
        elif move is not None and seat == GUESSER and read_guess(move) is not None:
            self._guess(move)
        else:
            self.ending, self.offender, self.detail = Ending.ILLEGAL_MOVE, seat, "no readable move"
            return None
        return move

    def forfeited(self, offender: int, returns: tuple[float, ...]) -> tuple[float, ...]:
        # A missing guess counts as wrong: a generator whose prediction was wrong does not win by it. Without a
        # program, the guesser scores 0.
        if offender == GENERATOR:
            return (returns[GENERATOR], 0.0)
        return returns if self._wins_by_a_wrong_guess else (-1.0, returns[GUESSER])

    @property
    def _wins_by_a_wrong_guess(self) -> bool:
        return self._is_predicted or self.game.is_frozen

    def _write(self, program: str, predicted: str) -> None:
        self.examined = self.game.examine(program)
        self._is_predicted = predicted == self.examined.output
        if self.examined.flaw:
            self._finish((-1.0, 0.0), f"The program is invalid: {self.examined.flaw}.")

    def _guess(self, guess: str) -> None:
        assert self.examined is not None, "a guess follows a program"
        is_right = guess == self.examined.output
        wins = not is_right and self._wins_by_a_wrong_guess
        right = "right" if self._is_predicted else "wrong"
        self._finish(
            (1.0 if wins else -1.0, 1.0 if is_right else -1.0),
            f"The program prints {self.examined.output!r}; the generator's prediction was {right}.",
        )

    def _finish(self, returns: tuple[float, ...], detail: str) -> None:
        self._returns, self.ending, self.detail = returns, Ending.FINISHED, detail


def read_program(action: str) -> tuple[str, str] | None:
    """Return program and prediction of a move in the format of `prompts.extract_code_move`; `None` for other text."""
    program, fence, below = action.removeprefix(_OPEN).partition(_CLOSE)
    program, predicted = program.strip("\n").rstrip(), tidy(below)
    if not (action.startswith(_OPEN) and fence and program and predicted):
        return None
    return (program, predicted) if len(program) <= MOST_PROGRAM and len(predicted) <= MOST_OUTPUT else None


def read_guess(action: str) -> str | None:
    """Return the guess in a move. `None` if it is empty, too long, or a generator's move."""
    guess = tidy(action)
    return guess if 0 < len(guess) <= MOST_OUTPUT and read_program(action) is None else None


def write_program(program: str, predicted: str) -> str:
    """Return a generator's move."""
    return f"{code_block(program)}\n{predicted}"


def code_block(program: str) -> str:
    """Return a program as a Markdown code block."""
    return f"{_OPEN}{program}{_CLOSE}"


def guesser_prompt(shown: str) -> str:
    """Return the guesser's observation of a program."""
    return f"{_READS}\n{code_block(shown)}"


def tidy(text: str) -> str:
    """Return an output or a guess without whitespace around it and at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))


def random_code_move(seat: int | None, rng: random.Random) -> str:
    """Return a random small program with its output or, for the guesser, the output of one."""
    program, output = random_program(rng)
    return write_program(program, output) if seat == GENERATOR else output


def _flaw(first: JobResult, again: JobResult, remarks: list[str]) -> str:
    """Return why a program is invalid, by its two runs and its comments; empty if it is valid."""
    output = tidy(first.output)
    for outcome in (first, again):
        if outcome.ending.failed:
            return f"{outcome.ending}{f' ({outcome.error})' if outcome.error else ''}"
    if output != tidy(again.output):
        return "its output differs with another hash seed"
    if not output:
        return "it prints nothing"
    if not can_be_guessed(output):
        return "no guess can express its output"
    if any(_names(remark, output) for remark in remarks):
        return "a comment contains its output"
    return ""


def can_be_guessed(output: str) -> bool:
    r"""
    Return whether a guess can express an output.

    The reply `\boxed{output}` must be parsed as exactly this guess, with and without thinking before it. The output
    must consist of printable ASCII and line ends, and must not look like a control token.
    """
    is_plain = all(each == "\n" or (each.isascii() and each.isprintable()) for each in output)
    if not is_plain or _CONTROL.search(output):
        return False
    observation = Observation(game=NAME, seat=GUESSER, messages=())
    moves = [read_move(observation, f"{thought}\\boxed{{{output}}}") for thought in ("", "<think></think>")]
    return all(move is not None and read_guess(move) == output for move in moves)


def _names(remark: str, output: str) -> bool:
    """Return whether a remark contains an output as whole words: for 5, "# prints 5" does, "# 15 steps" does not."""
    text, printed = (" ".join(each.split()) for each in (remark, output))
    return re.search(rf"(?<!\w){re.escape(printed)}(?!\w)", text) is not None


@cache
def _local_sandbox(process: int) -> Sandbox:
    """Return the sandbox of this process. A forked copy would share the helper processes of its parent."""
    from trl_spiral.sandbox.local import LocalSandbox

    del process
    return LocalSandbox(PROGRAM_LIMITS)
