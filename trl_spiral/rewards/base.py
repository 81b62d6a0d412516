"""Base class of the rewards: whole replies from the completions that TRL passes to reward functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trl_spiral.sandbox import Limits
from trl_spiral.text.printable import get_logger
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.text.replies import opened_thinking


logger = get_logger(__name__)

Completion = str | Sequence[Mapping[str, Any]]
"""A completion in TRL's format: text, or the messages of a conversation."""

REWARD_LIMITS = Limits(cpu_seconds=2.0, wall_seconds=10.0)
"""
Limits of a program, if no sandbox is given. The wall-clock limit ends programs that sleep. A limit of 3 s would fail
correct programs while other ranks keep the cores busy.
"""


class RepliesReward:
    """
    Base class of rewards that read whole replies.

    Some chat templates (DeepSeek-R1's, Qwen3-Thinking's) end prompts in `<think>`. The completion continues the
    thinking without showing that it was opened, and text before `</think>` is no answer. Only the prompt shows it.

    Attributes:
        renderer ([`~text.prompts.PromptRenderer`], *optional*):
            Renders prompts as the trainer does. [`AlgorithmTrainer`] sets it; with TRL's own `GRPOTrainer`, pass it to
            the reward. Prompts that are plain text do not need it.
    """

    def __init__(self, renderer: PromptRenderer | None = None) -> None:
        self.renderer = renderer
        self._has_warned = False

    def replies(
        self,
        completions: Sequence[Completion],
        prompts: Sequence[Any] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[str]:
        """
        Return whole replies, with the `<think>` that their prompts opened.

        Args:
            completions (`Sequence[str]` or `Sequence[list[dict]]`):
                Completions of the model. Of messages, the last one counts: tool calls and tool results come before it.
            prompts (`Sequence[str]` or `Sequence[list[dict]]`, *optional*):
                Prompts of the completions.
            completion_ids (`Sequence[list[int]]`, *optional*):
                Token ids of the completions. If the tokenizer has a response template, messages alone do not
                distinguish empty thinking from unclosed thinking.
        """
        shown: Sequence[Any] = [None] * len(completions) if prompts is None else prompts
        tokens: Sequence[Any] = [None] * len(completions) if completion_ids is None else completion_ids
        return [self._reply(*one) for one in zip(completions, shown, tokens, strict=True)]

    def _reply(self, completion: Completion, prompt: Any, ids: Sequence[int] | None) -> str:
        last = {"content": completion} if isinstance(completion, str) else completion[-1]
        text = str(last.get("content") or "")
        if isinstance(prompt, str):
            return opened_thinking(prompt) + text
        if self.renderer is None:
            self._warn_of_thinking(text)
            return text
        thought = self.renderer.thought_after(prompt) if prompt else self.renderer.thought
        if ids is not None and not isinstance(completion, str) and len(completion) == 1:
            return thought + self.renderer.text(ids)
        is_separated = last.get("reasoning_content") or last.get("thinking")  # TRL has separated thinking and answer
        return text if is_separated else thought + text

    def _warn_of_thinking(self, text: str) -> None:
        """Warn once about a completion that closes thinking which it has not opened."""
        closed = text.find("</think>")
        if self._has_warned or closed < 0 or "<think>" in text[:closed]:
            return
        self._has_warned = True
        logger.warning(
            "A completion closes thinking that its prompt may have opened. Without a renderer, this reward also "
            "counts an answer in thinking that was cut off. Pass `renderer=PromptRenderer(tokenizer)`, or use "
            "`AlgorithmTrainer`."
        )


def error_name(error: str | None) -> str:
    """Return an exception's name, or `"unnamed"` if the program chose one that could break a table."""
    return error if error and error.isascii() and error.isidentifier() and len(error) <= 64 else "unnamed"
