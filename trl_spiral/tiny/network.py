"""The network of the tiny models, and the loop that trains it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trl_spiral.seeding import derive_seed
from trl_spiral.tiny.tokenizer import Example, Lesson, encoder


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WARMUP = 30
"""Steps over which the learning rate rises."""
_NO_LABEL = -100  # of positions without a loss


@dataclass(frozen=True, kw_only=True)
class NetworkShape:
    """
    Shape of a tiny network of the Qwen3 architecture.

    Attributes:
        hidden_size, num_layers, num_heads, head_dim, intermediate_size (`int`):
            Two wide layers learn to read a board sooner than four narrow ones, and cost less per token.
        initializer_range (`float`, defaults to `0.1`):
            Standard deviation of the initial weights. At Qwen's 0.02 a network of this size learns several times
            slower.
    """

    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 8
    head_dim: int = 16
    intermediate_size: int = 192
    initializer_range: float = 0.1


def make_network(shape: NetworkShape, tokenizer: PreTrainedTokenizerBase, tied: bool = False) -> PreTrainedModel:
    """
    Make an untrained network from torch's random numbers.

    Args:
        shape ([`NetworkShape`]):
            Its shape.
        tokenizer (`PreTrainedTokenizerBase`):
            Its vocabulary.
        tied (`bool`, defaults to `False`):
            Whether the embeddings of the input are also the output layer.

    Returns:
        `PreTrainedModel`: In float32 on the CPU.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
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
            tie_word_embeddings=tied,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def train(
    model: PreTrainedModel,
    batches: Iterable[Sequence[Example]],
    learning_rate: float,
    schedule: Callable[[int], float],
    fused: bool = False,
) -> None:
    """
    Train a network to write the replies of examples: one step of AdamW for each batch.

    Args:
        model (`PreTrainedModel`):
            Trained in place, on its device. It is in evaluation mode afterwards.
        batches (`Iterable[Sequence[Example]]`):
            Batches of token ids. Prompts have no loss.
        learning_rate (`float`):
            Multiplied by `schedule(step)`, with steps counted from 0.
        schedule (`Callable[[int], float]`):
            Factor of the learning rate.
        fused (`bool`, defaults to `False`):
            Whether to use the fused optimizer and TRL's fused output layer, as `SFTTrainer` does. The weights differ
            by rounding; the model keeps the layer.
    """
    import torch

    options: dict[str, Any] = {}
    if fused:
        from trl_spiral._trl import add_fused_lm_head

        add_fused_lm_head(model)
        options["fused_lm_head"] = True
    pad = model.config.pad_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0, fused=fused)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    model.train()
    for batch in batches:
        width = max(len(prompt) + len(reply) for prompt, reply in batch)
        rows = [(p + r, [_NO_LABEL] * len(p) + r, width - len(p) - len(r)) for p, r in batch]
        loss = model(
            input_ids=torch.tensor([ids + [pad] * rest for ids, _, rest in rows], device=model.device),
            attention_mask=torch.tensor([[1] * len(ids) + [0] * rest for ids, _, rest in rows], device=model.device),
            labels=torch.tensor([labels + [_NO_LABEL] * rest for _, labels, rest in rows], device=model.device),
            **options,
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    model.eval()


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
    Make a network of the default shape and train it on lessons, drawn with replacement.

    Arguments are those of [`~tiny.solver.make_tiny_solver`]. The caller's random state does not change.
    """
    import torch

    examples = list(map(encoder(tokenizer), lessons))
    rng = random.Random(derive_seed(seed, "lessons"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make_network(NetworkShape(), tokenizer, tied)
        batches = (rng.choices(examples, k=batch_size) for _ in range(steps))
        train(model, batches, learning_rate, lambda step: min((step + 1) / WARMUP, (steps - step) / steps))
    return model
