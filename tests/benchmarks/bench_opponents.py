"""
What opponents cost: turns a second of mirror self-play, and of play in which half of the games are against eight snapshots,
seats drawn fairly. The same games with replies of the same lengths in the same run, the two in turn.

* lora: the policy and its snapshots are adapters, side by side in one batch.
* whole (transformers only): they are whole models, and the snapshots take turns at a second copy.

Turns are all that were decoded, an opponent's too; trained turns are those of the policy.

    python tests/benchmarks/bench_opponents.py --engine transformers
    python tests/benchmarks/bench_opponents.py --engine vllm --hidden 256
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench_generation import TURNS, Talk, Talker, make_model  # sets the environment up before torch is imported

from trl_spiral.rollout import Engine, Playing, Start, play, referee
from trl_spiral.seeding import derive_seed
from trl_spiral.types import POLICY, Observation, Request


OPPONENTS = [f"step-{number}" for number in range(1, 9)]
ENDLESS = 10**6  # an end-of-turn token that never comes, so that every reply is as long as it shall be

Opened = Callable[[], Engine]


class Seated(Talker):
    """A talker that asks for the weights of one policy."""

    def __init__(self, policy: str, median: float, cap: int) -> None:
        super().__init__(median, cap, grow=False)
        self.name = self.policy = policy

    def ask(self, observation: Observation) -> Request:
        return replace(super().ask(observation), policy=self.policy)


def games(number: int, against: list[str], median: float, cap: int) -> Iterator[Playing]:
    """The same games every time. Where there are opponents, every other game is against one of them."""
    for counter in range(number):
        rng = random.Random(derive_seed(1, counter))
        seats = [POLICY, rng.choice(against) if against and counter % 2 else POLICY]
        rng.shuffle(seats)
        players = tuple(Seated(policy, median, cap) for policy in seats)
        yield referee(Start(Talk(), players, seed=counter, play_seed=derive_seed(0, counter), counter=counter))


def speeds(number: int, against: list[str], args: argparse.Namespace, open_engine: Opened) -> dict[str, float]:
    """Turns and trained turns a second of one batch of games, opening the engine included, and what the engine tells."""
    started = time.perf_counter()
    engine = open_engine()
    trained = 0
    for episode in play(games(number, against, args.median, args.cap), engine, args.in_flight):
        trained += TURNS // 2 * episode.players.count(POLICY)
    seconds = time.perf_counter() - started
    return {"turns": number * TURNS / seconds, "trained": trained / seconds, **engine.metrics()}


def save_policies(folder: str, rank: int) -> dict[str, dict[str, Path]]:
    """Random adapters and random whole models, by kind and policy."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3ForCausalLM

    saved: dict[str, dict[str, Path]] = {"lora": {}, "whole": {}}
    config = LoraConfig(
        r=rank, lora_alpha=rank, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
    )
    for seed, name in enumerate([POLICY, *OPPONENTS]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM.from_pretrained(folder)
        for kind in saved:
            saved[kind][name] = Path(folder, kind, name)
        model.save_pretrained(saved["whole"][name])
        get_peft_model(model, config).save_pretrained(saved["lora"][name])
    return saved


@contextmanager
def with_transformers(
    folder: str, saved: dict[str, dict[str, Path]], in_flight: int
) -> Iterator[dict[str, tuple[Opened, Opened]]]:
    """By kind, how the engine of mirror self-play is opened and how that of play with opponents is."""
    import torch
    from peft import PeftModel
    from transformers import GenerationConfig, Qwen3ForCausalLM

    from trl_spiral.engines.adapters import SideBySide, live_adapter, read_adapters
    from trl_spiral.engines.frozen import FrozenCopy
    from trl_spiral.engines.phases import PhasedEngine
    from trl_spiral.engines.router import Router
    from trl_spiral.engines.transformers import TransformersEngine

    torch.set_num_threads(1)
    config = GenerationConfig(pad_token_id=2, eos_token_id=ENDLESS)
    whole = Qwen3ForCausalLM.from_pretrained(folder).eval()
    lora = PeftModel.from_pretrained(Qwen3ForCausalLM.from_pretrained(folder), saved["lora"][POLICY]).eval()
    shelf: dict = {}
    second = FrozenCopy(whole)

    def side_by_side() -> Engine:
        adapters = read_adapters({name: saved["lora"][name] for name in OPPONENTS}, shelf)
        both = SideBySide(lora, {POLICY: live_adapter(lora), **adapters})
        return TransformersEngine(lora, config, adapters=both, max_rows=in_flight)

    def in_turn() -> Engine:
        folders = {name: saved["whole"][name] for name in OPPONENTS}
        resident = next((name for name in OPPONENTS if second.holds(folders[name])), None)
        opponents = TransformersEngine(second.model, config, max_rows=in_flight)
        phased = PhasedEngine(opponents, lambda name: second.load(folders[name]), folders, resident)
        return Router({POLICY: TransformersEngine(whole, config, max_rows=in_flight)}, default=phased)

    yield {
        "lora": (lambda: TransformersEngine(lora, config, max_rows=in_flight), side_by_side),
        "whole": (lambda: TransformersEngine(whole, config, max_rows=in_flight), in_turn),
    }


@contextmanager
def with_vllm(
    folder: str, saved: dict[str, dict[str, Path]], in_flight: int
) -> Iterator[dict[str, tuple[Opened, Opened]]]:
    """As `with_transformers`. In mirror self-play the policy is an adapter too, as it is while there is a pool."""
    import json

    from vllm import LLM

    from trl_spiral.engines.vllm import VLLMEngine

    adapters = {name: str(path) for name, path in saved["lora"].items()}
    rank = json.loads((saved["lora"][POLICY] / "adapter_config.json").read_text())["r"]
    llm = LLM(
        model=folder,
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        max_num_seqs=in_flight,
        max_num_batched_tokens=4096,
        enable_chunked_prefill=False,
        max_model_len=2048,
        logprobs_mode="processed_logprobs",
        enable_lora=True,
        max_loras=len(adapters),
        max_cpu_loras=2 * len(adapters),
        max_lora_rank=max(8, rank),
    )

    def opened(names: list[str]) -> Engine:
        llm.reset_prefix_cache()  # as at every sync of weights
        return VLLMEngine(llm, options={"ignore_eos": True}, adapters={name: adapters[name] for name in names})

    yield {"lora": (lambda: opened([POLICY]), lambda: opened([POLICY, *OPPONENTS]))}
    llm.llm_engine.engine_core.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--in-flight", type=int, default=64, help="games at once")
    parser.add_argument("--games", type=int, default=4, help="games of a batch, for each of those in flight")
    parser.add_argument("--median", type=float, default=24.0, help="median length of a reply, in tokens")
    parser.add_argument("--cap", type=int, default=96, help="longest reply, in tokens")
    parser.add_argument("--hidden", type=int, default=256, help="width of the model")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16, help="rank of the adapters, on every linear layer")
    parser.add_argument("--repeats", type=int, default=3, help="batches of each, in turn; medians are shown")
    args = parser.parse_args()

    number = args.games * args.in_flight
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, args.hidden, args.layers)
        saved = save_policies(folder, args.rank)
        with {"transformers": with_transformers, "vllm": with_vllm}[args.engine](
            folder, saved, args.in_flight
        ) as kinds:
            print("| kind | play | turns/s | trained turns/s | share of mirror | weight switches a batch |")
            print("|---|---|---:|---:|---:|---:|", flush=True)
            for kind, (mirror, opponents) in kinds.items():
                ways = {"mirror": ([], mirror), "eight opponents": (OPPONENTS, opponents)}
                seen: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
                for repeat in range(-1, args.repeats):
                    for way, (against, open_engine) in ways.items():
                        told = speeds(args.in_flight if repeat < 0 else number, against, args, open_engine)
                        if repeat >= 0:  # before that, it warms up
                            seen[way].append(told)
                medians = {
                    way: {name: statistics.median(told.get(name, 0.0) for told in batches) for name in batches[0]}
                    for way, batches in seen.items()
                }
                for way, told in medians.items():
                    share = told["turns"] / medians["mirror"]["turns"]
                    print(
                        f"| {kind} | {way} | {told['turns']:.1f} | {told['trained']:.1f} | {share:.2f} | "
                        f"{told.get('weight_switches', 0.0):g} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
