"""The tiny coder: a language model that writes short programs, right ones as often as its lessons do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trl_spiral.tiny.network import teach
from trl_spiral.tiny.tokenizer import Lesson, learned_tokenizer


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VOCABULARY = 1024  # at most; a thousand exercises fill 956


def make_tiny_coder(
    lessons: Sequence[Lesson],
    seed: int = 0,
    steps: int = 300,
    batch_size: int = 64,
    learning_rate: float = 4e-3,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    Make a tiny coder and train it on lessons.

    Equal arguments give equal weights on equal machines, so each rank of a distributed run makes its own. The caller's
    random state does not change.

    Args:
        lessons (`Sequence[tuple[list[dict], str]]`):
            Prompts, as messages, and replies. The coder learns their mixture: if one program in four is right, it
            writes a right one a quarter of the time.
        seed (`int`, defaults to `0`):
            Seed of the weights and of the order of the lessons.
        steps, batch_size (`int`):
            Length of the training.
        learning_rate (`float`, defaults to `4e-3`):
            Peak learning rate; it falls linearly to zero.

    Returns:
        `tuple[PreTrainedModel, PreTrainedTokenizerBase]`: The model in float32 on the CPU, and its tokenizer with a
        chat template.
    """
    tokenizer = learned_tokenizer(lessons, VOCABULARY)
    return teach(tokenizer, lessons, seed, steps, batch_size, learning_rate), tokenizer
