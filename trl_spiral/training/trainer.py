"""`SpiralTrainer`: TRL's `GRPOTrainer`, whose batches come from games of self-play. Wiring only; no game logic."""

from __future__ import annotations

import random
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object, is_peft_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOTrainer

from trl_spiral import _trl
from trl_spiral.callbacks.live import LiveCallback
from trl_spiral.callbacks.monitoring import CollapseCallback
from trl_spiral.callbacks.pool import OpponentPoolCallback, change_together
from trl_spiral.engines.build import build_opponents
from trl_spiral.engines.snapshots import check_base
from trl_spiral.games import Game, get_game
from trl_spiral.opponents import Matchmaker, OpponentPool, Opponents
from trl_spiral.opponents.pool import INDEX, POOL_FOLDER
from trl_spiral.players.names import parse_opponents
from trl_spiral.rollout_func import SelfPlayRollout
from trl_spiral.selfplay.advantages import AdvantageEstimator, BatchMean, GroupMean, ReturnsOnly, RoleBaseline
from trl_spiral.selfplay.curriculum import Curriculum
from trl_spiral.selfplay.position_values import PositionValues
from trl_spiral.selfplay.referee import Engine, Forfeit
from trl_spiral.selfplay.state import RolloutState
from trl_spiral.text.printable import get_logger, inline
from trl_spiral.text.prompts import check_prompt_style
from trl_spiral.training.base_trainer import AdvantageMixin
from trl_spiral.training.config import SpiralConfig
from trl_spiral.training.preflight import (
    check_fresh_pool,
    check_reference,
    check_sharding,
    check_vllm,
    check_world_size,
    colocate_kwargs,
    load_tokenizer,
    lora_config,
    reserve_output_dir,
)
from trl_spiral.training.resume import describe
from trl_spiral.types import BASE, POOL


logger = get_logger(__name__)


