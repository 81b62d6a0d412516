r"""
The code game: one seat writes a program, the other says what it prints.

Seat 0, the generator, writes a program and, in a box, what it will print; seat 1, the guesser, reads the program and boxes
what it prints. The generator scores 1 only where it is right itself and the guesser is wrong, and -1 otherwise; the guesser
scores 1 where it is right, else -1. A guess is what the guesser wrote, and nothing else. In the frozen form, which is meant for
a guesser that does not learn, what the generator boxed does not count: it scores 1 where the guesser is wrong, -1 where it is
right.

A program that cannot stand scores -1 for the generator, and 0 for the guesser, which is not asked. Such a program
fails, prints nothing, prints something that no guess can express, prints something else when run again under another
hash seed, or names its output in a comment. Text and output must not look like a control token, either: a model that
repeats one ends its reply, and a decoder leaves it out. Comments are not shown: the guesser reads the program as
Python's own parser understood it, and exactly that text runs. A program that prints the date or its process's
surroundings is not detected: two runs agree on these.
"""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass
from functools import cache, lru_cache

from trl_spiral.games.base import Game, Match, Traits
from trl_spiral.games.small_programs import small_program
from trl_spiral.sandbox import Job, JobResult, Limits, Sandbox
from trl_spiral.text.prompts import read_move
from trl_spiral.types import Ending, Observation


NAME = "CodeGame-v0"
FROZEN = f"{NAME}-frozen"
GENERATOR, GUESSER = 0, 1

LIMITS = Limits(cpu_seconds=0.5, wall_seconds=2.0, memory_mb=256, output_bytes=16_384)
"""For one run: what a person could follow takes milliseconds. The longest text is a program's own, as it is to be shown."""
MOST_PROGRAM = 2_000
"""Characters of the longest program, as it is written and as it is shown."""
MOST_OUTPUT = 200
"""Characters of the longest output. A box may hold 512."""

# The game has no tokenizer. These are the shapes of the control tokens of ChatML, Llama, Mistral, Gemma, DeepSeek,
# BERT and models for code, and the tags of thinking. Bracketed words are named: `x[SIZE]` is ordinary code.
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
    "You lose in any case if the program fails, prints nothing, too much or something that a box cannot hold, prints something "
    "else when it is run again, says in a comment what it prints, or if its text or output looks like a control "
    "token. Comments are not shown to the other player."
)
_SCORES = {
    False: "You win if you are right and the other player is wrong.",
    True: "You win if the other player is wrong; what you put in the box does not count.",
}
_READS = "You are the guesser in a code game. What does this Python program print? Put exactly that in \\boxed{}."

# Run in the sandbox as well: parsing what nobody has read can exhaust memory and stack.
_SHOW = """
import ast, io, tokenize

def is_remark(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)

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
    One program, one guess.

    Args:
        name (`str`, defaults to `"CodeGame-v0"`):
            Its name.
        is_frozen (`bool`, defaults to `False`):
            Whether the generator's own prediction does not count.
        sandbox ([`~sandbox.Sandbox`], *optional*):
            Where programs run; by default a [`~sandbox.LocalSandbox`] with this module's `LIMITS`, one in each process, which
            is opened when it is first needed.
    """

    def __init__(self, name: str = NAME, is_frozen: bool = False, sandbox: Sandbox | None = None) -> None:
        self.name = name
        # Both seats can lose, by a wrong prediction and a wrong guess; and a program that fails costs one seat alone.
        self.traits = Traits(zero_sum=False, perfect_information=False, free_text=True)
        self.is_frozen = is_frozen
        self._sandbox = sandbox
        # A program comes to the same every time, also where it has come close to a limit.
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

    def _examine(self, program: str) -> Examined:
        """Return how a program looks to the guesser, and what it prints."""
        sandbox = self._open()
        (parsed,) = sandbox.run([Job(_SHOW, calls=(f"show({program!a})",))])
        if parsed.ending.failed or parsed.answers[0].error:
            return Examined(why=f"not Python: {parsed.error or parsed.answers[0].error}")
        shown, remarks = parsed.answers[0].value
        if len(shown) > MOST_PROGRAM:
            return Examined(why=f"longer than {MOST_PROGRAM} characters")
        if "```" in shown or _CONTROL.search(shown):
            return Examined(why="its text holds a code fence or looks like a control token")
        first, again = sandbox.run([Job(shown, hash_seed=seed) for seed in _SEEDS])
        return Examined(shown, tidy(first.output), _flaw(first, again, remarks))


@dataclass(frozen=True, slots=True)
class Examined:
    """
    What is known of a program.

    Attributes:
        shown (`str`):
            Its text, as the guesser reads it and as it ran.
        output (`str`):
            What it printed.
        why (`str`):
            Why it cannot stand; empty if it can.
    """

    shown: str = ""
    output: str = ""
    why: str = ""


