"""Configuration of `SpiralTrainer`."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from typing import get_args

from trl import GRPOConfig

from trl_spiral._trl import WithoutSecrets
from trl_spiral.callbacks.preemption import follow_launcher
from trl_spiral.engines.http.openai import check_endpoint_kwargs
from trl_spiral.games import check_game
from trl_spiral.opponents import get_scheme
from trl_spiral.opponents.pool import Eviction
from trl_spiral.players.names import check_scripted_name, parse_opponents
from trl_spiral.selfplay.curriculum import game_shares
from trl_spiral.text.prompts import PROMPT_STYLES
from trl_spiral.training.checkpoint import check_resume
from trl_spiral.types import BASE, HUMAN, POOL, SELF, Sampling


ESTIMATORS = ("role", "batch", "group", "none", "position")


@dataclass
class SpiralConfig(WithoutSecrets, GRPOConfig):
    r"""
    Configuration class for the [`SpiralTrainer`].

    This class includes only the parameters that are specific to self-play, or whose defaults differ from GRPO's. For a
    full list of training arguments, please refer to the [`~trl.GRPOConfig`] and [`~transformers.TrainingArguments`]
    documentation. Defaults follow [SPIRAL](https://huggingface.co/papers/2506.24119).

    `num_generations` must stay at least 2 and divide the generation batch, as TRL insists. Self-play has no groups of
    completions of one prompt, so apart from that it means nothing here: keep 2.

    Parameters:
        > Parameters whose defaults differ from GRPO's

        max_steps (`int`, *optional*, defaults to `400`):
            Number of optimizer steps. There is no data set to run out of, so epochs mean nothing.
        num_generations (`int`, *optional*, defaults to `2`):
            See above.
        loss_type (`str`, *optional*, defaults to `"dr_grpo"`):
            Sum over tokens divided by a constant, as in SPIRAL. Clipped by `epsilon` over `num_iterations` passes; with
            one pass and one step per generation it is plain importance sampling.
        num_iterations (`int`, *optional*, defaults to `2`):
            Passes over each generation batch.
        scale_rewards (`str`, *optional*, defaults to `"none"`):
            Advantages are replaced after TRL has scaled its own, so nothing else has an effect.
        activation_checkpointing (`bool`, *optional*, defaults to `True`):
            TRL's default, under the name that transformers now uses.

        > Parameters that control what is played

        games (`list[str]`, *optional*, defaults to `["TicTacToe-v0"]`):
            Names of the games.
        game_weights (`list[float]`, *optional*):
            How often each game is played, in the order of `games` and up to a common factor; each as often as another by
            default. Of games, not rows: long games bring more of these.
        opening_moves (`int`, *optional*, defaults to `0`):
            Up to this many uniformly random legal moves start each game, so that self-play meets positions that it
            would not choose. The number is drawn uniformly per game; the moves are nobody's and are not trained on.
        games_per_start (`int`, *optional*, defaults to `1`):
            Episodes that share one deal and one opening. Needed above 1 by `advantage_estimator="group"`.
        max_draw_retries (`int`, *optional*, defaults to `0`):
            How often a drawn game is played again before a draw is accepted. SPIRAL's `filter_draw` uses 5.
        illegal_move_return (`float`, *optional*, defaults to `-1.0`):
            Return of a seat whose reply holds no legal move or is truncated. SPIRAL's code uses `-1.5`. Where the rules of
            a game can give a seat less, such as 13 chips lost in Leduc poker, it is the worst that they can give, and the
            other seats share as much.
        illegal_move_gain (`float`, *optional*, defaults to `1.0`):
            Return shared by the other seats in that case. SPIRAL's code uses `0.5`.
        games_in_flight (`int`, *optional*):
            Most games under way at once on each rank. By default as many as the batch has rows, up to 512.

        > Parameters that control whom the policy meets

        opponents (`str`, *optional*, defaults to `"self"`):
            Who is met in what share of the games, such as `"self:0.5,pool:0.4,random:0.1"`: `self`; `pool` for earlier
            selves; `base` for the model that training started from; a scripted player (`random`, `minimax`,
            `equilibrium`, `mcts`, `mcts-200`, `hold-20`, `greedy`, `odds`); `human` for a person at the terminal; a model's folder or Hub id, which must
            hold a `/`; or an OpenAI-compatible endpoint as `https://host/v1#model`.
        matchmaking (`str`, *optional*, defaults to `"uniform"`):
            Which earlier self is met: `mirror`, `latest`, `lagged-N`, `uniform`, `fifo-N` (SPIRAL's, with 25), `pfsp-hard`,
            `pfsp-var` or `rating`; see [`~opponents.matchmaking`].
        pool_every (`int`, *optional*, defaults to `20`):
            Optimizer steps between snapshots.
        pool_start (`int`, *optional*, defaults to `0`):
            Step of the first snapshot; step 0 itself is `base`.
        pool_capacity (`int`, *optional*, defaults to `25`):
            Most earlier selves kept.
        pool_eviction (`str`, *optional*, defaults to `"oldest"`):
            Who leaves a full pool: the `oldest`, the `lowest` rated, or one chosen so that the ages of those left form a
            geometric `ladder`.
        pool_dtype (`str`, *optional*):
            Such as `bfloat16`, to store whole weights in half the room. By default as they are trained.
        pool_rating_games (`int`, *optional*, defaults to `0`):
            Games that each new snapshot plays against every other one, half of them in each seat, from the same deals: so
            ratings rest on more than the policy's own games, and it shows where strength goes in circles. Not trained on.
        pool_repair (`bool`, *optional*, defaults to `False`):
            Whether a resumed run goes on without snapshots that are missing or damaged. By default it goes back to an
            older checkpoint that is whole.
        baseline_per_opponent (`bool`, *optional*, defaults to `True`):
            Whether baselines are kept apart for each class of opponent (itself, earlier selves, each other player): what a
            seat can expect depends on whom it meets.
        endpoint_kwargs (`dict`, *optional*):
            Arguments of [`EndpointEngine`] for each endpoint among the opponents: `timeout` (seconds for one reply),
            `api_key_env` (environment variable that holds the key; empty for an endpoint that wants none), `max_requests`
            and `max_tokens` (budget of the whole run, shared evenly among ranks) and others. An endpoint whose share is
            spent is met no more. A resumed run goes on from what had been spent at its checkpoint.

        > Parameters that control generation

        vllm_engine_kwargs (`dict`, *optional*):
            More arguments of [`vllm.LLM`] in colocate mode, such as `dtype` or `block_size`. They override what the trainer
            chooses.
        vllm_server_patience (`float`, *optional*, defaults to `30.0`):
            Seconds for which a vLLM server may fail in the middle of a run before the run ends. One that is started again
            within them is given the weights again; allow for the time that takes.
        constrain_moves (`bool`, *optional*, defaults to `False`):
            Whether replies are constrained to end in a legal move. Needs vLLM, whose log-probabilities are then of the
            constrained distribution; TRL's importance sampling correction accounts for that.

        > Parameters that control the text

        prompt_style (`str`, *optional*, defaults to `"chat"`):
            `"chat"` for the tokenizer's chat template, or `"qwen3"`, `"octothinker"`, `"r1"`, `"llama-instruct"` for
            base models without one.
        sample_unit (`str`, *optional*, defaults to `"turn"`):
            What one row holds: `"turn"` for one decision, or `"trajectory"` for all of a seat's decisions in a game,
            as one conversation.

        > Parameters that control credit assignment

        advantage_estimator (`str`, *optional*, defaults to `"role"`):
            `"role"` for SPIRAL's role-conditioned baselines, `"batch"` for the batch mean of each role, `"group"` for
            the mean over games that share a start, `"none"` for the return itself, or `"position"` for generalised
            advantage estimation over turns with a table of position values.
        role_baseline_decay (`float`, *optional*, defaults to `0.95`):
            Share of a role's baseline kept at each batch, in [0, 1).
        role_baseline_per_episode (`bool`, *optional*, defaults to `False`):
            Whether the baseline moves after every episode, as in SPIRAL's code, instead of every batch.
        turn_discount (`float`, *optional*, defaults to `1.0`):
            Factor by which a turn's advantage shrinks for every later turn of its seat, in (0, 1].
        position_trace (`float`, *optional*, defaults to `0.0`):
            The λ of `advantage_estimator="position"`, in [0, 1].
        priming_games (`int`, *optional*, defaults to `0`):
            Games between uniformly random players that are played before the first batch and shown to the estimator
            alone, so that it starts with a first idea of what positions are worth.
        winner_learns_from_forfeit (`bool`, *optional*, defaults to `True`):
            Whether the other seats are trained on a game that ended by an illegal or truncated reply.
        filter_zero_advantages (`bool`, *optional*, defaults to `False`):
            Whether turns of zero advantage are left out and more games are played in their place.
        keep_surplus (`bool`, *optional*, defaults to `True`):
            Whether rows that no longer fit in a batch wait for the next one. Otherwise they are dropped.

        entropy_coef_end (`float`, *optional*):
            Where `entropy_coef` ends up, falling or rising linearly over the run. By default it stays.

        > Parameters that control what is shown

        live (`bool`, *optional*, defaults to `False`):
            Whether the running training is shown in the terminal, in place of progress bars: see
            [`~callbacks.LiveCallback`]. Of collapse the trainer warns in any case: see [`~callbacks.CollapseCallback`].

        > Parameters that control evaluation

        eval_rows (`int`, *optional*, defaults to `64`):
            Rows of self-play per evaluation, where `eval_strategy` asks for any.
        eval_sampling (`dict`, *optional*):
            What evaluation samples otherwise than training: fields of [`~types.Sampling`], such as
            `{"temperature": 0.25}`.
    """

    _VALID_DICT_FIELDS = GRPOConfig._VALID_DICT_FIELDS + ["vllm_engine_kwargs", "eval_sampling", "endpoint_kwargs"]

    # Parameters whose defaults differ from GRPO's
    max_steps: int = field(
        default=400,
        metadata={"help": "Number of optimizer steps. There is no data set to run out of, so epochs mean nothing."},
    )
    num_generations: int | None = field(
        default=2,
        metadata={"help": "Must be at least 2 and divide the generation batch; means nothing else in self-play."},
    )
    loss_type: str = field(
        default="dr_grpo",
        metadata={"help": "Loss of `GRPOTrainer`. The default sums over tokens and divides by a constant, as SPIRAL."},
    )
    num_iterations: int = field(default=2, metadata={"help": "Passes over each generation batch."})
    scale_rewards: str = field(
        default="none", metadata={"help": "Has no effect: advantages are replaced after TRL has scaled its own."}
    )

    # Parameters that control what is played
    games: list[str] = field(
        default_factory=lambda: ["TicTacToe-v0"],
        metadata={"help": "Names of the games."},
    )
    game_weights: list[float] | None = field(
        default=None,
        metadata={"help": "How often each game is played, in the order of `games`. Default: as often as another."},
    )
    opening_moves: int = field(
        default=0,
        metadata={"help": "Up to this many uniformly random legal moves start each game. They are not trained on."},
    )
    games_per_start: int = field(default=1, metadata={"help": "Episodes that share one deal and one opening."})
    max_draw_retries: int = field(
        default=0, metadata={"help": "How often a drawn game is played again before a draw is accepted."}
    )
    illegal_move_return: float = field(
        default=-1.0,
        metadata={
            "help": "Return of a seat whose reply holds no legal move or is truncated; at most the worst that the rules can "
            "give."
        },
    )
    illegal_move_gain: float = field(
        default=1.0, metadata={"help": "Return shared by the other seats after an illegal or truncated reply."}
    )
    games_in_flight: int | None = field(
        default=None,
        metadata={"help": "Most games under way at once on each rank. Default: rows of the batch, up to 512."},
    )

    # Parameters that control whom the policy meets
    opponents: str = field(
        default="self",
        metadata={"help": "Who is met in what share of the games, such as 'self:0.5,pool:0.4,random:0.1'."},
    )
    matchmaking: str = field(
        default="uniform",
        metadata={
            "help": "Which earlier self is met: mirror, latest, lagged-N, uniform, fifo-N, pfsp-hard, pfsp-var, rating."
        },
    )
    pool_every: int = field(default=20, metadata={"help": "Optimizer steps between snapshots."})
    pool_start: int = field(default=0, metadata={"help": "Step of the first snapshot."})
    pool_capacity: int = field(default=25, metadata={"help": "Most earlier selves kept."})
    pool_eviction: str = field(
        default="oldest",
        metadata={"help": "Who leaves a full pool: 'oldest', 'lowest' rated, or by a 'ladder' of ages."},
    )
    pool_dtype: str | None = field(
        default=None, metadata={"help": "Such as 'bfloat16', to store whole weights in half the room."}
    )
    pool_rating_games: int = field(
        default=0, metadata={"help": "Games that each new snapshot plays against every other one, for their ratings."}
    )
    pool_repair: bool = field(
        default=False,
        metadata={"help": "Whether a resumed run goes on without snapshots that are missing or damaged."},
    )
    baseline_per_opponent: bool = field(
        default=True, metadata={"help": "Whether baselines are kept apart for each class of opponent."}
    )
    endpoint_kwargs: dict | str | None = field(
        default=None,
        metadata={
            "help": "Arguments of `EndpointEngine` for the endpoints among the opponents: `timeout`, `api_key_env`, "
            "`max_requests`, `max_tokens` and others."
        },
    )

    # Parameters that control generation
    vllm_engine_kwargs: dict | str | None = field(
        default=None,
        metadata={"help": "More arguments of `vllm.LLM` in colocate mode. They override what the trainer chooses."},
    )
    vllm_server_patience: float = field(
        default=30.0,
        metadata={"help": "Seconds for which a vLLM server may fail in the middle of a run before the run ends."},
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
        metadata={"help": "What one row holds: 'turn', or 'trajectory' for all of a seat's turns in a game."},
    )

    # Parameters that control credit assignment
    advantage_estimator: str = field(
        default="role", metadata={"help": "One of 'role', 'batch', 'group', 'none' and 'position'."}
    )
    role_baseline_decay: float = field(
        default=0.95,
        metadata={"help": "Share of a role's baseline kept at each batch (not episode), in [0, 1)."},
    )
    role_baseline_per_episode: bool = field(
        default=False, metadata={"help": "Whether the baseline moves after every episode instead of every batch."}
    )
    turn_discount: float = field(
        default=1.0,
        metadata={"help": "Factor by which a turn's advantage shrinks for every later turn of its seat, in (0, 1]."},
    )
    position_trace: float = field(
        default=0.0, metadata={"help": "The lambda of `advantage_estimator='position'`, in [0, 1]."}
    )
    priming_games: int = field(
        default=0,
        metadata={"help": "Games between random players, shown to the advantage estimator before the first batch."},
    )
    winner_learns_from_forfeit: bool = field(
        default=True,
        metadata={"help": "Whether the other seats are trained on games that ended by an illegal or truncated reply."},
    )
    filter_zero_advantages: bool = field(
        default=False, metadata={"help": "Whether turns of zero advantage are left out and replaced by more games."}
    )
    keep_surplus: bool = field(
        default=True,
        metadata={
            "help": "Whether rows that no longer fit in a batch wait for the next one instead of being dropped."
        },
    )

    entropy_coef_end: float | None = field(
        default=None,
        metadata={"help": "Where `entropy_coef` ends up, linearly over the run. By default it stays."},
    )

    # Parameters that control what is shown
    live: bool = field(
        default=False,
        metadata={"help": "Whether the running training is shown in the terminal, in place of progress bars."},
    )

    # Parameters that control evaluation
    eval_rows: int = field(default=64, metadata={"help": "Rows of self-play per evaluation, where there is any."})
    eval_sampling: dict | str | None = field(
        default=None,
        metadata={"help": "Fields of `Sampling` in which evaluation differs from training, as JSON."},
    )

    def __post_init__(self):
        if isinstance(self.games, str):
            self.games = [self.games]
        follow_launcher()
        check_resume(self.resume_from_checkpoint, self.output_dir)
        self._check_self_play()
        self._check_opponents()
        # `GRPOConfig` turns on checkpointing under a name that transformers 5.23 deprecates for another, which older
        # ones do not have. Its value is unchanged.
        if not getattr(self, "activation_checkpointing", True):
            self.activation_checkpointing = bool(self.gradient_checkpointing)
        super().__post_init__()
        self._check_generation()

    def _check_self_play(self):
        for name in self.games:
            check_game(name)
        if not self.games:
            raise ValueError("`games` is empty: name at least one game.")
        if self.game_weights is not None:
            game_shares(self.games, self.game_weights)
        if self.num_generations is None or self.num_generations < 2:
            raise ValueError(
                f"`num_generations` ({self.num_generations}) must be at least 2: TRL insists on groups. Self-play does "
                "not use them, so leave it at 2."
            )
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if world_size > 1 and not self.use_cpu and self._has_no_accelerator():
            raise ValueError(
                f"The launcher started {world_size} processes, and without an accelerator each of them would train "
                "alone. Add `--use_cpu` to train on the CPU together."
            )
        if self.advantage_estimator not in ESTIMATORS:
            raise ValueError(
                f"`advantage_estimator` ({self.advantage_estimator!r}) must be one of {', '.join(map(repr, ESTIMATORS))}."
            )
        if self.sample_unit not in ("turn", "trajectory"):
            raise ValueError(f"`sample_unit` ({self.sample_unit!r}) must be 'turn' or 'trajectory'.")
        if self.prompt_style != "chat" and self.prompt_style not in PROMPT_STYLES:
            raise ValueError(
                f"`prompt_style` ({self.prompt_style!r}) must be 'chat' or one of "
                f"{', '.join(map(repr, PROMPT_STYLES))}."
            )
        if not 0.0 <= self.role_baseline_decay < 1.0:
            raise ValueError(
                f"`role_baseline_decay` ({self.role_baseline_decay}) must be in [0, 1): at 1 a baseline never moves. "
                "Use `0.0` to follow only the latest batch."
            )
        if not 0.0 < self.turn_discount <= 1.0:
            raise ValueError(f"`turn_discount` ({self.turn_discount}) must be in (0, 1]. Use 1 for no discount.")
        if not 0.0 <= self.position_trace <= 1.0:
            raise ValueError(f"`position_trace` ({self.position_trace}) must be in [0, 1].")
        for name, least in (
            ("opening_moves", 0),
            ("games_per_start", 1),
            ("max_draw_retries", 0),
            ("priming_games", 0),
            ("eval_rows", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"`{name}` ({getattr(self, name)}) must be at least {least}.")
        if self.games_in_flight is not None and self.games_in_flight < 1:
            raise ValueError(f"`games_in_flight` ({self.games_in_flight}) must be at least 1, or unset.")
        if self.advantage_estimator == "group" and self.games_per_start < 2:
            raise ValueError(
                f"`games_per_start` ({self.games_per_start}) must be at least 2 for `advantage_estimator='group'`: a "
                "group of one is its own baseline, and every advantage is zero."
            )
        if self.entropy_coef_end is not None and (self.entropy_coef == 0.0 or self.use_adaptive_entropy):
            raise ValueError(
                f"`entropy_coef_end` ({self.entropy_coef_end}) moves `entropy_coef`, which must start away from 0 and not "
                "be adaptive. Set `entropy_coef`, or leave `entropy_coef_end` unset."
            )

    def _check_opponents(self):
        shares = parse_opponents(self.opponents)
        for name in shares:
            # An address or a folder, which hold a slash, is looked up when the opponents are made.
            if name not in (SELF, POOL, BASE, HUMAN) and "/" not in name:
                check_scripted_name(name)
        get_scheme(self.matchmaking)
        if POOL not in shares and self.matchmaking != type(self).matchmaking:
            raise ValueError(
                f"`matchmaking` ({self.matchmaking!r}) chooses among earlier selves, and `opponents` ({self.opponents!r}) names "
                "no pool. Add it, as in 'self:0.5,pool:0.5'."
            )
        for name, least in (("pool_every", 1), ("pool_start", 0), ("pool_capacity", 1), ("pool_rating_games", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"`{name}` ({getattr(self, name)}) must be at least {least}.")
        if self.pool_eviction not in get_args(Eviction):
            raise ValueError(
                f"`pool_eviction` ({self.pool_eviction!r}) must be one of {', '.join(get_args(Eviction))}."
            )
        if self.pool_dtype not in (None, "float32", "bfloat16", "float16"):
            raise ValueError(f"`pool_dtype` ({self.pool_dtype!r}) must be float32, bfloat16, float16 or unset.")

    def _check_generation(self):
        """What the parent class has parsed and filled in by now."""
        if self.vllm_engine_kwargs and not (self.use_vllm and self.vllm_mode == "colocate"):
            raise ValueError(
                "`vllm_engine_kwargs` are for an engine that the trainer starts: `use_vllm` with `vllm_mode='colocate'`. "
                "Give a server its flags where it is started."
            )
        if self.vllm_server_patience <= 0:
            raise ValueError(f"`vllm_server_patience` ({self.vllm_server_patience}) must be above 0 seconds.")
        fields = [field.name for field in dataclasses.fields(Sampling)]
        if unknown := sorted(set(self.eval_sampling or ()) - set(fields)):
            raise ValueError(f"`eval_sampling` names {unknown[0]!r}; it takes {', '.join(fields)}.")
        check_endpoint_kwargs(self.endpoint_kwargs or {})
        options = self.generation_kwargs or {}
        if fixed := sorted({"seed", "n", "logprobs", "temperature"} & set(options)):
            raise ValueError(
                f"`generation_kwargs` must not set {fixed[0]!r}: every reply has a seed of its own, made from the run's "
                "`seed`, one log-probability a token, and the `temperature` at which the loss scores it."
            )
        correcting = self.use_vllm and self.vllm_importance_sampling_correction
        if self.constrain_moves and not correcting:
            raise ValueError(
                "`constrain_moves` needs `use_vllm` and `vllm_importance_sampling_correction`: the constraint changes the "
                "distribution that replies are drawn from, and only vLLM reports and TRL corrects that."
            )
        if self.constrain_moves and self.vllm_structured_outputs_regex is not None:
            raise ValueError(
                "`constrain_moves` and `vllm_structured_outputs_regex` both constrain a reply. Choose one of them."
            )
        harmless = {"max_tokens", "max_new_tokens", "stop", "stop_strings", "ignore_eos"}
        filtered = self.top_p < 1.0 or self.top_k > 0 or self.min_p or self.repetition_penalty != 1.0
        shaped = set(options) - harmless or self.vllm_structured_outputs_regex is not None
        if self.use_vllm and not correcting and (filtered or shaped):
            raise ValueError(
                "vLLM's log-probabilities of filtered sampling (`top_p`, `top_k`, `min_p`, `repetition_penalty`, a regex, "
                "`generation_kwargs`) are not the policy's. Leave `vllm_importance_sampling_correction` on, or sample "
                "unfiltered."
            )

    @staticmethod
    def _has_no_accelerator():
        import torch

        return torch.accelerator.current_accelerator(check_available=True) is None