class SpiralTrainer(AdvantageMixin, GRPOTrainer):
    """
    Trainer for self-play on multi-turn games, after [SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via
    Multi-Agent Multi-Turn Reinforcement Learning](https://huggingface.co/papers/2506.24119).

    Everything but where rows and advantages come from is [`~trl.GRPOTrainer`]'s: losses, clipping, KL, optimizer,
    logging, checkpoints, Hub.

    Example:

    ```python
    >>> from trl_spiral import SpiralConfig, SpiralTrainer

    >>> trainer = SpiralTrainer(model="Qwen/Qwen3-0.6B", args=SpiralConfig(games=["TicTacToe-v0"]))
    >>> trainer.train()
    ```

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Model to be trained, as in [`~trl.GRPOTrainer`].
        args ([`SpiralConfig`], *optional*):
            Configuration. A default one is used if `None`.
        games (sequence of [`~games.Game`], *optional*):
            Games to play in place of those that `args.games` names.
        estimator ([`~selfplay.advantages.AdvantageEstimator`], *optional*):
            Takes the place of `args.advantage_estimator`.
        matchmaker ([`~opponents.Matchmaker`], *optional*):
            Takes the place of `args.opponents`: [`~opponents.Opponents`], or a function of your own that fills the seats.
        engines (`Mapping[str, Engine]`, *optional*):
            Who answers other players that a function of your own seats, by policy name, such as [`EndpointEngine`].
        processing_class ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            Tokenizer; the model's own by default.
        callbacks, optimizers, peft_config, quantization_config:
            As in [`~trl.GRPOTrainer`].
        curriculum ([`~selfplay.curriculum.Curriculum`], *optional*):
            Says before each batch how often each game is played in it, such as [`~selfplay.curriculum.LinearCurriculum`] or a function
            `curriculum(step, metrics)` of your own that returns weights by name. Evaluation goes by `args.game_weights`.

    Raises:
        ValueError: Before any weights are loaded, if the output folder cannot be written, the model cannot be found,
            the tokenizer has no chat template and no prompt style is chosen, or the launcher's world is not ours.
    """

    _state_name = "selfplay_state"
    _tag_names = ["trl", "spiral", "self-play", "grpo"]
    _name = "SPIRAL"
    _paper = {
        "title": "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn "
        "Reinforcement Learning",
        "id": "2506.24119",
        # docstyle-ignore
        "citation": textwrap.dedent("""\
            @article{liu2025spiral,
                title        = {{SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn Reinforcement Learning}},
                author       = {Bo Liu and Leon Guertler and Simon Yu and Zichen Liu and Penghui Qi and Daniel Balcells and Mickel Liu and Cheston Tan and Weiyan Shi and Min Lin and Wee Sun Lee and Natasha Jaques},
                year         = 2025,
                eprint       = {arXiv:2506.24119},
            }"""),
    }

    def __init__(
        self,
        model: str | PreTrainedModel,
        args: SpiralConfig | None = None,
        games: Sequence[Game] | None = None,
        estimator: AdvantageEstimator | None = None,
        matchmaker: Matchmaker | None = None,
        engines: Mapping[str, Engine] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        curriculum: Curriculum | None = None,
    ):
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            args = SpiralConfig(f"{name.rstrip('/').split('/')[-1]}-SPIRAL")
        check_world_size(args)
        self._output_lock = reserve_output_dir(args)
        check_sharding(args)
        check_reference(args, lora_config(model, peft_config))
        check_vllm(args, model, peft_config, has_snapshots=_meets_snapshots(args, matchmaker))
        if processing_class is None:
            processing_class = load_tokenizer(model, args)
        check_prompt_style(args.prompt_style, processing_class.chat_template)

        played = list(games) if games is not None else [get_game(name) for name in args.games]
        self.rollout = SelfPlayRollout(
            games=played,
            estimator=estimator,
            matchmaker=matchmaker or build_opponents(args, played, args.device),
            sample_unit=args.sample_unit,
            prompt_style=args.prompt_style,
            opening_moves=args.opening_moves,
            games_per_start=args.games_per_start,
            max_draw_retries=args.max_draw_retries,
            forfeit=Forfeit(args.illegal_move_return, args.illegal_move_gain),
            priming_games=args.priming_games,
            winner_learns_from_forfeit=args.winner_learns_from_forfeit,
            filter_zero_advantages=args.filter_zero_advantages,
            keep_surplus=args.keep_surplus,
            baseline_per_opponent=args.baseline_per_opponent,
            games_in_flight=args.games_in_flight,
            constrain_moves=args.constrain_moves,
            engines=engines,
            game_weights=args.game_weights,
            curriculum=curriculum,
        )
        self.rollout.estimator = estimator or make_estimator(args, self.rollout.games)
        self.rollout.advantages_are_replaced = True
        self.results_table: str | None = None
        self._old_logps_due = False
        self._latest_logps: torch.Tensor | None = None

        def selfplay_return(**kwargs):
            return self.rollout.reward_func(**kwargs)

        if self._meets(BASE) and (config := lora_config(model, peft_config)) is not None:
            check_base(config)
        # Of a LoRA run, the base model is the one without an adapter, unless it began with one.
        began_with_adapter = not isinstance(model, str) and is_peft_model(model)
        self._keeps_base = self._meets(BASE) and (lora_config(model, peft_config) is None or began_with_adapter)
        if self._keeps_base and self.pool is None:
            raise ValueError(
                f"{BASE!r} is an opponent, and its weights need a place to be kept. Pass a pool with the opponents: "
                "`Opponents(…, pool=OpponentPool(folder))`."
            )
        adapters = None  # how many a vLLM must hold beside the policy's and the base model's
        if lora_config(model, peft_config) and _meets_snapshots(args, matchmaker):
            adapters = self.pool.capacity if self.pool is not None and self._meets(POOL) else 1
        with (
            warnings.catch_warnings(),
            _trl.own_vllm_generation(
                colocate_kwargs(model, args, adapters, peft_config), args.vllm_server_patience, adapters is not None
            ),
        ):
            # TRL tells whoever passes a `rollout_func` that it is experimental. That is ours to know: the range of TRL
            # versions is pinned, and `tests/_trl/test_names.py` watches what we use of it.
            warnings.filterwarnings("ignore", message="You are using 'rollout_func'", category=UserWarning)
            super().__init__(
                model=model,
                reward_funcs=selfplay_return,
                args=args,
                train_dataset=self.rollout.dataset(_placeholders(args)),
                eval_dataset=self.rollout.dataset(args.eval_rows),
                processing_class=processing_class,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
                rollout_func=self.rollout,
            )
        if self.pool is not None:
            self.add_callback(
                OpponentPoolCallback(
                    self,
                    self.pool,
                    every=args.pool_every if self._meets(POOL) else None,
                    start=args.pool_start,
                    dtype=getattr(torch, args.pool_dtype) if args.pool_dtype else None,
                    base=self._keeps_base,
                    rating_games=args.pool_rating_games,
                    restores=False,
                )
            )
        self.add_callback(CollapseCallback(self))
        if args.live:
            self.add_callback(LiveCallback(self))

    @property
    def pool(self) -> OpponentPool | None:
        """Earlier selves of the policy, where it meets any."""
        return self.rollout.opponents.pool if self.rollout.opponents else None

    def _meets(self, name: str) -> bool:
        return self.rollout.opponents is not None and name in self.rollout.opponents.shares

    # ---- steps ----
    def training_step(self, model, inputs, num_items_in_batch=None):
        if self.args.entropy_coef_end is not None:
            # A function of the step alone, so that a resumed run goes on where it was.
            done = self.state.global_step / max(self.state.max_steps, 1)
            start, end = self.args.entropy_coef, self.args.entropy_coef_end
            self.entropy_coef = start + (end - start) * done
        return super().training_step(model, inputs, num_items_in_batch)

    # ---- batches ----
    def _generate_and_score_completions(self, inputs):
        # What TRL asks for first, where it asks at all, are the log-probabilities of the batch under the old policy.
        self._old_logps_due = self._needs_old_logps() and not self._corrects_for_vllm
        output = super()._generate_and_score_completions(inputs)
        self._old_logps_due = False
        rows = self.rollout.batch
        width = output["completion_ids"].size(1)
        waited = [row.version != self.state.global_step for row in rows]
        if self.model.training and any(waited) and not self._corrects_for_vllm:
            # TRL takes the first ratio for one where it can, which is wrong for rows that waited for this batch. Its
            # correction for vLLM covers them: there the ratio is to the policy that sampled.
            output["old_per_token_logps"] = self._padded([row.logprobs for row in rows], width)
        output["selfplay_waited"] = torch.tensor(waited, device=self.accelerator.device)
        if self.log_completions:
            tokenizer = self._tokenizer
            prompts = [[{"role": "user", "content": tokenizer.decode(row.prompt_ids)}] for row in rows]
            _trl.replace_log(self, "prompt", gather_object(prompts))
        return output

    def _own_advantages(self, output):
        rows = self.rollout.batch
        if len(rows) != len(output["advantages"]):
            raise RuntimeError(
                f"The trainer asked for {len(output['advantages'])} rows and the roll-out gave {len(rows)}."
            )
        of_rows = [row.advantage for row in rows]
        if self.args.sample_unit == "trajectory":
            return self._padded([row.advantages for row in rows], output["completion_ids"].size(1)), of_rows
        return torch.tensor(of_rows, device=self.accelerator.device), of_rows

    @property
    def _corrects_for_vllm(self) -> bool:
        """Whether TRL itself accounts for the difference between its log-probabilities and the sampler's."""
        return self.use_vllm and self.vllm_importance_sampling_correction

    def _needs_old_logps(self) -> bool:
        """Whether TRL would run the model over the batch for its old log-probabilities (as in TRL 1.16)."""
        cycle = self.args.steps_per_generation * self.num_iterations
        return self.args.gradient_accumulation_steps % cycle != 0

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        if self._old_logps_due and not torch.is_grad_enabled():
            # The engine wrote them down while it sampled: the same numbers, a forward pass cheaper, and right for rows
            # that an earlier policy wrote.
            self._old_logps_due = False
            return self._padded([row.logprobs for row in self.rollout.batch], logits_to_keep), None, None
        result = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )
        self._latest_logps = result[0].detach()
        return result

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        cycle = self.args.steps_per_generation * self.num_iterations
        if self.model.training and self._step % cycle < self.args.gradient_accumulation_steps:
            self._log_logprob_difference(inputs)
        return loss

    def _log_logprob_difference(self, inputs: dict[str, Any]) -> None:
        """
        Logs how far the log-probabilities of whoever sampled are from the trainer's.

        To be called on every rank, where no step has been taken since the rows were sampled. Rows that waited for this
        batch do not count; in TRL's metric of the same, which it has for vLLM alone, they do.
        """
        written = inputs["completion_mask"] * inputs.get("tool_mask", 1) * ~inputs["selfplay_waited"][:, None]
        difference = (self._latest_logps - inputs["sampling_per_token_logps"]).abs()[written.bool()]
        totals = torch.stack([difference.sum(), torch.tensor(difference.numel(), device=difference.device)])
        largest = difference.max() if difference.numel() else torch.zeros((), device=difference.device)
        total, number = self.accelerator.reduce(totals, "sum").tolist()
        largest = self.accelerator.gather(largest).max().item()
        if number:
            self._metrics["train"]["selfplay/logprob_difference/mean"].append(total / number)
            self._metrics["train"]["selfplay/logprob_difference/max"].append(largest)

    def _padded(self, values: list[list[float]], width: int) -> torch.Tensor:
        """Shape (rows, width), zeros on the right."""
        return torch.tensor(
            [row + [0.0] * (width - len(row)) for row in values], dtype=torch.float32, device=self.accelerator.device
        )

    # ---- evaluation ----
    def evaluate(self, *args, **kwargs):
        """
        Plays the same deals every time, against whoever is an opponent by then, and moves no baseline, rating, counter or
        random generator.
        """
        self.rollout.start_evaluation()
        batch, episodes = self.rollout.batch, self.rollout.episodes
        with _preserved_random_state():
            metrics = super().evaluate(*args, **kwargs)
        self.rollout.batch, self.rollout.episodes = batch, episodes
        return metrics

    # ---- checkpoints ----
    @property
    def _repairs_pool(self):
        return self.args.pool_repair

    def _described(self, **others):
        rollout = self.rollout
        estimator, arguments = describe(rollout.estimator)
        shares = rollout.opponents and [f"{name}:{share}" for name, share in rollout.opponents.shares.items()]
        return super()._described(
            games=[game.name for game in rollout.games],
            estimator=estimator,
            estimator_arguments=arguments,
            opponents=shares or describe(rollout.matchmaker)[0],
            curriculum=describe(rollout.curriculum)[0],
            **others,
        )

    def _start_anew(self):
        if self.pool is not None:
            check_fresh_pool(self.args, self.pool)
            change_together(self.pool, self.pool.start_anew)

    def _own_state(self):
        if self.rollout.opponents:
            self.rollout.state.opponents = self.rollout.opponents.state_dict()
        return {"rollout": self.rollout.state.state_dict()}

    def _save_own_files(self, folder):
        if self.pool is not None and self.is_world_process_zero():
            self.pool.save()
            self.pool.save_to(folder / POOL_FOLDER)

    def _known_digests(self):
        files = {} if self.pool is None else self.pool.files
        return {f"{POOL_FOLDER}/{name}": known for name, known in files.items()}

    def _restore_own_state(self, state, folder):
        self.rollout.restore(RolloutState.from_state_dict(state["rollout"]))
        self._restore_opponents(folder)

    def _restore_opponents(self, checkpoint: Path) -> None:
        opponents, saved = self.rollout.opponents, checkpoint / POOL_FOLDER
        if opponents is None:
            return
        pool, has_pool = opponents.pool, (saved / INDEX).exists()
        if pool is None and has_pool:
            logger.warning("%s has a pool of opponents, which this run does not use.", checkpoint)
        elif pool is not None and not has_pool:
            logger.warning("%s has no pool of opponents, so this run's begins empty.", checkpoint)
            check_fresh_pool(self.args, pool)
        elif pool is not None:
            change_together(pool, lambda: pool.restore(saved, self.args.pool_repair))
        if self._keeps_base and BASE not in pool:
            raise ValueError(
                f"The model that training started from is an opponent ({BASE!r}), and {checkpoint} does not have it. "
                f"Resume without {BASE!r} among the opponents, or name the model by its folder or Hub id."
            )
        opponents.load_state_dict(self.rollout.state.opponents or {})

    # ---- the model card ----
    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        """Creates TRL's model card, which credits SPIRAL, and adds the table in `results_table` where there is one."""
        super().create_model_card(model_name=model_name, dataset_name=dataset_name, tags=tags)
        if not self.is_world_process_zero():
            return
        path = Path(self.args.output_dir) / "README.md"
        games = ", ".join(inline(game.name) for game in self.rollout.games)
        section = f"## Self-play\n\nThis model played itself at {games}, with `trl-spiral`.\n"
        if self.results_table:
            section += f"\n{self.results_table}\n"
        card = path.read_text(encoding="utf-8")
        before, mark, after = card.partition("## Training procedure")
        path.write_text(f"{before}{section}\n{mark}{after}" if mark else f"{card}\n{section}", encoding="utf-8")


