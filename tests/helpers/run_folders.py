"""Write the output folder of a run, small or large, for the tests of the report."""

import json
import math
import random
from pathlib import Path

from trl_spiral.evaluation.transcripts import GAMES, make_record
from trl_spiral.games import get_game
from trl_spiral.opponents import OpponentPool, Played
from trl_spiral.players import RandomPlayer
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import POLICY


HOSTILE = (
    "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'><!-- \u2028"
    "<a href='javascript:window.pwned=3'>&lt;b&gt; {{script}} {{run}} \\u003cscript>"
)


def log_history(steps=40):
    """Return a log of eight entries and two grades, with the metric names of the trainer and the callbacks."""
    history = []
    for step in range(5, steps + 1, 5):
        done = step / steps
        history.append(
            {
                "step": step,
                "epoch": done,
                "loss": 1.0 - done,
                "grad_norm": math.nan if step == 10 else 0.3,
                "kl": 0.01 * done,
                "reward": 0.1 * done,
                "selfplay/draw_rate": 0.1 + 0.5 * done,
                "selfplay/illegal_rate": 0.2 * (1 - done),
                "selfplay/reply_length": 100 - 60 * done,
                "selfplay/entropy": 1.5 - done,
                **{
                    f"selfplay/TicTacToe-v0/seat0/{name}": share
                    for name, share in zip(OUTCOMES, (0.5, 0.2, 0.3), strict=True)
                },
                "something/of_our_own": step**2,
            }
        )
    for step in (0, steps):
        history.append(
            {
                "step": step,
                "exploitability/Kuhn-v0/exploitability": 0.46 - step / 100,
                "eval/TicTacToe-v0-random/pid-0/win": 0.6,
                "eval/TicTacToe-v0-random/pid-0/win_low": 0.5,
                "eval/TicTacToe-v0-random/pid-0/win_high": 0.7,
                "tictactoe/random/non_loss": 0.8,
            }
        )
    return history


OUTCOMES = ("win", "draw", "loss")


def write_state(folder: Path, step: int = 40) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = {"global_step": step, "max_steps": 40, "log_history": log_history(step)}
    (folder / "trainer_state.json").write_text(json.dumps(state))


def write_games(folder: Path, number: int, reply: str = HOSTILE) -> list[dict]:
    """Write random games as if the policy had played them, one of them with a hostile reply."""
    chance = random.Random(0)
    games = [get_game("TicTacToe-v0"), get_game("Kuhn-v0")]
    starts = (
        referee(Start(games[k % 2], [RandomPlayer(), RandomPlayer()], seed=2**62 + k, play_seed=k, counter=k))
        for k in range(min(number, 200))
    )
    records = []
    for episode in sorted(play(starts), key=lambda one: one.counter):
        game = games[episode.counter % 2]
        record = make_record(
            episode, game, 0, "training", [[chance.uniform(-1, 1) for _ in range(9)] for _ in range(2)]
        )
        record["players"] = ["policy", ("policy", "step-20")[episode.counter // 2 % 2]]
        for turn in record["turns"]:
            turn |= {"policy": POLICY, "tokens": 12, "logprob": -3.5, "reply": f"I take \\boxed{{{turn['move']}}}"}
        records.append(record)
    records[0]["turns"][0]["reply"] = reply
    # After the first 200, the same games repeat under other numbers: playing more would add nothing.
    kept = [{**records[k % len(records)], "number": k, "step": 1 + k * 40 // number} for k in range(number)]
    with (folder / GAMES).open("w") as file:
        file.writelines(json.dumps(one) + "\n" for one in kept)
    return kept


def write_pool(folder: Path) -> None:
    """Write a pool with two snapshots, of which the policy has met only the first."""
    pool = OpponentPool(folder / "opponents")
    for step in (20, 40):
        pool.add(step, "weights", lambda path: (path / "model.safetensors").write_bytes(b"weights"))
    pool.ratings.update([Played((POLICY, "step-20"), (1.0, -1.0) if k % 4 else (-1.0, 1.0), k) for k in range(40)])
    pool.save()


def write_grades(folder: Path) -> None:
    """Write three grades of one game, with more states than a page shows."""
    (folder / "exploitability").mkdir()
    for step in (0, 5, 20):
        states = [
            {
                "state": f"J{number}",
                "seat": 0,
                "reach": number / 100,
                "moves": {"[check]": 0.25, "[bet]": 0.75},
                "best_response": "[bet]",
            }
            for number in range(70)
        ]
        record = {"game": "Kuhn-v0", "step": step, "exploitability": 0.4 - step / 100, "states": states}
        (folder / "exploitability" / f"Kuhn-v0-step-{step}.json").write_text(json.dumps(record))


def write_run(folder: Path, games: int = 40) -> Path:
    write_state(folder)
    write_games(folder, games)
    write_pool(folder)
    write_grades(folder)
    description = {
        "command": "train.py --seed 7",
        "seed": 7,
        "settings": {"max_steps": 40},
        "versions": {"trl": "1.16.0"},
    }
    (folder / "run.json").write_text(json.dumps(description))
    return folder
