# /// script
# dependencies = ["trl-spiral"]
# ///
"""
Train a language model on the Tower of Hanoi, between any two arrangements. `--algorithm` selects the algorithm.

Without arguments, the recipe runs on a laptop. It makes a tiny model that has seen random moves and their results, and
trains it on up to three disks. Held-out pairs of arrangements are scored before and after training. This takes a few
minutes on two cores, without GPU or network.

    accelerate launch recipes/grpo_hanoi.py
    accelerate launch recipes/grpo_hanoi.py --algorithm reinforce --reinforce_baseline ema

At full size (never run):

    accelerate launch --config_file accelerate_configs/multi_gpu.yaml recipes/grpo_hanoi.py \
        --model_name_or_path Qwen/Qwen3-4B --disks 3 4 5 --report_to wandb

Expected results: recipes/README.md.
"""

import random
import sys
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from trl import ModelConfig, TrlParser, get_peft_config

from trl_spiral import (
    AlgorithmConfig,
    AlgorithmTrainer,
    TaskReward,
    is_set,
    make_tiny_solver,
    reserve_output_dir,
    task_dataset,
)
from trl_spiral.tasks.hanoi import TOKENS_PER_MOVE, Hanoi, moves_from, split_of


LAPTOP = dict(
    output_dir="grpo-hanoi",
    disks=[1, 2, 3],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,  # 0.2M parameters fit in memory
    max_steps=250,
    per_device_train_batch_size=128,
    per_device_eval_batch_size=256,
    num_generations=8,
    num_generations_eval=1,
    max_completion_length=24,  # seven moves, separators and the end of turn
    learning_rate=1e-3,  # decays to 0
    logging_steps=20,
    save_steps=250,
    report_to="none",
)

FULL = dict(
    output_dir="grpo-hanoi-full",
    disks=[3, 4, 5],
    max_steps=500,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=8,
    num_generations=8,
    num_generations_eval=1,
    max_completion_length=4096,
    learning_rate=1e-6,
    logging_steps=1,
    save_steps=50,
)


@dataclass
class Puzzles:
    """Problems to train and to evaluate on."""

    disks: list[int] = field(default_factory=lambda: [3, 4, 5], metadata={"help": "Numbers of disks."})
    problems: int = field(default=20_000, metadata={"help": "Problems to train on."})
    held_out: int = field(default=512, metadata={"help": "Held-out problems to score before and after."})


def main(puzzles: Puzzles, args: AlgorithmConfig, model_args: ModelConfig) -> None:
    reserve_output_dir(args)
    model, tokenizer = model_args.model_name_or_path, None
    tokens_per_move = 2 if model is None else TOKENS_PER_MOVE  # a move and a comma for the tiny model
    task = Hanoi(puzzles.disks, completion_tokens=args.max_completion_length, tokens_per_move=tokens_per_move)
    if model is None:
        torch.set_num_threads(min(torch.get_num_threads(), 2))
        atoms = r"disk [0-9] on peg [0-9]|\[[0-9], [0-9], [0-9]\]"
        model, tokenizer = make_tiny_solver(lessons(task, args.seed), atoms, args.seed)
    trainer = AlgorithmTrainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        reward_funcs=TaskReward(task),
        train_dataset=Dataset.from_list(task_dataset(task, "train", puzzles.problems, args.seed)),
        eval_dataset=Dataset.from_list(task_dataset(task, "validation", puzzles.held_out)),
        peft_config=get_peft_config(model_args),
    )
    before = trainer.evaluate()
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    after = trainer.evaluate()

    if trainer.is_world_process_zero():
        # Up to three disks have about 160 held-out problems, so many repeat. Only distinct ones count as evidence.
        distinct = len(set(trainer.eval_dataset["problem"]))
        for when, scores in (("before", before), ("after", after)):
            margin = 1.96 * scores["eval_reward_std"] / distinct**0.5
            solved = scores[f"eval_{task.name}/solved"]
            print(f"{when}: mean score {scores['eval_reward']:.3f} ± {margin:.3f}, solved {100 * solved:.1f} %")
    trainer.save_model(args.output_dir)


def lessons(task: Hanoi, seed: int) -> list[tuple[list[dict[str, str]], str]]:
    """
    Supervised examples for the tiny model: random walks, each an answer to the problem of reaching its end.

    They teach what moves do, not the shortest way. No example answers a held-out problem.
    """
    rng = random.Random(seed)
    taught = []
    while len(taught) < 20_000:
        (disks,) = rng.choices(task.disks, [3**number for number in task.disks])  # as the task draws them
        start = tuple(rng.choices(range(3), k=disks))
        moves, state, last = [], start, 0
        for _ in range(rng.randint(1, 2 ** len(start) - 1)):
            ways = moves_from(state)
            disk, origin, to = rng.choice([move for move in ways if move[0] != last] or ways)
            moves.append([disk, origin, to])
            state, last = (*state[: disk - 1], to, *state[disk:]), disk
        if state != start and split_of(start, state) == "train":
            taught.append((list(task.problem(start, state).messages), str(moves)))
    return taught


def parse(arguments: list[str]) -> tuple[Puzzles, AlgorithmConfig, ModelConfig]:
    """Parse the command line, with the settings above as defaults."""
    parser = TrlParser((Puzzles, AlgorithmConfig, ModelConfig))
    full_size = is_set(parser, arguments, "model_name_or_path")
    parser.set_defaults(**(FULL if full_size else LAPTOP))
    return parser.parse_args_and_config(arguments)


if __name__ == "__main__":
    main(*parse(sys.argv[1:]))
