"""A seat filled by a model behind an endpoint that takes messages and answers with text."""

from __future__ import annotations

from trl_spiral.text.prompts import INSTRUCTION
from trl_spiral.text.replies import read_move
from trl_spiral.types import Observation, Reply, Request, Sampling, Turn


class EndpointPlayer:
    """
    Asks an endpoint for its moves. Its turns name no policy, so they are never trained on.

    Args:
        name (`str`):
            For tables and transcripts, and the policy by which a router knows the endpoint's engine.
        sampling ([`~types.Sampling`], *optional*):
            How replies are drawn.
    """

    def __init__(self, name: str, sampling: Sampling | None = None) -> None:
        self.name = name
        self.sampling = sampling or Sampling()

    def ask(self, observation: Observation) -> Request:
        """The observation as messages, with the same instruction that a policy gets."""
        *earlier, last = observation.messages
        asked = {**last, "content": f"{last['content']}\n\n{INSTRUCTION}"}
        return Request((), self.sampling, self.name, observation.seed, messages=(*earlier, asked))

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        """The move in the reply. A truncated or lost reply holds none."""
        truncated, lost = reply.finish_reason == "length", reply.finish_reason == "lost"
        return Turn(
            action=None if truncated or lost else read_move(observation, reply.text),
            text=reply.text,
            truncated=truncated,
            lost=lost,
        )
