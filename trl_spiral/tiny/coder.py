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

    The coder learns the mixture of the replies: if one program in four is right, a quarter of its programs are right.
    Arguments and result are those of [`~tiny.solver.make_tiny_solver`].
    """
    tokenizer = learned_tokenizer(lessons, VOCABULARY)
    return teach(tokenizer, lessons, seed, steps, batch_size, learning_rate), tokenizer
