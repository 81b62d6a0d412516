"""TextArena's games with dice, hidden boards or simultaneous choices."""

from __future__ import annotations

import random
import re
from functools import cache, lru_cache
from itertools import combinations, product
from typing import Any

from trl_spiral.games.base import Traits
from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.games.textarena.family import DEALT, HIDDEN, TALK, Family, always


def battleship(env: Any) -> tuple[str, ...]:
    """Squares of the other seat's board that have not been fired at."""
    sea = env.state.game_state["tracking_board"][env.state.current_player_id]
    return tuple(f"[{chr(97 + r)}{c}]" for r, line in enumerate(sea) for c, cell in enumerate(line) if cell == "~")


def memory(env: Any) -> tuple[str, ...]:
    """Pairs of face-down cards, each in reading order."""
    return _pairs(env.grid_size, frozenset(env.state.game_state["matched_positions"]))


@lru_cache(maxsize=1024)  # up to 2,016 moves, unchanged until the next pair is found
def _pairs(size: int, found: frozenset[tuple[int, int]]) -> tuple[str, ...]:
    cards = [place for place in product(range(size), repeat=2) if place not in found]
    return tuple(f"[{a[0]} {a[1]} {b[0]} {b[1]}]" for a, b in combinations(cards, 2))


def liars_dice(env: Any) -> tuple[str, ...]:
    """
    Bids that raise the quantity or the face and lower neither, and a call.

    TextArena does not limit bids. Here the number of dice in play is the highest quantity.
    """
    state = env.state.game_state
    quantity, face = state["current_bid"]["quantity"], state["current_bid"]["face_value"]
    bids = _bids(max(1, quantity), max(1, face), sum(state["remaining_dice"].values()))
    return ("[call]", *bids[1:]) if quantity else bids


@cache
def _bids(quantity: int, face: int, dice: int) -> tuple[str, ...]:
    """Return a bid and all higher ones."""
    return tuple(f"[bid: {q}, {f}]" for q in range(quantity, dice + 1) for f in range(face, 7))


def _in_order(match: re.Match[str]) -> str:
    """Return a pair of cards in reading order."""
    a, b, c, d = match.groups()
    first, second = sorted(((a, b), (c, d)))
    return f"[{' '.join(first + second)}]"


def three_fields(env: Any) -> tuple[str, ...]:
    """Allocations of the units to three fields: 231 for 20 units."""
    return _spread(env.num_total_units)


@cache
def _spread(units: int) -> tuple[str, ...]:
    splits = (split for split in product(range(units + 1), repeat=3) if sum(split) == units)
    return tuple(_allocation(dict(zip("ABC", split, strict=True))) for split in splits)


def _allocation(units: dict[str, int]) -> str:
    return "[" + " ".join(f"{field}{count}" for field, count in sorted(units.items())) + "]"


def read_blotto(match: re.Match[str]) -> str | None:
    """Return an allocation in the order of fields, with 0 for omitted ones of A to C; `None` for repeated fields."""
    named = re.findall(r"([A-Z])[\s:]*([0-9]+)", match.group().upper())
    units = {field: int(count) for field, count in named}
    if len(units) < len(named):
        return None
    return _allocation(dict.fromkeys("ABC", 0) | units)


def sample_blotto(env: Any, rng: random.Random) -> str:
    cuts = sorted(rng.randrange(env.num_total_units + 1) for _ in range(env.num_fields - 1))
    edges = zip((0, *cuts), (*cuts, env.num_total_units), strict=True)
    return _allocation({field: high - low for field, (low, high) in zip(env.field_names, edges, strict=True)})


def read_number(match: re.Match[str]) -> str:
    return f"[{float(match.group()):g}]"


def sample_number(env: Any, rng: random.Random) -> str:
    return f"[{rng.randrange(101)}]"


_ALLOCATION = r"(?:[a-g]\s*(?::\s*)?[0-9]{1,2}[\s,]*)+"


def _short(words: str) -> dict[str, str]:
    """Return the words by themselves and by their first letters."""
    return {word: word for word in words.split()} | {word[0]: word for word in words.split()}


_THROWS = _short("rock paper scissors")
_COINS = _short("heads tails")
_WAYS = {"w": "up", "s": "down", "a": "left", "d": "right"}


def _way(match: re.Match[str]) -> str:
    return f"[{match[1].lower() if match[1] else _WAYS[match[2].lower()]}]"


