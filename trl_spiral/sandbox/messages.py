"""
What a remote sandbox and its server say to each other: JSON, of exactly these shapes.

* `GET /sandbox` → `{"version", "limits"}`
* `POST /v1/run`, a list of jobs → the list of their outcomes
* `POST /v1/judge`, a list of trials → the list of their verdicts
* a request that is refused, with status 400 and above → `{"error"}`
"""

from __future__ import annotations

import base64
import json
import math
import sys
from dataclasses import asdict
from typing import Any

from trl_spiral.sandbox.base import Answer, Ending, Job, Limits, Outcome, Trial, Verdict
from trl_spiral.sandbox.values import decode, encode


VERSION = 1
"""Of these shapes. A server of another version is refused."""
TOKEN_VARIABLE = "TRL_SPIRAL_SANDBOX_TOKEN"
MAX_REQUEST = 16 * 2**20
"""Bytes."""
MAX_OUTPUT = 2**20
"""Most `output_bytes` that a server may grant: a client holds a whole answer in memory."""
_MAX_NAME = 1000  # characters of an exception's class or its words
_TEXT_OR_NONE = (str, type(None))


class Malformed(ValueError):
    """What the other side sent is not what was agreed on."""


def parsed(content: bytes) -> Any:
    """JSON, or [`Malformed`]."""
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Malformed("not JSON") from None


def taken(data: Any, **kinds: Any) -> list[Any]:
    """The values of an object that has exactly these names, each of exactly its type, or of one of several."""
    if type(data) is not dict or data.keys() != kinds.keys():
        raise Malformed(f"not an object of {', '.join(kinds)}")
    for name, kind in kinds.items():
        if type(data[name]) not in (kind if isinstance(kind, tuple) else (kind,)):
            raise Malformed(f"`{name}` of another type")
    return [data[name] for name in kinds]


def answer_bytes(asked: Job | Trial, limits: Limits) -> int:
    """Longest JSON that answers it: a byte of text becomes up to six, and output, values and names are limited."""
    names = 2 + (len(asked.calls) if isinstance(asked, Job) else 0)
    return 2 * 6 * limits.output_bytes + names * (6 * _MAX_NAME + 100)


def token_from(token: str | None) -> str | None:
    """
    A token that a header can carry, or `None`.

    Raises:
        ValueError: If it is none. It is not shown.
    """
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("A token must be made of visible ASCII characters. `openssl rand -hex 32` writes a good one.")
    return token


def job_from(data: Any) -> Job:
    code, calls, hash_seed = taken(data, code=str, calls=list, hash_seed=int)
    return Job(code, _texts(calls), hash_seed)


def trial_from(data: Any) -> Trial:
    code, tests, entry_points, in_place = taken(data, code=str, tests=str, entry_points=list, in_place=bool)
    return Trial(code, tests, _texts(entry_points), in_place)


def limits_to(limits: Limits) -> dict[str, Any]:
    return asdict(limits)


def limits_from(data: Any) -> Limits:
    number = (int, float)
    cpu_seconds, wall_seconds, memory_mb, output_bytes, readable, writable, threads = taken(
        data,
        cpu_seconds=number,
        wall_seconds=number,
        memory_mb=int,
        output_bytes=int,
        readable=list,
        writable=list,
        threads=bool,
    )
    if not (math.isfinite(cpu_seconds) and math.isfinite(wall_seconds) and output_bytes <= MAX_OUTPUT):
        raise Malformed("limits out of range")
    try:
        return Limits(cpu_seconds, wall_seconds, memory_mb, output_bytes, _texts(readable), _texts(writable), threads)
    except ValueError as error:
        raise Malformed(f"limits out of range: {error}") from None


def outcome_to(outcome: Outcome) -> dict[str, Any]:
    answers = [
        {"value": base64.b64encode(encode(answer.value, sys.maxsize)).decode(), "error": _cut(answer.error)}
        for answer in outcome.answers
    ]
    return {
        "ending": outcome.ending,
        "output": outcome.output,
        "answers": answers,
        "error": _cut(outcome.error),
        "message": _cut(outcome.message),
        "cpu_seconds": outcome.cpu_seconds,
    }


def outcome_from(data: Any, job: Job, limits: Limits) -> Outcome:
    ending, output, answers, error, message, seconds = taken(
        data, ending=str, output=str, answers=list, error=_TEXT_OR_NONE, message=str, cpu_seconds=(int, float)
    )
    ended, owed = _ending(ending), len(job.calls) - len(answers)
    if owed < 0 or (owed > 0 and not ended.failed) or not (seconds >= 0 and math.isfinite(seconds)):
        raise Malformed("an outcome that no sandbox comes to")
    return Outcome(
        ended,
        _printable(output, limits.output_bytes),
        tuple(_answer(answer, limits.output_bytes) for answer in answers),
        _name(error),
        _printable(message, _MAX_NAME),
        float(seconds),
    )


def verdict_to(verdict: Verdict) -> dict[str, Any]:
    return asdict(verdict) | {"error": _cut(verdict.error)}


def verdict_from(data: Any, trial: Trial, limits: Limits) -> Verdict:
    passed, error, ending, output = taken(data, passed=bool, error=_TEXT_OR_NONE, ending=str, output=str)
    return Verdict(passed, _name(error), _ending(ending), _printable(output, limits.output_bytes))


def _texts(data: list[Any]) -> tuple[str, ...]:
    if not all(type(text) is str for text in data):
        raise Malformed("not only texts")
    return tuple(data)


def _cut(words: str | None) -> str | None:
    """A program's words as [`_printable`] takes them."""
    return None if words is None else words[:_MAX_NAME].encode("utf-8", "replace").decode()


def _printable(text: str, most: int) -> str:
    """A text of at most `most` characters, without half a surrogate pair, on which whoever prints it would fail."""
    if len(text) > most or any("\ud800" <= char <= "\udfff" for char in text):
        raise Malformed("a text that no sandbox hands over")
    return text


def _name(error: str | None) -> str | None:
    return None if error is None else _printable(error, _MAX_NAME)


def _ending(name: str) -> Ending:
    try:
        return Ending(name)
    except ValueError:
        raise Malformed("no such ending") from None


def _answer(data: Any, most: int) -> Answer:
    value, error = taken(data, value=str, error=_TEXT_OR_NONE)
    if len(value) > 4 * (most + 100) // 3 + 4:  # base64 makes four characters of three bytes, and fills up
        raise Malformed("a value larger than its limits allow")
    try:
        return Answer(decode(base64.b64decode(value, validate=True)), _name(error))
    except ValueError as problem:
        raise Malformed(f"a value that is none: {problem}") from None
