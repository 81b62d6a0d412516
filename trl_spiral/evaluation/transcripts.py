"""
Episodes kept for people: as text, and as records from which a replay is drawn.

A run keeps its records in `games.jsonl` of its output folder: one line a game, a JSON object in format 1:

| field | |
|---|---|
| `format` | `1` |
| `step` | optimizer steps taken when the game was kept |
| `kind` | `"training"`, or `"final"` for a game of the finished policy, which nothing is trained on |
| `game`, `number`, `seed` | name of the game, number of the episode, seed of the match |
| `players` | who filled each seat |
| `opening` | moves that nobody chose, as `[seat, move]` |
| `turns` | in playing order; see below |
| `end` | what each seat sees when all is over |
| `returns` | terminal payoff per seat |
| `ending`, `offender`, `detail` | why it ended, the seat at fault or `null`, the reason in words |

and of each turn:

| field | |
|---|---|
| `seat` | whose turn |
| `sees` | the observation's text, as the game gave it to that seat |
| `reply` | the whole reply |
| `move` | the move in the game's canonical form; `null` if it was refused or there was none |
| `policy`, `version` | the weights that wrote it, and their version; `policy` is `null` for scripted players |
| `tokens`, `logprob` | tokens of the reply, and their summed log-probability in nats; `null` for scripted players |
| `advantage` | mean over its tokens, as trained on; `null` where this batch did not train on the turn |
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from trl_spiral.files import naming_full_disk
from trl_spiral.games import Game
from trl_spiral.text.printable import fenced, file_name, get_logger, inline
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
"""Bytes at which a run stops keeping games: some 25,000 of tic-tac-toe, and 1,000 where a reply has 4,000 tokens."""


def format_transcript(episode: Episode, prompt_text: Callable[[Sequence[int]], str] | None = None) -> str:
    """
    One episode as Markdown: who played, each turn's prompt and reply, and how it ended.

    Args:
        episode ([`~types.Episode`]):
            What was played.
        prompt_text (`Callable`, *optional*):
            Decodes prompt ids; without it, prompts are left out.
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
            lines += ["Read:", "", *fenced(prompt_text(turn.prompt_ids)), ""]
        lines += ["Wrote:", "", *fenced(turn.text), ""]
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
    What is kept of one episode, in the format above.

    The match is played once more by the moves that were made, to see what each seat saw.

    Args:
        episode ([`~types.Episode`]):
            What was played.
        game ([`~games.Game`]):
            Its rules.
        step (`int`):
            Optimizer steps taken.
        kind (`str`):
            `"training"` or `"final"`.
        advantages (`Sequence[Sequence[float | None]]`, *optional*):
            For each seat, one number per turn; `None` where it was not trained on. By default none was.
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
    The games that a run keeps, in a file that grows line by line.

    Args:
        path (`str` or `os.PathLike`):
            The file; by convention `games.jsonl` in a run's output folder.
        largest (`int`, defaults to `LARGEST`):
            Bytes. A file that has reached them takes no more games, and says so once.
    """

    def __init__(self, path: str | os.PathLike[str], largest: int = LARGEST) -> None:
        self.path = Path(path)
        self.largest = largest
        self._is_full = False

    def append(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Adds games, as long as there is room, and returns how many."""
        added, size = 0, self.path.stat().st_size if self.path.exists() else 0
        with naming_full_disk(self.path.parent), self.path.open("a", encoding="utf-8") as file:
            for record in records:
                line = _line(record)
                if size + len(line) > self.largest:
                    if not self._is_full:
                        logger.warning(
                            "%s has reached %.0f MB and keeps no more games. Keep fewer: a larger `every`, or fewer `games`.",
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
        Drops what a run that goes on from `step` will keep again: games of later steps, final ones from `step` on, and
        a line that was cut off. At 0 the file begins anew.
        """
        if not self.path.exists():
            return
        unfinished = self.path.with_name(f"{self.path.name}.partial")
        with unfinished.open("w", encoding="utf-8") as file:
            for record in read_game_log(self.path):
                if step and record["step"] < step + (record["kind"] == "training"):
                    file.write(_line(record))
        os.replace(unfinished, self.path)


def _line(record: Mapping[str, Any]) -> str:
    """A line of the file. In ASCII: as many bytes as characters, and an endpoint's broken text cannot break it."""
    return json.dumps(record, separators=(",", ":")) + "\n"


def read_game_log(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """
    Yield the games in a file that [`GameLog`] wrote, in order. A last line that was cut off, by a kill, is left out.

    Raises:
        ValueError: If another line is not a game in format 1.
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
    """Return the record in a line. Raises `ValueError`, with the reason as a clause, if there is none."""
    record: dict[str, Any] = parse(line, _GAME)
    seats = range(len(record["players"]))
    if record["format"] != FORMAT:
        raise ValueError(f"its format is {record['format']}")
    if not len(seats) == len(record["returns"]) == len(record["end"]) > 0:
        raise ValueError("its players, returns and ends differ in number")
    taken = [turn["seat"] for turn in record["turns"]] + [record["offender"] or 0]
    if any(seat not in seats for seat in taken) or any(len(move) != 2 for move in record["opening"]):
        raise ValueError("it names a seat that has no player, or a move without one")
    return record