FAMILIES = (
    Family(
        TextArenaGame(
            "PigDice-v0",
            "roll|hold",
            legal=always("[roll]", "[hold]"),
            observation="first_last",
            max_turns=1200,
            traits=Traits(stochastic=True),
        ),
        ("", "-short", "-long", *(f"-{goal}" for goal in range(100, 501, 50))),
        source="rules",
    ),
    Family(
        # As in SPIRAL's PigDice-v1. The environment ends the game after 50 turns, at the next change of seats.
        TextArenaGame(
            "PigDice-v0-50",
            "roll|hold",
            legal=always("[roll]", "[hold]"),
            observation="first_last",
            max_turns=120,
            traits=Traits(stochastic=True),
        ),
        source="rules",
    ),
    Family(
        TextArenaGame(
            "LiarsDice-v0",
            r"bid\s*(?::\s*)?([1-9][0-9]?)[,\s]+([1-6])|call",
            lambda match: f"[bid: {match[1]}, {match[2]}]" if match[1] else "[call]",
            liars_dice,
            max_turns=1500,
            traits=DEALT,
        ),
        ("", "-small", "-large"),
        note="a bid may lower neither the quantity nor the face; here the number of dice limits bids",
    ),
    Family(
        TextArenaGame(
            "Battleship-v0",
            r"([a-t])([0-9]|1[0-9])",
            "[{}{}]",
            battleship,
            observation="first_last",
            max_turns=800,
            traits=DEALT,
        ),
        ("", "-standard", "-large", "-extreme"),
    ),
    Family(
        TextArenaGame(
            "MemoryGame-v0",
            r"([0-7])\s+([0-7])\s+([0-7])\s+([0-7])",
            _in_order,
            memory,
            max_turns=120,
            traits=DEALT,
        ),
        ("", "-medium", "-hard"),
    ),
    Family(
        TextArenaGame(
            "Snake-v0",
            "(up|down|left|right)|([wasd])",
            _way,
            always("[up]", "[down]", "[left]", "[right]"),
            observation="first_last",
            max_turns=252,
            traits=DEALT,
        ),
        ("", "-standard", "-large"),
        source="rules",
        simultaneous=True,
        note="two seats of two to fifteen",
    ),
    Family(
        TextArenaGame(
            "Surround-v0",
            "(up|down|left|right)|([wasd])",
            _way,
            always("[up]", "[down]", "[left]", "[right]"),
            observation="first_last",
            max_turns=252,
            traits=DEALT,
        ),
        ("", "-standard", "-large"),
        source="rules",
        simultaneous=True,
        note="two seats of two to fifteen",
    ),
    Family(
        TextArenaGame("ColonelBlotto-v0", _ALLOCATION, read_blotto, three_fields, max_turns=18, traits=HIDDEN),
        ("", "-small"),
        source="rules",
        simultaneous=True,
    ),
    Family(
        TextArenaGame(
            "ColonelBlotto-v0-large", _ALLOCATION, read_blotto, sample=sample_blotto, max_turns=30, traits=TALK
        ),
        source="none",
        simultaneous=True,
        note="316,251 moves on five fields",
    ),
    Family(
        TextArenaGame(
            "ColonelBlotto-v0-extreme", _ALLOCATION, read_blotto, sample=sample_blotto, max_turns=50, traits=TALK
        ),
        source="none",
        simultaneous=True,
        note="324,540,216 moves on seven fields",
    ),
    Family(
        TextArenaGame(
            "IteratedRockPaperScissors-v0",
            "|".join(_THROWS),
            lambda match: f"[{_THROWS[match.group().lower()]}]",
            always("[rock]", "[paper]", "[scissors]"),
            max_turns=18,
            traits=HIDDEN,
        ),
        source="rules",
        simultaneous=True,
    ),
    Family(
        TextArenaGame(
            "IteratedMatchingPennies-v0",
            "|".join(_COINS),
            lambda match: f"[{_COINS[match.group().lower()]}]",
            always("[heads]", "[tails]"),
            max_turns=20,
            traits=HIDDEN,
        ),
        source="rules",
        simultaneous=True,
    ),
    Family(
        TextArenaGame(
            "IteratedTwoThirdsAverage-v0",
            r"[0-9]{1,2}(?:\.[0-9]{1,3})?|100",
            read_number,
            sample=sample_number,
            max_turns=20,
            traits=TALK,
        ),
        source="none",
        simultaneous=True,
        note="with two seats the lower guess always wins",
    ),
)
