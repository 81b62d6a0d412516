"""
Turns per second of mirror self-play, and with half of the games against eight snapshots in random seats.

Both play the same games with replies of the same lengths, and alternate in one run.

* lora: the policy and its snapshots are adapters in one batch. vLLM with adapters is slower than without, even in
  mirror self-play. So one more row, from a separate engine, has the policy's adapter merged into the weights, as in a
  run without opponents.
* whole (transformers only, with `--whole`): policy and snapshots are full models. The snapshots share a second copy.

Turns are all decoded turns, including those of opponents. Trained turns are those of the policy.

    python tests/benchmarks/bench_opponents.py --engine transformers
    python tests/benchmarks/bench_opponents.py --engine transformers --whole
    python tests/benchmarks/bench_opponents.py --engine vllm
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any


sys.path.insert(0, str(Path(__file__).parents[2]))  # the project root, for `tests` and `trl_spiral`

# `bench_generation` sets environment variables before torch is imported.
from tests.benchmarks.bench_generation import TURNS, Talk, Talker, make_model
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Engine, Playing, Start, play, referee
from trl_spiral.types import POLICY, Observation, Request


OPPONENTS = [f"step-{number}" for number in range(1, 9)]
NO_TOKEN = 10**6  # an end-of-turn token outside the vocabulary, so that replies have the forced length

MIRROR, MERGED, AGAINST = "mirror", "mirror, merged weights", "eight opponents"

Ways = dict[str, tuple[list[str], Callable[[], Engine]]]
"""Opponents and engine factory by kind of play."""


class Seated(Talker):
    """A talker that requests the weights of one policy."""

    def __init__(self, policy: str, median: float, cap: int) -> None:
        super().__init__(median, cap, grow=False)
        self.name = self.policy = policy

    def ask(self, observation: Observation) -> Request:
        return replace(super().ask(observation), policy=self.policy)


def games(number: int, against: list[str], median: float, cap: int) -> Iterator[Playing]:
    """Yield the same games at every call. With opponents, every second game is against one of them."""
    for counter in range(number):
        rng = random.Random(derive_seed(1, counter))
        seats = [POLICY, rng.choice(against) if against and counter % 2 else POLICY]
        rng.shuffle(seats)
        players = tuple(Seated(policy, median, cap) for policy in seats)
        yield referee(Start(Talk(), players, seed=counter, play_seed=derive_seed(0, counter), counter=counter))


def speeds(
    number: int, against: list[str], args: argparse.Namespace, open_engine: Callable[[], Engine]
) -> dict[str, float]:
    """Return turns and trained turns per second of one batch of games, with the engine's start and its metrics."""
    started = time.perf_counter()
    engine = open_engine()
    trained = 0
    for episode in play(games(number, against, args.median, args.cap), engine, args.in_flight):
        trained += TURNS // 2 * episode.players.count(POLICY)
    seconds = time.perf_counter() - started
    return {"turns": number * TURNS / seconds, "trained": trained / seconds, **engine.metrics()}


