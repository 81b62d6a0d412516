"""Ask a model a set of problems through an engine."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from trl_spiral.selfplay.referee import Engine
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.text.replies import opened_thinking
from trl_spiral.types import Reply, Request


def ask_all(requests: Mapping[int, Request], engine: Engine, in_flight: int = 256) -> dict[int, Reply]:
    """
    Return the replies to all requests, by number.

    Args:
        requests (`Mapping[int, Request]`):
            Requests by a number of the caller's choice.
        engine ([`~selfplay.referee.Engine`]):
            Generates the replies. After an error, no request is left in it.
        in_flight (`int`, defaults to `256`):
            Maximum number of concurrent requests.
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
    """
    Check that an engine has not given up on a reply. Without it, the score would not be the model's.

    Raises:
        RuntimeError: If the reply is lost.
    """
    if reply.finish_reason == "lost":
        raise RuntimeError(f"The model is gone: problem {problem} has no reply. Check that its endpoint still runs.")


def whole_reply(renderer: PromptRenderer, request: Request, reply: Reply) -> str:
    """Return the text of a reply, with the `<think>` that its prompt may have opened."""
    return opened_thinking(renderer.text(request.prompt_ids)) + renderer.text(reply.completion_ids)
