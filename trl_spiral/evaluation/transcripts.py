"""
Transcripts of episodes: as text, and as records for the replay in a report.

A run writes its records to `games.jsonl` in its output folder. Each line is a JSON object in format 1:

| field | |
|---|---|
| `format` | `1` |
| `step` | optimizer steps at the time of the game |
| `kind` | `"training"`, or `"final"` for a game after training |
| `game`, `number`, `seed` | name of the game, number of the episode, seed of the match |
| `players` | player of each seat |
| `opening` | moves of the random opening, as `[seat, move]` |
| `turns` | in playing order; see below |
| `end` | last observation of each seat |
| `returns` | terminal payoff per seat |
| `ending`, `offender`, `detail` | reason of the end, the seat at fault or `null`, the reason as text |

Each turn contains:

| field | |
|---|---|
| `seat` | the seat to move |
| `sees` | text of the observation |
| `reply` | the whole reply |
| `move` | move in the game's canonical form; `null` if there was no legal move |
| `policy`, `version` | weights that wrote the reply, and their version; `policy` is `null` for scripted players |
| `tokens`, `logprob` | tokens of the reply, and the sum of their log-probabilities in nats; `null` for scripted
players |
| `advantage` | mean over the tokens; `null` if the turn was not trained on |
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from trl_spiral.files import naming_full_disk, replacing
from trl_spiral.games import Game
from trl_spiral.text.printable import fenced_lines, file_name, get_logger, inline
from trl_spiral.text.shapes import parse
from trl_spiral.types import Episode, Observation


logger = get_logger(__name__)

FORMAT = 1
GAMES = "games.jsonl"
_TURN = {
    "seat": int,
    "sees": str,
    "reply": str,
    "move": (str, None),
    "policy": (str, None),
    "version": int,
    "tokens": (int, None),
    "logprob": (float, None),
    "advantage": (float, None),
}
_GAME = {
    "format": int,
    "step": int,
    "kind": frozenset(("training", "final")),
    "game": str,
    "number": int,
    "seed": int,
    "players": [str],
    "opening": [[(int, str)]],
    "turns": [_TURN],
    "end": [str],
    "returns": [float],
    "ending": str,
    "offender": (int, None),
    "detail": str,
}

LARGEST = 100_000_000
"""Maximum bytes of a run's log: about 25,000 games of tic-tac-toe, or 1,000 with replies of 4,000 tokens."""


def format_transcript(episode: Episode, prompt_text: Callable[[Sequence[int]], str] | None = None) -> str:
    """
    Format an episode as Markdown: players, prompt and reply of each turn, and ending.

    Args:
        episode ([`~types.Episode`]):
            The episode.
        prompt_text (`Callable`, *optional*):
            Decodes prompt ids. Without it, prompts are left out.
    """
    lines = [f"# {inline(episode.game)}, game {episode.counter}", ""]
    for seat, (name, value) in enumerate(zip(episode.players, episode.returns, strict=True)):
        lines.append(f"- seat {seat}: {inline(name)}, return {value:+g}")
    lines += [f"- ending: {episode.ending}" + (f" ({inline(episode.detail)})" if episode.detail else "")]
    if episode.offender is not None:
        lines.append(f"- at fault: seat {episode.offender}")
    moves = " ".join(f"{seat}:{' / '.join(move.splitlines())}" for seat, move in episode.moves)
    lines += [
        f"- moves: {inline(moves)}" + (f", of which {episode.opening} a random opening" if episode.opening else ""),
        "",
    ]
    taken = [iter(trajectory.turns) for trajectory in episode.trajectories]
    for number, seat in enumerate(episode.order, start=1):
        turn = next(taken[seat])
        lines += [f"## Turn {number}: seat {seat}, {inline(episode.players[seat])}", ""]
        if prompt_text is not None and turn.prompt_ids:
            lines += ["Read:", "", *fenced_lines(prompt_text(turn.prompt_ids)), ""]
        lines += ["Wrote:", "", *fenced_lines(turn.text), ""]
        if turn.logprobs:
            lines += [f"{len(turn.completion_ids)} tokens, log-probability {sum(turn.logprobs):.3f}", ""]
    return "\n".join(lines)