def measure(ways: Ways, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the medians of `speeds` by kind of play. The kinds alternate between batches."""
    seen: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for repeat in range(-1, args.repeats):
        for way, (against, open_engine) in ways.items():
            number = args.in_flight * (args.games if repeat >= 0 else 1)
            metrics = speeds(number, against, args, open_engine)
            if repeat >= 0:  # batch -1 is the warmup
                seen[way].append(metrics)
    return {
        way: {name: statistics.median(metrics.get(name, 0.0) for metrics in batches) for name in batches[0]}
        for way, batches in seen.items()
    }


def show(kind: str, medians: dict[str, dict[str, float]]) -> None:
    """Print rows of the table."""
    for way, metrics in medians.items():
        shares = [
            f"{metrics['turns'] / medians[mirror]['turns']:.2f}" if mirror in medians else ""
            for mirror in (MIRROR, MERGED)
        ]
        cells = kind, way, f"{metrics['turns']:.1f}", f"{metrics['trained']:.1f}", *shares
        print(f"| {' | '.join(cells)} | {metrics.get('weight_switches', 0.0):g} |", flush=True)


def save_policies(folder: str, rank: int, whole: bool) -> dict[str, dict[str, Path]]:
    """Save random adapters, the merged policy and, with `whole`, full models. Return paths by kind and name."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3ForCausalLM

    saved: dict[str, dict[str, Path]] = {"lora": {}, "merged": {}, "whole": {}}
    config = LoraConfig(
        r=rank, lora_alpha=rank, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
    )
    for seed, name in enumerate([POLICY, *OPPONENTS]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM.from_pretrained(folder)
        if whole:
            saved["whole"][name] = Path(folder, "whole", name)
            model.save_pretrained(saved["whole"][name])
        saved["lora"][name] = Path(folder, "lora", name)
        adapted = get_peft_model(model, config)
        adapted.save_pretrained(saved["lora"][name])
        if name == POLICY:
            saved["merged"][name] = Path(folder, "merged")
            adapted.merge_and_unload().save_pretrained(saved["merged"][name])
    return saved


def with_transformers(folder: str, saved: dict[str, dict[str, Path]], args: argparse.Namespace) -> None:
    """Print the rows of each kind."""
    import torch
    from peft import PeftModel
    from transformers import GenerationConfig, Qwen3ForCausalLM

    from trl_spiral.engines.local.lora_batching import SideBySide, live_adapter, read_adapters
    from trl_spiral.engines.local.second_copy import FrozenCopy
    from trl_spiral.engines.local.transformers import TransformersEngine
    from trl_spiral.engines.policies import Router, SwappingEngine

    torch.set_num_threads(1)
    config = GenerationConfig(pad_token_id=2, eos_token_id=NO_TOKEN)

    def engine_of(model: Any, adapters: SideBySide | None = None) -> TransformersEngine:
        return TransformersEngine(model, config, adapters=adapters, max_rows=args.in_flight)

    lora = PeftModel.from_pretrained(Qwen3ForCausalLM.from_pretrained(folder), saved["lora"][POLICY]).eval()
    shelf: dict = {}

    def side_by_side() -> Engine:
        adapters = read_adapters({name: saved["lora"][name] for name in OPPONENTS}, shelf)
        return engine_of(lora, SideBySide(lora, {POLICY: live_adapter(lora), **adapters}))

    show("lora", measure({MIRROR: ([], lambda: engine_of(lora)), AGAINST: (OPPONENTS, side_by_side)}, args))
    if not args.whole:
        return
    whole = Qwen3ForCausalLM.from_pretrained(saved["whole"][POLICY]).eval()
    second = FrozenCopy(whole)

    def in_turn() -> Engine:
        # The copy reloads weights at its first use, as in training.
        swapping = SwappingEngine(engine_of(second.model), lambda name: second.load(saved["whole"][name]), OPPONENTS)
        return Router({POLICY: engine_of(whole)}, default=swapping)

    show("whole", measure({MIRROR: ([], lambda: engine_of(whole)), AGAINST: (OPPONENTS, in_turn)}, args))


@contextmanager
def vllm_of(folder: str | Path, in_flight: int, **kwargs: Any) -> Iterator[Any]:
    """Open vLLM with the settings of `SpiralTrainer` on a CPU."""
    from vllm import LLM

    llm = LLM(
        model=str(folder),
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        max_num_seqs=in_flight,
        max_num_batched_tokens=4096,
        enable_chunked_prefill=False,
        max_model_len=2048,
        logprobs_mode="processed_logprobs",
        **kwargs,
    )
    yield llm
    llm.llm_engine.engine_core.shutdown()


def opened(llm: Any, adapters: dict[str, str] | None = None) -> Engine:
    from trl_spiral.engines.vllm.colocated import VLLMEngine

    llm.reset_prefix_cache()  # as at every sync of weights
    return VLLMEngine(llm, options={"ignore_eos": True}, adapters=adapters)


def measure_merged(folder: Path, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    with vllm_of(folder, args.in_flight, tokenizer=str(folder.parent)) as llm:
        return measure({MERGED: ([], lambda: opened(llm))}, args)


def measure_adapters(folder: str, adapters: dict[str, str], args: argparse.Namespace) -> dict[str, dict[str, float]]:
    most = dict(max_loras=len(adapters), max_cpu_loras=2 * len(adapters), max_lora_rank=max(8, args.rank))
    with vllm_of(folder, args.in_flight, enable_lora=True, **most) as llm:
        return measure(
            {
                MIRROR: ([], lambda: opened(llm, {POLICY: adapters[POLICY]})),
                AGAINST: (OPPONENTS, lambda: opened(llm, adapters)),
            },
            args,
        )


def with_vllm(folder: str, saved: dict[str, dict[str, Path]], args: argparse.Namespace) -> None:
    """Print the rows of vLLM. Each engine runs in a separate process, so that none affects the next."""
    adapters = {name: str(path) for name, path in saved["lora"].items()}
    medians = {}
    for work in ((measure_merged, saved["merged"][POLICY], args), (measure_adapters, folder, adapters, args)):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            medians |= process.submit(*work).result()
    show("lora", medians)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--whole", action="store_true", help="full models too, with transformers")
    parser.add_argument("--in-flight", type=int, default=64, help="concurrent games")
    parser.add_argument("--games", type=int, default=2, help="games per batch and concurrent game")
    parser.add_argument("--median", type=float, default=24.0, help="median length of a reply, in tokens")
    parser.add_argument("--cap", type=int, default=96, help="longest reply, in tokens")
    parser.add_argument("--hidden", type=int, default=256, help="width of the model")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16, help="rank of the adapters on all linear layers")
    parser.add_argument("--repeats", type=int, default=3, help="batches of each kind; medians are shown")
    args = parser.parse_args()
    if args.whole and args.engine == "vllm":
        parser.error("`--whole` needs `--engine transformers`")

    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, args.hidden, args.layers)
        saved = save_policies(folder, args.rank, args.whole)
        print(
            "| kind | play | turns/s | trained turns/s | share of mirror | share of merged | weight switches / batch |"
        )
        print("|---|---|---:|---:|---:|---:|---:|", flush=True)
        {"transformers": with_transformers, "vllm": with_vllm}[args.engine](folder, saved, args)


if __name__ == "__main__":
    main()
