"""Configuration of `AlgorithmTrainer`: the algorithm and the temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from trl import GRPOConfig

from trl_spiral._trl import WithoutSecrets
from trl_spiral.callbacks.preemption import follow_launcher
from trl_spiral.training.checkpoint import check_resume


@dataclass(frozen=True)
class Algorithm:
    """
    Options of TRL that make up an algorithm.

    Attributes:
        title (`str`):
            Name in model cards.
        paper (`tuple[str, str]`, *optional*):
            arXiv number and title of its paper, if it is on arXiv.
        losses (`tuple[str, ...]`):
            Compatible values of `loss_type`, the default first.
        scale_rewards (`str`):
            Value of `scale_rewards`.
        plain (`bool`):
            Whether it is a plain policy gradient: its loss has neither a ratio of policies nor a KL term.
    """

    title: str
    paper: tuple[str, str] | None
    losses: tuple[str, ...]
    scale_rewards: str
    plain: bool


ALGORITHMS = {
    "grpo": Algorithm(
        "GRPO",
        ("2402.03300", "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models"),
        losses=("dapo", "grpo"),
        scale_rewards="group",
        plain=False,
    ),
    "dr_grpo": Algorithm(
        "Dr. GRPO",
        ("2503.20783", "Understanding R1-Zero-Like Training: A Critical Perspective"),
        losses=("dr_grpo",),
        scale_rewards="none",
        plain=False,
    ),
    "gpg": Algorithm(
        "GPG",
        ("2504.02546", "GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning"),
        losses=("dapo",),
        scale_rewards="none",
        plain=True,
    ),
    # Williams, 1992, is not on arXiv.
    "reinforce": Algorithm("REINFORCE", None, losses=("dr_grpo", "luspo", "dapo"), scale_rewards="none", plain=True),
    "rloo": Algorithm(
        "RLOO",
        (
            "2402.14740",
            "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
        ),
        losses=("dr_grpo", "luspo", "dapo"),
        scale_rewards="none",
        plain=True,
    ),
}

BASELINES = ("none", "batch", "ema")

_OWN_DEFAULTS = {
    "gpg": {"gpg_min_useful": 0.6, "gpg_max_resamples": None},
    "reinforce": {"reinforce_baseline": "none"},
}
"""Defaults of the options that belong to one algorithm. The threshold is from the paper of GPG."""

_MAX_RESAMPLES = 4
"""Our choice: it reaches the threshold if one group in eight is useful. GPG's authors generate up to 20 times."""

_DECAY = 0.95
"""Decay of SPIRAL's baselines of returns (arXiv 2506.24119)."""

_BOUNDS = {"temperature_min": 0.6, "temperature_max": 2.0}

_OFF = {
    "off_policy_mask_threshold": None,
    "top_entropy_quantile": 1.0,
    "delta": None,
    "epsilon": GRPOConfig.epsilon,
    "epsilon_high": None,
}
"""Options of TRL that clip the loss or mask terms of it, with the values that switch them off."""


