"""Replies in the completions that TRL hands to reward functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trl_spiral.text.printable import get_logger
from trl_spiral.text.prompts import PromptRenderer


logger = get_logger(__name__)

Completion = str | Sequence[Mapping[str, Any]]
"""As TRL hands it over: text, or the messages of a conversation."""


class RepliesReward:
    """
    What rewards that read whole replies have in common.

    Some chat templates (DeepSeek-R1's, Qwen3-Thinking's) open the thinking themselves: their prompts end in `<think>`, which a
    completion goes on from and does not show. What stands in it before `</think>` is no answer, and only the prompt tells.

    Attributes:
        renderer ([`~text.prompts.PromptRenderer`], *optional*):
            Renders prompts as the trainer does. [`AlgorithmTrainer`] sets it by itself; with TRL's own `GRPOTrainer`, give it to
            the reward. It is not asked where a prompt is plain text, which TRL shows as it is.
    """

    def __init__(self, renderer: PromptRenderer | None = None) -> None:
        self.renderer = renderer
        self._told = False

    def replies(
        self,
        completions: Sequence[Completion],
        prompts: Sequence[Any] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[str]:
        """
        Whole replies, with the `<think>` that their prompts have opened.

        Args:
            completions (`Sequence[str]` or `Sequence[list[dict]]`):
                What the model wrote. Of messages, the last one counts: before it stand calls of tools and their answers.
            prompts (`Sequence[str]` or `Sequence[list[dict]]`, *optional*):
                What it was asked.
            completion_ids (`Sequence[list[int]]`, *optional*):
                The same as tokens. Where the tokenizer has a response template, messages do not tell thinking that was closed
                empty from thinking that was not closed.
        """
        shown: Sequence[Any] = [None] * len(completions) if prompts is None else prompts
        tokens: Sequence[Any] = [None] * len(completions) if completion_ids is None else completion_ids
        return [self._reply(*one) for one in zip(completions, shown, tokens, strict=True)]

    def _reply(self, completion: Completion, prompt: Any, ids: Sequence[int] | None) -> str:
        last = {"content": completion} if isinstance(completion, str) else completion[-1]
        text = str(last.get("content") or "")
        if isinstance(prompt, str):
            return f"<think>{text}" if prompt.rstrip().endswith("<think>") else text
        if self.renderer is None:
            self._tell_of_thinking(text)
            return text
        thought = self.renderer.thought_after(prompt) if prompt else self.renderer.thought
        if ids is not None and not isinstance(completion, str) and len(completion) == 1:
            return thought + self.renderer.text(ids)
        told_apart = last.get("reasoning_content") or last.get("thinking")  # by TRL: the thinking and the answer
        return text if told_apart else thought + text

    def _tell_of_thinking(self, text: str) -> None:
        """Warns once of a completion that closes thinking which it has not opened."""
        closed = text.find("</think>")
        if self._told or closed < 0 or "<think>" in text[:closed]:
            return
        self._told = True
        logger.warning(
            "A completion closes thinking that its prompt may have opened, and this reward cannot know: an answer in thinking "
            "that was cut off would count. Pass `renderer=PromptRenderer(tokenizer)`, or use `AlgorithmTrainer`."
        )
