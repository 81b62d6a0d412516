"""`SpiralTrainer`: TRL's `GRPOTrainer`, with batches from self-play."""

from __future__ import annotations

import dataclasses
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object, is_peft_model
from transformers import PreTrainedModel
from trl import GRPOTrainer

from trl_spiral import _trl
from trl_spiral.callbacks.monitoring import CollapseCallback
from trl_spiral.callbacks.pool import OpponentPoolCallback
from trl_spiral.distributed import change_on_rank_zero
from trl_spiral.engines.adapters import check_base
from trl_spiral.engines.build import build_opponents
from trl_spiral.games import Game, get_game
from trl_spiral.opponents import OpponentPool, Opponents, PoolSettings
from trl_spiral.opponents.pool import INDEX, POOL_FOLDER
from trl_spiral.players.names import parse_opponents
from trl_spiral.rollout_func import SelfPlayRollout
from trl_spiral.selfplay.advantages import AdvantageEstimator
from trl_spiral.selfplay.curriculum import Curriculum
from trl_spiral.selfplay.matchmaking import Matchmaker
from trl_spiral.selfplay.referee import Engine
from trl_spiral.text.printable import get_logger, inline
from trl_spiral.text.prompts import check_prompt_style
from trl_spiral.training.base_trainer import AdvantageMixin
from trl_spiral.training.config import SpiralConfig
from trl_spiral.training.logprobs import SampledLogprobsMixin
from trl_spiral.training.options import make_estimator
from trl_spiral.training.preflight import (
    check_fresh_pool,
    check_run,
    colocate_kwargs,
    load_tokenizer,
    lora_config,
)
from trl_spiral.training.random_state import preserved_random_state
from trl_spiral.training.resume import describe
from trl_spiral.types import BASE, POOL


logger = get_logger(__name__)

EVAL_ROWS = 64
"""Rows of self-play per evaluation, on all ranks together."""


