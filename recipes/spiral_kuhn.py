# /// script
# dependencies = ["trl-spiral"]
# ///
"""
Train a language model on Kuhn poker by self-play, and measure its exact distance from perfect play.

Without arguments, the recipe runs on a laptop. It makes a tiny player that knows the rules and no strategy, trains it
by self-play, and prints its exploitability before and after: the chips per game that a perfect opponent would win.
This takes up to 20 minutes on two cores, without GPU or network.

    accelerate launch recipes/spiral_kuhn.py

Leduc poker, with 936 decisions instead of 12:

    accelerate launch recipes/spiral_kuhn.py --games Leduc-v0

At full size (never run):

    accelerate launch --config_file accelerate_configs/multi_gpu.yaml recipes/spiral_kuhn.py \
        --model_name_or_path Qwen/Qwen3-4B-Base --prompt_style qwen3 --report_to wandb

The method, expected results and the reasons for the settings: recipes/README.md.
"""

import sys

import torch
from transformers import ProgressCallback
from trl import ModelConfig, get_peft_config

from trl_spiral import (
    ExploitabilityCallback,
    SelfPlayProgressCallback,
    SpiralConfig,
    SpiralParser,
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


# Two players that follow their own gradient circle around an equilibrium. A KL penalty to a slowly moving reference
# makes them converge to it (R-NaD, https://arxiv.org/abs/2206.15378; magnetic mirror descent,
# https://huggingface.co/papers/2206.05825). TRL's options suffice.
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
    gradient_checkpointing=False,  # 0.2M parameters fit in memory
    max_steps=1000,
    per_device_train_batch_size=256,
    steps_per_generation=2,
    num_iterations=1,
    max_completion_length=2,  # the move and the end of turn
    learning_rate=1e-3,  # decays to 0
    warmup_steps=10,
    # The return depends mostly on the card: subtract the position's average return from it.
    advantage_estimator="position",
    advantage_kwargs={"trace": 1.0},
    priming_games=2000,
    # Below the lowest return of the rules, -2 chips. The other seat does not learn from a forfeit.
    forfeit=[-3.0, 1.0],
    winner_learns_from_forfeit=False,
    logging_steps=50,
    save_steps=500,
    report_to="none",
)

# Leduc poker has higher stakes, up to 13 chips, and needs a stronger penalty: at 0.5 the policy calls every bet.
LEDUC = {**LAPTOP, "output_dir": "spiral-leduc", "games": ["Leduc-v0"], "beta": 2.0, "forfeit": [-14.0, 1.0]}

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
    forfeit=[-3.0, 1.0],
    logging_steps=1,
    save_steps=50,
)


def main(args: SpiralConfig, model_args: ModelConfig) -> None:
    # Check first: making the tiny player takes minutes.
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
    # Replies of the tiny player are bare moves, so its probabilities are exact. Other models are sampled.
    grades = ExploitabilityCallback(trainer, args.games, every=50, samples=None if tiny else 32)
    trainer.add_callback(grades)
    trainer.add_callback(TranscriptCallback(trainer, args.games[0], every=100, temperature=1.0))
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
    """Return the exploitability curve of each game as a Markdown table."""
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
    """Parse the command line, with the settings above as defaults."""
    parser = SpiralParser((SpiralConfig, ModelConfig))
    full_size = is_set(parser, arguments, "model_name_or_path")
    leduc = "Leduc-v0" in (explicit(parser, arguments, "games") or ())
    parser.set_defaults(**(PAPER if full_size else LEDUC if leduc else LAPTOP))
    return parser.parse_args_and_config(arguments)


if __name__ == "__main__":
    main(*parse(sys.argv[1:]))
