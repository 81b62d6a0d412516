"""
The tiny player: a language model that is small enough to learn a game on a laptop.

Before self-play it learns to read the board and to answer in the right form. Its lessons contain uniformly random
legal moves, and questions about the rules ("if X takes [4], what comes of it?"). They contain no strategy. One player
may learn several games.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from trl_spiral.games import get_game
from trl_spiral.seeding import derive_seed
from trl_spiral.text.prompts import INSTRUCTION
from trl_spiral.tiny import network, tokenizer
from trl_spiral.tiny.lessons import lessons_of
from trl_spiral.tiny.network import WARMUP, NetworkShape, make_network, train
from trl_spiral.tiny.tokenizer import encoder, phrase_tokenizer


_BOXED = r"\\boxed\{\[[^\[\]\n]{1,16}\]\}"
_THREADS = 2  # a network of this size does not use more


@dataclass(frozen=True)
class TinyPlayerRecipe(NetworkShape):
    """
    Settings of a tiny player. The name of its folder depends on all of them.

    Attributes:
        games (`tuple[str, ...]`, defaults to `("TicTacToe-v0",)`):
            Games to learn. The lessons alternate between them.
        seed (`int`, defaults to `0`):
            Seed of the weights and the lessons.
        reading (`float`, defaults to `0.25`):
            Share of the lessons that are questions about the rules.
        steps, batch_size (`int`):
            Length of the training.
        learning_rate (`float`, defaults to `4e-3`):
            Peak learning rate; it falls linearly to zero.
    """

    games: tuple[str, ...] = ("TicTacToe-v0",)
    seed: int = 0
    reading: float = 0.25
    steps: int = 900
    batch_size: int = 128
    learning_rate: float = 4e-3


def make_tiny_player(recipe: TinyPlayerRecipe | None = None, cache_dir: str | os.PathLike[str] | None = None) -> str:
    """
    Return the folder of a tiny player. Make the player if the cache does not contain it.

    In a distributed run the first process of each machine makes it, and the others wait. The caller's random state
    does not change.

    Args:
        recipe ([`TinyPlayerRecipe`], *optional*):
            Settings of the player.
        cache_dir (`str`, *optional*):
            Parent folder; by default `trl_spiral` in the user's cache folder (`$XDG_CACHE_HOME` or `~/.cache`).

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
            with tempfile.TemporaryDirectory(dir=root) as scratch:
                made = Path(scratch) / "player"
                _make(recipe, made)
                # The folder appears complete. If two processes make the same player, one result is kept.
                if not folder.is_dir():
                    shutil.move(made, folder)
    return str(folder)


def _fingerprint(recipe: TinyPlayerRecipe) -> str:
    """Return a digest of the recipe, of the first lessons and of the code that makes the player."""
    lessons = json.dumps(list(islice(_lessons(recipe), 512)))
    source = "".join(inspect.getsource(part) for part in (network, tokenizer, _make, _lessons))
    content = f"{json.dumps(asdict(recipe))}{_atoms(recipe)}{lessons}{source}"
    return hashlib.blake2b(content.encode(), digest_size=6).hexdigest()


def _make(recipe: TinyPlayerRecipe, output: Path) -> None:
    """Make a player and save it."""
    import torch
    from transformers.utils.logging import tqdm

    lessons = list(_lessons(recipe))
    words = phrase_tokenizer({text for lesson in lessons for text in lesson}, _atoms(recipe))

    encode = encoder(words)
    examples = [encode(([{"role": "user", "content": question}], reply)) for question, reply in lessons]
    order = torch.randperm(len(lessons), generator=torch.Generator().manual_seed(recipe.seed)).tolist()
    size, steps = recipe.batch_size, recipe.steps
    batches = (
        [examples[number] for number in order[step * size : (step + 1) * size]]
        for step in tqdm(range(steps), desc="Tiny player")
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(min(threads, _THREADS))
    try:
        with torch.random.fork_rng():
            torch.manual_seed(recipe.seed)
            model = make_network(recipe, words).to("cuda" if torch.cuda.is_available() else "cpu")
            train(
                model,
                batches,
                recipe.learning_rate,
                lambda step: step / WARMUP if step < WARMUP else (steps - step) / max(1, steps - WARMUP),
                fused=True,
            )
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(output)
    words.save_pretrained(output)


def _atoms(recipe: TinyPlayerRecipe) -> str:
    """Return the regular expression of the player's atoms. First a whole reply, so that a move is one token."""
    return "|".join(dict.fromkeys([_BOXED, *(get_game(game).atoms for game in recipe.games)]))


def _lessons(recipe: TinyPlayerRecipe) -> Iterator[tuple[str, str]]:
    """Return a (question, reply) pair for each row of the training."""
    rng = random.Random(derive_seed(recipe.seed, "lessons"))
    kinds = [lessons_of(game) for game in recipe.games]
    for number in range(recipe.steps * recipe.batch_size):
        yield kinds[number % len(kinds)](rng, rng.random() < recipe.reading, INSTRUCTION)
