"""The output folder of a run, read for its report."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_spiral.evaluation.transcripts import GAMES, read_game_log
from trl_spiral.opponents.pool import INDEX, POOL_FOLDER, OpponentPool
from trl_spiral.opponents.ratings import Rating
from trl_spiral.opponents.transitivity import Matrix, cycles
from trl_spiral.selfplay.first_batches import KEY, FirstBatches
from trl_spiral.selfplay.monitoring import CollapseWarning, warnings_in
from trl_spiral.text.secrets import redact_all
from trl_spiral.text.shapes import Anything, parse


STATE = "trainer_state.json"
DESCRIPTION = "run.json"
MOST_GAMES = 5000
"""Default number of games in a page. If there are more, the page has an even sample over the run."""

MOST_PLAYERS = 16
"""Players in the win matrix and on the ladder: as many columns as fit a screen."""

MOST_STATES = 60
"""Information states in the table of a policy: those that its own games reach most often."""

_STATE = {
    "global_step": int,
    "max_steps": int,
    "log_history": [{"step?": int, str: Anything}],
    "stateful_callbacks?": {str: Anything},
}
_DESCRIPTION = {
    "command?": str,
    "seed?": (int, str, None),
    "settings?": {str: Anything},
    "versions?": {str: Anything},
}
_RECORD = {
    "game": str,
    "step": int,
    "exploitability": float,
    "states": [{"state": str, "seat": int, "reach": float, "moves": {str: float}, "best_response": str}],
}

_GRADE = re.compile(r"(.+)-step-(\d+)\.json")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class Run:
    """
    Contents of a run's output folder.

    Attributes:
        name (`str`):
            Name of the folder.
        step, max_steps (`int`):
            Optimizer steps taken, and planned.
        warnings (`list[CollapseWarning]`):
            Warnings of the first batches and of collapse; see [`~selfplay.first_batches`] and
            [`~selfplay.monitoring`].
        history (`list[dict]`):
            The trainer's log: dictionaries of metrics, including `step`.
        description (`dict`):
            Content of `run.json`: `command`, `seed`, `settings`, `versions`.
        games (`list[dict]`):
            Recorded games, in the order in which they were recorded; see [`~evaluation.transcripts`].
        games_kept (`int`):
            Number of games that the run recorded. `games` may be a sample of them.
        ratings (`dict[str, Rating]`):
            Ratings by player, the strongest first.
        matrix ([`~opponents.transitivity.Matrix`], *optional*):
            Win rates, in the order of `ratings`.
        cycles (`list[tuple[str, str, str]]`):
            Triples of players of which each beats the next.
        grades (`list[dict]`):
            Latest exploitability grade of each game: the policy and the best response at each information state; see
            [`~evaluation.exact.policy_tables`].
    """

    name: str
    step: int = 0
    max_steps: int = 0
    history: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[CollapseWarning] = ()
    description: Mapping[str, Any] = field(default_factory=dict)
    games: Sequence[Mapping[str, Any]] = ()
    games_kept: int = 0
    ratings: Mapping[str, Rating] = field(default_factory=dict)
    matrix: Matrix | None = None
    cycles: Sequence[tuple[str, str, str]] = ()
    grades: Sequence[Mapping[str, Any]] = ()


def read_run(folder: str | os.PathLike[str], most_games: int = MOST_GAMES) -> Run:
    """
    Read the output folder of a run: its log, its recorded games, its pool of opponents. Each may be missing.

    Args:
        folder (`str` or `os.PathLike`):
            The run's output folder, or one of its checkpoints.
        most_games (`int`, defaults to `MOST_GAMES`):
            Most games to read. If there are more, an even sample over the run.

    Raises:
        ValueError: If the folder contains no run, or a file is damaged.
    """
    root = Path(folder)
    state = _newest_state(root)
    log = root / GAMES
    index = root / POOL_FOLDER / INDEX
    if state is None and not log.exists() and not index.exists():
        raise ValueError(
            f"{root} contains no run: it has neither {STATE} (its own or that of a checkpoint) nor {GAMES}. Name the "
            "`output_dir` of a run."
        )
    # Older versions wrote secrets into it.
    description = redact_all(_read(root / DESCRIPTION, _DESCRIPTION)) if (root / DESCRIPTION).exists() else {}
    kept = sum(1 for _ in read_game_log(log)) if log.exists() else 0
    # An even sample: the games at 0, 1/n, 2/n, … of the file.
    chosen = {number * kept // most_games for number in range(most_games)} if kept > most_games else set(range(kept))
    games = [game for number, game in enumerate(read_game_log(log)) if number in chosen] if kept else []
    history = state["log_history"] if state else []
    ratings, matrix, cycles_found = _opponents(index) if index.exists() else (_logged_ratings(history), None, [])
    return Run(
        name=root.resolve().name,
        step=state["global_step"] if state else 0,
        max_steps=state["max_steps"] if state else 0,
        history=history,
        warnings=_warnings(root, state) if state else (),
        description=description,
        games=games,
        games_kept=kept,
        ratings=ratings,
        matrix=matrix,
        cycles=cycles_found,
        grades=_newest_grades(root / "exploitability"),
    )


def _newest_state(root: Path) -> Mapping[str, Any] | None:
    """Return the trainer state with the highest step, of the folder or of a checkpoint."""
    paths = [root / STATE, *(path / STATE for path in root.glob("checkpoint-*") if _CHECKPOINT.fullmatch(path.name))]
    states = [_read(path, _STATE) for path in paths if path.exists()]
    return max(states, key=lambda state: state["global_step"], default=None)


def _warnings(root: Path, state: Mapping[str, Any]) -> list[CollapseWarning]:
    """Return the warnings of a run, from its trainer's state."""
    stored = state.get("stateful_callbacks", {}).get(KEY)
    try:
        first = FirstBatches.from_state_dict(stored).warnings if stored else []
        return [*first, *warnings_in(state["log_history"])]
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"The log of {root} has an invalid value ({error}). Delete {STATE}.") from error


def _read(path: Path, shape: dict[Any, Any]) -> dict[str, Any]:
    """Return a file's JSON object. Raises `ValueError` if it has another shape."""
    try:
        content: dict[str, Any] = parse(path.read_text(encoding="utf-8"), shape)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}). Delete it to continue without it.") from None
    return content


def _newest_grades(folder: Path) -> list[dict[str, Any]]:
    """Return the latest grade of each game, with the states that are reached most often."""
    newest: dict[str, tuple[int, Path]] = {}
    for path in folder.glob("*.json"):
        if match := _GRADE.fullmatch(path.name):
            newest[match[1]] = max(newest.get(match[1], (-1, path)), (int(match[2]), path))
    grades = []
    for _, (_, path) in sorted(newest.items()):
        record = _read(path, _RECORD)
        reached = sorted(record["states"], key=lambda state: (-state["reach"], state["state"]))
        grades.append({**record, "states": reached[:MOST_STATES], "number_of_states": len(reached)})
    return grades


def _opponents(index: Path) -> tuple[dict[str, Rating], Matrix, list[tuple[str, str, str]]]:
    """Return ratings, win rates and cycles of the pool, the policy and its other opponents."""
    try:
        ratings = OpponentPool(index.parent).ratings
        names = sorted(ratings.names, key=lambda name: -ratings.rating(name).mu)[:MOST_PLAYERS]
        matrix = ratings.matrix(names)
        return {name: ratings.rating(name) for name in names}, matrix, cycles(matrix)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{index} is damaged ({type(error).__name__}: {error}). Delete it to continue without it."
        ) from error


def _logged_ratings(history: Sequence[Mapping[str, Any]]) -> dict[str, Rating]:
    """Return the latest logged ratings, for a run without a pool in its folder."""
    found: dict[str, Rating] = {}
    for entry in history:
        names = [name.removeprefix("pool/rating/") for name in entry if name.startswith("pool/rating/")]
        for name in names:
            numbers = [entry.get(f"pool/rating/{name}{end}") for end in ("", "/low", "/high")]
            mu, low, high = (float(number) if isinstance(number, int | float) else None for number in numbers)
            if mu is not None and low is not None and high is not None:
                found[name] = Rating(mu, math.nan, low, high)
    return dict(sorted(found.items(), key=lambda item: -item[1].mu)[:MOST_PLAYERS])
