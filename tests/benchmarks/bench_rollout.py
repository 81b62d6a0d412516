"""
Time per turn of the game loop, without the games themselves.

Each row plays a number of games, and then replays the same moves in TextArena's environments (`make`, `reset`, `step`,
`close`). Both alternate several times. The difference is the cost of referee, scheduler, adapter and players:
canonical moves, legal moves, observations, seeds, outcomes, and the random generator of each match. The cost of the
players is negligible, since they choose by remainder.

    python tests/benchmarks/bench_rollout.py

Goal: at most 60 microseconds per turn beyond the environment, for any number of concurrent games.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import textarena


sys.path.insert(0, str(Path(__file__).parents[2]))  # the project root, for `tests` and `trl_spiral`

from trl_spiral.games import get_game
from trl_spiral.players import Player, ScriptedPlayer
from trl_spiral.selfplay.referee import Engine, Start, play, referee
from trl_spiral.types import POLICY, Episode, Observation, Reply, Request, Turn


def any_move(observation: Observation) -> str:
    """Return a legal move, derived from the observation's seed."""
    assert observation.legal_actions
    return observation.legal_actions[observation.seed % len(observation.legal_actions)]


class AskingPlayer:
    """A player that makes the same moves through an engine, like a policy, without a tokenizer."""

    name = "asking"

    def ask(self, observation: Observation) -> Turn | Request:
        return Request((1,), policy=POLICY, seed=observation.seed)

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        return Turn(
            action=any_move(observation),
            prompt_ids=request.prompt_ids,
            completion_ids=reply.completion_ids,
            logprobs=reply.logprobs,
            policy=POLICY,
        )


class InstantEngine:
    """An engine with one constant reply."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.reply = Reply((1,), (-0.5,))

    def add(self, ticket: int, request: Request) -> None:
        self.waiting.append(ticket)

    def step(self) -> Sequence[tuple[int, Reply]]:
        tickets, self.waiting = self.waiting, []
        return [(ticket, self.reply) for ticket in tickets]

    def metrics(self) -> dict[str, float]:
        return {}

    def abort(self, tickets: Sequence[int]) -> None:
        self.waiting = []


def play_loop(name: str, player: Player, games: int, engine: Engine | None, in_flight: int) -> list[Episode]:
    """Play games with the game loop."""
    game = get_game(name)
    players = (player,) * game.traits.seats
    starts = (Start(game, players, seed, play_seed=seed, counter=seed) for seed in range(games))
    return list(play(map(referee, starts), engine, in_flight))


def play_bare(episodes: Sequence[Episode]) -> None:
    """Replay the moves in the environments."""
    for episode in episodes:
        env = textarena.make(f"{episode.game}-raw")
        env.reset(num_players=len(episode.players), seed=episode.seed % 2**32)
        for _, move in episode.moves:
            done, _ = env.step(move)
        assert done
        rewards, _ = env.close()
        assert rewards[0] == episode.returns[0]


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of this thread, which other load on the machine hardly changes."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def measure(name: str, kind: str, in_flight: int, games: int, repeats: int) -> str:
    """Return one row of the table."""

    def ours() -> list[Episode]:
        if kind == "scripted":
            return play_loop(name, ScriptedPlayer("any", any_move), games, None, in_flight)
        return play_loop(name, AskingPlayer(), games, InstantEngine(), in_flight)

    episodes = ours()
    turns = sum(len(episode.order) for episode in episodes)
    bare, whole, beyond, ratio = [], [], [], []
    for _ in range(repeats):
        environment, loop = seconds(lambda: play_bare(episodes)), seconds(ours)
        bare.append(1e6 * environment / turns)
        whole.append(1e6 * loop / turns)
        beyond.append(whole[-1] - bare[-1])
        ratio.append(loop / environment)
    columns = [f"{statistics.median(column):8.1f}" for column in (bare, whole, beyond)]
    spread = f"{min(beyond):5.1f} to {max(beyond):5.1f}"
    return (
        f"| {name:<13} | {kind:<8} | {in_flight:>9} | {turns:>7} | {' | '.join(columns)} | {spread:>15} | "
        f"{statistics.median(ratio):5.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--games", type=int, default=4096, help="tic-tac-toe games per row; a sixteenth of other games"
    )
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each row; medians are shown")
    args = parser.parse_args()

    print("Microseconds per turn; medians. 'beyond' is the time that the loop adds to the bare environment.")
    print(
        "| game          | players  | in flight |   turns |     bare |    whole |   beyond |   least to most | ratio |"
    )
    print(
        "|---------------|----------|----------:|--------:|---------:|---------:|---------:|----------------:|------:|"
    )
    # Scripted games never wait, so the number of concurrent games makes no difference.
    rows = [("TicTacToe-v0", "scripted", 256, args.games)]
    rows += [("TicTacToe-v0", "engine", in_flight, args.games) for in_flight in (16, 64, 256, 1024, 4096)]
    for name in ("PigDice-v0-50", "ConnectFour-v0", "Nim-v0"):
        rows += [(name, kind, 256, args.games // 16) for kind in ("scripted", "engine")]
    for row in rows:
        print(measure(*row, args.repeats), flush=True)


if __name__ == "__main__":
    main()
