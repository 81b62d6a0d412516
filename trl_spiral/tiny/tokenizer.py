"""The tokenizers of the tiny models: three vocabularies, one format of conversations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Lesson = tuple[list[dict[str, str]], str]
"""The messages of a prompt, and the reply to them."""

Example = tuple[list[int], list[int]]
"""Token ids of a prompt and of its reply."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_START, _END, _PAD, _UNKNOWN = "<|im_start|>", "<|im_end|>", "<|pad|>", "<|unk|>"


def phrase_tokenizer(texts: Iterable[str], atoms: str) -> PreTrainedTokenizerBase:
    """
    Make a tokenizer of bytes and of the phrases in some texts.

    The rules of a game become one token and each row of a board another. A prompt of 700 characters has about 20
    tokens, from a vocabulary of about 400. Any other text is encoded as bytes.

    Args:
        texts (`Iterable[str]`):
            Prompts of users, and replies.
        atoms (`str`):
            Regular expression without groups: the parts that recur, such as cards and moves. The text between two of
            them is a phrase too.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    texts = set(texts)
    phrases = _pieces(["assistant\n", *(f"user\n{text}" for text in texts), *texts], atoms)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([_START, _END, _PAD])
    core.add_tokens([AddedToken(phrase, normalized=False) for phrase in sorted(phrases) if len(phrase) > 1])
    return _chat_tokenizer(core)


def closed_tokenizer(lessons: Sequence[Lesson], atoms: str) -> PreTrainedTokenizerBase:
    """
    Make a tokenizer of the atoms in some lessons and of the phrases between them. It encodes nothing else.

    Args:
        lessons (`Sequence[Lesson]`):
            Lessons.
        atoms (`str`):
            Regular expression without groups.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pieces = _pieces([*_texts(lessons), "\n", "assistant\n"], atoms)
    core = Tokenizer(
        models.WordLevel({piece: n for n, piece in enumerate([_UNKNOWN, *sorted(pieces)])}, unk_token=_UNKNOWN)
    )
    core.pre_tokenizer = pre_tokenizers.Split(Regex(atoms), "isolated")
    core.decoder = decoders.Fuse()
    return _chat_tokenizer(core, unk_token=_UNKNOWN)


def learned_tokenizer(lessons: Sequence[Lesson], size: int) -> PreTrainedTokenizerBase:
    """
    Make a byte-pair tokenizer of at most `size` tokens from some lessons. Each digit is a token of its own.

    259 tokens are bytes and special tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[_START, _END, _PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(_texts(lessons), trainer)
    return _chat_tokenizer(core)


def encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[Lesson], Example]:
    """Return a function that encodes lessons, each reply with its end of turn. It encodes equal texts once."""

    @cache
    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    def example(lesson: Lesson) -> Example:
        messages, reply = lesson
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return encode(prompt), encode(f"{reply}{tokenizer.eos_token}")

    return example


def _texts(lessons: Sequence[Lesson]) -> Iterable[str]:
    """Return the messages and the reply of each lesson, as the chat template writes them."""
    return (
        text for messages, reply in lessons for text in (*(f"{m['role']}\n{m['content']}" for m in messages), reply)
    )


def _pieces(texts: Iterable[str], atoms: str) -> set[str]:
    """Return the atoms in some texts and the phrases between them."""
    return {piece for text in texts for piece in re.split(f"({atoms})", text) if piece}


def _chat_tokenizer(core: Any, **special: str) -> PreTrainedTokenizerBase:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=_END,
        pad_token=_PAD,
        extra_special_tokens=[_START],
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        **special,
    )
