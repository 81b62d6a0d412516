"""Files of graded strategies: moves of a policy and of a best response at every information state."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from trl_spiral.evaluation.exact.exploitability import OPENSPIEL, openspiel_nash_conv
from trl_spiral.evaluation.exact.strategies import MoveProbabilities
from trl_spiral.evaluation.exact.tree import GameTree, game_tree
from trl_spiral.text.printable import cell, inline


MOST_ROWS = 1000
"""Maximum number of rows in Markdown, the most frequent states. The JSON file contains all states."""


def write_policy_table(found: MoveProbabilities, path: str | os.PathLike[str], **about: Any) -> dict[str, Any]:
    """
    Write a graded policy to `path`.json and, as Markdown, to `path`.md.

    Args:
        found ([`~evaluation.exact.strategies.MoveProbabilities`]):
            The policy.
        path (`str`):
            Path without suffix. Missing folders are created.
        about:
            Additional fields, such as `step=20, temperature=1.0`.

    Returns:
        `dict[str, Any]`: Content of the JSON file. Under `"states"`, `"moves"` are the probabilities of the legal
        moves, not normalized; `"illegal"` is the rest to 1; `"reach"` is the probability of the state when the policy
        plays itself; and `"best_response"` is the move of a best response in the same seat. Values are in units of the
        game's returns. `"openspiel_nash_conv"` is OpenSpiel's number if it is installed and has the game.
    """
    tree = found.tree
    interval, bests = found.interval(), tree.best_responses(found.table)
    reference = None
    if tree.game in OPENSPIEL and importlib.util.find_spec("pyspiel"):
        reference = openspiel_nash_conv(tree.game, found.strategy)
    record = {
        "game": tree.game,
        **about,
        "samples": found.samples,
        "nash_conv": interval.value,
        "nash_conv_low": interval.low,
        "nash_conv_high": interval.high,
        "openspiel_nash_conv": reference,
        "exploitability": interval.value / 2,
        "illegal": found.illegal,
        "value": tree.value(found.table),
        "best_response_values": [best.value for best in bests],
        "states": [
            {
                "state": state.name,
                "seat": state.seat,
                "moves": {move: found.mass[state.first + place] for place, move in enumerate(state.moves)},
                "illegal": found.illegal_at(state),
                "reach": reach,
                "best_response": bests[state.seat].moves[state.name],
            }
            for state, reach in zip(tree.states, tree.reach(found.table), strict=True)
        ],
    }
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{target}.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    Path(f"{target}.md").write_text(format_policy_table(record), encoding="utf-8")
    return record


def read_policy_table(path: str | os.PathLike[str]) -> MoveProbabilities:
    """Read a policy from a JSON file of `write_policy_table`. Its game must be registered."""
    record = json.loads(Path(path).read_text(encoding="utf-8"))
    tree: GameTree = game_tree(record["game"])
    moves = {entry["state"]: entry["moves"] for entry in record["states"]}
    mass = [1.0] * tree.size
    for state in tree.states:
        for move, sequence in zip(state.moves, state.sequences, strict=True):
            mass[sequence] = moves[state.name][move]
    return MoveProbabilities(tree, tuple(mass), record["samples"])


def format_policy_table(record: dict[str, Any]) -> str:
    """Return the record of `write_policy_table` as Markdown."""
    states = sorted(record["states"], key=lambda entry: entry["seat"])
    if len(states) > MOST_ROWS:
        states = sorted(states, key=lambda entry: -entry["reach"])[:MOST_ROWS]
    about = ", ".join(f"{name} {record[name]:g}" for name in ("step", "temperature") if name in record)
    how, interval = "exact probabilities", ""
    if record["samples"] is not None:
        how = f"{record['samples']} replies at each information state"
        interval = f" (95% interval {record['nash_conv_low'] / 2:.4f} to {record['nash_conv_high'] / 2:.4f})"
    first, second = record["best_response_values"]
    lines = [
        f"# {inline(record['game'])}{f' ({about})' if about else ''}",
        "",
        f"Exploitability {record['exploitability']:.4f}{interval}, NashConv {record['nash_conv']:.4f}, from {how}.",
        f"When the policy plays itself, its mean return in seat 0 is {record['value']:+.4f}. Against it, a best "
        f"response has {first:+.4f} in seat 0 and {second:+.4f} in seat 1.",
        f"{100 * record['illegal']:.2f} % of its replies are illegal; the numbers above use the normalized "
        "probabilities of the legal moves.",
        "",
        f"{len(states)} of {len(record['states'])} information states: probability of the state, moves of the policy, "
        "and move of a best response in the same seat.",
        "",
        "| seat | state | reached | policy | illegal | best response |",
        "|---:|---|---:|---|---:|---|",
    ]
    for entry in states:
        moves = ", ".join(f"{move} {100 * share:.1f} %" for move, share in entry["moves"].items())
        name = cell(entry["state"] or "(start)", as_code=True)
        lines.append(
            f"| {entry['seat']} | {name} | {100 * entry['reach']:.1f} % | {moves} | {100 * entry['illegal']:.1f} % | "
            f"{entry['best_response']} |"
        )
    return "\n".join(lines) + "\n"
