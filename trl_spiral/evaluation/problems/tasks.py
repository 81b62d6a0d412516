"""
A model at the problems of a task: how they are put to it, what its replies are worth, and the file that keeps them.

A file of scores is Parquet, one reply a row, with the columns of [`ScoredReply`]. What is nested (the prompt's messages, what
the score was computed from, how it came about, how it was asked) stands in it as JSON text, so that tasks of any kind fit one file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trl_spiral.evaluation.problems.ask import ask_all, check_answered, thought_before
from trl_spiral.evaluation.problems.math import MATH_PROMPTS
from trl_spiral.players import PolicyPlayer
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Engine
from trl_spiral.tasks import Problem, Task
from trl_spiral.text.printable import reported
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import Request


_NESTED = {"prompt": "list of messages", "data": "object", "detail": "object", "settings": "object"}


@dataclass(frozen=True, slots=True)
class ScoredReply:
    """
    A reply to a problem, and its score.

    Attributes:
        model (`str`):
            Who replied.
        task (`str`):
            The task's name.
        problem (`str`):
            The problem's id.
        sample (`int`):
            Of this model's replies to this problem, from 0.
        prompt (`str`):
            The messages that it was asked with; JSON.
        data (`str`):
            What the score was computed from; JSON.
        response (`str`):
            The whole reply, with the `<think>` that its prompt may have opened.
        score (`float`):
            Its worth, in [0, 1].
        solved (`bool`):
            Whether the problem is solved.
        detail (`str`):
            How the score came about; JSON.
        tokens (`int`):
            Length of the reply.
        truncated (`bool`):
            Whether it hit the token limit. It is scored all the same, as in training.
        settings (`str`):
            How it was asked and drawn: temperature, token limit, prompt style, split and the like; JSON.
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
        """The problem that was asked."""
        return Problem(self.problem, tuple(json.loads(self.prompt)), json.loads(self.data))


def task_prompt(renderer: PromptRenderer, problem: Problem) -> tuple[int, ...]:
    """
    Token ids of a problem: through the chat template word for word as in training, or in a style for base models.

    A task says itself how it wants to be answered, so nothing is added but in the named styles, which ask for a box.
    """
    if renderer.style == "chat":
        return renderer.conversation(problem.messages)
    question = "\n\n".join(message["content"] for message in problem.messages)
    return renderer.framed(MATH_PROMPTS[renderer.style], "{question}", question)


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
    Has a model answer problems, and scores what it says.

    Args:
        task ([`~tasks.Task`]):
            Scores the replies.
        problems (`Iterable[Problem]`):
            Of the task. One that is there twice is asked once: a second time it would pass for more evidence.
        player ([`~players.PolicyPlayer`]):
            Whose weights answer, how replies are drawn, and in which style it is asked.
        engine ([`~selfplay.referee.Engine`]):
            Answers.
        samples (`int`, defaults to `1`):
            Replies to each problem.
        seed (`int`, defaults to `0`):
            Seed of the replies. A reply depends on its problem and not on which others are asked.
        in_flight (`int`, defaults to `256`):
            Most replies under way at once. They depend on it by rounding alone.
        name (`str`, *optional*):
            By which the model is called in the rows; the player's by default.
        settings (`Mapping`, *optional*):
            More about how it is asked, as plain values for the rows, beside the sampling, the prompt style and the seed.

    Returns:
        `list[ScoredReply]`: In the order of `problems`, all samples of one after the other.

    Raises:
        ValueError: Before anything is asked, as [`check_task`]; later, if the task cannot score a reply.
        RuntimeError: If the engine gives up on a reply.
    """
    distinct = list({problem.id: problem for problem in problems}.values())
    check_task(task, distinct)
    how = _json({**asdict(player.sampling), "prompt_style": player.renderer.style, "seed": seed, **(settings or {})})
    requests = {
        number * samples + sample: Request(
            task_prompt(player.renderer, problem),
            player.sampling,
            player.policy,
            derive_seed(seed, "task", task.name, problem.id, sample),
        )
        for number, problem in enumerate(distinct)
        for sample in range(samples)
    }
    replies = ask_all(requests, engine, in_flight)
    rows = []
    for ticket, request in requests.items():
        number, sample = divmod(ticket, samples)
        problem, reply = distinct[number], replies[ticket]
        check_answered(reply, problem.id)
        response = thought_before(player.renderer, request) + player.renderer.text(reply.completion_ids)
        value, solved, detail = _score(task, problem, response)
        prompt, data = _asked(task, problem)
        rows.append(
            ScoredReply(
                model=name or player.name,
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
                settings=how,
            )
        )
    return rows


def check_task(task: Task, problems: Sequence[Problem]) -> None:
    """
    Looks whether a task can be asked and scored, before a model has written replies that would be lost.

    Raises:
        ValueError: If there are no problems, if what they hold is not plain, or if the task cannot score an empty reply.
    """
    if not problems:
        raise ValueError(f"The task {task.name!r} has no problems: nothing would be asked.")
    for problem in problems:
        _asked(task, problem)
    _score(task, problems[0], "")


def _asked(task: Task, problem: Problem) -> tuple[str, str]:
    """A problem's messages and data as JSON, which must give them back: what scores a reply in training was read from it."""
    try:
        messages, data = [dict(message) for message in problem.messages], dict(problem.data)
        texts = _json(messages), _json(data)
        if [json.loads(text) for text in texts] != [messages, data]:
            raise ValueError("JSON gives back something else")
    except Exception as error:  # whatever a user's task has made
        raise ValueError(
            f"Problem {problem.id!r} of the task {task.name!r} does not survive JSON ({type(error).__name__}: "
            f"{reported(error)}). Its messages and data must be plain: text, numbers, lists, and objects with texts for keys."
        ) from error
    return texts


