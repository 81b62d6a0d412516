"""
The tiny solver: a language model made on the spot that has read some lessons about puzzles and can be trained on them.

The network of the tiny player. Its tokenizer takes a whole phrase for one token, so that a puzzle is some twenty tokens long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trl_spiral.tiny.coder import Lesson, teach
from trl_spiral.tiny.player import CHAT_TEMPLATE


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
    A tiny solver that has read some lessons.

    Equal arguments give equal weights on equal machines, so each rank of a distributed run makes its own. The caller's
    random draws are untouched.

    Args:
        lessons (`Sequence[tuple[list[dict], str]]`):
            Prompts, as messages, and replies. What they are made of is all that it can read or write.
        atoms (`str`):
            Regular expression, without groups, for what a token is: words, moves. What stands between two is a token too.
        seed (`int`, defaults to `0`):
            Seed of its weights and of the order of its lessons.
        steps, batch_size (`int`):
            Length of the warm start.
        learning_rate (`float`, defaults to `4e-3`):
            Its peak; it falls linearly to zero.
        tied (`bool`, defaults to `False`):
            Whether a token is read and written by the same vector. What is to be copied from the prompt is then soon learned.

    Returns:
        `tuple[PreTrainedModel, PreTrainedTokenizerBase]`: The model in float32 on the CPU, and its tokenizer, which has a chat
        template.
    """
    tokenizer = _make_tokenizer(lessons, atoms)
    return teach(tokenizer, lessons, seed, steps, batch_size, learning_rate, tied), tokenizer


def _make_tokenizer(lessons: Sequence[Lesson], atoms: str) -> PreTrainedTokenizerBase:
    """Atoms and the phrases between them."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    texts = [f"{message['role']}\n{message['content']}" for messages, _ in lessons for message in messages]
    texts += [reply for _, reply in lessons]
    pieces = {piece for text in [*texts, "\n", "assistant\n"] for piece in re.split(f"({atoms})", text) if piece}
    vocabulary = {piece: number for number, piece in enumerate(["<|unk|>", *sorted(pieces)])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(atoms), "isolated")
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<|unk|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        extra_special_tokens=["<|im_start|>"],
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )
