# /// script
# dependencies = ["trl-spiral[peft]"]
# ///
"""
Train a language model on the code game by self-play: one seat writes a program, the other predicts its output.

Without arguments, the recipe runs on a laptop. It makes a tiny player that writes small programs
(`trl_spiral/games/random_programs.py`), knows the output of easy ones and guesses the rest. It trains the player by
self-play and prints the scores of each seat against the untrained player, before and after. This takes up to 15
minutes on two cores, without GPU or network. Programs run in a sandbox, which needs Linux: `trl-spiral doctor` checks
this machine.

    accelerate launch recipes/code_game.py

With a frozen guesser, only the generator is trained, and its own predictions do not count:

    accelerate launch recipes/code_game.py --games CodeGame-v0-frozen

At full size, with LoRA (never run):

    accelerate launch --config_file accelerate_configs/multi_gpu.yaml recipes/code_game.py \
        --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct

Expected results and the reasons for the settings: recipes/README.md.
"""

import sys

import torch
from transformers import ProgressCallback
from trl import ModelConfig, get_peft_config

from trl_spiral import (
    MatchCallback,
    Opponents,
    SelfPlayProgressCallback,
    SpiralConfig,
    SpiralParser,
    SpiralTrainer,
    TinyPlayerRecipe,
    TranscriptCallback,
    build_opponents,
    check_reference,
    check_vllm,
    explicit,
    get_game,
    is_set,
    make_tiny_player,
    reserve_output_dir,
)
from trl_spiral.games.code_game import FROZEN, NAME


GAMES = 500  # per seat and evaluation: the 95% interval of a score is about ±0.09

BOTH = dict(
    # A guesser that runs out of tokens loses, but the other seat did nothing to win: do not train on that win.
    winner_learns_from_forfeit=False,
)

LAPTOP = dict(
    **BOTH,
    output_dir="code-game",
    games=[NAME],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,  # 0.2M parameters fit in memory
    max_steps=80,
    per_device_train_batch_size=128,
    steps_per_generation=2,
    num_iterations=1,
    max_completion_length=40,  # the longest small program, its output and the end of turn are 32 tokens
    learning_rate=5e-4,
    warmup_steps=5,
    # KL to a moving reference (see spiral_kuhn.py): programs stay readable, the guesser keeps up with all kinds.
    beta=0.05,
    sync_ref_model=True,
    ref_model_mixup_alpha=0.2,
    ref_model_sync_steps=20,
    logging_steps=10,
    save_steps=80,
    report_to="none",
)

FULL = dict(
    **BOTH,
    output_dir="code-game-full",
    games=[NAME],
    use_peft=True,
    lora_r=16,
    lora_alpha=32,
    max_steps=400,
    learning_rate=2e-5,
    lr_scheduler_type="constant",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=2,
    max_completion_length=1024,
    logging_steps=1,
    save_steps=50,
)

FROZEN_GUESSER = dict(games=[FROZEN], opponents="base")
FROZEN_LAPTOP = dict(max_steps=60, save_steps=60)


class FixedGuesser(Opponents):
    """Opponents for the guesser's seat only: the policy always writes the program."""

    def __call__(self, policy, seats, seed):
        players = super().__call__(policy, seats, seed)
        return policy, next((player for player in players if player is not policy), policy)


def main(args: SpiralConfig, model_args: ModelConfig) -> None:
    # Check first: making the tiny player takes minutes.
    reserve_output_dir(args)
    check_vllm(args)
    check_reference(args, get_peft_config(model_args))
    games = [get_game(name) for name in args.games]
    for game in games:
        game.check()
    tiny = model_args.model_name_or_path is None
    untrained = model_args.model_name_or_path
    if tiny:
        torch.set_num_threads(min(torch.get_num_threads(), 2))
        untrained = make_tiny_player(TinyPlayerRecipe(games=tuple(args.games), seed=args.seed, steps=300, reading=0.5))
    opponents = build_opponents(args, games, args.device)
    if args.games == [FROZEN]:
        opponents = FixedGuesser(
            opponents.shares, opponents.pool, args.matchmaking, opponents.players, opponents.engines
        )
    trainer = SpiralTrainer(model=untrained, args=args, matchmaker=opponents, peft_config=get_peft_config(model_args))
    # Evaluate at temperature 1, as in training. Seat 0 writes, seat 1 guesses.
    matches = MatchCallback(
        trainer, args.games, (untrained,), pairs=GAMES if tiny else 100, every=20 if tiny else None, temperature=1.0
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
    trainer.create_model_card(model_name="code-game")
    if args.push_to_hub:
        trainer.push_to_hub()


def parse(arguments: list[str]) -> tuple[SpiralConfig, ModelConfig]:
    """Parse the command line, with the settings above as defaults."""
    parser = SpiralParser((SpiralConfig, ModelConfig))
    full_size = is_set(parser, arguments, "model_name_or_path")
    settings = dict(FULL if full_size else LAPTOP)
    if FROZEN in (explicit(parser, arguments, "games") or ()):
        settings |= FROZEN_GUESSER if full_size else FROZEN_GUESSER | FROZEN_LAPTOP
    parser.set_defaults(**settings)
    return parser.parse_args_and_config(arguments)


if __name__ == "__main__":
    main(*parse(sys.argv[1:]))
