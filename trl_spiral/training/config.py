"""Configuration of `SpiralTrainer`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, cast

from trl import GRPOConfig

from trl_spiral._trl import WithoutSecrets
from trl_spiral.callbacks.preemption import follow_launcher
from trl_spiral.engines.http.openai import check_endpoint_kwargs
from trl_spiral.opponents import PoolSettings
from trl_spiral.selfplay.referee import Forfeit
from trl_spiral.selfplay.rows import SampleUnit
from trl_spiral.selfplay.settings import SelfPlaySettings
from trl_spiral.training.checkpoint import check_resume
from trl_spiral.training.options import check_names, games_per_start, refuse_removed
from trl_spiral.training.validation import check_advantages, check_games, check_generation, check_opponents
from trl_spiral.types import Sampling


@dataclass
class SpiralConfig(WithoutSecrets, GRPOConfig):
    r"""
    Configuration class for the [`SpiralTrainer`].

    This class includes only the parameters that are specific to self-play, or whose defaults differ from GRPO's. For a
    full list of training arguments, please refer to the [`~trl.GRPOConfig`] and [`~transformers.TrainingArguments`]
    documentation. Defaults follow [SPIRAL](https://huggingface.co/papers/2506.24119).

    `num_generations` must be at least 2 and divide the generation batch, as TRL requires. Self-play has no groups of
    completions of one prompt, so it has no other effect: keep 2.

    Parameters:
        > Parameters whose defaults differ from GRPO's

        max_steps (`int`, *optional*, defaults to `400`):
            Number of optimizer steps. Self-play has no dataset, so `num_train_epochs` has no effect.
        num_generations (`int`, *optional*, defaults to `2`):
            See above.
        loss_type (`str`, *optional*, defaults to `"dr_grpo"`):
            Sum over tokens divided by a constant, as in SPIRAL. Clipped by `epsilon` over `num_iterations` passes;
            with one pass and one step per generation it is plain importance sampling.
        num_iterations (`int`, *optional*, defaults to `2`):
            Passes over each generation batch.
        scale_rewards (`str`, *optional*, defaults to `"none"`):
            Must be `"none"`: the trainer replaces the advantages that TRL scales.
        activation_checkpointing (`bool`, *optional*, defaults to `True`):
            TRL's default, under the name that transformers now uses.

        > Parameters that control what is played

        games (`list[str]`, *optional*, defaults to `["TicTacToe-v0"]`):
            Names of the games.
        game_weights (`list[float]`, *optional*):
            Sampling weight of each game, in the order of `games`. Default: uniform. Weights apply to episodes, so long
            games contribute more rows.
        opening_moves (`int`, *optional*, defaults to `0`):
            Largest number of uniformly random legal moves that start a game, so that self-play meets positions that it
            would not choose. The number is drawn uniformly for each game. These moves are not trained on.
        max_draw_retries (`int`, *optional*, defaults to `0`):
            How many times a drawn game is played again. SPIRAL's `filter_draw` uses 5.
        forfeit (`list[float]`, *optional*, defaults to `[-1.0, 1.0]`):
            Return of a seat whose reply contains no legal move or is truncated, and return that the other seats share.
            A single number is that of the seat at fault. SPIRAL's code uses `[-1.5, 0.5]`. If the rules of a game can
            give a seat less, such as -13 chips in Leduc poker, the seat gets that, and the other seats share as much.
        games_in_flight (`int`, *optional*):
            Most games that each rank plays at the same time. Default: one for each row of the batch, up to 512.

        > Parameters that control the opponents

        opponents (`str`, *optional*, defaults to `"self"`):
            Opponents and their shares of the games, such as `"self:0.5,pool:0.4,random:0.1"`: `self`; `pool` for
            snapshots of the policy; `base` for the model that training started from; a scripted player (`random`,
            `minimax`, `equilibrium`, `mcts`, `mcts-200`, `hold-20`, `greedy`, `odds`); `human` for a person at the
            terminal; a model's folder or Hub id, which must contain a `/`; or an OpenAI-compatible endpoint as
            `https://host/v1#model`.
        matchmaking (`str`, *optional*, defaults to `"uniform"`):
            How a snapshot is chosen: `mirror`, `latest`, `lagged-N`, `uniform`, `fifo-N` (SPIRAL's, with 25),
            `pfsp-hard`, `pfsp-var` or `rating`; see [`~opponents.matchmaking`].
        pool_every (`int`, *optional*, defaults to `20`):
            Optimizer steps between snapshots.
        pool_capacity (`int`, *optional*, defaults to `25`):
            Most snapshots in the pool.
        pool_kwargs (`dict`, *optional*):
            Further settings of the pool, which are fields of [`~opponents.PoolSettings`]: `start`, `eviction`,
            `dtype`, `rating_games` and `repair`.
        baseline_per_opponent (`bool`, *optional*, defaults to `True`):
            Whether baselines are separate for each class of opponent (the policy itself, its snapshots, each other
            player). The expected return of a seat depends on its opponent.
        endpoint_kwargs (`dict`, *optional*):
            Arguments of [`EndpointEngine`] for each endpoint among the opponents: `timeout` (seconds for one reply),
            `api_key_env` (environment variable that contains the key; empty for an endpoint without keys),
            `max_requests` and `max_tokens` (budget of the whole run, shared evenly among ranks) and others. When its
            share is used up, an endpoint is no longer an opponent. A resumed run continues from the checkpoint's
            usage.

        > Parameters that control generation

        vllm_engine_kwargs (`dict`, *optional*):
            More arguments of [`vllm.LLM`] in colocate mode, such as `dtype` or `block_size`. They override the
            trainer's choices.
        constrain_moves (`bool`, *optional*, defaults to `False`):
            Whether replies are constrained to end in a legal move. Needs vLLM, whose log-probabilities are then of the
            constrained distribution; TRL's importance sampling correction accounts for that.

        > Parameters that control the text

        prompt_style (`str`, *optional*, defaults to `"chat"`):
            `"chat"` for the tokenizer's chat template, or `"qwen3"`, `"octothinker"`, `"r1"`, `"llama-instruct"` for
            base models without one.
        sample_unit (`str`, *optional*, defaults to `"turn"`):
            Content of one row: `"turn"` for one decision, or `"trajectory"` for all decisions of a seat in a game, as
            one conversation.

        > Parameters that control credit assignment

        advantage_estimator (`str`, *optional*, defaults to `"role"`):
            `"role"` for SPIRAL's role-conditioned baselines ([`RoleBaseline`]), `"batch"` for the batch mean of each
            role ([`BatchMean`]), `"group"` for the mean over games that share a start ([`GroupMean`]), `"none"` for
            the return itself ([`ReturnsOnly`]), or `"position"` for generalized advantage estimation over turns with a
            table of position values ([`PositionValues`]).
        advantage_kwargs (`dict`, *optional*):
            Arguments of that class, such as `{"decay": 0.9}`. `"group"` also takes `games_per_start`, the number of
            episodes that share one deal and one opening, and needs at least 2.
        priming_games (`int`, *optional*, defaults to `0`):
            Number of games between uniformly random players that update the estimator before the first batch, so that
            it starts with an estimate of position values. They are not trained on.
        winner_learns_from_forfeit (`bool`, *optional*, defaults to `True`):
            Whether the other seats are trained on a game that ended by an illegal or truncated reply.
        filter_zero_advantages (`bool`, *optional*, defaults to `False`):
            Whether rows with an advantage of zero are replaced by rows of more games.

        > Parameters that control evaluation

        eval_sampling (`dict`, *optional*):
            Sampling settings of evaluation that differ from training: fields of [`~types.Sampling`], such as
            `{"temperature": 0.25}`.

    Raises:
        ValueError: If a parameter is out of range, was removed, or does not fit another one.
    """

    _VALID_DICT_FIELDS = GRPOConfig._VALID_DICT_FIELDS + [
        *("vllm_engine_kwargs", "eval_sampling", "endpoint_kwargs", "pool_kwargs", "advantage_kwargs"),
    ]

    # Parameters whose defaults differ from GRPO's
    max_steps: int = field(
        default=400,
        metadata={"help": "Number of optimizer steps. Self-play has no dataset, so epochs have no effect."},
    )
    num_generations: int | None = field(
        default=2,
        metadata={"help": "Must be at least 2 and divide the generation batch. No other effect in self-play."},
    )
    loss_type: str = field(
        default="dr_grpo",
        metadata={"help": "Loss of `GRPOTrainer`. The default sums over tokens and divides by a constant, as SPIRAL."},
    )
    num_iterations: int = field(default=2, metadata={"help": "Passes over each generation batch."})
    scale_rewards: str = field(
        default="none", metadata={"help": "Must be 'none': the trainer replaces the advantages that TRL scales."}
    )

    # Parameters that control what is played
    games: list[str] = field(
        default_factory=lambda: ["TicTacToe-v0"],
        metadata={"help": "Names of the games."},
    )
    game_weights: list[float] | None = field(
        default=None,
        metadata={"help": "Sampling weight of each game, in the order of `games`. Default: uniform."},
    )
    opening_moves: int = field(
        default=0,
        metadata={"help": "Largest number of uniformly random legal moves that start a game. Not trained on."},
    )
    max_draw_retries: int = field(default=0, metadata={"help": "How many times a drawn game is played again."})
    forfeit: list[float] = field(
        default_factory=lambda: [-1.0, 1.0],
        metadata={
            "help": "Return of a seat after an illegal or truncated reply, and return that the other seats share. A "
            "single number is that of the seat at fault."
        },
    )
    games_in_flight: int | None = field(
        default=None,
        metadata={"help": "Most games that each rank plays at the same time. Default: rows of the batch, up to 512."},
    )

    # Parameters that control the opponents
    opponents: str = field(
        default="self",
        metadata={"help": "Opponents and their shares of the games, such as 'self:0.5,pool:0.4,random:0.1'."},
    )
    matchmaking: str = field(
        default="uniform",
        metadata={
            "help": "How a snapshot is chosen: mirror, latest, lagged-N, uniform, fifo-N, pfsp-hard, pfsp-var, rating."
        },
    )
    pool_every: int = field(default=20, metadata={"help": "Optimizer steps between snapshots."})
    pool_capacity: int = field(default=25, metadata={"help": "Most snapshots in the pool."})
    pool_kwargs: dict | str | None = field(
        default=None,
        metadata={
            "help": "Further settings of the pool: `start`, `eviction` ('oldest', 'lowest' or 'ladder'), `dtype`, "
            "`rating_games` and `repair`, as JSON."
        },
    )
    baseline_per_opponent: bool = field(
        default=True, metadata={"help": "Whether baselines are separate for each class of opponent."}
    )
    endpoint_kwargs: dict | str | None = field(
        default=None,
        metadata={
            "help": "Arguments of `EndpointEngine` for the endpoints among the opponents: `timeout`, `api_key_env`, "
            "`max_requests`, `max_tokens` and others, as JSON."
        },
    )

    # Parameters that control generation
    vllm_engine_kwargs: dict | str | None = field(
        default=None,
        metadata={"help": "More arguments of `vllm.LLM` in colocate mode. They override the trainer's choices."},
    )
    constrain_moves: bool = field(
        default=False,
        metadata={"help": "Whether replies are constrained to end in a legal move. Needs vLLM."},
    )

    # Parameters that control the text
    prompt_style: str = field(
        default="chat",
        metadata={"help": "'chat' for the tokenizer's chat template, or a named style for base models without one."},
    )
    sample_unit: str = field(
        default="turn",
        metadata={"help": "Content of one row: 'turn', or 'trajectory' for all of a seat's turns in a game."},
    )

    # Parameters that control credit assignment
    advantage_estimator: str = field(
        default="role", metadata={"help": "One of 'role', 'batch', 'group', 'none' and 'position'."}
    )
    advantage_kwargs: dict | str | None = field(
        default=None,
        metadata={"help": "Arguments of the advantage estimator, as JSON, such as '{\"decay\": 0.9}'."},
    )
    priming_games: int = field(
        default=0,
        metadata={"help": "Games between random players that update the estimator before the first batch."},
    )
    winner_learns_from_forfeit: bool = field(
        default=True,
        metadata={"help": "Whether the other seats are trained on games that ended by an illegal or truncated reply."},
    )
    filter_zero_advantages: bool = field(
        default=False,
        metadata={"help": "Whether rows with an advantage of zero are replaced by rows of more games."},
    )

    # Parameters that control evaluation
    eval_sampling: dict | str | None = field(
        default=None,
        metadata={"help": "Fields of `Sampling` in which evaluation differs from training, as JSON."},
    )

    def __new__(cls, *args: Any, **kwargs: Any) -> SpiralConfig:
        refuse_removed(kwargs)
        config: SpiralConfig = super().__new__(cls)
        return config

    def __post_init__(self):
        if isinstance(self.games, str):
            self.games = [self.games]
        follow_launcher()
        check_resume(self.resume_from_checkpoint, self.output_dir)
        self.forfeit = [self.forfeit] if isinstance(self.forfeit, int | float) else list(self.forfeit)
        check_games(self)
        check_opponents(self)
        # `GRPOConfig` turns on checkpointing under a name that transformers 5.23 deprecates for another, which older
        # versions do not have. Its value is unchanged.
        if not getattr(self, "activation_checkpointing", True):
            self.activation_checkpointing = bool(self.gradient_checkpointing)
        # This also parses the dictionaries that are given as JSON.
        super().__post_init__()
        check_advantages(self)
        PoolSettings.of(self.pool_kwargs)
        check_endpoint_kwargs(self.endpoint_kwargs or {})
        check_names("eval_sampling", self.eval_sampling or (), [one.name for one in dataclasses.fields(Sampling)])
        check_generation(self)

    @property
    def self_play(self) -> SelfPlaySettings:
        """The settings of self-play."""
        return SelfPlaySettings(
            sample_unit=cast(SampleUnit, self.sample_unit),
            prompt_style=self.prompt_style,
            opening_moves=self.opening_moves,
            games_per_start=games_per_start(self.advantage_estimator, self.advantage_kwargs),
            max_draw_retries=self.max_draw_retries,
            forfeit=Forfeit(*self.forfeit),
            priming_games=self.priming_games,
            winner_learns_from_forfeit=self.winner_learns_from_forfeit,
            filter_zero_advantages=self.filter_zero_advantages,
            baseline_per_opponent=self.baseline_per_opponent,
            games_in_flight=self.games_in_flight,
            constrain_moves=self.constrain_moves,
            game_weights=self.game_weights,
            row_advantages=True,
        )
