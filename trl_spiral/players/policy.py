"""A language model as a player, through an engine."""

from __future__ import annotations

import copy

from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import POLICY, Observation, Reply, Request, Sampling, Turn


class PolicyPlayer:
    """
    Player that requests its moves from a language model.

    Args:
        renderer ([`~text.prompts.PromptRenderer`]):
            Renders observations for the model's tokenizer and reads its replies.
        sampling ([`~types.Sampling`]):
            Sampling of its replies.
        policy (`str`, defaults to `POLICY`):
            Name of the weights that write the replies.
        conversation (`bool`, defaults to `False`):
            Whether each prompt continues the seat's earlier turns, token for token, so that a whole game fits in one
            training row. Otherwise each prompt contains only the observation.
        name (`str`, *optional*):
            Name in tables and transcripts. Default: the policy's.
        constrain_moves (`bool`, defaults to `False`):
            Whether the engine must constrain replies to end in a legal move.
    """

    def __init__(
        self,
        renderer: PromptRenderer,
        sampling: Sampling,
        policy: str = POLICY,
        conversation: bool = False,
        name: str | None = None,
        constrain_moves: bool = False,
    ) -> None:
        self.renderer = renderer
        self.sampling = sampling
        self.policy = policy
        self.name = name or policy
        self._prompt = renderer.continuation if conversation else renderer.prompt
        self._constrain_moves = constrain_moves

    def playing_as(self, name: str) -> PolicyPlayer:
        """Return a copy of this player with the weights and the name of another policy."""
        twin = copy.copy(self)
        twin.policy = twin.name = name
        return twin

    def ask(self, observation: Observation) -> Request:
        """
        Return the request, with the prompt as token ids.

        Raises:
            ValueError: If `constrain_moves` is on and the game does not list its legal moves.
        """
        moves: tuple[str, ...] = ()
        if self._constrain_moves:
            if not observation.legal_actions:
                raise ValueError(
                    f"`constrain_moves` needs games that list their legal moves, and {observation.game} does not. "
                    "Leave it off."
                )
            moves = observation.legal_actions
        return Request(self._prompt(observation), self.sampling, self.policy, observation.seed, legal_moves=moves)

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        """Return the move in the reply. A truncated or lost reply has no move."""
        text = self.renderer.text(reply.completion_ids)
        truncated, lost = reply.finish_reason == "length", reply.finish_reason == "lost"
        return Turn(
            action=None if truncated or lost else self.renderer.move(text, observation.asks_program),
            text=text,
            prompt_ids=request.prompt_ids,
            completion_ids=reply.completion_ids,
            logprobs=reply.logprobs,
            policy=self.policy,
            version=reply.version,
            truncated=truncated,
            lost=lost,
        )
