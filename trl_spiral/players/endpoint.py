"""A player whose moves come from an endpoint that takes messages and returns text."""

from __future__ import annotations

from trl_spiral.text.prompts import INSTRUCTION
from trl_spiral.text.replies import read_move
from trl_spiral.types import Observation, Reply, Request, Sampling, Turn


class EndpointPlayer:
    """
    Player that requests its moves from an endpoint. Its turns have no policy, so they are never trained on.

    Args:
        name (`str`):
            Name in tables and transcripts, and the policy that its requests name.
        sampling ([`~types.Sampling`], *optional*):
            Sampling of its replies.
    """

    def __init__(self, name: str, sampling: Sampling | None = None) -> None:
        self.name = name
        self.sampling = sampling or Sampling()

    def ask(self, observation: Observation) -> Request:
        """Return the observation as messages, with the instruction that a policy gets."""
        *earlier, last = observation.messages
        asked = {**last, "content": f"{last['content']}\n\n{INSTRUCTION}"}
        return Request((), self.sampling, self.name, observation.seed, messages=(*earlier, asked))

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        """Return the move in the reply. A truncated or lost reply has no move."""
        truncated, lost = reply.finish_reason == "length", reply.finish_reason == "lost"
        return Turn(
            action=None if truncated or lost else read_move(observation, reply.text),
            text=reply.text,
            truncated=truncated,
            lost=lost,
        )