def _score(task: Task, problem: Problem, response: str) -> tuple[float, bool, str]:
    """A reply's value, whether it solves the problem, and how that came about as JSON."""
    try:
        score = task.score(problem, response)
        return float(score.value), bool(score.solved), _json(dict(score.detail))
    except Exception as error:  # whatever a user's task comes upon in what a model may write
        raise ValueError(
            f"The task {task.name!r} cannot score a reply to problem {problem.id!r} ({type(error).__name__}: "
            f"{reported(error)}): {response[:80]!r}. Any text must have a score, with plain values in its detail."
        ) from error


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write_scores(path: str | os.PathLike[str], rows: Sequence[ScoredReply]) -> None:
    """Writes a file of scores, the whole of it or nothing. Folders above it are made."""
    import pyarrow
    import pyarrow.parquet

    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    table = pyarrow.Table.from_pylist([asdict(row) for row in rows], schema=_schema())
    pyarrow.parquet.write_table(table, partial, compression="zstd")
    os.replace(partial, file)


def read_scores(path: str | os.PathLike[str]) -> list[ScoredReply]:
    """
    Reads a file of scores. It may have more columns than a [`ScoredReply`] has.

    Raises:
        ValueError: If there is no such file, it is no Parquet, a column is missing or of another type, a cell is empty or no JSON
            where it should be, or a score is out of range.
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
                    f"{file} has a row whose {name} is no JSON {kind}, for problem {row.problem!r}. Write it with "
                    "`trl-spiral eval-task`."
                )
    return rows


def _holds(name: str, text: str) -> bool:
    """Whether a column's text is JSON of the kind that it should be."""
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
    """The columns of a file of scores."""
    import pyarrow

    types = {"str": pyarrow.string(), "int": pyarrow.int64(), "float": pyarrow.float64(), "bool": pyarrow.bool_()}
    return pyarrow.schema([(field.name, types[str(field.type)]) for field in fields(ScoredReply)])
