"""Replies in the completions that TRL hands to reward functions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trl_spiral.prompts import PromptRenderer


logger = logging.getLogger(__name__)

Completion = str | Sequence[Mapping[str, Any]]
"""As TRL hands it over: text, or the messages of a conversation."""


class RepliesReward:
    """
    What rewards that read whole replies have in common.

    Some chat templates (DeepSeek-R1's, Qwen3-Thinking's) open the thinking themselves: their prompts end in `<think>`, which a
    completion goes on from and does not show. What stands in it before `</think>` is no answer, and only the prompt tells.

    Attributes:
        renderer ([`~prompts.PromptRenderer`], *optional*):
            Renders prompts as the trainer does. [`AlgorithmTrainer`] sets it by itself; with TRL's own `GRPOTrainer`, give it to
            the reward. It is not asked where a prompt is plain text, which TRL shows as it is.
    """

    def __init__(self, renderer: PromptRenderer | None = None) -> None:
        self.renderer = renderer
        self._told = False

    def replies(self, completions: Sequence[Completion], prompts: Sequence[Any] | None = None) -> list[str]:
        """
        Whole replies, with the `<think>` that their prompts have opened.

        Args:
            completions (`Sequence[str]` or `Sequence[list[dict]]`):
                What the model wrote. Of messages, the last one counts: before it stand calls of tools and their answers.
            prompts (`Sequence[str]` or `Sequence[list[dict]]`, *optional*):
                What it was asked.
        """
        shown: Sequence[Any] = [None] * len(completions) if prompts is None else prompts
        return [self._reply(completion, prompt) for completion, prompt in zip(completions, shown, strict=True)]

    def _reply(self, completion: Completion, prompt: Any) -> str:
        last = {"content": completion} if isinstance(completion, str) else completion[-1]
        text = str(last.get("content") or "")
        if last.get("reasoning_content") or last.get("thinking"):
            return text  # TRL has told the thinking and the answer apart
        if isinstance(prompt, str):
            return f"<think>{text}" if prompt.rstrip().endswith("<think>") else text
        if self.renderer is not None:
            return self.renderer.thought + text
        closed = text.find("</think>")
        if not self._told and closed >= 0 and "<think>" not in text[:closed]:
            self._told = True
            logger.warning(
                "A completion closes thinking that its prompt may have opened, and this reward cannot know: an answer in thinking "
                "that was cut off would count. Pass `renderer=PromptRenderer(tokenizer)`, or use `AlgorithmTrainer`."
            )
        return text
