"""
Tower of Hanoi in one reply: from a random arrangement of the disks to another, as a list of moves.

A reply is scored by the state that its moves reach. The exact distance to the goal (A. M. Hinz et al., *The Tower of
Hanoi: Myths and Maths*, chapter 2) is a potential, so a detour gains nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trl_spiral.seeding import derive_seed
from trl_spiral.tasks.base import SPLITS, Problem, Score, Split, Task, read_answer


State = tuple[int, ...]
"""The peg (0, 1 or 2) of each disk, the smallest first."""

PEGS = 3

TOKENS_PER_MOVE = 12
"""Tokens of `[1, 0, 2], ` if each digit, comma and space is a token: the maximum of common tokenizers."""

VALIDATION_SHARE = 5
"""One pair of states in this many is held out for validation."""

# ASCII only: `\d` would also match other scripts' digits. Possessive repeats (`*+`) read a reply in linear time.
_MOVE = r"\[\s*+([0-9]{1,2})\s*+,\s*+([0-9]{1,2})\s*+,\s*+([0-9]{1,2})\s*+\]"
_ONE = re.compile(_MOVE)
_MOVES = re.compile(rf"\[\s*+(?:{_MOVE}(?:\s*+,\s*+{_MOVE})*+)?+\s*+\]")

_RULES = (
    "Tower of Hanoi with pegs 0, 1 and 2 and {disks}, of which 1 is the smallest. A move takes the top disk of a peg "
    "to another peg, and never onto a smaller disk; a disk can be moved while no smaller one is on its peg.\n"
    "Start: {start}\nGoal: {goal}\n"
    "Reach the goal in as few moves as you can. Answer with the moves as [[disk, from, to], ...] within \\boxed{{}}."
)


@dataclass(frozen=True, slots=True)
class Walk:
    """
    States that a list of moves passes through.

    Attributes:
        states (`tuple[State, ...]`):
            The start, and the state after each legal move up to the first illegal one.
        illegal (`str`):
            Description of the first illegal move; empty if all are legal.
    """

    states: tuple[State, ...]
    illegal: str = ""


class Hanoi(Task):
    """
    Tower of Hanoi between two arrangements of the disks.

    Let d be the distance from the start to the goal, and r the distance that is left after k legal moves. Progress is
    p = max(0, d − r) / (k + r). The score is (1 + p) / 2 if the reply ends at the goal, which is 1 for a shortest
    solution, and p / 2 otherwise. An illegal move ends the reply and halves its score, to p / 4.

    Args:
        disks (`Sequence[int]`, defaults to `(3, 4, 5)`):
            Numbers of disks. All arrangements are about equally likely as the start, so most problems have the largest
            number of disks.
        standard (`bool`, defaults to `False`):
            Ask only for the whole tower from peg 0 to peg 2. Both splits then contain the same problems.
        completion_tokens (`int`, *optional*):
            Longest reply, in tokens. Numbers of disks whose longest solution does not fit are refused.
        tokens_per_move (`int`, defaults to `TOKENS_PER_MOVE`):
            Tokens of a move.
        name (`str`, defaults to `"hanoi"`):
            Name of the task.

    Raises:
        ValueError: If there are fewer than one or more than ten disks, or too many for the length of a reply.
    """

    def __init__(
        self,
        disks: Sequence[int] = (3, 4, 5),
        standard: bool = False,
        completion_tokens: int | None = None,
        tokens_per_move: int = TOKENS_PER_MOVE,
        name: str = "hanoi",
    ) -> None:
        if not disks or not all(1 <= number <= 10 for number in disks):
            raise ValueError(f"`disks` ({tuple(disks)}) must be numbers from 1 to 10: ten may need 1,023 moves.")
        longest = 2 ** max(disks) - 1  # the diameter of the graph of states
        if completion_tokens is not None and longest * tokens_per_move > completion_tokens:
            most = (completion_tokens // tokens_per_move + 1).bit_length() - 1
            raise ValueError(
                f"{max(disks)} disks may need {longest:,} moves, some {longest * tokens_per_move:,} tokens, and a "
                f"reply has {completion_tokens:,}. Ask for at most {most} disks, or allow longer replies."
            )
        self.disks = tuple(disks)
        self.standard = standard
        self.name = name

    def problems(self, split: Split, number: int, seed: int = 0) -> list[Problem]:
        """Return `number` problems, with repeats if the split has fewer. Start and goal differ."""
        if split not in SPLITS:
            raise ValueError(f"`split` ({split!r}) must be 'train' or 'validation'.")
        rng = random.Random(derive_seed(seed, "hanoi", split))
        return [self._problem(split, rng) for _ in range(number)]

    def _problem(self, split: Split, rng: random.Random) -> Problem:
        while True:
            (disks,) = rng.choices(self.disks, [PEGS**number for number in self.disks])
            if self.standard:
                return self.problem((0,) * disks, (2,) * disks)
            start, goal = (tuple(rng.randrange(PEGS) for _ in range(disks)) for _ in range(2))
            if start != goal and split_of(start, goal) == split:
                return self.problem(start, goal)

    def problem(self, start: State, goal: State) -> Problem:
        """Return the problem of reaching one state from another."""
        disks = f"{len(start)} disks" if len(start) > 1 else "1 disk"
        text = _RULES.format(disks=disks, start=_listed(start), goal=_listed(goal))
        return Problem(
            f"{self.name}-{_digits(start)}-{_digits(goal)}",
            ({"role": "user", "content": text},),
            {"start": list(start), "goal": list(goal)},
        )

    def score(self, problem: Problem, response: str) -> Score:
        start, goal = tuple(problem.data["start"]), tuple(problem.data["goal"])
        moves = read_moves(response)
        if moves is None:
            return Score(0.0, False, {"illegal": "no readable list of moves"})
        walk = follow(start, moves)
        taken, left, minimum = len(walk.states) - 1, distance(walk.states[-1], goal), distance(start, goal)
        solved = left == 0 and not walk.illegal
        progress = max(0, minimum - left) / (taken + left) if taken + left else 0.0
        value = (1 + progress) / 2 if solved else progress / 4 if walk.illegal else progress / 2
        return Score(
            value,
            solved,
            {
                "moves": len(moves),
                "legal_moves": taken,
                "minimum": minimum,
                "distance": left,
                "illegal": walk.illegal,
            },
        )

    def steps(self, problem: Problem, response: str) -> list[str]:
        """Return the pegs at the start and after each legal move, with the remaining distance."""
        start, goal = tuple(problem.data["start"]), tuple(problem.data["goal"])
        target = f"Goal:\n{picture(goal)}"
        moves = read_moves(response)
        if moves is None:
            return [f"{picture(start)}\n\n{target}", f"{picture(start)}\n\nNo readable list of moves."]
        walk = follow(start, moves)
        frames = [f"{picture(start)}\n\n{distance(start, goal)} moves to go. {target}"]
        for (disk, origin, to), state in zip(moves, walk.states[1:], strict=False):
            left = distance(state, goal)
            frames.append(f"Disk {disk} from peg {origin} to peg {to}\n\n{picture(state)}\n\n{left} moves to go.")
        if walk.illegal:
            frames.append(f"{picture(walk.states[-1])}\n\nIllegal: {walk.illegal}")
        return frames


def split_of(start: State, goal: State) -> Split:
    """Return the split of a pair of states. It does not depend on the seed."""
    return "train" if derive_seed("hanoi", _digits(start), _digits(goal)) % VALIDATION_SHARE else "validation"


def read_moves(response: str) -> list[tuple[int, int, int]] | None:
    """
    Return the moves (disk, from, to) of a reply, legal or not.

    Returns:
        `list` or `None`: The moves; `None` unless the answer is a list of triples of small whole numbers.
    """
    answer = read_answer(response)
    if answer is None or _MOVES.fullmatch(answer) is None:
        return None
    return [(int(disk), int(origin), int(to)) for disk, origin, to in _ONE.findall(answer)]


def follow(start: State, moves: Sequence[tuple[int, int, int]]) -> Walk:
    """Play moves up to the first illegal one."""
    states = [start]
    for number, (disk, origin, to) in enumerate(moves, start=1):
        if illegal := _illegal(states[-1], disk, origin, to):
            return Walk(tuple(states), f"move {number}, [{disk}, {origin}, {to}]: {illegal}")
        states.append((*states[-1][: disk - 1], to, *states[-1][disk:]))
    return Walk(tuple(states))


def _illegal(state: State, disk: int, origin: int, to: int) -> str:
    """Return why a move is illegal; `""` if it is legal."""
    if not 1 <= disk <= len(state):
        return f"there is no disk {disk}"
    if origin == to or not (origin < PEGS and to < PEGS):
        return "not from one peg to another"
    if state[disk - 1] != origin:
        return f"disk {disk} is on peg {state[disk - 1]}"
    if origin in state[: disk - 1]:
        return f"disk {disk} lies below a smaller one"
    if to in state[: disk - 1]:
        return f"there is a smaller disk on peg {to}"
    return ""


def moves_from(state: State) -> list[tuple[int, int, int]]:
    """Return the legal moves (disk, from, to) of a state."""
    moves = ((disk, origin, to) for disk, origin in enumerate(state, start=1) for to in range(PEGS))
    return [move for move in moves if not _illegal(state, *move)]


def distance(start: State, goal: State) -> int:
    """
    Return the lowest number of moves from one state to another.

    The largest disk that has to move does so once, with all smaller ones on the third peg, or twice, via that peg.
    Either can be shorter.
    """
    size = len(start)
    while size and start[size - 1] == goal[size - 1]:
        size -= 1
    if size == 0:
        return 0
    origin, to = start[size - 1], goal[size - 1]
    third = PEGS - origin - to
    below, above = start[: size - 1], goal[: size - 1]
    once = _to_tower(below, third) + 1 + _to_tower(above, third)
    crossing = (1 << (size - 1)) - 1  # of the smaller disks, while the largest waits on the third peg
    twice = _to_tower(below, to) + 1 + crossing + 1 + _to_tower(above, origin)
    return min(once, twice)


def _to_tower(state: State, peg: int) -> int:
    """Return the lowest number of moves until all disks are on one peg."""
    total = 0
    for index in range(len(state) - 1, -1, -1):
        if state[index] != peg:
            total += 1 << index
            peg = PEGS - peg - state[index]
    return total


def _listed(state: State) -> str:
    """Return the position of each disk, in the same words for any number of disks."""
    return ", ".join(f"disk {disk} on peg {peg}" for disk, peg in enumerate(state, start=1))


def picture(state: State) -> str:
    """Return a line for each of the three pegs, with its disks from the bottom."""
    size = len(state)
    pegs = ([disk for disk in range(size, 0, -1) if state[disk - 1] == peg] for peg in range(PEGS))
    return "\n".join(f"peg {peg}:{''.join(f' {disk}' for disk in disks)}" for peg, disks in enumerate(pegs))


def _digits(state: State) -> str:
    return "".join(map(str, state))
