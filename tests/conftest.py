"""
Fixtures: a tokenizer and a tiny model of a few thousand parameters, built offline and identical on all machines.

The model imitates random legal moves until most of its replies are legal. Otherwise, games would end after one turn.
"""

import functools
import gc
import importlib.metadata
import importlib.util
import os
import random
import sys
from pathlib import Path

import jinja2
import pytest


# accelerate and TRL read the metadata of packages for each trainer, and compile the model card for each checkpoint.
# Without these caches, that takes a quarter of the time of a small run.
importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)
importlib.metadata.version = functools.cache(importlib.metadata.version)
jinja2.Environment.compile = functools.cache(jinja2.Environment.compile)

# Objects created before the first test are modules and tests, which are never freed.
gc.disable()

# Before the first import of torch. One thread is fastest for a model this small, and makes sums deterministic.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

HAS_VLLM = all(importlib.util.find_spec(name) for name in ("vllm", "vllm_on_cpu"))
NEEDS_VLLM = "needs vLLM and tests/vllm_cpu/plugin"

if HAS_VLLM:
    # vLLM reads these at import. Servers that tests start inherit them.
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # no gain on models this small
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; otherwise vLLM takes the memory that it finds
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # otherwise two engines are bound to the same core
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # in this process, as TRL loads weights
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def pytest_collection_finish(session):
    """Exclude modules from garbage collection, since each trainer collects garbage before it trains."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """
    Seed torch, so that tests are independent of their order, and skip tests marked `vllm` if vLLM is not installed.

    With `TRL_SPIRAL_REQUIRE_VLLM=1` these tests fail instead.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
        # With any OMP_NUM_THREADS: forks have one thread, and runs are equal only with equal numbers of threads.
        sys.modules["torch"].set_num_threads(1)
    if item.get_closest_marker("vllm") and not HAS_VLLM:
        if os.environ.get("TRL_SPIRAL_REQUIRE_VLLM") == "1":
            pytest.fail(f"`TRL_SPIRAL_REQUIRE_VLLM` is 1, and this test {NEEDS_VLLM}.", pytrace=False)
        pytest.skip(NEEDS_VLLM)


def pytest_terminal_summary(terminalreporter):
    """Print the number of tests skipped without vLLM: a skip alone is one letter among hundreds."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NEEDS_VLLM in str(report.longrepr)]
    if skipped:
        tests = "test needs" if len(skipped) == 1 else "tests need"
        line = f"{len(skipped)} {tests} vLLM and did not run here: see tests/vllm_cpu/requirements.txt"
        terminalreporter.write_sep("=", line, yellow=True, bold=True)


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def observations():
    """Return pairs of an observation of random players and a random legal move. Half are from tic-tac-toe."""
    from tests.helpers.toy_games import SumGame
    from trl_spiral.games import get_game
    from trl_spiral.players import RandomPlayer, random_move
    from trl_spiral.selfplay.referee import Start, play, referee

    seen = []

    class Spy(RandomPlayer):
        def ask(self, observation):
            seen.append((observation, random_move(observation)))
            return super().ask(observation)

    spy = Spy()
    for game, episodes in ((get_game("TicTacToe-v0"), 80), (get_game("PigDice-v0-50"), 5), (SumGame(), 30)):
        list(play(referee(Start(game, (spy, spy), seed=seed, play_seed=seed)) for seed in range(episodes)))
    return seen


def make_tokenizer(texts, chat_template=CHAT_TEMPLATE):
    """Return a byte-level BPE tokenizer trained on the games' texts. A line of rules is a few tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Moves and digits are separate tokens, so that a cell of the board has the same token in every context.
            pre_tokenizers.Split(Regex(r"\\boxed\{|\[[^\[\]\n]{1,16}\]|[0-9]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<|pad|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=768,
        min_frequency=2,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        padding_side="left",
        chat_template=chat_template,
    )


def make_model(tokenizer, seed=0, head_dim=8):
    """Return a two-layer Qwen3 with the same weights on every machine: drawn in float64, rounded to a grid."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tests.helpers.teaching import on_grid

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=head_dim,
        intermediate_size=32,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        initializer_range=0.1,  # at the usual 0.02, a model this narrow is nearly uniform over tokens
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return on_grid(Qwen3ForCausalLM._from_config(config, dtype=torch.float64))


def imitate(model, tokenizer, seen):
    """Return the model after supervised learning on random legal replies, until most of its replies are legal."""
    from tests.helpers.teaching import learn_replies
    from trl_spiral.text.prompts import PromptRenderer

    renderer = PromptRenderer(tokenizer)
    pairs = [(renderer.prompt(o), renderer.reply(f"\\boxed{{{move}}}")) for o, move in seen]
    # Nats per token. The loss starts at 6.7. Below 0.5, most of it is the choice among legal moves.
    return learn_replies(model, pairs, tokenizer.pad_token_id, random.Random(0), enough=0.48)


@pytest.fixture(scope="session")
def seen():
    return observations()


@pytest.fixture(scope="session")
def tokenizer(seen):
    from trl_spiral.text.prompts import INSTRUCTION

    texts = [f"user\n{o.messages[0]['content']}\n\n{INSTRUCTION}" for o, _ in seen]
    return make_tokenizer(texts + [f"assistant\n\\boxed{{{move}}}" for _, move in seen])


@pytest.fixture(scope="session")
def made_once(tokenizer, seen, tmp_path_factory):
    """Make a folder with a tiny model and its tokenizer, shared by all workers of pytest-xdist."""
    import torch
    from filelock import FileLock

    torch.set_num_threads(1)
    root: Path = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def make(name: str, **shape: int) -> str:
        folder = root / name
        with FileLock(root / f"{name}.lock"):
            if not folder.exists():
                made = tmp_path_factory.mktemp(name)
                imitate(make_model(tokenizer, **shape), tokenizer, seen).save_pretrained(made)
                tokenizer.save_pretrained(made)
                made.rename(folder)
        return str(folder)

    return make


@pytest.fixture(scope="session")
def model_dir(made_once) -> str:
    """Folder of the tiny model and its tokenizer."""
    return made_once("model")


@pytest.fixture(scope="session")
def vllm_model_dir(made_once) -> str:
    """Like `model_dir`, with the smallest attention heads that vLLM supports on a CPU."""
    return made_once("vllm-model", head_dim=32)


@pytest.fixture
def no_sandbox(monkeypatch):
    """Make `CodeGame` fail as on a machine without a sandbox."""
    from trl_spiral.games.code_game import CodeGame
    from trl_spiral.sandbox import CannotContain

    def refuse(game):
        raise CannotContain("Nothing here contains programs.")

    monkeypatch.setattr(CodeGame, "check", refuse)
