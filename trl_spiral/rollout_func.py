"""`SelfPlayRollout`: self-play as the `rollout_func` of TRL's trainers. [`SpiralTrainer`] is built on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from datasets import Dataset

from trl_spiral import _trl
from trl_spiral.distributed import AllRanks
from trl_spiral.engines.policies import Router
from trl_spiral.games import Game, get_game
from trl_spiral.opponents import Opponents
from trl_spiral.players import PolicyPlayer
from trl_spiral.selfplay.advantages import AdvantageEstimator, RoleBaseline
from trl_spiral.selfplay.batch import Batch
from trl_spiral.selfplay.collector import Collector
from trl_spiral.selfplay.curriculum import Curriculum, game_shares
from trl_spiral.selfplay.matchmaking import Matchmaker
from trl_spiral.selfplay.referee import Engine
from trl_spiral.selfplay.schedule import Schedule, check_lists_moves, played_games
from trl_spiral.selfplay.settings import SelfPlaySettings
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import POLICY, Episode


if TYPE_CHECKING:
    from trl import GRPOTrainer


class SelfPlayRollout:
    """
    Plays episodes of a policy against itself or other opponents, and returns them as training rows.

    Pass it as `rollout_func` of a [`~trl.GRPOTrainer`], together with its `reward_func` and its `dataset`:

    ```python
    rollout = SelfPlayRollout("TicTacToe-v0")
    trainer = GRPOTrainer(
        model="Qwen/Qwen3-0.6B",
        rollout_func=rollout,
        reward_funcs=rollout.reward_func,
        train_dataset=rollout.dataset(1024),
        args=GRPOConfig(
            per_device_train_batch_size=64, num_generations=64, scale_rewards="none", loss_type="dr_grpo"
        ),
    )
    ```

    There, `num_generations` must equal the generation batch, and `scale_rewards` must be `"none"`. TRL subtracts the
    mean of each group, and in smaller groups the turns of one game, which share a return, would cancel. Rows that do
    not fit in a batch are dropped, since a plain trainer treats every row as new. [`SpiralTrainer`] has neither
    restriction.

    Args:
        games (`str`, [`~games.Game`] or a sequence of them):
            Games to play, or their names.
        settings ([`SelfPlaySettings`], *optional*):
            Settings of self-play.
        estimator ([`~selfplay.advantages.AdvantageEstimator`], *optional*):
            Computes advantages from returns. Default: [`~selfplay.advantages.RoleBaseline`].
        matchmaker ([`~selfplay.matchmaking.Matchmaker`], *optional*):
            Fills the seats: [`~opponents.Opponents`], or a function of your own. Default: the policy plays itself.
        engines (`Mapping[str, Engine]`, *optional*):
            Engines of other players that your own matchmaker seats, by policy name. They are not closed.
        curriculum ([`~selfplay.curriculum.Curriculum`], *optional*):
            Chooses the weights of the games before each training batch. Evaluation uses `settings.game_weights`.
        seed (`int`, *optional*):
            Seed of all games. Default: the trainer's.

    Attributes:
        played (`list[Game]`):
            Games with a weight above 0.
        batch ([`~selfplay.batch.Batch`]):
            The latest batch of this rank: its rows, episodes and metrics.
        collector ([`~selfplay.collector.Collector`]):
            Plays the batches, and holds the state of the run.

    Raises:
        ValueError: If the weights do not fit the games, or a setting needs games that list their legal moves, and one
            does not.
    """

    def __init__(
        self,
        games: str | Game | Sequence[str | Game],
        settings: SelfPlaySettings | None = None,
        estimator: AdvantageEstimator | None = None,
        matchmaker: Matchmaker | None = None,
        engines: Mapping[str, Engine] | None = None,
        curriculum: Curriculum | None = None,
        seed: int | None = None,
    ) -> None:
        listed = [games] if isinstance(games, str | Game) else list(games)
        self.games = [get_game(game) if isinstance(game, str) else game for game in listed]
        self.settings = settings or SelfPlaySettings()
        self.estimator: AdvantageEstimator = estimator or RoleBaseline()
        self.matchmaker: Matchmaker = matchmaker or Opponents()
        self.engines = dict(engines or {})
        self.curriculum = curriculum
        self.seed = seed
        weights = self.settings.game_weights
        self._shares = None if weights is None else game_shares([game.name for game in self.games], weights)
        # A curriculum may choose any game.
        self.played = played_games(self.games, None if curriculum is not None else self._shares)
        for game in self.played:
            game.check()
            if option := self.settings.needs_legal_moves:
                check_lists_moves(game, option)
        self.collector = Collector(self.settings, self.estimator, self.opponents, curriculum, AllRanks())
        self.batch = Batch()
        self._evaluated = 0
        self._renderer: PromptRenderer | None = None

    @property
    def opponents(self) -> Opponents | None:
        """The opponents, unless the matchmaker is your own."""
        return self.matchmaker if isinstance(self.matchmaker, Opponents) else None

    # ---- called by TRL ----
    def __call__(self, prompts: Sequence[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        """
        Play one generation batch of one rank.

        Args:
            prompts (`Sequence`):
                Placeholders, of which only the number is used.
            trainer ([`~trl.GRPOTrainer`]):
                The trainer of the policy.

        Returns:
            `dict`: `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`, `selfplay_return` and
            `selfplay_advantage`, with one entry per row.

        Raises:
            ValueError: If the groups of a plain trainer would cancel the advantages.
            RuntimeError: If games bring too few rows to train on.
        """
        evaluation = not trainer.model.training
        if not self.settings.row_advantages and not evaluation:
            _check_groups(trainer)
        schedule = self.schedule(self.player(trainer, evaluation), trainer.args.seed, evaluation)
        # Ranks that share an engine play the same games, since each of them runs a part of it, and divide the rows.
        sharing = _trl.ranks_per_engine(trainer)
        group, place = divmod(trainer.accelerator.process_index, sharing)
        groups = trainer.accelerator.num_processes // sharing
        schedule = replace(schedule, rank=group, world_size=groups, sharing=sharing)
        needed, step = len(prompts) * sharing, trainer.state.global_step
        snapshots = self.opponents.prepare() if self.opponents else {}
        others = {**self.engines, **(self.opponents.engines if self.opponents else {})}
        with _trl.open_engine(trainer, snapshots) as own:
            engine = Router(others, own) if others else own

            def restore() -> None:
                _trl.restore_weights(trainer, own)

            if evaluation:
                batch = self.collector.evaluate(needed, schedule, engine, self._evaluated, restore)
                self._evaluated += len(batch.episodes)
            else:
                batch = self.collector.collect(needed, schedule, engine, step, restore)
        _check_versions(batch.episodes, step)
        rows = batch.rows[place * len(prompts) : (place + 1) * len(prompts)]
        self.batch = replace(batch, rows=rows)
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            "selfplay_return": [row.reward for row in rows],
            "selfplay_advantage": [row.advantage for row in rows],
        }

    def reward_func(self, selfplay_advantage: list[float], log_metric: Any, **kwargs: Any) -> list[float]:
        """
        Reward function for a plain trainer: log the metrics of the batch, and return the advantage of each row.

        The trainer subtracts the mean of the batch.
        """
        del kwargs
        self.log_metrics(log_metric)
        return selfplay_advantage

    def log_metrics(self, log_metric: Any) -> None:
        """Log the metrics of the batch, with the function that TRL passes to reward functions."""
        for name, value in self.batch.metrics.items():
            log_metric(name, value)

    def dataset(self, rows: int) -> Dataset:
        """Return a dataset of `rows` placeholders. TRL requires a dataset, and self-play has no prompts."""
        content = ", ".join(game.name for game in self.games)
        return Dataset.from_dict({"prompt": [[{"role": "user", "content": content}]] * rows})

    # ---- playing ----
    def start_evaluation(self) -> None:
        """Restart the episodes of evaluation, so that every evaluation plays the same games."""
        self._evaluated = 0

    def schedule(self, player: PolicyPlayer, seed: int, evaluation: bool = False) -> Schedule:
        """
        Return the schedule of training or evaluation, for a single rank.

        Args:
            player ([`~players.PolicyPlayer`]):
                The policy.
            seed (`int`):
                Seed of the run, unless this object has its own.
            evaluation (`bool`, defaults to `False`):
                Whether it is for evaluation.
        """
        return Schedule(
            games=self.games,
            settings=self.settings,
            player=player,
            matchmaker=self.matchmaker,
            seed=seed if self.seed is None else self.seed,
            purpose="eval" if evaluation else "train",
            shares=self._shares if evaluation or self.curriculum is None else None,
        )

    def player(self, trainer: GRPOTrainer, evaluation: bool = False) -> PolicyPlayer:
        """Return the trainer's policy as a player."""
        conversation = self.settings.sample_unit == "trajectory"
        tokenizer = trainer._tokenizer
        if self._renderer is None or self._renderer.tokenizer is not tokenizer:
            self._renderer = PromptRenderer(
                tokenizer,
                self.settings.prompt_style,
                _trl.appending_chat_template(tokenizer) if conversation else None,
                trainer.args.chat_template_kwargs,
            )
        return PolicyPlayer(
            self._renderer,
            _trl.trainer_sampling(trainer, evaluation),
            conversation=conversation,
            constrain_moves=self.settings.constrain_moves,
        )


def _check_groups(trainer: GRPOTrainer) -> None:
    args = trainer.args
    if args.num_generations != args.generation_batch_size or args.scale_rewards != "none":
        raise ValueError(
            f"`num_generations` ({args.num_generations}) must equal the generation batch "
            f"({args.generation_batch_size}), and `scale_rewards` ({args.scale_rewards!r}) must be 'none': in smaller "
            "groups the turns of one game cancel each other. Or use `SpiralTrainer`, which has no groups."
        )


def _check_versions(episodes: Sequence[Episode], version: int) -> None:
    for episode in episodes:
        for trajectory in episode.trajectories:
            for turn in trajectory.turns:
                if turn.policy == POLICY and turn.version != version:
                    raise RuntimeError(
                        f"A turn of {episode.game} was written by version {turn.version} of the weights, and the "
                        f"trainer is at {version}. Weights must be synced before every rollout."
                    )