class SpiralTrainer(SampledLogprobsMixin, AdvantageMixin, GRPOTrainer):
    """
    Trainer for self-play on multi-turn games, after [SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via
    Multi-Agent Multi-Turn Reinforcement Learning](https://huggingface.co/papers/2506.24119).

    Rows and advantages come from self-play. Everything else is as in [`~trl.GRPOTrainer`]: losses, clipping, KL,
    optimizer, logging, checkpoints, Hub.

    Example:

    ```python
    >>> from trl_spiral import SpiralConfig, SpiralTrainer

    >>> trainer = SpiralTrainer(model="Qwen/Qwen3-0.6B", args=SpiralConfig(games=["TicTacToe-v0"]))
    >>> trainer.train()
    ```

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Model to train, as in [`~trl.GRPOTrainer`].
        args ([`SpiralConfig`], *optional*):
            Configuration. A default one is used if `None`.
        games (sequence of [`~games.Game`], *optional*):
            Games to play instead of `args.games`.
        estimator ([`~selfplay.advantages.AdvantageEstimator`], *optional*):
            Replaces `args.advantage_estimator`.
        matchmaker ([`~selfplay.matchmaking.Matchmaker`], *optional*):
            Replaces `args.opponents`: [`~opponents.Opponents`], or your own function that fills the seats.
        engines (`Mapping[str, Engine]`, *optional*):
            Engines of other players that your own function seats, by policy name, such as [`EndpointEngine`].
        curriculum ([`~selfplay.curriculum.Curriculum`], *optional*):
            Chooses the weights of the games before each batch, such as [`~selfplay.curriculum.LinearCurriculum`] or
            your own function `curriculum(step, metrics)`, which returns weights by name. Evaluation uses
            `args.game_weights`.
        processing_class, callbacks, optimizers, quantization_config, peft_config:
            As in [`~trl.GRPOTrainer`].

    Raises:
        ValueError: Before any weights are loaded, if the output folder cannot be written, the model cannot be found,
            the tokenizer has no chat template and no prompt style is chosen, or the launcher started other processes.
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
            }"""),  # noqa: E501
    }

    def __init__(
        self,
        model: str | PreTrainedModel,
        args: SpiralConfig | None = None,
        games: Sequence[Game] | None = None,
        estimator: AdvantageEstimator | None = None,
        matchmaker: Matchmaker | None = None,
        engines: Mapping[str, Engine] | None = None,
        curriculum: Curriculum | None = None,
        **kwargs: Any,
    ):
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            args = SpiralConfig(f"{name.rstrip('/').split('/')[-1]}-SPIRAL")
        peft_config = kwargs.get("peft_config")
        self._output_lock = check_run(args, model, peft_config, _meets_snapshots(args, matchmaker))
        if kwargs.get("processing_class") is None:
            kwargs["processing_class"] = load_tokenizer(model, args)
        check_prompt_style(args.prompt_style, kwargs["processing_class"].chat_template)

        played = list(games) if games is not None else [get_game(name) for name in args.games]
        self.rollout = SelfPlayRollout(
            games=played,
            settings=args.self_play,
            estimator=estimator or make_estimator(args.advantage_estimator, args.advantage_kwargs, played),
            matchmaker=matchmaker or build_opponents(args, played, args.device),
            engines=engines,
            curriculum=curriculum,
        )
        self.results_table: str | None = None
        self._keeps_base = self._check_base(model, peft_config)
        with self._own_generation(args, model, peft_config):
            super().__init__(
                model=model,
                reward_funcs=_reward_func(self.rollout),
                args=args,
                train_dataset=self.rollout.dataset(_placeholders(args)),
                eval_dataset=self.rollout.dataset(EVAL_ROWS),
                rollout_func=self.rollout,
                **kwargs,
            )
        if self.pool is not None:
            self._add_pool_callback(self.pool, PoolSettings.of(args.pool_kwargs))
        self.add_callback(CollapseCallback(self))

    def _check_base(self, model: str | PreTrainedModel, peft_config: Any) -> bool:
        """Check that the base model can be an opponent. Return whether the pool must store its weights."""
        if not self._meets(BASE):
            return False
        adapter = lora_config(model, peft_config)
        if adapter is not None:
            check_base(adapter)
        # In a LoRA run, the base model is the one without an adapter, unless training starts with one.
        starts_with_adapter = not isinstance(model, str) and is_peft_model(model)
        is_stored = adapter is None or starts_with_adapter
        if is_stored and self.pool is None:
            raise ValueError(
                f"{BASE!r} is an opponent, and its weights need a place to be stored. Pass a pool with the opponents: "
                "`Opponents(…, pool=OpponentPool(folder))`."
            )
        return is_stored

    @contextmanager
    def _own_generation(self, args: SpiralConfig, model: str | PreTrainedModel, peft_config: Any) -> Iterator[None]:
        """Within it, a `GRPOTrainer` is made with our vLLM generation, and without TRL's warning."""
        adapters = None  # how many a vLLM must hold, in addition to those of the policy and the base model
        if lora_config(model, peft_config) and _meets_snapshots(args, self.rollout.matchmaker):
            adapters = self.pool.capacity if self.pool is not None and self._meets(POOL) else 1
        engine_kwargs = colocate_kwargs(model, args, adapters, peft_config)
        with (
            warnings.catch_warnings(),
            _trl.own_vllm_generation(engine_kwargs, adapters=adapters is not None),
        ):
            # TRL warns that `rollout_func` is experimental. The range of TRL versions is pinned, and
            # `tests/_trl/test_names.py` checks all that we use of it.
            warnings.filterwarnings("ignore", message="You are using 'rollout_func'", category=UserWarning)
            yield

    def _add_pool_callback(self, pool: OpponentPool, settings: PoolSettings) -> None:
        self.add_callback(
            OpponentPoolCallback(
                self,
                pool,
                every=self.args.pool_every if self._meets(POOL) else None,
                start=settings.start,
                dtype=getattr(torch, settings.dtype) if settings.dtype else None,
                base=self._keeps_base,
                rating_games=settings.rating_games,
                restores=False,
            )
        )

    @property
    def pool(self) -> OpponentPool | None:
        """The snapshots of the policy, if they are opponents."""
        return self.rollout.opponents.pool if self.rollout.opponents else None

    def _meets(self, name: str) -> bool:
        return self.rollout.opponents is not None and name in self.rollout.opponents.shares

    # ---- batches ----
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.log_completions:
            decode = self._tokenizer.decode
            prompts = [[{"role": "user", "content": decode(row.prompt_ids)}] for row in self.rollout.batch.rows]
            _trl.replace_log(self, "prompt", gather_object(prompts))
        return output

    def _own_advantages(self, output):
        rows = self.rollout.batch.rows
        if len(rows) != len(output["advantages"]):
            raise RuntimeError(
                f"The trainer asked for {len(output['advantages'])} rows and the rollout returned {len(rows)}."
            )
        of_rows = [row.advantage for row in rows]
        if self.args.sample_unit == "trajectory":
            return self._padded([row.advantages for row in rows], output["completion_ids"].size(1)), of_rows
        return torch.tensor(of_rows, device=self.accelerator.device), of_rows

    # ---- evaluation ----
    def evaluate(self, *args, **kwargs):
        """
        Evaluate as [`~transformers.Trainer`], on games of self-play.

        Every evaluation plays the same deals, against the opponents of that step. It changes no baseline, rating,
        counter or random generator.
        """
        self.rollout.start_evaluation()
        batch = self.rollout.batch
        with preserved_random_state():
            metrics = super().evaluate(*args, **kwargs)
        self.rollout.batch = batch
        return metrics

    # ---- checkpoints ----
    @property
    def _repairs_pool(self):
        return PoolSettings.of(self.args.pool_kwargs).repair

    def _described(self, **others):
        rollout = self.rollout
        estimator, arguments = describe(rollout.estimator)
        shares = rollout.opponents and [f"{name}:{share}" for name, share in rollout.opponents.shares.items()]
        pool = dataclasses.asdict(PoolSettings.of(self.args.pool_kwargs))
        return super()._described(
            games=[game.name for game in rollout.games],
            games_per_start=rollout.settings.games_per_start,
            estimator=estimator,
            estimator_arguments=arguments,
            opponents=shares or describe(rollout.matchmaker)[0],
            curriculum=describe(rollout.curriculum)[0],
            **{f"pool_{name}": value for name, value in pool.items()},
            **others,
        )

    def _start_anew(self):
        if self.pool is not None:
            check_fresh_pool(self.args, self.pool)
            change_on_rank_zero(self.pool, self.pool.start_anew)

    def _own_state(self):
        opponents = self.rollout.opponents.state_dict() if self.rollout.opponents else None
        return {"self_play": self.rollout.collector.state_dict(), "opponents": opponents}

    def _save_own_files(self, folder):
        if self.pool is not None and self.is_world_process_zero():
            self.pool.save()
            self.pool.save_to(folder / POOL_FOLDER)

    def _known_digests(self):
        files = {} if self.pool is None else self.pool.files
        return {f"{POOL_FOLDER}/{name}": known for name, known in files.items()}

    def _restore_own_state(self, state, folder):
        self.rollout.collector.load_state_dict(state["self_play"])
        if self.rollout.opponents is not None:
            self._restore_pool(self.rollout.opponents.pool, folder)
            self.rollout.opponents.load_state_dict(state["opponents"] or {})

    def _restore_pool(self, pool: OpponentPool | None, checkpoint: Path) -> None:
        saved = checkpoint / POOL_FOLDER
        has_pool = (saved / INDEX).exists()
        if pool is None and has_pool:
            logger.warning("%s has a pool of opponents, which this run does not use.", checkpoint)
        elif pool is not None and not has_pool:
            logger.warning("%s has no pool of opponents, so the pool of this run starts empty.", checkpoint)
            check_fresh_pool(self.args, pool)
        elif pool is not None:
            change_on_rank_zero(pool, lambda: pool.restore(saved, self._repairs_pool))
        if self._keeps_base and BASE not in pool:
            raise ValueError(
                f"The model that training started from is an opponent ({BASE!r}), and {checkpoint} does not have it. "
                f"Resume without {BASE!r} among the opponents, or name the model by its folder or Hub id."
            )

    # ---- the model card ----
    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        """Create TRL's model card, with credits to SPIRAL and the table in `results_table`, if there is one."""
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
    """Return whether snapshots of the policy, or the base model, are opponents."""
    if matchmaker is None:
        return not {POOL, BASE}.isdisjoint(parse_opponents(args.opponents))
    return isinstance(matchmaker, Opponents) and not {POOL, BASE}.isdisjoint(matchmaker.shares)


def _reward_func(rollout: SelfPlayRollout) -> Callable[..., list[float]]:
    # TRL logs rewards under the name of the function.
    def selfplay_return(selfplay_return: list[float], log_metric: Any, **kwargs: Any) -> list[float]:
        rollout.log_metrics(log_metric)
        return selfplay_return

    return selfplay_return


def _placeholders(args: SpiralConfig) -> int:
    """Return the rows of the placeholder dataset. One epoch lasts for the whole run."""
    batches = args.max_steps * args.gradient_accumulation_steps
    cycles = -(-batches // (args.steps_per_generation * args.num_iterations))
    return max(cycles, 1) * args.generation_batch_size // args.num_generations