class CodeMatch(Match):
    """
    One match.

    Args:
        game ([`CodeGame`]):
            Its rules.

    Attributes:
        examined ([`Examined`], *optional*):
            The program, once it has been written.
    """

    def __init__(self, game: CodeGame) -> None:
        self.game = game
        self.examined: Examined | None = None
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
            content = reading(self.examined.shown) if self.examined and self.examined.shown else _READS
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
        """A move that the seat to move may make: a small program with what it prints, or a guess that knows nothing."""
        return sample_move(self.to_move, rng)

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
        # No guess is a wrong guess, which wins nothing for a generator that is wrong; and no program is none to guess at.
        if offender == GENERATOR:
            return (returns[GENERATOR], 0.0)
        return returns if self._wins_by_a_wrong_guess else (-1.0, returns[GUESSER])

    @property
    def _wins_by_a_wrong_guess(self) -> bool:
        return self._is_predicted or self.game.is_frozen

    def _write(self, program: str, predicted: str) -> None:
        self.examined = self.game.examine(program)
        self._is_predicted = predicted == self.examined.output
        if self.examined.why:
            self._finish((-1.0, 0.0), f"The program cannot stand: {self.examined.why}.")

    def _guess(self, guess: str) -> None:
        assert self.examined is not None, "a guess comes after a program"
        is_right = guess == self.examined.output
        wins = not is_right and self._wins_by_a_wrong_guess
        right = "right" if self._is_predicted else "wrong"
        self._finish(
            (1.0 if wins else -1.0, 1.0 if is_right else -1.0),
            f"The program prints {self.examined.output!r}; the generator was {right} about it.",
        )

    def _finish(self, returns: tuple[float, ...], detail: str) -> None:
        self._returns, self.ending, self.detail = returns, Ending.FINISHED, detail


def read_program(action: str) -> tuple[str, str] | None:
    """The program and the prediction of a generator's move, as `prompts.extract_code_move` cuts it out; `None` for any other."""
    program, fence, below = action.removeprefix(_OPEN).partition(_CLOSE)
    program, predicted = program.strip("\n").rstrip(), tidy(below)
    if not (action.startswith(_OPEN) and fence and program and predicted):
        return None
    return (program, predicted) if len(program) <= MOST_PROGRAM and len(predicted) <= MOST_OUTPUT else None


def read_guess(action: str) -> str | None:
    """Return the guess in a guesser's move. `None` if it is empty, too long, or reads as a generator's move."""
    guess = tidy(action)
    return guess if 0 < len(guess) <= MOST_OUTPUT and read_program(action) is None else None


def write_program(program: str, predicted: str) -> str:
    """A generator's move."""
    return f"{fenced(program)}\n{predicted}"


def fenced(program: str) -> str:
    """A program as it stands in a text."""
    return f"{_OPEN}{program}{_CLOSE}"


def reading(shown: str) -> str:
    """What the guesser reads of a program."""
    return f"{_READS}\n{fenced(shown)}"


def tidy(text: str) -> str:
    """An output or a guess without room at its ends, which a box has none of, and at the ends of its lines, which nobody sees."""
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))


def sample_move(seat: int | None, rng: random.Random) -> str:
    """A small program and what it prints or, for the guesser, what another one prints."""
    program, output = small_program(rng)
    return write_program(program, output) if seat == GENERATOR else output


def _flaw(first: JobResult, again: JobResult, remarks: list[str]) -> str:
    """Why a program cannot stand, by its two runs and its comments; empty if it can."""
    output = tidy(first.output)
    for outcome in (first, again):
        if outcome.ending.failed:
            return f"{outcome.ending}{f' ({outcome.error})' if outcome.error else ''}"
    if output != tidy(again.output):
        return "under another hash seed it prints something else"
    if not output:
        return "it prints nothing"
    if not can_be_guessed(output):
        return "no guess can express what it prints"
    if any(_names(remark, output) for remark in remarks):
        return "a comment says what it prints"
    return ""


def can_be_guessed(output: str) -> bool:
    r"""
    Return whether a guess can express an output.

    The reply `\boxed{output}` has to be read as exactly this guess, with and without thinking before it. The output
    consists of plain characters that a reader can tell apart, and nothing in it looks like a control token.
    """
    is_plain = all(each == "\n" or (each.isascii() and each.isprintable()) for each in output)
    if not is_plain or _CONTROL.search(output):
        return False
    asked = Observation(game=NAME, seat=GUESSER, messages=())
    moves = [read_move(asked, f"{thought}\\boxed{{{output}}}") for thought in ("", "<think></think>")]
    return all(move is not None and read_guess(move) == output for move in moves)


def _names(remark: str, output: str) -> bool:
    """Whether a remark holds an output, as words of its own: "# prints 5" does, "# 15 steps" does not, where it is 5."""
    said, printed = (" ".join(text.split()) for text in (remark, output))
    return re.search(rf"(?<!\w){re.escape(printed)}(?!\w)", said) is not None


@cache
def _local_sandbox(process: int) -> Sandbox:
    """This process's own: a copy that a fork has left would share its parent's helpers."""
    from trl_spiral.sandbox.local import LocalSandbox

    del process
    return LocalSandbox(LIMITS)
