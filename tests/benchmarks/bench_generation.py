"""
What a game loop without waiting is worth: new tokens a second on one engine, with the same games in the same run, for

* ours: every reply goes back into its game at once;
* barrier: all games wait for the longest reply of a turn before any goes on;
* one: one game at a time;
* limit: no games at all, the engine is given every prompt of our run in advance.

Reply lengths are log-normal (sigma 1, capped), drawn by seed and forced. From them follows how much there is to gain over the
barrier: `bound` if a decoding step costs the same however many rows it has, as on a large GPU; and `bound here` at what
prompts and steps cost on this engine, which is measured beforehand: on a CPU each row costs, so that rows which are done
make a barrier's steps cheaper.

    python tests/benchmarks/bench_generation.py --engine transformers
    python tests/benchmarks/bench_generation.py --engine vllm --in-flight 8 64 512 --grow
"""

from __future__ import annotations

import argparse
import gc
import heapq
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any


# Before torch is imported: one thread, the same on every machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")

sys.path.insert(0, str(Path(__file__).parents[1]))

from trl_spiral.games import Game, Match, Traits
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Engine, Playing, Start, play, referee
from trl_spiral.types import Ending, Observation, Reply, Request, Sampling, Turn


RULES, NEWS = 48, 24  # tokens: what all prompts begin with, and what each turn brings
TURNS = 6
VOCABULARY = 700


class Talk(Game):
    """Two seats speak in turn, a fixed number of times. Whatever is said is legal."""

    name, traits = "Talk", Traits(zero_sum=False)

    def start(self, seed: int) -> TalkMatch:
        return TalkMatch()

    def canonical(self, action: str) -> str:
        return action


class TalkMatch(Match):
    """How often somebody has spoken."""

    def __init__(self) -> None:
        self.spoken = 0

    @property
    def to_move(self) -> int | None:
        return None if self.ending else self.spoken % 2

    def observe(self, seat: int) -> Observation:
        return Observation("Talk", seat, ())

    def legal_actions(self) -> None:
        return None

    def apply(self, action: str) -> str:
        self.spoken += 1
        if self.spoken == TURNS:
            self.ending = Ending.FINISHED
        return action

    @property
    def returns(self) -> tuple[float, float]:
        return (0.0, 0.0)


class Talker:
    """Asks with random tokens after shared rules, for a reply of a length that the seed decides."""

    name = "talker"

    def __init__(self, median: float, cap: int, grow: bool) -> None:
        self.median, self.cap, self.grow = median, cap, grow

    def ask(self, observation: Observation) -> Request:
        rng = random.Random(observation.seed)
        length = min(self.cap, max(1, round(self.median * rng.lognormvariate(0.0, 1.0))))
        before = tuple(range(10, 10 + RULES))
        if self.grow and observation.turns:
            before = observation.turns[-1].prompt_ids + observation.turns[-1].completion_ids
        news = tuple(rng.randrange(10, VOCABULARY) for _ in range(NEWS))
        return Request(before + news, Sampling(max_new_tokens=length), seed=observation.seed)

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        # Every reply is cut off where the benchmark wants it, which is no forfeit here.
        return Turn("said", prompt_ids=request.prompt_ids, completion_ids=reply.completion_ids)


class Barrier:
    """An engine that answers nobody before it has answered everybody."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: set[int] = set()

    def add(self, ticket: int, request: Request) -> None:
        self._waiting.add(ticket)
        self._engine.add(ticket, request)

    def step(self) -> list[tuple[int, Reply]]:
        answered: list[tuple[int, Reply]] = []
        while len(answered) < len(self._waiting):
            answered += self._engine.step()
        self._waiting.clear()
        return answered

    def abort(self, tickets: Sequence[int]) -> None:
        self._engine.abort(tickets)

    def metrics(self) -> dict[str, float]:
        return self._engine.metrics()


class Recorder:
    """Writes down what an engine is asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.requests: list[Request] = []

    def add(self, ticket: int, request: Request) -> None:
        self.requests.append(request)
        self._engine.add(ticket, request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def games(number: int, talker: Talker) -> Iterator[Playing]:
    """The same games every time."""
    for counter in range(number):
        yield referee(
            Start(Talk(), (talker, talker), seed=counter, play_seed=derive_seed(0, counter), counter=counter)
        )


def lengths(number: int, talker: Talker) -> list[list[int]]:
    """How long each reply of each game will be."""

    class Silent(Talker):
        def ask(self, observation: Observation) -> Turn:
            length = super().ask(observation).sampling.max_new_tokens
            return Turn("said", completion_ids=(0,) * length)

    silent = Silent(talker.median, talker.cap, grow=False)
    ended = sorted(play(games(number, silent)), key=lambda episode: episode.counter)
    told = []
    for episode in ended:
        turns = [iter(seat.turns) for seat in episode.trajectories]
        told.append([len(next(turns[seat]).completion_ids) for seat in episode.order])
    return told


def steps(told: list[list[int]], in_flight: int) -> tuple[int, int]:
    """Decoding steps with a barrier and without one. The first token of a reply comes with its prompt."""
    with_barrier, waiting = 0, [list(game) for game in told]
    playing = [waiting.pop(0) for _ in range(min(in_flight, len(waiting)))]
    while playing:
        with_barrier += max(game.pop(0) for game in playing) - 1
        playing = [game for game in playing if game]
        while waiting and len(playing) < in_flight:
            playing.append(waiting.pop(0))
    ends: list[int] = []
    for game in told:  # each goes to the slot that is free first
        start = heapq.heappop(ends) if len(ends) >= in_flight else 0
        heapq.heappush(ends, start + sum(game) - len(game))
    return with_barrier, max(ends)


def costs(engine: Engine, talker: Talker, in_flight: int) -> tuple[float, float, float]:
    """Seconds for a prompt and its first token, for a decoding step, and for each row of a step."""
    asked = [talker.ask(Observation("Talk", 0, (), seed=seed)) for seed in range(in_flight)]

    def seconds(rows: int, tokens: int) -> float:
        forced = [replace(request, sampling=Sampling(max_new_tokens=tokens)) for request in asked[:rows]]
        return rows * tokens / speed_of_engine(forced, engine)

    widths = sorted({1, max(1, in_flight // 8), max(1, in_flight // 2), in_flight})
    taken = [(seconds(rows, 33) - seconds(rows, 1)) / 32 for rows in widths]
    middle, mean = sum(widths) / len(widths), sum(taken) / len(taken)
    slope = sum((w - middle) * (t - mean) for w, t in zip(widths, taken, strict=True)) / sum(
        (w - middle) ** 2 for w in widths
    )
    return seconds(in_flight, 1) / in_flight, max(mean - slope * middle, 0.0), max(slope, 0.0)


def bounds(told: list[list[int]], in_flight: int, measured: tuple[float, float, float]) -> tuple[float, float]:
    """Time with a barrier over time without one: if all steps cost the same, and at what they cost here."""
    prompt, step, row = measured
    with_barrier, without = steps(told, in_flight)
    either_way = prompt * sum(map(len, told)) + row * sum(sum(game) - len(game) for game in told)
    return with_barrier / without, (either_way + step * with_barrier) / (either_way + step * without)


def speed_of_play(number: int, talker: Talker, engine: Engine, in_flight: int) -> float:
    """New tokens a second."""
    started = time.perf_counter()
    tokens = sum(
        len(turn.completion_ids)
        for episode in play(games(number, talker), engine, in_flight)
        for seat in episode.trajectories
        for turn in seat.turns
    )
    return tokens / (time.perf_counter() - started)


def speed_of_engine(requests: Sequence[Request], engine: Engine) -> float:
    """New tokens a second, all prompts known."""
    started = time.perf_counter()
    tokens, answered = 0, 0
    for ticket, request in enumerate(requests):
        engine.add(ticket, request)
    while answered < len(requests):
        for _, reply in engine.step():
            tokens += len(reply.completion_ids)
            answered += 1
    return tokens / (time.perf_counter() - started)


def make_model(folder: str, hidden: int, layers: int) -> None:
    """A random Qwen3 with a tokenizer, as vLLM wants a folder to have."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tests.conftest import make_tokenizer

    tokenizer = make_tokenizer(["\\boxed{[1]}"])
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=768,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=max(2, hidden // 64),
            num_key_value_heads=max(1, hidden // 128),
            head_dim=32,
            intermediate_size=3 * hidden,
            max_position_embeddings=8192,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"model: {model.num_parameters() / 1e6:.2f} million parameters, float32, one thread")


@contextmanager
def opened(kind: str, folder: str, in_flight: int, prefix_cache: bool) -> Iterator[Engine]:
    """An engine that decodes up to `in_flight` rows at once and never stops at an end-of-turn token."""
    import torch

    torch.set_num_threads(1)
    if kind == "vllm":
        from vllm import LLM

        from trl_spiral.engines.vllm.colocated import VLLMEngine

        llm = LLM(
            model=folder,
            dtype="float32",
            enforce_eager=True,
            block_size=32,
            max_num_seqs=in_flight,
            max_num_batched_tokens=4096,
            enable_chunked_prefill=False,
            max_model_len=4096,
            enable_prefix_caching=prefix_cache,
            logprobs_mode="processed_logprobs",
        )
        engine = VLLMEngine(llm, options={"ignore_eos": True})
        engine.forget_prompts = llm.reset_prefix_cache  # or whoever plays second would find the first one's
        yield engine
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        return
    from transformers import GenerationConfig, Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    config = GenerationConfig(pad_token_id=2, eos_token_id=None, do_sample=True)
    from trl_spiral.engines.local.transformers import TransformersEngine

    yield TransformersEngine(model, config, max_rows=in_flight)


def compare(
    engine: Engine, talker: Talker, in_flight: int, number: int, repeats: int
) -> tuple[dict[str, float], dict[str, float]]:
    """New tokens a second of each way, the best of several; and how ours used the engine."""
    recorder = Recorder(engine)
    ways: dict[str, Callable[[], float]] = {
        "ours": lambda: speed_of_play(number, talker, recorder, in_flight),
        "barrier": lambda: speed_of_play(number, talker, Barrier(engine), in_flight),
        "one": lambda: speed_of_play(max(1, number // 64), talker, engine, 1),
        "limit": lambda: speed_of_engine(recorder.requests, engine),
    }
    speed_of_play(in_flight, Talker(4.0, 8, False), engine, in_flight)  # warms up
    best = dict.fromkeys(ways, 0.0)
    for _ in range(repeats):
        recorder.requests.clear()
        for name, way in ways.items():
            if hasattr(engine, "forget_prompts"):
                engine.forget_prompts()
            engine.metrics()
            best[name] = max(best[name], way())
            if name == "ours":
                used = engine.metrics()
    return best, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64], help="games at once")
    parser.add_argument("--games", type=int, default=4, help="games, for each of those in flight")
    parser.add_argument("--median", type=float, default=24.0, help="median length of a reply, in tokens")
    parser.add_argument("--cap", type=int, default=256, help="longest reply, in tokens")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--grow", action="store_true", help="prompts hold all that was said before")
    parser.add_argument("--no-prefix-cache", action="store_true", help="of vLLM")
    parser.add_argument("--repeats", type=int, default=1, help="times over; the best of each is shown")
    args = parser.parse_args()

    talker = Talker(args.median, args.cap, args.grow)
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, args.hidden, args.layers)
        print(
            "| in flight | ours | barrier | one | limit | ours/limit | ours/barrier | bound | of the bound | ours/one |"
        )
        print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
        for in_flight in args.in_flight:
            number = args.games * in_flight
            with opened(args.engine, folder, in_flight, not args.no_prefix_cache) as engine:
                best, used = compare(engine, talker, in_flight, number, args.repeats)
                measured = costs(engine, talker, in_flight)
            ours, barrier, one, limit = best.values()
            equal, here = bounds(lengths(number, talker), in_flight, measured)
            print(
                f"| {in_flight} | {ours:.0f} | {barrier:.0f} | {one:.0f} | {limit:.0f} | {ours / limit:.2f} | "
                f"{ours / barrier:.2f} | {here:.2f} | {equal:.2f} | {ours / one:.1f} |",
                flush=True,
            )
            told = [f"{name} {value:.3g}" for name, value in used.items()]
            told += [
                f"{1e3 * seconds:.3g} ms a {what}"
                for what, seconds in zip(("prompt", "step", "row"), measured, strict=True)
            ]
            print("    " + ", ".join(told), file=sys.stderr)


if __name__ == "__main__":
    main()