@dataclass
class AlgorithmConfig(WithoutSecrets, GRPOConfig):
    r"""
    Configuration class for the [`AlgorithmTrainer`].

    This class includes only the parameters that choose an algorithm and adapt the temperature. For a full list of
    training arguments, please refer to the [`~trl.GRPOConfig`] and [`~transformers.TrainingArguments`] documentation.

    Parameters:
        > Parameters that control the algorithm

        algorithm (`str`, *optional*, defaults to `"grpo"`):
            One of:

            - `"grpo"`: [GRPO](https://huggingface.co/papers/2402.03300). Its loss is a mean over the batch's tokens,
              or with `loss_type="grpo"` the paper's mean over each completion.
            - `"dr_grpo"`: [Dr. GRPO](https://huggingface.co/papers/2503.20783).
            - `"gpg"`: [GPG](https://huggingface.co/papers/2504.02546).
            - `"reinforce"`: [REINFORCE](https://doi.org/10.1007/BF00992696). Its loss is the sum over the tokens of a
              completion divided by `max_completion_length`, with `loss_type="luspo"` the sum itself, and with `"dapo"`
              a mean over the batch's tokens.
            - `"rloo"`: [RLOO](https://huggingface.co/papers/2402.14740), with the same losses.
        loss_type (`str`, *optional*):
            As in [`~trl.GRPOConfig`]. Default: the algorithm's first. Values that contradict the algorithm are
            refused.
        scale_rewards (`str`, *optional*):
            As in [`~trl.GRPOConfig`]. Default: the algorithm's. Other values are refused.
        gpg_min_useful (`float`, *optional*):
            Threshold β_th of GPG, in [0, 1]. Default: 0.6. If less than this share of a batch's groups is useful, that
            is, has rewards that differ, more prompts are drawn, and useful groups replace useless ones. 0 never draws
            more.
        gpg_max_resamples (`int`, *optional*):
            Maximum number of extra batches of prompts for one batch. Default: 4. After them, the batch is trained on
            as it is. Refused if `gpg_min_useful` is 0.
        reinforce_baseline (`str`, *optional*):
            Baseline that REINFORCE subtracts from rewards: `"none"` (the default), `"batch"` for the mean of the batch
            over all ranks, or `"ema"` for a moving average of these means.
        reinforce_baseline_decay (`float`, *optional*):
            Share of the moving average that each batch keeps, in [0, 1). Default: 0.95.

        > Parameters that control the temperature

        temperature_ref_std (`float`, *optional*):
            Adapts the temperature to `temperature * temperature_ref_std / std`, where `std` is the standard deviation
            of the previous batch's rewards over all ranks. Default: the temperature is constant. Choose the deviation
            of rewards when training goes well. Rewards of 0 and 1 deviate by at most 0.5.
        temperature_min, temperature_max (`float`, *optional*):
            Bounds of the adapted temperature. Default: 0.6 and 2.0. Refused without `temperature_ref_std`.
    """

    # Parameters that control the algorithm
    algorithm: str = field(
        default="grpo", metadata={"help": "One of 'grpo', 'dr_grpo', 'gpg', 'reinforce' and 'rloo'."}
    )
    loss_type: str | None = field(
        default=None,
        metadata={"help": "Loss of `GRPOTrainer`. Default: the algorithm's. Contradictory values are refused."},
    )
    scale_rewards: str | None = field(
        default=None, metadata={"help": "Scaling of rewards. Default: the algorithm's. Other values are refused."}
    )
    gpg_min_useful: float | None = field(
        default=None,
        metadata={"help": "GPG draws more prompts if a lower share of groups has rewards that differ. Default: 0.6."},
    )
    gpg_max_resamples: int | None = field(
        default=None, metadata={"help": "Maximum number of extra batches of prompts for one batch of GPG. Default: 4."}
    )
    reinforce_baseline: str | None = field(
        default=None,
        metadata={
            "help": "Baseline that REINFORCE subtracts from rewards: 'none', 'batch' or 'ema'. Default: 'none'."
        },
    )
    reinforce_baseline_decay: float | None = field(
        default=None,
        metadata={"help": "Share of the 'ema' baseline that each batch keeps, in [0, 1). Default: 0.95."},
    )

    # Parameters that control the temperature
    temperature_ref_std: float | None = field(
        default=None,
        metadata={
            "help": "Standard deviation of rewards at which `temperature` is used. With a lower deviation it rises, "
            "with a higher one it falls. Default: constant temperature."
        },
    )
    temperature_min: float | None = field(
        default=None, metadata={"help": "Lower bound of the adapted temperature. Default: 0.6."}
    )
    temperature_max: float | None = field(
        default=None, metadata={"help": "Upper bound of the adapted temperature. Default: 2.0."}
    )

    def __post_init__(self):
        follow_launcher()
        check_resume(self.resume_from_checkpoint, self.output_dir)
        self._resolve()
        super().__post_init__()
        self._check_algorithm()
        self._check_own_options()
        self._check_temperature()

    def _resolve(self):
        """Fill in the algorithm's options, and refuse options that contradict it."""
        name = self.algorithm
        if not isinstance(name, str) or name not in ALGORITHMS:
            raise ValueError(f"`algorithm` ({name!r}) must be one of {', '.join(map(repr, ALGORITHMS))}.")
        if self.num_generations < 2:
            raise ValueError(
                f"`num_generations` ({self.num_generations}) must be at least 2 with any algorithm: TRL's trainer "
                "generates and scores groups. Choose 2 or more."
            )
        algorithm = ALGORITHMS[name]
        self.scale_rewards = {True: "group", False: "none"}.get(self.scale_rewards, self.scale_rewards)
        for option, allowed in (("loss_type", algorithm.losses), ("scale_rewards", (algorithm.scale_rewards,))):
            if getattr(self, option) is None:
                setattr(self, option, allowed[0])
            if getattr(self, option) not in allowed:
                raise ValueError(
                    f"`{option}` ({getattr(self, option)!r}) contradicts `algorithm={name!r}`, which requires "
                    f"{' or '.join(map(repr, allowed))}. Leave it out, or choose another algorithm."
                )
        for owner, options in _OWN_DEFAULTS.items():
            for option, default in options.items():
                if owner != name and getattr(self, option) is not None:
                    raise ValueError(
                        f"`{option}` ({getattr(self, option)!r}) has no effect with `algorithm={name!r}`: it is an "
                        f"option of {owner!r}. Leave it out."
                    )
                if owner == name and getattr(self, option) is None:
                    setattr(self, option, default)
        if self.gpg_min_useful and self.gpg_max_resamples is None:
            self.gpg_max_resamples = _MAX_RESAMPLES
        if self.gpg_min_useful == 0.0 and self.gpg_max_resamples is not None:
            raise ValueError(
                f"`gpg_max_resamples` ({self.gpg_max_resamples}) has no effect with `gpg_min_useful=0`, which never "
                "draws more prompts. Leave it out."
            )
        if self.reinforce_baseline == "ema" and self.reinforce_baseline_decay is None:
            self.reinforce_baseline_decay = _DECAY
        if self.reinforce_baseline != "ema" and self.reinforce_baseline_decay is not None:
            raise ValueError(
                f"`reinforce_baseline_decay` ({self.reinforce_baseline_decay}) has no effect without "
                "`reinforce_baseline='ema'`. Leave it out."
            )
        for option, default in _BOUNDS.items():
            if self.temperature_ref_std is None and getattr(self, option) is not None:
                raise ValueError(
                    f"`{option}` ({getattr(self, option)}) has no effect without `temperature_ref_std`, which adapts "
                    "the temperature. Leave it out."
                )
            if self.temperature_ref_std is not None and getattr(self, option) is None:
                setattr(self, option, default)

    def _check_algorithm(self):
        name, plain = self.algorithm, ALGORITHMS[self.algorithm].plain
        if self.importance_sampling_level != "token":
            raise ValueError(
                f"`importance_sampling_level` ({self.importance_sampling_level!r}) is GSPO's, and contradicts "
                f"`algorithm={name!r}`. Leave it at 'token', or use TRL's own `GRPOTrainer`."
            )
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"`multi_objective_aggregation` ({self.multi_objective_aggregation!r}) is GDPO's, and contradicts "
                f"`algorithm={name!r}`. Leave it at 'sum_then_normalize', or use TRL's own `GRPOTrainer`."
            )
        if plain and self.beta != 0.0:
            raise ValueError(
                f"`beta` ({self.beta}) contradicts `algorithm={name!r}`, whose loss has no KL term. Leave it at 0, or "
                "choose 'grpo'."
            )
        for option, off in _OFF.items():
            if plain and getattr(self, option) != off:
                raise ValueError(
                    f"`{option}` ({getattr(self, option)}) contradicts `algorithm={name!r}`, whose loss includes "
                    f"every token, unclipped. Leave it at {off}, or choose 'grpo'."
                )
        if plain and self.gradient_accumulation_steps % (self.steps_per_generation * self.num_iterations):
            raise ValueError(
                f"`algorithm={name!r}` has no ratio of policies, so each generation batch must be used up in one "
                f"optimizer step: `gradient_accumulation_steps` ({self.gradient_accumulation_steps}) must be a "
                f"multiple of `steps_per_generation` ({self.steps_per_generation}) times `num_iterations` "
                f"({self.num_iterations}). Change one of them, or choose 'grpo'."
            )

    def _check_own_options(self):
        if self.algorithm == "gpg":
            if not 0.0 <= self.gpg_min_useful <= 1.0:
                raise ValueError(
                    f"`gpg_min_useful` ({self.gpg_min_useful}) must be in [0, 1]. Use 0 to never resample."
                )
            if self.gpg_min_useful and self.gpg_max_resamples < 1:
                raise ValueError(
                    f"`gpg_max_resamples` ({self.gpg_max_resamples}) must be at least 1. To never resample, set "
                    "`gpg_min_useful` to 0."
                )
            rows = self.per_device_train_batch_size * self.steps_per_generation
            if self.gpg_min_useful > 0.0 and rows % self.num_generations:
                raise ValueError(
                    f"Resampling keeps whole groups on each process, whose {rows} rows per generation batch "
                    "(`per_device_train_batch_size` times `steps_per_generation`) must be a multiple of "
                    f"`num_generations` ({self.num_generations}). Change one of them, or set `gpg_min_useful` to 0."
                )
        if self.algorithm == "reinforce":
            if self.reinforce_baseline not in BASELINES:
                raise ValueError(
                    f"`reinforce_baseline` ({self.reinforce_baseline!r}) must be one of "
                    f"{', '.join(map(repr, BASELINES))}."
                )
            if self.reinforce_baseline == "ema" and not 0.0 <= self.reinforce_baseline_decay < 1.0:
                raise ValueError(
                    f"`reinforce_baseline_decay` ({self.reinforce_baseline_decay}) must be in [0, 1): at 1 the "
                    "baseline never changes."
                )

    def _check_temperature(self):
        if self.temperature_ref_std is None:
            return
        if not 0.0 < self.temperature_ref_std < math.inf:
            raise ValueError(
                f"`temperature_ref_std` ({self.temperature_ref_std}) must be above 0 and finite: it is the standard "
                "deviation of rewards when training goes well. Leave it out for a constant temperature."
            )
        if not 0.0 < self.temperature_min <= self.temperature <= self.temperature_max < math.inf:
            raise ValueError(
                f"`temperature` ({self.temperature}) must lie between `temperature_min` ({self.temperature_min}), "
                f"which must be above 0, and `temperature_max` ({self.temperature_max}), which must be finite."
            )
        if fixed := sorted({"temperature", "do_sample"} & set(self.generation_kwargs or {})):
            raise ValueError(
                f"`generation_kwargs` must not set {fixed[0]!r} if `temperature_ref_std` adapts the temperature: it "
                "would override the temperature that the loss uses."
            )
