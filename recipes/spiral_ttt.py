# /// script
# dependencies = ["trl-spiral"]
# ///
"""
Train a language model on tic-tac-toe by self-play (SPIRAL, https://huggingface.co/papers/2506.24119).

Without arguments, the recipe runs on a laptop. It makes a tiny player, trains it by self-play, and prints its scores
against a random and a perfect player before and after. This takes about ten minutes on two cores, without GPU or
network.

    accelerate launch recipes/spiral_ttt.py

At full size, with SPIRAL's hyper-parameters (8 H100s; never run):

    accelerate launch --config_file accelerate_configs/multi_gpu.yaml recipes/spiral_ttt.py \
        --model_name_or_path Qwen/Qwen3-4B-Base --prompt_style qwen3 --report_to wandb --push_to_hub

Parts of the paper that are left out: the other two games, the math benchmarks, and asynchronous actors. Expected
results and the reasons for the settings: recipes/README.md.
"""

import sys

import torch
from transformers import ProgressCallback
from trl import ModelConfig, get_peft_config

from trl_spiral import (
    EntropyScheduleCallback,
    SelfPlayProgressCallback,
    SpiralConfig,
    SpiralParser,
    SpiralTrainer,
    TicTacToeCallback,
    TinyPlayerRecipe,
    TranscriptCallback,
    check_fresh_pool,
    check_vllm,
    is_set,
    make_tiny_player,
    reserve_output_dir,
)


EVAL_TEMPERATURE = 0.25  # for evaluation; training samples at 1.0

LAPTOP = dict(
    output_dir="spiral-ttt",
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,  # 0.2M parameters fit in memory
    # Few large batches: on a CPU, the fixed cost of a step equals hundreds of turns.
    max_steps=320,
    per_device_train_batch_size=768,
    steps_per_generation=4,
    num_iterations=1,
    max_completion_length=2,  # the move and the end of turn
    learning_rate=2e-3,
    warmup_steps=10,
    # Random openings reach positions that self-play would avoid. Without them, both seats settle on one line.
    opening_moves=7,
    # One game in five against one of eight snapshots: many recent ones, a few old ones.
    opponents="self:0.8,pool:0.2",
    pool_every=20,
    pool_capacity=8,
    pool_kwargs={"eviction": "ladder"},
    # Advantages from the value of the position after the move, in a table primed by random play.
    advantage_estimator="position",
    priming_games=5000,
    # Entropy bonus on the move: of a reply's two tokens, the one with more entropy. It decays to 0.
    top_entropy_quantile=0.5,
    entropy_coef=0.05,
    # Below the return of a loss, so that it also costs in lost positions. The other seat does not learn from it.
    forfeit=[-2.0, 1.0],
    winner_learns_from_forfeit=False,
    logging_steps=20,
    save_steps=160,
    report_to="none",
)

PAPER = dict(
    output_dir="spiral-ttt-full",
    max_steps=400,
    learning_rate=1e-6,
    lr_scheduler_type="constant",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_iterations=2,
    max_completion_length=4096,
    logging_steps=1,
    save_steps=50,
)


def main(args: SpiralConfig, model_args: ModelConfig) -> None:
    # Check first: making the tiny player takes minutes.
    reserve_output_dir(args)
    check_vllm(args)
    if not args.resume_from_checkpoint:
        check_fresh_pool(args)
    tiny = model_args.model_name_or_path is None
    if tiny:
        # A step takes 1.15 s on one thread and 0.89 s on two; more threads do not help.
        torch.set_num_threads(min(torch.get_num_threads(), 2))
    trainer = SpiralTrainer(
        model=make_tiny_player(TinyPlayerRecipe(seed=args.seed)) if tiny else model_args.model_name_or_path,
        args=args,
        peft_config=get_peft_config(model_args),
    )
    grades = TicTacToeCallback(trainer, (EVAL_TEMPERATURE, 1.0), every=80 if tiny else 50, games=None if tiny else 100)
    trainer.add_callback(grades)
    trainer.add_callback(TranscriptCallback(trainer, every=40, temperature=EVAL_TEMPERATURE))
    if tiny and args.entropy_coef:
        trainer.add_callback(EntropyScheduleCallback(trainer, end=0.0))
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(SelfPlayProgressCallback)

    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)

    if trainer.is_world_process_zero():
        trainer.results_table = grades.table()
        print(f"\n{trainer.results_table}\n\nModel, metrics and transcripts: {args.output_dir}")
    trainer.save_model(args.output_dir)
    trainer.save_state()
    trainer.create_model_card(model_name="spiral-ttt")
    if args.push_to_hub:
        trainer.push_to_hub()


def parse(arguments: list[str]) -> tuple[SpiralConfig, ModelConfig]:
    """Parse the command line, with the settings above as defaults."""
    parser = SpiralParser((SpiralConfig, ModelConfig))
    full_size = is_set(parser, arguments, "model_name_or_path")
    parser.set_defaults(**(PAPER if full_size else LAPTOP))
    return parser.parse_args_and_config(arguments)


if __name__ == "__main__":
    main(*parse(sys.argv[1:]))
