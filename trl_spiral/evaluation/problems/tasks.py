"""
Evaluation at a task: ask a model, score its replies, and write them to a file.

A file of scores is Parquet, with one reply per row and the columns of [`ScoredReply`]. Nested values are JSON text, so
that any tasks fit in one file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trl_spiral.evaluation.problems.ask import ask_all, check_answered, whole_reply
from trl_spiral.files import replacing
from trl_spiral.players import PolicyPlayer
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Engine
from trl_spiral.tasks import Problem, Task
from trl_spiral.text.printable import reported
from trl_spiral.types import Reply, Request


_NESTED = {"prompt": "list of messages", "data": "object", "detail": "object", "settings": "object"}


@dataclass(frozen=True, slots=True)
class ScoredReply:
    """
    A reply to a problem, and its score.

    Attributes:
        model (`str`):
            Name of the model.
        task (`str`):
            Name of the task.
        problem (`str`):
            Id of the problem.
        sample (`int`):
            Index of the reply among this model's replies to this problem.
        prompt (`str`):
            Messages of the prompt; JSON.
        data (`str`):
            Input of the score; JSON.
        response (`str`):
            The whole reply, with the `<think>` that its prompt may have opened.
        score (`float`):
            Score, in [0, 1].
        solved (`bool`):
            Whether the problem is solved.
        detail (`str`):
            Details of the score; JSON.
        tokens (`int`):
            Length of the reply in tokens.
        truncated (`bool`):
            Whether the reply reached the token limit. It is scored nonetheless, as in training.
        settings (`str`):
            Settings of the evaluation: temperature, token limit, prompt style, split and so on; JSON.
    """

    model: str
    task: str
    problem: str
    sample: int
    prompt: str
    data: str
    response: str
    score: float
    solved: bool
    detail: str
    tokens: int
    truncated: bool
    settings: str

    def asked(self) -> Problem:
        """Return the problem."""
        return Problem(self.problem, tuple(json.loads(self.prompt)), json.loads(self.data))


def answer_task(
    task: Task,
    problems: Iterable[Problem],
    player: PolicyPlayer,
    engine: Engine,
    samples: int = 1,
    seed: int = 0,
    in_flight: int = 256,
    name: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[ScoredReply]:
    """
    Generate replies to problems, and score them.

    Args:
        task ([`~tasks.Task`]):
            Scores the replies.
        problems (`Iterable[Problem]`):
            Problems of the task. Duplicates are asked once: they would pass for more evidence.
        player ([`~players.PolicyPlayer`]):
            Policy, sampling and prompt style.
        engine ([`~selfplay.referee.Engine`]):
            Generates the replies.
        samples (`int`, defaults to `1`):
            Number of replies to each problem.
        seed (`int`, defaults to `0`):
            Seed of the replies. A reply depends on its problem, not on the other problems.
        in_flight (`int`, defaults to `256`):
            Maximum number of concurrent requests. It changes replies only by rounding.
        name (`str`, *optional*):
            Name of the model in the rows. Default: the player's.
        settings (`Mapping`, *optional*):
            More settings for the rows, as plain values.

    Returns:
        `list[ScoredReply]`: Rows in the order of `problems`, all samples of a problem together.

    Raises:
        ValueError: As [`check_task`], before any request; later, if the task cannot score a reply.
        RuntimeError: If the engine gives up on a reply.
    """
    distinct = list({problem.id: problem for problem in problems}.values())
    check_task(task, distinct)
    used = {**asdict(player.sampling), "prompt_style": player.renderer.style, "seed": seed, **(settings or {})}
    asked = dict(enumerate((problem, sample) for problem in distinct for sample in range(samples)))
    requests = {
        number: Request(
            player.renderer.task(problem.messages),
            player.sampling,
            player.policy,
            derive_seed(seed, "task", task.name, problem.id, sample),
        )
        for number, (problem, sample) in asked.items()
    }
    replies = ask_all(requests, engine, in_flight)
    rows = []
    for number, (problem, sample) in asked.items():
        check_answered(replies[number], problem.id)
        response = whole_reply(player.renderer, requests[number], replies[number])
        rows.append(_row(task, problem, sample, response, replies[number], name or player.name, _json(used)))
    return rows


def _row(
    task: Task, problem: Problem, sample: int, response: str, reply: Reply, model: str, settings: str
) -> ScoredReply:
    value, solved, detail = _score(task, problem, response)
    prompt, data = _asked(task, problem)
    return ScoredReply(
        model=model,
        task=task.name,
        problem=problem.id,
        sample=sample,
        prompt=prompt,
        data=data,
        response=response,
        score=value,
        solved=solved,
        detail=detail,
        tokens=len(reply.completion_ids),
        truncated=reply.finish_reason == "length",
        settings=settings,
    )


def check_task(task: Task, problems: Sequence[Problem]) -> None:
    """
    Check that a task can be asked and scored, before replies are generated and lost.

    Raises:
        ValueError: If there are no problems, if their values are not plain, or if the task cannot score an empty
        reply.
    """
    if not problems:
        raise ValueError(f"The task {task.name!r} has no problems. Check its split and number.")
    for problem in problems:
        _asked(task, problem)
    _score(task, problems[0], "")


def _asked(task: Task, problem: Problem) -> tuple[str, str]:
    """Return a problem's messages and data as JSON. They must survive it, because training scores from JSON."""
    try:
        messages, data = [dict(message) for message in problem.messages], dict(problem.data)
        texts = _json(messages), _json(data)
        if [json.loads(text) for text in texts] != [messages, data]:
            raise ValueError("JSON returns another value")
    except Exception as error:  # a user's task may contain any value
        raise ValueError(
            f"Problem {problem.id!r} of the task {task.name!r} does not survive JSON ({type(error).__name__}: "
            f"{reported(error)}). Its messages and data must be plain: text, numbers, lists, and objects with text "
            "keys."
        ) from error
    return texts


