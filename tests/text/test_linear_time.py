"""
Text of models, programs and players is read in linear time.

Patterns are found in the sources: a new one is attacked here unless `OURS` lists it. The attack repeats the repeats of
the pattern, and counts the steps of a reference matcher (`regex_steps.py`). No clock is involved.
"""

import ast
import importlib
import random
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from re import _constants as c
from re import _parser

import pytest

import trl_spiral
from tests.helpers.counted_text import meter_patterns, work_of
from tests.helpers.regex_steps import ONE_CHARACTER, REPEATS, Counter, TooManySteps, holds
from trl_spiral.evaluation.problems.code_sets import CodeProblem
from trl_spiral.games import game_names, get_game
from trl_spiral.games.code_game import can_be_guessed
from trl_spiral.games.negotiation import read_offer
from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.games.textarena.talk import clean_talk
from trl_spiral.rewards.base import RepliesReward
from trl_spiral.tasks import get_task
from trl_spiral.text.printable import fenced_lines
from trl_spiral.text.python_source import is_blank
from trl_spiral.text.replies import boxed_answer, extract_code_move, extract_move, extract_program


PACKAGE = Path(trl_spiral.__file__).parent
FUNCTIONS = {"compile", "match", "fullmatch", "search", "findall", "finditer", "sub", "subn", "split"}
FLAGS = {"re.M": re.M, "re.MULTILINE": re.M, "re.ASCII": re.A, "re.IGNORECASE": re.I, "re.I": re.I, "re.DOTALL": re.S}


