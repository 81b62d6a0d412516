"""Asking a model a set of problems through an engine: what its evaluations at math and at code share."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from trl_spiral.selfplay.referee import Engine
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import Reply, Request


def ask_all(requests: Mapping[int, Request], engine: Engine, in_flight: int = 256) -> dict[int, Reply]:
    """
    Replies to all requests, by their number.

    Args:
        requests (`Mapping[int, Request]`):
            By a number of the caller's.
        engine ([`~selfplay.referee.Engine`]):
            Answers. It is left without any of them, whatever happens.
        in_flight (`int`, defaults to `256`):
            Most requests under way at once.
    """
    replies: dict[int, Reply] = {}
    to_come = iter(requests.items())
    waiting: set[int] = set()
    try:
        while len(replies) < len(requests):
            for number, request in islice(to_come, in_flight - len(waiting)):
                engine.add(number, request)
                waiting.add(number)
            for number, reply in engine.step():
                replies[number] = reply
                waiting.remove(number)
    finally:
        engine.abort(list(waiting))
    return replies


def check_answered(reply: Reply, problem: object) -> None:
    """Raises `RuntimeError` if an engine gave up on a reply: what is measured would not be the model's."""
    if reply.finish_reason == "lost":
        raise RuntimeError(f"The model is gone: problem {problem} has no reply. See whether its endpoint still runs.")


def thought_before(renderer: PromptRenderer, request: Request) -> str:
    """`"<think>"` where a prompt has opened the thinking, nothing of which counts before it is closed; else `""`."""
    return "<think>" if renderer.text(request.prompt_ids).rstrip().endswith("<think>") else ""
