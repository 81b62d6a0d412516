"""
The tiny solver: a language model made on the spot that has read some lessons about puzzles and can be trained on them.

The network of the tiny player. Its tokenizer takes a whole phrase for one token, so that a puzzle is some twenty tokens long.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trl_spiral.seeding import derive_seed
from trl_spiral.tiny import CHAT_TEMPLATE, TinyPlayerRecipe


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Lesson = tuple[list[dict[str, str]], str]
"""The messages of a prompt, and the reply to them."""

WARMUP = 30  # steps, as the tiny player's


def make_tiny_solver(
    lessons: Sequence[Lesson],
    atoms: str,
    seed: int = 0,
    steps: int = 400,
    batch_size: int = 64,
    learning_rate: float = 4e-3,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    A tiny solver that has read some lessons.

    The same everywhere for the same arguments, so each rank of a distributed run makes its own. The caller's random draws
    are untouched.

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

    Returns:
        `tuple[PreTrainedModel, PreTrainedTokenizerBase]`: The model in float32 on the CPU, and its tokenizer, which has a chat
        template.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = _make_tokenizer(lessons, atoms)
    shape, pad = TinyPlayerRecipe(), tokenizer.pad_token_id
    encoded = [
        (
            tokenizer.encode(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)),
            tokenizer.encode(f"{reply}{tokenizer.eos_token}"),
        )
        for messages, reply in lessons
    ]
    rng = random.Random(derive_seed(seed, "lessons"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(tokenizer),
                hidden_size=shape.hidden_size,
                num_hidden_layers=shape.num_layers,
                num_attention_heads=shape.num_heads,
                num_key_value_heads=shape.num_heads,
                head_dim=shape.head_dim,
                intermediate_size=shape.intermediate_size,
                max_position_embeddings=1024,
                initializer_range=shape.initializer_range,
                tie_word_embeddings=False,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=pad,
            )
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / WARMUP, (steps - step) / steps)
        )
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
    return model.eval(), tokenizer


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
