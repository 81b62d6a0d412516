# /// script
# dependencies = ["trl-spiral"]
# ///
"""
Train one language model on tic-tac-toe, Kuhn poker and negotiation at once, by self-play.

Without arguments, the recipe runs on a laptop. It makes a tiny player that knows the rules of all three games and no
strategy, trains it by self-play, and prints its scores against a random player before and after. This takes up to 20
minutes on two cores, without GPU or network.

    accelerate launch recipes/spiral_multi.py

At full size, with SPIRAL's hyper-parameters (never run):

    accelerate launch --config_file accelerate_configs/multi_gpu.yaml recipes/spiral_multi.py \
        --model_name_or_path Qwen/Qwen3-4B-Base --prompt_style qwen3 --report_to wandb

Expected results and the reasons for the settings: recipes/README.md.
"""

import sys

import torch
from transformers import ProgressCallback
from trl import ModelConfig, get_peft_config

from trl_spiral import (
    MatchCallback,
    SelfPlayProgressCallback,
    SpiralConfig,
    SpiralParser,
    SpiralTrainer,
    TinyPlayerRecipe,
    TranscriptCallback,
    check_reference,
    check_vllm,
    is_set,
    make_tiny_player,
    reserve_output_dir,
)


GAMES = ["TicTacToe-v0", "Kuhn-v0", "SimpleNegotiation-v2"]
PAIRS = 300  # evaluation deals of each game, each played from both seats

LAPTOP = dict(
    output_dir="spiral-multi",
    games=GAMES,
    # Weights of episodes. Tic-tac-toe has about eight turns, Kuhn poker two or three, a negotiation ten. With these
    # weights each game contributes about a third of the rows.
    game_weights=[5.0, 16.0, 4.0],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,  # 0.2M parameters fit in memory
    max_steps=240,
    per_device_train_batch_size=160,
    steps_per_generation=2,
    num_iterations=1,
    max_completion_length=8,  # an offer and the end of turn are six tokens
    learning_rate=1e-3,
    warmup_steps=10,
    # KL to a moving reference (see spiral_kuhn.py): no game is forgotten, and replies stay legal.
    beta=0.1,
    sync_ref_model=True,
    ref_model_mixup_alpha=0.2,
    ref_model_sync_steps=20,
    # Below the lowest return of all three games. The other seat does not learn from a forfeit.
    forfeit=[-3.0, 1.0],
    winner_learns_from_forfeit=False,
    logging_steps=20,
    save_steps=120,
    report_to="none",
)

PAPER = dict(
    output_dir="spiral-multi-full",
    games=GAMES,
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
    check_reference(args, get_peft_config(model_args))
    tiny = model_args.model_name_or_path is None
    if tiny:
        torch.set_num_threads(min(torch.get_num_threads(), 2))
        player = make_tiny_player(TinyPlayerRecipe(games=tuple(args.games), seed=args.seed, steps=450))
    trainer = SpiralTrainer(
        model=player if tiny else model_args.model_name_or_path,
        args=args,
        peft_config=get_peft_config(model_args),
    )
    # Evaluate at temperature 1, as in training.
    matches = MatchCallback(
        trainer, args.games, ("random",), pairs=PAIRS if tiny else 50, every=120 if tiny else 50, temperature=1.0
    )
    trainer.add_callback(matches)
    trainer.add_callback(TranscriptCallback(trainer, args.games[0], every=100, temperature=1.0))
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(SelfPlayProgressCallback)

    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)

    if trainer.is_world_process_zero():
        trainer.results_table = matches.table()
        print(f"\n{trainer.results_table}\n\nModel, metrics and transcripts: {args.output_dir}")
    trainer.save_model(args.output_dir)
    trainer.save_state()
    trainer.create_model_card(model_name="spiral-multi")
    if args.push_to_hub:
        trainer.push_to_hub()


def parse(arguments: list[str]) -> tuple[SpiralConfig, ModelConfig]:
    """Parse the command line, with the settings above as defaults."""
    parser = SpiralParser((SpiralConfig, ModelConfig))
    full_size = is_set(parser, arguments, "model_name_or_path")
    settings = dict(PAPER if full_size else LAPTOP)
    if is_set(parser, arguments, "games"):
        settings.pop("game_weights", None)  # they are for the three default games
    parser.set_defaults(**settings)
    return parser.parse_args_and_config(arguments)


if __name__ == "__main__":
    main(*parse(sys.argv[1:]))