def _score(task: Task, problem: Problem, response: str) -> tuple[float, bool, str]:
    """Return a reply's score, whether it solves the problem, and the details as JSON."""
    try:
        score = task.score(problem, response)
        return float(score.value), bool(score.solved), _json(dict(score.detail))
    except Exception as error:  # a user's task may fail on any text
        raise ValueError(
            f"The task {task.name!r} cannot score a reply to problem {problem.id!r} ({type(error).__name__}: "
            f"{reported(error)}): {response[:80]!r}. A task must score any text, with plain values in the detail."
        ) from error


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write_scores(path: str | os.PathLike[str], rows: Sequence[ScoredReply]) -> None:
    """Write a file of scores atomically. Missing folders are created."""
    import pyarrow
    import pyarrow.parquet

    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist([asdict(row) for row in rows], schema=_schema())
    with replacing(file) as partial:
        pyarrow.parquet.write_table(table, partial, compression="zstd")


def read_scores(path: str | os.PathLike[str]) -> list[ScoredReply]:
    """
    Read a file of scores. Columns that a [`ScoredReply`] does not have are ignored.

    Raises:
        ValueError: If there is no such file, it is not Parquet, a column is missing or of another type, a cell is
        empty or
            not the JSON that it should be, or a score is out of range.
    """
    import pyarrow
    import pyarrow.parquet

    file = Path(path)
    if not file.is_file():
        raise ValueError(f"There is no file {file}. `trl-spiral eval-task MODEL --task TASK --out {file}` writes one.")
    schema = _schema()
    try:
        table = pyarrow.parquet.ParquetFile(file).read()
        missing = [name for name in schema.names if name not in table.schema.names]
        if not missing:
            table = table.select(schema.names).cast(schema)
        found = table.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(
            f"{file} cannot be read as scores ({reason}). Write it with `trl-spiral eval-task`."
        ) from error
    if missing:
        columns = "the columns" if len(missing) > 1 else "the column"
        raise ValueError(f"{file} lacks {columns} {', '.join(missing)}. Write it with `trl-spiral eval-task`.")
    if holes := [name for name in schema.names if table[name].null_count]:
        raise ValueError(f"{file} has empty cells in its column {holes[0]}. Leave out the rows that lack it.")
    rows = [ScoredReply(**row) for row in found]
    for row in rows:
        if not 0.0 <= row.score <= 1.0:
            raise ValueError(
                f"{file} has a score of {row.score:g}, for problem {row.problem!r}. Scores must be in [0, 1]."
            )
        for name, kind in _NESTED.items():
            if not _holds(name, getattr(row, name)):
                raise ValueError(
                    f"{file} has a row whose {name} is not a JSON {kind}, for problem {row.problem!r}. Write it with "
                    "`trl-spiral eval-task`."
                )
    return rows


def _holds(name: str, text: str) -> bool:
    """Return whether the text of a column is JSON of the expected kind."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if name != "prompt":
        return isinstance(value, dict)
    messages = value if isinstance(value, list) else [None]
    return all(
        isinstance(message, dict) and isinstance(message.get("content"), str) and isinstance(message.get("role"), str)
        for message in messages
    )


def _schema() -> Any:  # pyarrow has no types
    """Return the columns of a file of scores."""
    import pyarrow

    types = {"str": pyarrow.string(), "int": pyarrow.int64(), "float": pyarrow.float64(), "bool": pyarrow.bool_()}
    return pyarrow.schema([(field.name, types[str(field.type)]) for field in fields(ScoredReply)])
