"""
The tiny coder: a language model made on the spot that writes short programs of one kind, well or badly, as its lessons do.

The network of the tiny player, with a tokenizer learned from the lessons: what recurs in them is one token, digits stay
apart, and anything else is spelled in bytes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trl_spiral.seeding import derive_seed
from trl_spiral.tiny.player import CHAT_TEMPLATE, TinyPlayerRecipe, make_network


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Lesson = tuple[list[dict[str, str]], str]
"""The messages of a prompt, and the reply to them."""

VOCABULARY = 1024  # at most: 259 are bytes and special tokens, and a thousand exercises fill 956
WARMUP = 30  # steps, as the tiny player's


def make_tiny_coder(
    lessons: Sequence[Lesson],
    seed: int = 0,
    steps: int = 300,
    batch_size: int = 64,
    learning_rate: float = 4e-3,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    A tiny coder that has read some lessons.

    Equal arguments give equal weights on equal machines, so each rank of a distributed run makes its own. The caller's
    random draws are untouched.

    Args:
        lessons (`Sequence[tuple[list[dict], str]]`):
            Prompts, as messages, and replies. Their mixture is what it learns: one good program in four, and it writes a
            good one a quarter of the time.
        seed (`int`, defaults to `0`):
            Seed of its weights and of the order of its lessons.
        steps, batch_size (`int`):
            Length of the warm start.
        learning_rate (`float`, defaults to `4e-3`):
            Its peak; it falls linearly to zero.

    Returns:
        `tuple[PreTrainedModel, PreTrainedTokenizerBase]`: The model in float32 on the CPU, and its tokenizer, which has a chat
        template.
    """
    tokenizer = _make_tokenizer(lessons)
    return teach(tokenizer, lessons, seed, steps, batch_size, learning_rate), tokenizer


def teach(
    tokenizer: PreTrainedTokenizerBase,
    lessons: Sequence[Lesson],
    seed: int,
    steps: int,
    batch_size: int,
    learning_rate: float,
    tied: bool = False,
) -> PreTrainedModel:
    """
    A network as small as the tiny player's that has read lessons.

    Arguments are those of [`make_tiny_coder`], and `tied`: whether a token is read and written by the same vector.
    """
    import torch

    pad = tokenizer.pad_token_id
    encoded = [_encode(tokenizer, messages, reply) for messages, reply in lessons]
    rng = random.Random(derive_seed(seed, "lessons"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make_network(TinyPlayerRecipe(), tokenizer, tied)
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / WARMUP, (steps - step) / steps)
        )
        model.train()
        for _ in range(steps):
            batch = rng.choices(encoded, k=batch_size)
            width = max(len(prompt) + len(reply) for prompt, reply in batch)
            rows = [(p + r, [-100] * len(p) + r, width - len(p) - len(r)) for p, r in batch]
            loss = model(
                input_ids=torch.tensor([ids + [pad] * rest for ids, _, rest in rows]),
                attention_mask=torch.tensor([[1] * len(ids) + [0] * rest for ids, _, rest in rows]),
                labels=torch.tensor([labels + [-100] * rest for _, labels, rest in rows]),
            ).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return model.eval()


def _encode(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], reply: str
) -> tuple[list[int], list[int]]:
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return (
        tokenizer.encode(prompt, add_special_tokens=False),
        tokenizer.encode(f"{reply}{tokenizer.eos_token}", add_special_tokens=False),
    )


def _make_tokenizer(lessons: Sequence[Lesson]) -> PreTrainedTokenizerBase:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=["<|im_start|>", "<|im_end|>", "<|pad|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(
        (text for messages, reply in lessons for text in (*(f"{m['role']}\n{m['content']}" for m in messages), reply)),
        trainer,
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        extra_special_tokens=["<|im_start|>"],
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )
