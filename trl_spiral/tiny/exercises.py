"""Exercises in programming, made from templates: little functions of one argument to write, with tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from trl_spiral.seeding import derive_seed


@dataclass(frozen=True, slots=True)
class Exercise:
    """
    Something to program.

    Attributes:
        question (`str`):
            What is asked.
        program (`str`):
            A program that does it.
        tests (`tuple[str, ...]`):
            An assertion each, with arguments that the question does not mention.
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


# What is asked for, the expression that it is, and an argument for it.
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
INSTRUCTION = "Answer with one ```python block."

TASKS = [(kind, k) for kind in range(len(KINDS)) for k in range(2, 10)]
"""Kinds with their number k, 136 of them."""

MOST_DRAWS = 10_000
"""
Draws after which a task's questions count as used up. It has at least 87 of them, equally likely (29 numbers, 3 phrasings), so
that the last one is missed with a probability of e⁻¹¹⁵.
"""

TESTED = 5
"""One task in this many is for evaluation."""


def make_exercises(count: int, seed: int = 0, split: Literal["train", "test"] = "train") -> list[Exercise]:
    """
    Exercises, no two with the same question.

    Args:
        count (`int`):
            How many.
        seed (`int`, defaults to `0`):
            Seed of the choice.
        split (`str`, defaults to `"train"`):
            `"train"` or `"test"`, which have no task in common: who has been asked for multiples of 3 and 5 may be tested on
            multiples of 4. The split does not depend on the seed.

    Returns:
        `list[Exercise]`: They go round the tasks of the split, so that 108 training exercises hold all of them.

    Raises:
        ValueError: If `count` is not positive, or a task has not so many questions.
    """
    if count < 1:
        raise ValueError(f"`count` ({count}) must be at least 1: there would be nothing to program.")
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
                f"`count` ({count}) is more than there are exercises to {split} with: after {number}, a task has no other "
                f"question left. Ask for {number} at most."
            )
        made[exercise.question] = exercise
    return list(made.values())


def _make(
    what: str, expression: str, argument: Callable[[random.Random], str], k: int, rng: random.Random
) -> Exercise:
    example, *others = {argument(rng): None for _ in range(8)}
    asked = rng.choice(PHRASINGS).format(what=what.format(k=k), example=example)
    returned = expression.format(k=k)
    # The tests hold the expression itself: there is nothing to evaluate here.
    tests = tuple(f"assert f({other}) == (lambda x: {returned})({other})" for other in others[:2])
    return Exercise(f"{asked} {INSTRUCTION}", f"def f(x):\n    return {returned}\nprint(f({example}))", tests)


FAULTS: dict[str, Callable[[str], str]] = {
    "none": lambda program: program,
    "a bracket that stays open": lambda program: program.rsplit(")", 1)[0],
    "a line out of line": lambda program: program.replace("    return", "return"),
    "a name that is not there": lambda program: program.replace("print(f(", "print(g("),
    "nothing printed": lambda program: program.rsplit("\n", 1)[0],
    "no attempt": lambda program: "print(1)",
}


def clumsy_lessons(exercises: Sequence[Exercise], count: int, seed: int = 0) -> list[tuple[list[dict[str, str]], str]]:
    """
    Prompts and replies of somebody who has much to learn: each of the six `FAULTS`, `"none"` among them, as often as another.

    For [`~tiny.coder.make_tiny_coder`].
    """
    rng = random.Random(derive_seed(seed, "clumsy"))
    lessons = []
    for _ in range(count):
        exercise, fault = rng.choice(exercises), rng.choice(list(FAULTS.values()))
        prompt = [{"role": "user", "content": exercise.question}]
        lessons.append((prompt, f"```python\n{fault(exercise.program)}\n```"))
    return lessons
