"""
Length of matches, time per turn and conformance tests of every game.

A turn in the adapter observes the seat to move, lists its legal moves and applies one, like the game loop. The bare
environment replays the same moves like a user of TextArena, with `get_observation` and `step`. Both are repeated, and
the fastest time of each turn counts, to exclude other load on the machine. "Over" is the median over turns of the time
that the adapter adds.

    python tests/benchmarks/bench_games.py [--hostile 2000] [--no-conformance] [GAME ...]

Goals: at most 60 microseconds per turn over the environment, and at most 50 ms for a hostile reply.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import textarena


sys.path.insert(0, str(Path(__file__).parents[2]))  # the project root, for `tests` and `trl_spiral`

from tests.helpers.hostile_replies import FIRST_CLASS, any_move, check_harmless, hostile_reply, opening, replay
from trl_spiral.games import Game, game_names, get_game
from trl_spiral.games.textarena.adapter import TextArenaGame
from trl_spiral.seeding import derive_seed


TESTS = Path(__file__).parents[1]
REPEATS = 4


def random_matches(game: Game, count: int) -> list[list[str]]:
    """Return the moves of random matches with seeds 0, 1, …"""
    matches = []
    for seed in range(count):
        match, rng, moves = game.start(seed), random.Random(derive_seed(game.name, seed)), []
        while match.to_move is not None:
            moves.append(any_move(match, rng))
            match.apply(moves[-1])
        matches.append(moves)
    return matches


def timed(turns: list[Callable[[], Any]]) -> list[float]:
    """Return the microseconds of each turn."""
    seconds = []
    for turn in turns:
        began = time.perf_counter()
        turn()
        seconds.append(time.perf_counter() - began)
    return [second * 1e6 for second in seconds]


def adapter_turns(game: Game, seed: int, moves: list[str]) -> list[float]:
    match = game.start(seed)

    def turn(move: str) -> None:
        match.observe(match.to_move or 0)
        match.apply(move)

    return timed([lambda move=move: turn(move) for move in moves])


def bare_turns(game: TextArenaGame, seed: int, moves: list[str]) -> list[float]:
    env = textarena.make(f"{game.name}-raw")
    env.reset(game.traits.seats, seed)

    def turn(move: str) -> None:
        env.get_observation()
        env.step(move)

    # Discard the output of NewRecruit, as the adapter does.
    stdout, sys.stdout = sys.stdout, open("/dev/null", "w")
    try:
        return timed([lambda move=move: turn(move) for move in moves])
    finally:
        sys.stdout.close()
        sys.stdout = stdout


def fastest(play: Callable[[], list[float]]) -> list[float]:
    return [min(turn) for turn in zip(*(play() for _ in range(REPEATS)), strict=True)]


class TestResults:
    """A pytest plugin that counts the results of `test_conformance.py` by game."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            game = report.nodeid.split("[", 1)[1].removesuffix("]")
            self.outcomes.setdefault(game, Counter())[report.outcome] += 1

    def of(self, game: str) -> str:
        outcomes = self.outcomes.get(game, Counter())
        return f"{outcomes['passed']}/{sum(outcomes.values())}" if outcomes else ""


def table_of_games(names: list[str], matches: int, results: TestResults) -> None:
    print("| game | turns mean/max | bare µs | adapter µs | over µs | conformance |")
    print("| --- | --- | --- | --- | --- | --- |")
    added = {}
    for name in names:
        game = get_game(name)
        played = random_matches(game, matches)
        lengths = [len(moves) for moves in played]
        ours, bare = [], []
        for seed, moves in enumerate(played):
            ours += fastest(partial(adapter_turns, game, seed, moves))
            if isinstance(game, TextArenaGame):
                bare += fastest(partial(bare_turns, game, seed, moves))
        costs = "", f"{statistics.median(ours):.0f}", ""
        if bare:
            added[name] = statistics.median(mine - its for mine, its in zip(ours, bare, strict=True))
            costs = f"{statistics.median(bare):.0f}", costs[1], f"{added[name]:.0f}"
        turns = f"{statistics.mean(lengths):.1f}/{max(lengths)}"
        print("|", " | ".join((name, turns, *costs, results.of(name))), "|", flush=True)
    if added:
        most = max(added, key=lambda name: added[name])
        median = statistics.median(added.values())
        print(f"\nMedian over games: {median:.0f} µs over; maximum: {added[most]:.0f} ({most}).\n")


def table_of_hostile_replies(replies: int) -> None:
    print("| game | replies | no move | illegal | played | forged | median µs | max ms of CPU |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in FIRST_CLASS:
        game, rng, outcomes, seconds = get_game(name), random.Random(derive_seed("hostile", name)), Counter(), []
        for number in range(replies):
            moves = opening(game, number, plies=number % 6)
            reply = hostile_reply(replay(game, number, moves), rng)
            outcome, took = check_harmless(game, number, moves, reply)
            outcomes[outcome] += 1
            seconds.append(took)
        counts = [str(outcomes[outcome]) for outcome in ("no move", "illegal", "played")]
        times = f"{statistics.median(seconds) * 1e6:.0f}", f"{max(seconds) * 1e3:.2f}"
        # `check_harmless` raises at a forged observation.
        print("|", " | ".join((name, str(replies), *counts, "0", *times)), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", metavar="GAME", help="default: all")
    parser.add_argument("--matches", type=int, default=6, help="random matches of each game (default: 6)")
    parser.add_argument(
        "--hostile", type=int, default=0, metavar="N", help="hostile replies for each first-class game"
    )
    parser.add_argument("--no-conformance", action="store_true")
    args = parser.parse_args()
    results = TestResults()
    if not args.no_conformance:
        chosen = ["-k", " or ".join(args.games)] if args.games else []
        pytest.main(
            ["-q", "--no-header", "-p", "no:randomly", str(TESTS / "games" / "test_conformance.py"), *chosen],
            [results],
        )
    table_of_games(args.games or game_names(), args.matches, results)
    if args.hostile:
        table_of_hostile_replies(args.hostile)


if __name__ == "__main__":
    main()
