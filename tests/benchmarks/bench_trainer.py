"""
Step time of `SpiralTrainer` compared with a plain `GRPOTrainer` on the same rows.

Both train the same tiny model on rows that were played before, so games and generation are excluded. The two alternate
several times, and each pair of median step times gives one ratio.

    python tests/benchmarks/bench_trainer.py
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path


os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

sys.path.insert(0, str(Path(__file__).parents[2]))  # the project root, for `tests` and `trl_spiral`

import torch
from transformers import TrainerCallback
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer

from trl_spiral import SelfPlayRollout, SpiralConfig, SpiralTrainer
from trl_spiral.selfplay.batch import Batch
from trl_spiral.tiny.player import TinyPlayerRecipe, make_tiny_player


class StepTimes(TrainerCallback):
    """Seconds between the ends of steps: generation batches, forward, backward and optimizer."""

    def __init__(self):
        self.ends = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())

    def cycles(self, steps):
        """Return the mean step time of each generation cycle except the first, the warmup."""
        ends = self.ends[steps - 1 :: steps]
        return [(b - a) / steps for a, b in zip(ends, ends[1:], strict=False)]


def config(cls, folder, rows, steps, **extra):
    return cls(
        folder,
        per_device_train_batch_size=rows,
        steps_per_generation=4,
        num_iterations=1,
        max_steps=4 * steps,
        max_completion_length=4,
        learning_rate=1e-4,
        loss_type="dr_grpo",
        scale_rewards="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        **extra,
    )


def spiral(model, folder, rows, steps, batch):
    trainer = SpiralTrainer(model, config(SpiralConfig, folder, rows, steps))

    trainer.rollout.collector.collect = lambda needed, *args, **kwargs: Batch(batch[:needed])
    return trainer


def plain(model, folder, rows, steps, batch):
    def replay(prompts, trainer):
        taken = batch[: len(prompts)]
        return {
            "prompt_ids": [row.prompt_ids for row in taken],
            "completion_ids": [row.completion_ids for row in taken],
            "logprobs": [row.logprobs for row in taken],
            "env_mask": [row.mask for row in taken],
            "gain": [row.reward for row in taken],
        }

    return GRPOTrainer(
        model,
        reward_funcs=lambda gain, **kwargs: gain,
        args=config(GRPOConfig, folder, rows, steps, num_generations=4 * rows),
        train_dataset=SelfPlayRollout("TicTacToe-v0").dataset(4 * rows),
        rollout_func=replay,
    )


def rows_of(model, folder, rows):
    """Return the rows of one batch of games."""
    trainer = SpiralTrainer(model, config(SpiralConfig, folder, rows, 1, opening_moves=7))
    trainer.train()
    return trainer.rollout.batch.rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=256, help="Rows per step.")
    parser.add_argument("--cycles", type=int, default=8, help="Generation cycles of four steps per run.")
    parser.add_argument("--repeats", type=int, default=5, help="Runs of each trainer.")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    model = make_tiny_player(TinyPlayerRecipe(steps=60))
    with tempfile.TemporaryDirectory() as folder:
        batch = rows_of(model, folder, args.rows)
        ratios = []
        print(f"{args.rows} rows per step, {args.cycles} cycles of 4 steps; milliseconds per step")
        for repeat in range(args.repeats):
            medians = {}
            # Alternate the order, so that a machine that slows down favors neither.
            for make in (spiral, plain) if repeat % 2 else (plain, spiral):
                trainer, times = make(model, folder, args.rows, args.cycles, batch), StepTimes()
                trainer.add_callback(times)
                trainer.train()
                medians[make.__name__] = statistics.median(times.cycles(4))
            ratios.append(medians["spiral"] / medians["plain"])
            print(
                f"  SpiralTrainer {1e3 * medians['spiral']:7.2f}   GRPOTrainer {1e3 * medians['plain']:7.2f}"
                f"   ratio {ratios[-1]:.3f}"
            )
        print(f"ratio: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
