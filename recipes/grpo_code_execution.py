# /// script
# dependencies = ["trl-spiral"]
# ///
"""
Train a language model with GRPO to write programs that run. A sandbox runs them, and the result is the reward.

Without arguments, the recipe runs on a laptop. It makes a tiny coder that writes faulty programs five times out of
six, and prints the scores on held-out exercises before and after training. This takes a few minutes on two cores,
without GPU or network.

    accelerate launch recipes/grpo_code_execution.py

A program that runs can be trivial, such as `print(1)`. To penalize trivial programs and reward correct ones too
(with weights `0 1`, only correct ones):

    accelerate launch recipes/grpo_code_execution.py --triviality_penalty 0.75 --reward_weights 1 1

At full size (never run). Precision and batch size are chosen for the GPU unless they are set:

    accelerate launch recipes/grpo_code_execution.py --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct --report_to wandb

On several nodes: recipes/spiral.slurm. Expected results: recipes/README.md.
"""

import sys
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from trl import ModelConfig, TrlParser, get_peft_config

from trl_spiral import (
    AlgorithmConfig,
    AlgorithmTrainer,
    ExecutionReward,
    LocalSandbox,
    UnitTestReward,
    is_set,
    make_tiny_coder,
    parse_for_platform,
    reserve_output_dir,
)
from trl_spiral.rewards import REWARD_LIMITS
from trl_spiral.tiny.lessons import Exercise, clumsy_lessons, make_exercises


@dataclass
class CodeArguments:
    exercises: int = field(default=1000, metadata={"help": "Exercises to train on, of 108 kinds."})
    test_exercises: int = field(default=56, metadata={"help": "Held-out exercises for evaluation, of 28 other kinds."})
    triviality_penalty: float = field(
        default=0.0, metadata={"help": "Subtracted from the reward of a program that runs but computes nothing."}
    )


BOTH = dict(
    reward_weights=[1.0, 0.0],  # reward programs that run; log correctness without rewarding it
    log_completions=True,  # with the columns `code`, `verdict` and `tests`
    num_completions_to_print=1,
    report_to="none",
)

LAPTOP = dict(
    **BOTH,
    output_dir="grpo-code",
    use_cpu=True,
    gradient_checkpointing=False,  # 0.2M parameters fit in memory
    max_steps=40,
    per_device_train_batch_size=64,
    per_device_eval_batch_size=112,
    num_generations=8,
    max_completion_length=48,
    learning_rate=1e-3,
    logging_steps=10,
    save_strategy="no",
)

FULL = dict(
    **BOTH,
    output_dir="grpo-code-full",
    use_peft=True,
    lora_r=16,
    lora_alpha=32,
    learning_rate=2e-5,
    num_generations=2,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    gradient_accumulation_steps=4,
    max_completion_length=512,
    max_steps=200,
    logging_steps=5,
    save_steps=50,
)


def main(code_args: CodeArguments, args: AlgorithmConfig, model_args: ModelConfig) -> None:
    reserve_output_dir(args)
    train = make_exercises(code_args.exercises, args.seed)
    test = make_exercises(code_args.test_exercises, args.seed, split="test")
    with LocalSandbox(REWARD_LIMITS) as sandbox:
        rewards = [
            ExecutionReward(sandbox, triviality_penalty=code_args.triviality_penalty),
            UnitTestReward(sandbox),
        ]
        model, tokenizer = model_args.model_name_or_path, None
        if model is None:
            torch.set_num_threads(min(torch.get_num_threads(), 2))
            model, tokenizer = make_tiny_coder(clumsy_lessons(train, 4000, args.seed), args.seed, batch_size=32)
        trainer = AlgorithmTrainer(
            model=model,
            args=args,
            processing_class=tokenizer,
            reward_funcs=rewards,
            train_dataset=rows(train),
            eval_dataset=rows(test),
            peft_config=get_peft_config(model_args),
        )
        grades = [grade(trainer)]
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        grades.append(grade(trainer))

    if trainer.is_world_process_zero():
        print(f"\n{table(grades)}\n\nModel and completions: {args.output_dir}")
    trainer.save_model(args.output_dir)
    trainer.save_state()


def rows(exercises: list[Exercise]) -> Dataset:
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": exercise.question}], "test_list": list(exercise.tests)}
            for exercise in exercises
        ]
    )


def grade(trainer: AlgorithmTrainer) -> dict[str, float]:
    trainer.evaluate()
    return trainer.state.log_history[-1]


def table(grades: list[dict[str, float]]) -> str:
    """Return the scores on held-out exercises as a Markdown table."""
    lines = ["| | reward | ran | syntax errors | tests passed |", "|---|---:|---:|---:|---:|"]
    for when, log in zip(("before", "after"), grades, strict=True):
        ran, wrong = log["eval_execution/success_rate"], log["eval_execution/syntax_error_rate"]
        reward, right = log["eval_execution/avg_batch_reward"], log["eval_unit_tests/pass_rate"]
        lines.append(f"| {when} | {reward:+.2f} | {100 * ran:.1f} % | {100 * wrong:.1f} % | {100 * right:.1f} % |")
    return "\n".join(lines)


def parse(arguments: list[str]) -> tuple[CodeArguments, AlgorithmConfig, ModelConfig]:
    """Parse the command line, with the settings above, adapted to the machine, as defaults."""
    parser = TrlParser((CodeArguments, AlgorithmConfig, ModelConfig))
    full_size = is_set(parser, arguments, "model_name_or_path")
    return parse_for_platform(parser, arguments, FULL if full_size else LAPTOP)


if __name__ == "__main__":
    main(*parse(sys.argv[1:]))
