"""
The tiny player: a language model made on the spot, small enough to learn a game on a laptop.

A Qwen3-architecture network of 0.2 million parameters with a tokenizer and a chat template of its own. Before self-play it
learns, by TRL's `SFTTrainer`, to read the board and to answer in the right form: its examples are uniformly random legal
moves, and questions about the rules ("if X takes [4], what comes of it?"). It knows no strategy. It may know several games.

    python -m trl_spiral.tiny.player --output my-player --games TicTacToe-v0 Kuhn-v0
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from trl_spiral.games import get_game
from trl_spiral.seeding import derive_seed
from trl_spiral.text.prompts import INSTRUCTION
from trl_spiral.tiny.lessons import lessons_of


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


_BOXED = r"\\boxed\{\[[^\[\]\n]{1,16}\]\}"


@dataclass(frozen=True)
class TinyPlayerRecipe:
    """
    How a tiny player is made. Everything here changes the player, so all of it names the cached folder.

    Attributes:
        games (`tuple[str, ...]`, defaults to `("TicTacToe-v0",)`):
            The games it is to play. Its lessons are of all of them, in turn.
        seed (`int`, defaults to `0`):
            Seed of its weights and its lessons.
        hidden_size, num_layers, num_heads, head_dim, intermediate_size (`int`):
            The network. Two wide layers read a board sooner than four narrow ones, and cost less a token.
        initializer_range (`float`, defaults to `0.1`):
            Standard deviation of the initial weights; at Qwen's 0.02 a network this small learns several times slower.
        reading (`float`, defaults to `0.25`):
            Share of the lessons that are questions about the rules.
        steps, batch_size (`int`):
            Length of the warm start.
        learning_rate (`float`, defaults to `4e-3`):
            Its peak; it falls linearly to zero.
    """

    games: tuple[str, ...] = ("TicTacToe-v0",)
    seed: int = 0
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 8
    head_dim: int = 16
    intermediate_size: int = 192
    initializer_range: float = 0.1
    reading: float = 0.25
    steps: int = 900
    batch_size: int = 128
    learning_rate: float = 4e-3


def make_tiny_player(recipe: TinyPlayerRecipe | None = None, cache_dir: str | os.PathLike[str] | None = None) -> str:
    """
    A tiny player's folder, made now or taken from the cache.

    The player is made in a process of its own, so that neither its trainer nor its random draws touch the caller's; in a
    distributed run, the first process of each machine makes it and the others wait.

    Args:
        recipe ([`TinyPlayerRecipe`], *optional*):
            How it is made.
        cache_dir (`str`, *optional*):
            Where it is kept; by default `trl_spiral` in the user's cache folder (`$XDG_CACHE_HOME` or `~/.cache`).

    Returns:
        `str`: A folder for `from_pretrained`.

    Raises:
        ValueError: If there is no tiny player for one of the games.
    """
    recipe = recipe or TinyPlayerRecipe()
    for game in recipe.games:
        lessons_of(game)
    root = Path(cache_dir or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trl_spiral")
    folder = root / f"{'+'.join(recipe.games)}-{recipe.seed}-{_fingerprint(recipe)}"

    from accelerate import PartialState

    with PartialState().local_main_process_first():
        if not folder.is_dir():
            root.mkdir(parents=True, exist_ok=True)
            _make_in_own_process(recipe, folder)
    return str(folder)


def _fingerprint(recipe: TinyPlayerRecipe) -> str:
    """Changes with the recipe, with the code that carries it out, and with what is taught."""
    first = list(islice(_lessons(recipe), 512))
    atoms = [get_game(game).atoms for game in recipe.games]
    source = inspect.getsource(sys.modules[__name__]) + json.dumps(atoms) + json.dumps(first)
    return hashlib.blake2b(f"{json.dumps(asdict(recipe))}{source}".encode(), digest_size=6).hexdigest()


def _make_in_own_process(recipe: TinyPlayerRecipe, folder: Path) -> None:
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_", "ROLE_", "TORCHELASTIC_", "ACCELERATE_", "FSDP_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "player"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "trl_spiral.tiny.player",
                "--recipe",
                json.dumps(asdict(recipe)),
                "--output",
                str(made),
            ],
            check=True,
            env=environment,
        )
        # A folder appears whole or not at all; of two processes that made the same player, one is kept.
        if not folder.is_dir():
            shutil.move(made, folder)


def _train(recipe: TinyPlayerRecipe, output: Path) -> None:
    """Makes the player. Runs in a process of its own."""
    import torch
    from datasets import Dataset
    from transformers import set_seed
    from trl import SFTConfig, SFTTrainer

    torch.set_num_threads(min(torch.get_num_threads(), 2))  # a network this small has nothing to share among more
    lessons = list(_lessons(recipe))
    # First of all a whole reply, so that where a move is one token the choice is one decision.
    atoms = "|".join(dict.fromkeys([_BOXED, *(get_game(game).atoms for game in recipe.games)]))
    tokenizer = _make_tokenizer(atoms, {text for lesson in lessons for text in lesson})

    set_seed(recipe.seed)
    model = make_network(recipe, tokenizer)
    encode = _remembering(tokenizer)
    examples: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for question, reply in lessons:
        prompt = encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
        answer = encode(f"{reply}<|im_end|>")
        examples["input_ids"].append(prompt + answer)
        examples["labels"].append([-100] * len(prompt) + answer)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                scratch,
                max_steps=recipe.steps,
                per_device_train_batch_size=recipe.batch_size,
                learning_rate=recipe.learning_rate,
                lr_scheduler_type="linear",
                warmup_steps=30,
                weight_decay=0.0,
                seed=recipe.seed,
                use_cpu=not torch.cuda.is_available(),
                bf16=False,
                activation_checkpointing=False,
                gradient_checkpointing=False,
                save_strategy="no",
                report_to="none",
                logging_steps=100,
            ),
            train_dataset=Dataset.from_dict(examples),
            processing_class=tokenizer,
        )
        trainer.train()
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def make_network(recipe: TinyPlayerRecipe, tokenizer: Any, tied: bool = False) -> Any:
    """
    A network of the recipe's shape that knows nothing yet, from torch's random numbers.

    Args:
        recipe ([`TinyPlayerRecipe`]):
            Its shape.
        tokenizer (`PreTrainedTokenizerBase`):
            Its vocabulary.
        tied (`bool`, defaults to `False`):
            Whether a token is read and written by the same vector.

    Returns:
        `PreTrainedModel`: In float32 on the CPU.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=recipe.hidden_size,
            num_hidden_layers=recipe.num_layers,
            num_attention_heads=recipe.num_heads,
            num_key_value_heads=recipe.num_heads,
            head_dim=recipe.head_dim,
            intermediate_size=recipe.intermediate_size,
            max_position_embeddings=1024,
            initializer_range=recipe.initializer_range,
            tie_word_embeddings=tied,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def _lessons(recipe: TinyPlayerRecipe) -> Iterator[tuple[str, str]]:
    """As many (question, reply) pairs as the warm start reads."""
    rng = random.Random(derive_seed(recipe.seed, "lessons"))
    kinds = [lessons_of(game) for game in recipe.games]
    for number in range(recipe.steps * recipe.batch_size):
        yield kinds[number % len(kinds)](rng, rng.random() < recipe.reading, INSTRUCTION)


