"""The tiny solver: a language model that learns from lessons about puzzles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trl_spiral.tiny.network import teach
from trl_spiral.tiny.tokenizer import Lesson, closed_tokenizer


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def make_tiny_solver(
    lessons: Sequence[Lesson],
    atoms: str,
    seed: int = 0,
    steps: int = 400,
    batch_size: int = 64,
    learning_rate: float = 4e-3,
    tied: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    Make a tiny solver and train it on lessons.

    Equal arguments give equal weights on equal machines, so each rank of a distributed run makes its own. The caller's
    random state does not change.

    Args:
        lessons (`Sequence[tuple[list[dict], str]]`):
            Prompts, as messages, and replies. The tokenizer encodes only what occurs in them.
        atoms (`str`):
            Regular expression without groups for one token: words, moves. The text between two atoms is one token too,
            so that a puzzle has about twenty tokens.
        seed (`int`, defaults to `0`):
            Seed of the weights and of the order of the lessons.
        steps, batch_size (`int`):
            Length of the training.
        learning_rate (`float`, defaults to `4e-3`):
            Peak learning rate; it falls linearly to zero.
        tied (`bool`, defaults to `False`):
            Whether the embeddings of the input are also the output layer. It makes copying from the prompt easy to
            learn.

    Returns:
        `tuple[PreTrainedModel, PreTrainedTokenizerBase]`: The model in float32 on the CPU, and its tokenizer with a
        chat template.
    """
    tokenizer = closed_tokenizer(lessons, atoms)
    return teach(tokenizer, lessons, seed, steps, batch_size, learning_rate, tied), tokenizer
