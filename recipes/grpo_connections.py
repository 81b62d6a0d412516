# /// script
# dependencies = ["trl-spiral"]
# ///
"""
Train a language model on Connections, a puzzle of sorting words into groups. `--algorithm` selects the algorithm.

Without arguments, the recipe runs on a laptop. It makes a tiny model that has learned which words belong together and
has seen 6,000 solved puzzles, and trains it on puzzles of two groups of three words. Before and after training, it is
scored on puzzles of held-out categories, of which it has only learned the words. This takes some minutes on two cores,
without GPU or network.

    accelerate launch recipes/grpo_connections.py
    accelerate launch recipes/grpo_connections.py --algorithm gpg

At full size, with the whole puzzle of sixteen words (never run):

    accelerate launch --config_file accelerate_configs/multi_gpu.yaml recipes/grpo_connections.py \
        --model_name_or_path Qwen/Qwen3-4B --task connections --report_to wandb

Expected results: recipes/README.md.
"""

import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from trl import ModelConfig, TrlParser, get_peft_config

from trl_spiral import (
    AlgorithmConfig,
    AlgorithmTrainer,
    TaskReward,
    get_task,
    is_set,
    make_tiny_solver,
    reserve_output_dir,
    task_dataset,
)
from trl_spiral.tasks.connections import Connections


LAPTOP = dict(
    output_dir="grpo-connections",
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,  # 0.2M parameters fit in memory
    max_steps=300,
    per_device_train_batch_size=128,
    per_device_eval_batch_size=256,
    num_generations=8,
    num_generations_eval=1,
    max_completion_length=16,  # six words, separators and the end of turn
    learning_rate=1e-3,  # decays to 0
    logging_steps=20,
    save_steps=300,
    report_to="none",
)

FULL = dict(
    output_dir="grpo-connections-full",
    max_steps=500,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=8,
    num_generations=8,
    num_generations_eval=1,
    max_completion_length=2048,
    learning_rate=1e-6,
    logging_steps=1,
    save_steps=50,
)


@dataclass
class Puzzles:
    """Puzzles to train and to evaluate on."""

    task: str = field(default="connections-small", metadata={"help": "Name of the task."})
    problems: int = field(default=20_000, metadata={"help": "Puzzles to train on."})
    held_out: int = field(default=512, metadata={"help": "Puzzles of held-out categories to score before and after."})


def main(puzzles: Puzzles, args: AlgorithmConfig, model_args: ModelConfig) -> None:
    reserve_output_dir(args)
    task, model, tokenizer = get_task(puzzles.task), model_args.model_name_or_path, None
    if not isinstance(task, Connections):
        raise ValueError(
            f"`task` ({puzzles.task!r}) is not a Connections task. Choose 'connections' or a name that begins with it."
        )
    if model is None:
        longest = 2 * task.groups * task.size  # a token of the tiny model is a word or a separator
        if longest > args.max_completion_length:
            raise ValueError(
                f"An answer to {task.name!r} has {longest} tokens of the tiny model, and `max_completion_length` is "
                f"{args.max_completion_length}. Name a model, choose 'connections-small', or increase the limit."
            )
        torch.set_num_threads(min(torch.get_num_threads(), 2))
        atoms = rf"\b(?:{'|'.join(word for words in task.categories.values() for word in words)})\b"
        model, tokenizer = make_tiny_solver(lessons(task, args.seed), atoms, args.seed, steps=2000, tied=True)
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
        for when, scores in (("before", before), ("after", after)):
            margin = 1.96 * scores["eval_reward_std"] / puzzles.held_out**0.5
            solved = scores[f"eval_{task.name}/solved"]
            print(f"{when}: mean score {scores['eval_reward']:.3f} ± {margin:.3f}, solved {100 * solved:.1f} %")
    trainer.save_model(args.output_dir)


def lessons(task: Connections, seed: int) -> list[tuple[list[dict[str, str]], str]]:
    """
    Supervised examples for the tiny model: words of each category, words to repeat, and puzzles for training.

    The words of held-out categories are included, as a large model would know them, but never in a puzzle.
    """
    rng = random.Random(seed)
    taught = []
    for words in task.categories.values():
        for _ in range(100):
            like, *others = rng.sample(words, task.size + 1)
            taught.append(([{"role": "user", "content": f"Words like {like}."}], ", ".join(others)))
    known = [word for words in task.categories.values() for word in words]
    for _ in range(5000):
        words = rng.sample(known, task.groups * task.size)
        groups = [words[start : start + task.size] for start in range(0, len(words), task.size)]
        taught.append(([{"role": "user", "content": f"Repeat: {', '.join(words)}"}], _written(groups)))
    for problem in task.problems("train", 6000, seed):
        of = {word: name for name, words in problem.data["groups"].items() for word in words}
        sorted_words: dict[str, list[str]] = {}
        for word in problem.data["words"]:  # answers in the order of the question are learned fastest
            sorted_words.setdefault(of[word], []).append(word)
        taught.append((list(problem.messages), _written(sorted_words.values())))
    return taught


def _written(groups: Iterable[Iterable[str]]) -> str:
    return "; ".join(map(", ".join, groups))


def parse(arguments: list[str]) -> tuple[Puzzles, AlgorithmConfig, ModelConfig]:
    """Parse the command line, with the settings above as defaults."""
    parser = TrlParser((Puzzles, AlgorithmConfig, ModelConfig))
    full_size = is_set(parser, arguments, "model_name_or_path")
    parser.set_defaults(**(FULL if full_size else LAPTOP))
    return parser.parse_args_and_config(arguments)


if __name__ == "__main__":
    main(*parse(sys.argv[1:]))
