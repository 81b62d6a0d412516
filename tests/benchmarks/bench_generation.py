"""
New tokens per second of asynchronous games on one engine, for the same games in one run:

* ours: each reply continues its game at once;
* barrier: all games wait for the longest reply of a turn;
* one: one game at a time;
* limit: no games, the engine gets all prompts of our run in advance.

Reply lengths are log-normal (sigma 1, capped), drawn by seed and forced. They bound the gain over the barrier. `bound`
assumes that the time of a decoding step does not depend on the number of rows, as on a large GPU. `bound here` uses
the measured times of prompts and steps on this engine: on a CPU each row takes time, so finished rows make the steps
of a barrier cheaper.

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

sys.path.insert(0, str(Path(__file__).parents[2]))  # the project root, for `tests` and `trl_spiral`

from trl_spiral.games import Game, Match, Traits
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Engine, Playing, Start, play, referee
from trl_spiral.types import Ending, Observation, Reply, Request, Sampling, Turn


RULES, NEWS = 48, 24  # tokens of the shared rules, and of the new part of each turn
TURNS = 6
VOCABULARY = 700


class Talk(Game):
    """Two seats talk in turn for a fixed number of turns. Any text is legal."""

    name, traits = "Talk", Traits(zero_sum=False)

    def start(self, seed: int) -> TalkMatch:
        return TalkMatch()

    def canonical(self, action: str) -> str:
        return action


class TalkMatch(Match):
    """One match, which counts turns."""

    def __init__(self) -> None:
        self.turns = 0

    @property
    def to_move(self) -> int | None:
        return None if self.ending else self.turns % 2

    def observe(self, seat: int) -> Observation:
        return Observation("Talk", seat, ())

    def legal_actions(self) -> None:
        return None

    def apply(self, action: str) -> str:
        self.turns += 1
        if self.turns == TURNS:
            self.ending = Ending.FINISHED
        return action

    @property
    def returns(self) -> tuple[float, float]:
        return (0.0, 0.0)


class Talker:
    """A player with random prompts after shared rules, and reply lengths drawn by seed."""

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
        # The benchmark truncates every reply, which is no forfeit here.
        return Turn("said", prompt_ids=request.prompt_ids, completion_ids=reply.completion_ids)


class Barrier:
    """An engine that returns replies when all requests are done."""

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
    """An engine that records requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.requests: list[Request] = []

    def add(self, ticket: int, request: Request) -> None:
        self.requests.append(request)
        self._engine.add(ticket, request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def games(number: int, talker: Talker) -> Iterator[Playing]:
    """Yield the same games at every call."""
    for counter in range(number):
        yield referee(
            Start(Talk(), (talker, talker), seed=counter, play_seed=derive_seed(0, counter), counter=counter)
        )


def lengths(number: int, talker: Talker) -> list[list[int]]:
    """Return the length of each reply of each game."""

    class Silent(Talker):
        def ask(self, observation: Observation) -> Turn:
            length = super().ask(observation).sampling.max_new_tokens
            return Turn("said", completion_ids=(0,) * length)

    silent = Silent(talker.median, talker.cap, grow=False)
    ended = sorted(play(games(number, silent)), key=lambda episode: episode.counter)
    found = []
    for episode in ended:
        turns = [iter(seat.turns) for seat in episode.trajectories]
        found.append([len(next(turns[seat]).completion_ids) for seat in episode.order])
    return found


def steps(replies: list[list[int]], in_flight: int) -> tuple[int, int]:
    """Return the decoding steps with and without a barrier. The prompt yields the first token of a reply."""
    with_barrier, waiting = 0, [list(game) for game in replies]
    playing = [waiting.pop(0) for _ in range(min(in_flight, len(waiting)))]
    while playing:
        with_barrier += max(game.pop(0) for game in playing) - 1
        playing = [game for game in playing if game]
        while waiting and len(playing) < in_flight:
            playing.append(waiting.pop(0))
    ends: list[int] = []
    for game in replies:  # each game takes the first free slot
        start = heapq.heappop(ends) if len(ends) >= in_flight else 0
        heapq.heappush(ends, start + sum(game) - len(game))
    return with_barrier, max(ends)


def costs(engine: Engine, talker: Talker, in_flight: int) -> tuple[float, float, float]:
    """Return the seconds per prompt with its first token, per decoding step, and per row of a step."""
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


def bounds(replies: list[list[int]], in_flight: int, measured: tuple[float, float, float]) -> tuple[float, float]:
    """Return the ratio of times with and without a barrier: for steps of equal time, and for measured times."""
    prompt, step, row = measured
    with_barrier, without = steps(replies, in_flight)
    either_way = prompt * sum(map(len, replies)) + row * sum(sum(game) - len(game) for game in replies)
    return with_barrier / without, (either_way + step * with_barrier) / (either_way + step * without)


def speed_of_play(number: int, talker: Talker, engine: Engine, in_flight: int) -> float:
    """Return the new tokens per second of games."""
    started = time.perf_counter()
    tokens = sum(
        len(turn.completion_ids)
        for episode in play(games(number, talker), engine, in_flight)
        for seat in episode.trajectories
        for turn in seat.turns
    )
    return tokens / (time.perf_counter() - started)


def speed_of_engine(requests: Sequence[Request], engine: Engine) -> float:
    """Return the new tokens per second of prompts that are known in advance."""
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
    """Save a random Qwen3 model with a tokenizer, as vLLM requires."""
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
    """Open an engine that decodes up to `in_flight` rows at once and ignores end-of-turn tokens."""
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
        engine.forget_prompts = llm.reset_prefix_cache  # else later runs would reuse prompts of earlier ones
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
    """Return the best new tokens per second of each way, and the engine's metrics in ours."""
    recorder = Recorder(engine)
    ways: dict[str, Callable[[], float]] = {
        "ours": lambda: speed_of_play(number, talker, recorder, in_flight),
        "barrier": lambda: speed_of_play(number, talker, Barrier(engine), in_flight),
        "one": lambda: speed_of_play(max(1, number // 64), talker, engine, 1),
        "limit": lambda: speed_of_engine(recorder.requests, engine),
    }
    speed_of_play(in_flight, Talker(4.0, 8, False), engine, in_flight)  # warmup
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
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64], help="concurrent games")
    parser.add_argument("--games", type=int, default=4, help="games per concurrent game")
    parser.add_argument("--median", type=float, default=24.0, help="median length of a reply, in tokens")
    parser.add_argument("--cap", type=int, default=256, help="longest reply, in tokens")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--grow", action="store_true", help="prompts contain all earlier turns")
    parser.add_argument("--no-prefix-cache", action="store_true", help="without vLLM's prefix cache")
    parser.add_argument("--repeats", type=int, default=1, help="repeats; the best is shown")
    args = parser.parse_args()

    talker = Talker(args.median, args.cap, args.grow)
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, args.hidden, args.layers)
        print(
            "| in flight | ours | barrier | one | limit | ours/limit | ours/barrier | bound here | bound | ours/one |"
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
            notes = [f"{name} {value:.3g}" for name, value in used.items()]
            notes += [
                f"{1e3 * seconds:.3g} ms per {what}"
                for what, seconds in zip(("prompt", "step", "row"), measured, strict=True)
            ]
            print("    " + ", ".join(notes), file=sys.stderr)


if __name__ == "__main__":
    main()