def _meets_snapshots(args: SpiralConfig, matchmaker: Matchmaker | None) -> bool:
    """Whether earlier selves, the first among them, are opponents."""
    if matchmaker is None:
        return not {POOL, BASE}.isdisjoint(parse_opponents(args.opponents))
    return isinstance(matchmaker, Opponents) and not {POOL, BASE}.isdisjoint(matchmaker.shares)


def make_estimator(args: SpiralConfig, games: Sequence[Game]) -> AdvantageEstimator:
    """The advantage estimator that a configuration names, for the games that are played."""
    discount = args.turn_discount
    if args.advantage_estimator == "role":
        return RoleBaseline(args.role_baseline_decay, discount, args.role_baseline_per_episode)
    if args.advantage_estimator == "position":
        rivals = [
            game.name
            for game in games
            if game.traits.seats == 2 and game.traits.zero_sum and game.traits.perfect_information
        ]
        return PositionValues(args.position_trace, discount=discount, rivals=rivals)
    return {"batch": BatchMean, "group": GroupMean, "none": ReturnsOnly}[args.advantage_estimator](discount)


def _placeholders(args: SpiralConfig) -> int:
    """Rows of the placeholder data set: one epoch lasts for the whole run, so that no epoch ends within it."""
    batches = args.max_steps * args.gradient_accumulation_steps
    cycles = -(-batches // (args.steps_per_generation * args.num_iterations))
    return max(cycles, 1) * args.generation_batch_size // args.num_generations


@contextmanager
def _preserved_random_state() -> Iterator[None]:
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.random.set_rng_state(torch_state)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