def _make_tokenizer(atoms: str, texts: set[str]) -> Any:
    """
    Bytes, and the phrases that the games' texts are made of: atoms (rows of the board, cards, moves) and what stands between.

    The rules become one token and each row of the board another, so a prompt of 700 characters is some 20 tokens, out of
    a vocabulary of some 400; anything else is spelled in bytes.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    phrases = {
        piece
        for text in ["assistant\n", *(f"user\n{text}" for text in texts), *texts]
        for piece in re.split(f"({atoms})", text)
        if len(piece) > 1
    }
    special = ["<|im_start|>", "<|im_end|>", "<|pad|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([tokenizers.AddedToken(phrase, normalized=False) for phrase in sorted(phrases)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        extra_special_tokens=["<|im_start|>"],
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def _remembering(tokenizer: Any) -> Any:
    """The tokenizer's `encode`, with a memory: lessons repeat themselves."""
    known: dict[str, list[int]] = {}

    def encode(text: str) -> list[int]:
        if text not in known:
            known[text] = tokenizer.encode(text, add_special_tokens=False)
        return known[text]

    return encode


def main() -> None:
    """Command line: `python -m trl_spiral.tiny.player --output FOLDER [--games NAME …] [--seed N]`."""
    parser = argparse.ArgumentParser(description="Makes a tiny player.")
    parser.add_argument("--output", required=True, type=Path, help="Folder to write the player to.")
    parser.add_argument("--games", nargs="+", default=["TicTacToe-v0"], help="The games it is to play.")
    parser.add_argument("--seed", default=0, type=int, help="Seed of its weights and lessons.")
    parser.add_argument("--recipe", help="All of the recipe as JSON, in place of the two above.")
    args = parser.parse_args()
    chosen = json.loads(args.recipe) if args.recipe else {"games": args.games, "seed": args.seed}
    _train(TinyPlayerRecipe(**{**chosen, "games": tuple(chosen["games"])}), args.output)


if __name__ == "__main__":
    main()