def sites() -> dict[str, list[tuple[ast.Call, set[str]]]]:
    """
    Return the uses of `re` in the package: calls with a pattern, and the methods that are called with a text.

    By module, and variable or function.
    """
    found: dict[str, list[tuple[ast.Call, set[str]]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text, module = path.read_text("utf-8"), str(path.relative_to(PACKAGE))
        if not re.search(r"\bre\b", text):
            continue
        tree = ast.parse(text)
        assert not any(isinstance(node, ast.ImportFrom) and node.module == "re" for node in ast.walk(tree)), module
        calls = [
            node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ]
        names = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                names |= {id(each): node.name for each in ast.walk(node)}
        for node in tree.body:
            if isinstance(node, ast.Assign):
                names |= {id(each): ast.unparse(node.targets[0]) for each in ast.walk(node.value)}
        for call in calls:
            if ast.unparse(call.func.value) == "re" and call.func.attr in FUNCTIONS:
                name = names[id(call)]
                methods = {each.func.attr for each in calls if ast.unparse(each.func.value) == name} & FUNCTIONS
                found.setdefault(f"{module}: {name}", []).append((call, methods or {call.func.attr}))
    return found


SITES = sites()

BUILT = {
    "games/code_game.py: _names": [r"(?<!\w)\(\(\((?!\w)", r"(?<!\w)a\ a(?!\w)"],
    "games/leduc.py: _card": [r"\bYour card is (\w\w)\.$"],
    "games/textarena/adapter.py: canonical": sorted(
        {game.move for game in map(get_game, game_names()) if isinstance(game, TextArenaGame)}
    ),
    "players/pig.py: _number": [r"turn total is (\d+)", r"Player 0: '(\d+)'", r"First to (\d+) points"],
    "text/replies.py: extract_code_move": [r"^[ \t]{0,9}"],
    "text/control.py: __init__": [r"<|\[|▁"],
}
"""Places where the package builds patterns at run time, with examples."""

OURS = {
    "cli/doctor.py: extras": "the metadata of this package",
    "report/charts.py: _found": "names of metrics",
    "tiny/tokenizer.py: _pieces": "lessons, from which the vocabulary is made",
}
"""Places where patterns read only trusted text, with its origin."""


def pattern_of(site: str, call: ast.Call) -> list[tuple[str, int]]:
    """Return the patterns of a call, each with its flags."""
    flags = [keyword.value for keyword in call.keywords if keyword.arg == "flags"] + [
        argument for argument in call.args[1:] if any(name in ast.unparse(argument) for name in FLAGS)
    ]
    given = eval(ast.unparse(flags[0]), {"re": re}) if flags else 0
    try:
        return [(ast.literal_eval(call.args[0]), given)]
    except ValueError:
        if site in BUILT:
            return [(pattern, given) for pattern in BUILT[site]]
    module = importlib.import_module("trl_spiral." + site.split(".py: ")[0].replace("/", "."))
    return [(eval(ast.unparse(call.args[0]), vars(module)), given)]  # uses the module's own constants


def bodies(item: tuple) -> list[list]:
    """Return the sequences of nodes inside a node."""
    kind, value = item
    if kind in REPEATS:
        return [list(value[2])]
    if kind is c.SUBPATTERN:
        return [list(value[3])]
    if kind is c.BRANCH:
        return [list(way) for way in value[1]]
    if kind is c.ATOMIC_GROUP:
        return [list(value)]
    return [list(value[1])] if kind in (c.ASSERT, c.ASSERT_NOT) else []


def letters(nodes: list) -> set[str]:
    """Return the characters that a pattern names."""
    found = {chr(value) for kind, value in nodes if kind in (c.LITERAL, c.NOT_LITERAL)}
    for item in nodes:
        if item[0] is c.IN:
            found |= {chr(each[1]) for each in item[1] if each[0] is c.LITERAL}
            found |= {chr(each[1][0]) for each in item[1] if each[0] is c.RANGE}
        found = found.union(*map(letters, bodies(item)))
    return found


class Attack:
    """Texts that repeat the repeats of a pattern."""

    SUFFIXES = ("", "!", "\n", "\n!")

    def __init__(self, pattern: str, flags: int) -> None:
        tree = _parser.parse(pattern, flags)
        self.nodes, self.flags = list(tree), tree.state.flags
        self.letters = [*sorted(letters(self.nodes)), *" a0\n"]

    def fitting(self, item: tuple) -> list[str]:
        return [each for each in dict.fromkeys(self.letters) if holds(item, each, self.flags)] or ["~"]

    def sample(self, nodes: list) -> str:
        """Return a short text that matches, each repeat at least once."""
        text = ""
        for item in nodes:
            if item[0] in ONE_CHARACTER:
                text += self.fitting(item)[0]
            elif item[0] not in (c.ASSERT, c.ASSERT_NOT, c.AT):
                times = max(1, item[1][0]) if item[0] in REPEATS else 1
                text += self.sample(bodies(item)[0]) * times
        return text

    def pumps(self, nodes: list, before: str = "") -> Iterator[tuple[str, str]]:
        """Return the text before a repeat, and the repeated text."""
        for item in nodes:
            if item[0] in REPEATS:
                (body,) = bodies(item)
                whole = self.sample(body)
                yield from [(before, whole), ("", before + whole), (before + whole, before)]
                if len(body) == 1 and body[0][0] in ONE_CHARACTER:
                    yield from ((before, each) for each in self.fitting(body[0])[:8])
            for body in bodies(item):
                yield from self.pumps(body, before)
            before += self.sample([item])

    def texts(self, times: int) -> Iterator[str]:
        for prefix, pump in dict.fromkeys([*self.pumps(self.nodes), ("", self.sample(self.nodes))]):
            yield from (prefix + pump * times + suffix for suffix in self.SUFFIXES if pump)


TIMES = 32
GROWTH = 2.5
"""Maximum factor of steps for twice the text. Linear work grows by 2, quadratic work by almost 4."""


def superlinear(pattern: str, flags: int, method: str) -> list[str]:
    """Return texts for which twice the text needs more than twice the steps."""
    attack, found, counter = Attack(pattern, flags), [], Counter(pattern, flags, "", most=100_000)
    for long, short in dict(zip(attack.texts(2 * TIMES), attack.texts(TIMES), strict=True)).items():
        counter.read(long)
        try:
            counter.run(method)
        except TooManySteps:
            found.append(long)
            continue
        if (twice := counter.steps) > 4 * len(long):  # fewer are linear anyway
            counter.read(short)
            counter.run(method)
            if twice > GROWTH * counter.steps:
                found.append(long)
    return found


def method_of(name: str) -> str:
    return name if name in ("match", "fullmatch") else "finditer"


class TestPatterns:
    @pytest.mark.parametrize("site", sorted(SITES.keys() - OURS.keys()))
    def test_need_at_most_twice_the_steps_for_twice_the_text(self, site):
        for call, methods in SITES[site]:
            for pattern, flags in pattern_of(site, call):
                for method in set(map(method_of, methods)):
                    assert superlinear(pattern, flags, method) == [], pattern

    def test_named_here_exist(self):
        assert BUILT.keys() | OURS.keys() <= SITES.keys()


class TestAttack:
    @pytest.mark.parametrize(
        ("pattern", "method"),
        [
            (r"(a+)+", "fullmatch"),
            (r"(?:a|aa)+", "fullmatch"),
            (r"\[\s*(?:[0-9]\s*)?\s*\]", "fullmatch"),
            (r"a\s*,?\s*b", "match"),
            (r"x*x*y", "match"),
            (r"(\w+) x", "finditer"),
            (r"<[^>]*x", "finditer"),
            (r"a.*b.*c", "finditer"),
            (r"(?<=a)[ab]*c", "finditer"),
            (r".*?,.*?;", "finditer"),
            (r"(?:\s*;)*\s*$", "finditer"),
        ],
    )
    def test_finds_patterns_that_are_not_linear(self, pattern, method):
        assert superlinear(pattern, 0, method) != []

    @pytest.mark.parametrize(
        ("pattern", "method"),
        [
            (r"a++b", "match"),
            (r"\[\s*+(?:[0-9]\s*+)?+\]", "fullmatch"),
            (r"<[^<>]*>", "finditer"),
            (r"\b(\w+) x", "finditer"),
            (r"a*b*c*", "fullmatch"),
        ],
    )
    def test_accepts_linear_patterns(self, pattern, method):
        assert superlinear(pattern, 0, method) == []

    def test_finds_the_matches_of_re(self):
        patterns = [r"(a+)+$", r"a*b?a*c", r"\bfoo\b|o+?x", r"(?<=\d)[eE]([+-]?\d+)", r"(?<!\w)ab(?!\w)", r"(?s:.+)x"]
        patterns += [r"(?>a+)b", r"a*+b", r"(?:ab)*+a", r"(?:a|ab)*?c", r"[^ab]x|[A-C]", r"", r"b?", r"^[ \t]*x$"]
        rng = random.Random(0)
        for pattern, flags in product(patterns, (0, re.I, re.A | re.M)):
            for text in ("".join(rng.choices("aabbcxof 1e+\n_", k=rng.randrange(10))) for _ in range(50)):
                for method in ("match", "fullmatch"):
                    found = getattr(re, method)(pattern, text, flags)
                    assert Counter(pattern, flags, text).run(method) == ([found.span()] if found else [])
                spans = [found.span() for found in re.finditer(pattern, text, flags)]
                assert Counter(pattern, flags, text).run("finditer") == spans


(TOWER,) = get_task("hanoi").problems("train", 1)
(WORDS,) = get_task("connections").problems("train", 1)
READERS = {
    "a move": extract_move,
    "a program and its output": extract_code_move,
    "a program": extract_program,
    "a program of comments": is_blank,
    "a program of MBPP": CodeProblem(0, "", "", (), "").trial,
    "an answer in mathematics": boxed_answer,
    "a solution of Hanoi": lambda text: get_task("hanoi").score(TOWER, text),
    "a partition": lambda text: get_task("connections").score(WORDS, text),
    "an output": can_be_guessed,
    "a completion": lambda text: RepliesReward().replies([text], prompts=["<think>"]),
    "a transcript": fenced_lines,
    "talk": clean_talk,
    "an offer": read_offer,
}

# One game for each way to read a move.
ALIKE = {(g.move, g.form) if isinstance(g, TextArenaGame) else g.name: g for g in map(get_game, game_names())}
READERS |= {f"a move of {game.name}": game.canonical for game in ALIKE.values()}

PIECES = (
    *(
        "\\boxed{",
        "{",
        "}",
        "\\",
        "<think>",
        "</think>",
        "```python\n",
        "```py",
        "\n```",
        "`",
        "\n",
        "\r\n",
        "\t",
        " ",
        "# a\n",
    ),
    *(
        "[",
        "]",
        "[[1, 0, 2], ",
        "[1,0,2],",
        ",",
        ";",
        "a, ",
        "->",
        "1 Wood, ",
        "offer: ",
        "a",
        "1",
        "from __future__ import a\n",
        "<",
    ),
)
PREFIXES = ("", "\\boxed{", "\\boxed{[", "```python\n", "<think>", "[offer: ")
SUFFIXES = ("", "}", "!", "]}", "\n```\n\\boxed{5}")


class TestReaders:
    @pytest.mark.parametrize("name", READERS)
    def test_need_at_most_twice_the_work_for_twice_the_text(self, name, monkeypatch):
        meter_patterns(monkeypatch)
        read = READERS[name]
        for prefix, piece, suffix in product(PREFIXES, PIECES, SUFFIXES):
            short, long = (prefix + piece * times + suffix for times in (100, 200))

            # Texts within the length limits are read a few times. Quadratic work would be hundreds of times.
            assert (twice := work_of(read, long)) <= 20 * len(long) or twice <= GROWTH * work_of(read, short), long

    def test_would_be_detected(self):
        def one_by_one(text: str) -> None:
            while text:
                text = text[1:]

        def searching(text: str) -> list[bool]:
            return ["x" in text for _ in text]

        for read in (one_by_one, searching):
            assert work_of(read, "a" * 2000) > max(3.5 * work_of(read, "a" * 1000), 20 * 2000)
