# /// script
# dependencies = ["trl-spiral"]
# ///
"""
A language model learns true Kuhn poker by playing itself, and how far it is from perfect play is known exactly.

On a laptop, without arguments: makes a tiny player on the spot, which knows the rules and no strategy, lets it play itself,
and prints its exploitability before and after: what a perfect opponent would win from it, in chips a game. Within 20 minutes
on two cores, no GPU, no network.

    accelerate launch recipes/spiral_kuhn.py

Leduc poker, with 936 decisions instead of 12:

    accelerate launch recipes/spiral_kuhn.py --games Leduc-v0

At full size (not run by us):

    accelerate launch --config_file accelerate_configs/multi_gpu.yaml recipes/spiral_kuhn.py \
        --model_name_or_path Qwen/Qwen3-4B-Base --prompt_style qwen3 --report_to wandb

The method, what to expect, and why the settings are what they are: recipes/README.md.
"""

import sys

import torch
from transformers import ProgressCallback
from trl import ModelConfig, TrlParser, get_peft_config

from trl_spiral import (
    ExploitabilityCallback,
    SelfPlayProgressCallback,
    SpiralConfig,
    SpiralTrainer,
    TinyPlayerRecipe,
    TranscriptCallback,
    check_reference,
    check_vllm,
    explicit,
    is_set,
    make_tiny_player,
    reserve_output_dir,
)


# Two players who both climb their own gain circle around an equilibrium. A pull towards a reference that follows slowly turns
# the circle into a spiral that ends there (R-NaD, https://arxiv.org/abs/2206.15378; magnetic mirror descent,
# https://huggingface.co/papers/2206.05825). TRL has all it takes.
PULLED = dict(
    beta=0.5,
    sync_ref_model=True,
    ref_model_mixup_alpha=0.2,
    ref_model_sync_steps=10,
)

LAPTOP = dict(
    **PULLED,
    output_dir="spiral-kuhn",
    games=["Kuhn-v0"],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,  # 0.2M parameters: memory is no concern
    max_steps=1000,
    per_device_train_batch_size=256,
    steps_per_generation=2,
    num_iterations=1,
    max_completion_length=2,  # the move and the end of turn
    learning_rate=1e-3,  # and from there to 0
    warmup_steps=10,
    # What a hand is worth is mostly its card: a move is judged by the game's return, less what its position has been worth.
    advantage_estimator="position",
    position_trace=1.0,
    priming_games=2000,
    # Worse than the worst that can be lost, 2 chips; and it teaches the other seat nothing.
    illegal_move_return=-3.0,
    winner_learns_from_forfeit=False,
    logging_steps=50,
    save_steps=500,
    report_to="none",
)

# More is at stake in Leduc poker, up to 13 chips, so the pull must be stronger: at 0.5 the policy ends up calling everything.
LEDUC = {**LAPTOP, "output_dir": "spiral-leduc", "games": ["Leduc-v0"], "beta": 2.0, "illegal_move_return": -14.0}

PAPER = dict(
    **PULLED,
    output_dir="spiral-kuhn-full",
    games=["Kuhn-v0"],
    max_steps=400,
    learning_rate=1e-6,
    lr_scheduler_type="constant",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_iterations=2,
    max_completion_length=4096,
    illegal_move_return=-3.0,
    logging_steps=1,
    save_steps=50,
)


def main(args: SpiralConfig, model_args: ModelConfig) -> None:
    # Now, rather than when the tiny player has been made.
    reserve_output_dir(args)
    check_vllm(args)
    check_reference(args, get_peft_config(model_args))
    tiny = model_args.model_name_or_path is None
    if tiny:
        torch.set_num_threads(min(torch.get_num_threads(), 2))
        player = make_tiny_player(TinyPlayerRecipe(games=tuple(args.games), seed=args.seed, steps=240, reading=0.5))
    trainer = SpiralTrainer(
        model=player if tiny else model_args.model_name_or_path,
        args=args,
        peft_config=get_peft_config(model_args),
    )
    # A tiny player's replies are moves and nothing else, so its probabilities are exact; others are asked for samples.
    grades = ExploitabilityCallback(trainer, args.games, every=50, samples=None if tiny else 32)
    trainer.add_callback(grades)
    trainer.add_callback(TranscriptCallback(trainer, args.games[0], every=100, temperature=1.0))
    if not args.live:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(SelfPlayProgressCallback)

    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)

    if trainer.is_world_process_zero():
        trainer.results_table = table(grades, args.games)
        print(f"\n{trainer.results_table}\n\nModel, metrics, policy tables and transcripts: {args.output_dir}")
    trainer.save_model(args.output_dir)
    trainer.save_state()
    trainer.create_model_card(model_name="spiral-kuhn")
    if args.push_to_hub:
        trainer.push_to_hub()


def table(grades: ExploitabilityCallback, games: list[str]) -> str:
    """Markdown: the curve of each game, before and after in its first and last row."""
    lines = [
        "Chips a game that a perfect opponent wins above the value of the game; 0 is perfect play.",
        "",
        "| game | step | exploitability | of the average so far | illegal |",
        "|---|---:|---:|---:|---:|",
    ]
    for game in games:
        for entry in grades.curve:
            policy, average, illegal = (
                entry[f"exploitability/{game}/{name}"]
                for name in ("exploitability", "average_exploitability", "illegal")
            )
            lines.append(f"| {game} | {entry['step']} | {policy:.3f} | {average:.3f} | {100 * illegal:.2f} % |")
    return "\n".join(lines)


def parse(arguments: list[str]) -> tuple[SpiralConfig, ModelConfig]:
    """What was asked for, and the settings above for the rest."""
    parser = TrlParser((SpiralConfig, ModelConfig))
    full_size = is_set(parser, arguments, "model_name_or_path")
    leduc = "Leduc-v0" in (explicit(parser, arguments, "games") or ())
    parser.set_defaults(**(PAPER if full_size else LEDUC if leduc else LAPTOP))
    return parser.parse_args_and_config(arguments)


if __name__ == "__main__":
    main(*parse(sys.argv[1:]))