def write_transcripts(
    episodes: Sequence[Episode],
    folder: str | os.PathLike[str],
    prompt_text: Callable[[Sequence[int]], str] | None = None,
) -> list[Path]:
    """Write one Markdown file per episode, numbered in the given order, and return the paths."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, episode in enumerate(episodes):
        path = root / f"{number:03d}_{file_name('_vs_'.join(episode.players))}.md"
        path.write_text(format_transcript(episode, prompt_text), encoding="utf-8")
        paths.append(path)
    return paths


def make_record(
    episode: Episode,
    game: Game,
    step: int,
    kind: Literal["training", "final"],
    advantages: Sequence[Sequence[float | None]] = (),
) -> dict[str, Any]:
    """
    Make the record of an episode, in the format above. The moves are replayed to get the observations.

    Args:
        episode ([`~types.Episode`]), game ([`~games.Game`]):
            The episode and its game.
        step (`int`):
            Optimizer steps so far.
        kind (`str`):
            `"training"` or `"final"`.
        advantages (`Sequence[Sequence[float | None]]`, *optional*):
            For each seat, one number per turn; `None` if the turn was not trained on. Default: no turn was.
    """
    match = game.start(episode.seed)
    opening = episode.moves[: episode.opening]
    moves = iter([move for _, move in episode.moves[episode.opening :]])
    for _, drawn in opening:
        match.apply(drawn)
    taken = [iter(trajectory.turns) for trajectory in episode.trajectories]
    trained = [iter(numbers) for numbers in advantages]
    turns = []
    for seat in episode.order:
        turn, sees = next(taken[seat]), _text(match.observe(seat))
        if (move := next(moves, None)) is not None:
            match.apply(move)
        written = turn.policy is not None
        turns.append(
            {
                "seat": seat,
                "sees": sees,
                "reply": turn.text,
                "move": move,
                "policy": turn.policy,
                "version": turn.version,
                "tokens": len(turn.completion_ids) if written else None,
                "logprob": sum(turn.logprobs) if written and turn.logprobs else None,
                "advantage": next(trained[seat], None) if trained else None,
            }
        )
    return {
        "format": FORMAT,
        "step": step,
        "kind": kind,
        "game": episode.game,
        "number": episode.counter,
        "seed": episode.seed,
        "players": list(episode.players),
        "opening": [list(made) for made in opening],
        "turns": turns,
        "end": [_text(match.observe(seat)) for seat in range(game.traits.seats)],
        "returns": list(episode.returns),
        "ending": str(episode.ending),
        "offender": episode.offender,
        "detail": episode.detail,
    }


def _text(observation: Observation) -> str:
    return "\n\n".join(message["content"] for message in observation.messages)


class GameLog:
    """
    The file with a run's records.

    Args:
        path (`str` or `os.PathLike`):
            The file; by convention `games.jsonl` in a run's output folder.
        largest (`int`, defaults to `LARGEST`):
            Maximum bytes. Further games are dropped, with one warning.
    """

    def __init__(self, path: str | os.PathLike[str], largest: int = LARGEST) -> None:
        self.path = Path(path)
        self.largest = largest
        self._is_full = False

    def append(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Append games until the file is full, and return their number."""
        added, size = 0, self.path.stat().st_size if self.path.exists() else 0
        with naming_full_disk(self.path.parent), self.path.open("a", encoding="utf-8") as file:
            for record in records:
                line = _line(record)
                if size + len(line) > self.largest:
                    if not self._is_full:
                        logger.warning(
                            "%s has reached %.0f MB, so further games are dropped. Use a larger `every` or fewer "
                            "`games`.",
                            self.path,
                            self.largest / 1e6,
                        )
                    self._is_full = True
                    break
                file.write(line)
                added, size = added + 1, size + len(line)
        return added

    def rewind(self, step: int) -> None:
        """
        Delete the records that a run resumed from `step` will write again.

        These are games of later steps, final games from `step` on, and an incomplete last line. At 0 all are deleted.
        """
        if not self.path.exists():
            return
        with replacing(self.path) as partial, partial.open("w", encoding="utf-8") as file:
            for record in read_game_log(self.path):
                if step and record["step"] < step + (record["kind"] == "training"):
                    file.write(_line(record))


def _line(record: Mapping[str, Any]) -> str:
    """Format a line, in ASCII: it has as many bytes as characters, and any text can be written."""
    return json.dumps(record, separators=(",", ":")) + "\n"


def read_game_log(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """
    Yield the records of a [`GameLog`], in order. An incomplete last line, as after a kill, is left out.

    Raises:
        ValueError: If another line is not a record in format 1.
    """
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield _read_record(line)
            except ValueError as error:
                if line.endswith("\n"):
                    raise ValueError(
                        f"Line {number} of {path} is no game in format {FORMAT}: {error}. Delete the line, or use the "
                        "version of trl_spiral that wrote it."
                    ) from None


def _read_record(line: str) -> dict[str, Any]:
    """Return the record in a line. Raise `ValueError`, with the reason as a clause, if the line is malformed."""
    record: dict[str, Any] = parse(line, _GAME)
    seats = range(len(record["players"]))
    if record["format"] != FORMAT:
        raise ValueError(f"its format is {record['format']}")
    if not len(seats) == len(record["returns"]) == len(record["end"]) > 0:
        raise ValueError("its players, returns and ends differ in number")
    taken = [turn["seat"] for turn in record["turns"]] + [record["offender"] or 0]
    if any(seat not in seats for seat in taken) or any(len(move) != 2 for move in record["opening"]):
        raise ValueError("it has a seat without a player, or an incomplete move")
    return record
