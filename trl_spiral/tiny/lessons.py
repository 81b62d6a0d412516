"""
Lessons of the tiny models.

A tiny player learns the notation and the rules of a game, and no strategy. A lesson is a question and its reply. Most
ask for a move, and any legal move is a right reply. The others ask for the effect of a move, so that a player can read
its cards and its board before it learns which move is good.

A tiny coder learns from exercises in programming: functions of one argument made from templates, with tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from trl_spiral.games import code_game, kuhn, leduc, negotiation, tictactoe
from trl_spiral.games.base import Dealt, Match, get_game
from trl_spiral.games.random_programs import random_program
from trl_spiral.seeding import derive_seed
from trl_spiral.tiny.tokenizer import Lesson


GameLesson = Callable[[random.Random, bool, str], tuple[str, str]]
"""
Returns the question and the reply of a lesson, at a position after random play. Arguments: the source of randomness,
whether to ask for the effect of a move instead of a move, and the instruction at the end of every prompt.
"""


def tictactoe_lessons(rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """Return a lesson of tic-tac-toe: a uniformly random legal move, or the result of a mark in a cell."""
    board, plies = tictactoe.EMPTY, rng.randrange(9)
    for _ in range(plies):
        if not (cells := tictactoe.empty_cells(board)):
            break
        board = tictactoe.place_mark(board, rng.choice(cells))
    if not tictactoe.empty_cells(board):
        return tictactoe_lessons(rng, reading, instruction)
    seen = tictactoe.board_observation(board).messages[0]["content"]
    cell = rng.choice(tictactoe.empty_cells(board))
    if not reading:
        return f"{seen}\n\n{instruction}", f"\\boxed{{[{cell}]}}"
    mark = rng.choice(tictactoe.MARKS)
    after = board[:cell] + mark + board[cell + 1 :]
    won = tictactoe.winner(after) is not None
    result = f"{mark} has won" if won else "draw" if "." not in after else "the game goes on"
    # The question writes the move as the list of legal moves does, so that both have the same tokens.
    return f"{seen}\n\nIf {mark} takes '[{cell}]', what comes of it?", result


def kuhn_lessons(rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """Return a lesson of Kuhn poker: any legal move, or the result of a move if the other card is known."""
    return _poker_lesson(kuhn.NAME, kuhn.CARDS, rng, reading, instruction)


def leduc_lessons(rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """Return a lesson of Leduc poker: any legal move, or the result of a move if the other card is known."""
    return _poker_lesson(leduc.NAME, leduc.CARDS, rng, reading, instruction)


def negotiation_lessons(rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """Return a lesson of the negotiation: a move of its random player, or whether a trade gains value for the seat."""
    match = get_game(negotiation.NAME).start(rng.getrandbits(63))
    for _ in range(rng.randrange(negotiation.TURNS)):
        match.apply(_random_negotiation_move(match, rng))
    seen = _seen(match)
    if not reading:
        return f"{seen}\n\n{instruction}", f"\\boxed{{{_random_negotiation_move(match, rng)}}}"
    position = negotiation.read_negotiation(match.observe(_seat(match)))
    given, asked = rng.sample(list(negotiation.BASE_VALUES), 2)
    offer = negotiation.Offer({given: rng.randint(1, 5)}, {asked: rng.randint(1, 5)})
    gain = position.gain(offer, takes=False)
    outcome = "you gain" if gain > 0 else "you lose" if gain < 0 else "nothing"
    return f"{seen}\n\nIf your {offer} is taken, what comes of it?", outcome


def code_lessons(game: str, rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """Return a lesson of the code game: a small program with its output, or the output of a program as the guesser."""
    program, output = random_program(rng)
    if reading:
        return f"{code_game.guesser_prompt(program)}\n\n{instruction}", f"\\boxed{{{output}}}"
    seen = get_game(game).start(0).observe(code_game.GENERATOR).messages[0]["content"]
    return f"{seen}\n\n{instruction}", f"{code_game.code_block(program)}\n\\boxed{{{output}}}"


LESSONS: Mapping[str, GameLesson] = {
    tictactoe.NAME: tictactoe_lessons,
    kuhn.NAME: kuhn_lessons,
    leduc.NAME: leduc_lessons,
    negotiation.NAME: negotiation_lessons,
    code_game.NAME: partial(code_lessons, code_game.NAME),
    code_game.FROZEN: partial(code_lessons, code_game.FROZEN),
}
"""Games that a tiny player can learn, with their lessons."""


def lessons_of(game: str) -> GameLesson:
    """
    Return the lessons of a game.

    Raises:
        ValueError: If there are none.
    """
    if game not in LESSONS:
        raise ValueError(
            f"There is no tiny player for {game!r}, only for {', '.join(map(repr, LESSONS))}. Name a model to train."
        )
    return LESSONS[game]


def _poker_lesson(name: str, cards: Any, rng: random.Random, reading: bool, instruction: str) -> tuple[str, str]:
    """Return a lesson at a decision of a random game: a move, or its result against a given card."""
    game = get_game(name)
    assert isinstance(game, Dealt), "a deck of a few cards can be dealt in every way"
    deal = rng.choice(game.deals())
    match, moves = game.deal(deal), list[str]()
    while match.to_move is not None:
        moves.append(rng.choice(match.legal_actions() or ()))
        match.apply(moves[-1])
    match = game.deal(deal)
    for move in moves[: rng.randrange(len(moves))]:
        match.apply(move)
    seat, seen, move = _seat(match), _seen(match), rng.choice(match.legal_actions() or ())
    if not reading:
        return f"{seen}\n\n{instruction}", f"\\boxed{{{move}}}"
    match.apply(move)
    question = f"{seen}\n\nIf the other card is {cards[deal[1 - seat]]} and you {move}, what comes of it?"
    if match.to_move is not None:
        return question, "the game goes on"
    won = round(match.returns[seat])
    if not won:
        return question, "you share the pot"
    return question, f"you {'win' if won > 0 else 'lose'} {abs(won)} {'chip' if abs(won) == 1 else 'chips'}"


def _random_negotiation_move(match: Match, rng: random.Random) -> str:
    return negotiation.random_negotiation_move(negotiation.read_negotiation(match.observe(_seat(match))), rng)


def _seat(match: Match) -> int:
    assert match.to_move is not None, "a lesson is about a position with a move to make"
    return match.to_move


def _seen(match: Match) -> str:
    return match.observe(_seat(match)).messages[0]["content"]


@dataclass(frozen=True, slots=True)
class Exercise:
    """
    An exercise in programming.

    Attributes:
        question (`str`):
            The task.
        program (`str`):
            A solution.
        tests (`tuple[str, ...]`):
            One assertion each, with arguments that the question does not contain.
    """

    question: str
    program: str
    tests: tuple[str, ...]


def _numbers(rng: random.Random) -> str:
    return str([rng.randint(0, 9) for _ in range(rng.randint(3, 5))])


def _word(rng: random.Random) -> str:
    return repr("".join(rng.choice("abcdefgh") for _ in range(rng.randint(3, 6))))


def _number(rng: random.Random) -> str:
    return str(rng.randint(2, 30))


# Description, expression and argument of each kind of exercise.
KINDS: tuple[tuple[str, str, Callable[[random.Random], str]], ...] = (
    ("the sum of a list of numbers, plus {k}", "sum(x) + {k}", _numbers),
    ("the largest number of a list, times {k}", "max(x) * {k}", _numbers),
    ("the smallest number of a list, minus {k}", "min(x) - {k}", _numbers),
    ("the {k} smallest numbers of a list, in order", "sorted(x)[:{k}]", _numbers),
    ("the numbers of a list that are above {k}", "[n for n in x if n > {k}]", _numbers),
    ("how many numbers of a list are below {k}", "len([n for n in x if n < {k}])", _numbers),
    ("a list of numbers, each times {k}", "[n * {k} for n in x]", _numbers),
    ("whether a list of numbers holds {k}", "{k} in x", _numbers),
    ("a word, written {k} times", "x * {k}", _word),
    ("the last {k} letters of a word", "x[-{k}:]", _word),
    ("a word in capitals, followed by the digit {k}", "x.upper() + '{k}'", _word),
    ("the first {k} letters of a word written backwards", "x[::-1][:{k}]", _word),
    ("whether a word has more than {k} letters", "len(x) > {k}", _word),
    ("whether a number can be divided by {k}", "x % {k} == 0", _number),
    ("a number to the power of {k}", "x ** {k}", _number),
    ("the multiples of {k} below a number, from 0 on", "list(range(0, x, {k}))", _number),
    ("the digits of a number times {k}, as a list", "[int(c) for c in str(x * {k})]", _number),
)
PHRASINGS = (
    "Write a Python function f(x) that returns {what}. Then print f({example}).",
    "Define f(x) in Python: it returns {what}. Print what f({example}) is.",
    "I need {what} in Python. Make it a function f(x) and print its value for x = {example}.",
)
CODE_INSTRUCTION = "Answer with one ```python block."

TASKS = [(kind, k) for kind in range(len(KINDS)) for k in range(2, 10)]
"""Index of the kind, and the number k: 136 tasks."""

MOST_DRAWS = 10_000
"""
Draws after which a task has no new question left. A task has at least 87 equally likely questions (29 numbers, 3
phrasings), so the probability to miss the last one is e⁻¹¹⁵.
"""

TESTED = 5
"""One task in this many is held out for evaluation."""


def make_exercises(count: int, seed: int = 0, split: Literal["train", "test"] = "train") -> list[Exercise]:
    """
    Return exercises with different questions.

    Args:
        count (`int`):
            Number of exercises.
        seed (`int`, defaults to `0`):
            Seed of the choice.
        split (`str`, defaults to `"train"`):
            `"train"` or `"test"`, which share no task: if multiples of 3 and 5 are trained, multiples of 4 may be
            tested. The split does not depend on the seed.

    Returns:
        `list[Exercise]`: The tasks of the split in turn, so that 108 training exercises contain all of them.

    Raises:
        ValueError: If `count` is not positive, or a task has too few questions.
    """
    if count < 1:
        raise ValueError(f"`count` ({count}) must be at least 1: there is no exercise otherwise.")
    tasks = TASKS.copy()
    random.Random(derive_seed("exercises")).shuffle(tasks)
    tasks = [task for number, task in enumerate(tasks) if (number % TESTED == 0) == (split == "test")]
    rng = random.Random(derive_seed(seed, "exercises", split))
    made: dict[str, Exercise] = {}
    for number in range(count):
        kind, k = tasks[number % len(tasks)]
        for _ in range(MOST_DRAWS):
            exercise = _make(*KINDS[kind], k, rng)
            if exercise.question not in made:
                break
        else:
            raise ValueError(
                f"`count` ({count}) is more than the exercises of the split {split!r}: after {number}, a task has no "
                f"new question left. Ask for {number} at most."
            )
        made[exercise.question] = exercise
    return list(made.values())


def _make(
    what: str, expression: str, argument: Callable[[random.Random], str], k: int, rng: random.Random
) -> Exercise:
    example, *others = {argument(rng): None for _ in range(8)}
    asked = rng.choice(PHRASINGS).format(what=what.format(k=k), example=example)
    returned = expression.format(k=k)
    # The tests contain the expression itself, so nothing is evaluated here.
    tests = tuple(f"assert f({other}) == (lambda x: {returned})({other})" for other in others[:2])
    return Exercise(f"{asked} {CODE_INSTRUCTION}", f"def f(x):\n    return {returned}\nprint(f({example}))", tests)


FAULTS: dict[str, Callable[[str], str]] = {
    "none": lambda program: program,
    "a bracket that stays open": lambda program: program.rsplit(")", 1)[0],
    "a line out of line": lambda program: program.replace("    return", "return"),
    "a name that is not there": lambda program: program.replace("print(f(", "print(g("),
    "nothing printed": lambda program: program.rsplit("\n", 1)[0],
    "no attempt": lambda program: "print(1)",
}


def clumsy_lessons(exercises: Sequence[Exercise], count: int, seed: int = 0) -> list[Lesson]:
    """
    Return lessons with many wrong replies, for [`~tiny.coder.make_tiny_coder`].

    Each of the six `FAULTS`, which include `"none"`, has the same probability.
    """
    rng = random.Random(derive_seed(seed, "clumsy"))
    lessons = []
    for _ in range(count):
        exercise, fault = rng.choice(exercises), rng.choice(list(FAULTS.values()))
        prompt = [{"role": "user", "content": exercise.question}]
        lessons.append((prompt, f"```python\n{fault(exercise.program)}\n```"))
    return lessons
