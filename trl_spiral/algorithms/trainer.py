"""`AlgorithmTrainer`: TRL's `GRPOTrainer` with other advantages, resampled prompts and an adaptive temperature."""

from __future__ import annotations

import random
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from trl import GRPOTrainer

from trl_spiral import _trl
from trl_spiral.algorithms.config import ALGORITHMS, AlgorithmConfig
from trl_spiral.algorithms.estimators import Baseline, group_policy_gradient, leave_one_out, useful_groups
from trl_spiral.algorithms.resampling import choose_groups, merge, pick, rows_of
from trl_spiral.algorithms.temperature import adapted
from trl_spiral.callbacks.monitoring import CollapseCallback
from trl_spiral.rewards.base import RepliesReward
from trl_spiral.seeding import derive_seed
from trl_spiral.text.printable import get_logger
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.training.base_trainer import AdvantageMixin
from trl_spiral.training.preflight import check_world_size, reserve_output_dir
from trl_spiral.training.resume import digest


logger = get_logger(__name__)

_SAMPLE = 100


class AlgorithmMixin(AdvantageMixin):
    """
    Adds the algorithm and the temperature of an [`AlgorithmConfig`] to [`~trl.GRPOTrainer`].

    GRPO and Dr. GRPO are TRL's own. For the others, advantages are computed from the rewards of all ranks. GPG also
    draws more prompts if too few groups of a batch are useful. Evaluation is TRL's own, at `args.temperature`.

    Raises:
        ValueError: Before the model is loaded, if `args` is not an [`AlgorithmConfig`], or if the prompts are a stream
        and
            GPG may have to draw more of them.
    """

    def __init__(self, model, reward_funcs=None, args=None, train_dataset=None, *others, **kwargs):
        if not isinstance(args, AlgorithmConfig):
            raise ValueError(
                f"`args` ({type(args).__name__}) must be an `AlgorithmConfig`, which selects the algorithm."
            )
        if args.gpg_min_useful and isinstance(train_dataset, IterableDataset):
            raise ValueError(
                "`gpg_min_useful` draws more prompts if a batch has too few useful groups, which a stream does not "
                "allow. Pass a dataset that has a length, or set `gpg_min_useful` to 0."
            )
        check_world_size(args)
        self._output_lock = reserve_output_dir(args)
        algorithm = ALGORITHMS[args.algorithm]
        # For the model card.
        self._tag_names = ["trl", args.algorithm]
        self._name = algorithm.title
        self._paper = dict(zip(("id", "title"), algorithm.paper or (), strict=False))
        super().__init__(model, reward_funcs, args, train_dataset, *others, **kwargs)
        self._renderer: PromptRenderer | None = None
        self._set_renderer()
        self._baseline = Baseline(args.reinforce_baseline, args.reinforce_baseline_decay)
        self._next_temperature = args.temperature
        self._temperature_cells = [] if args.temperature_ref_std is None else _trl.temperature_cells(self)
        self._rewards: torch.Tensor | None = None  # latest batch of all ranks, shape (rows,)
        self._drawn = 0  # number of extra batches of prompts
        self._has_warned_of_few = False
        self.add_callback(CollapseCallback(self))

    # ---- prompts ----
    def _set_renderer(self) -> None:
        """Give rewards the renderer of prompts, which may open thinking that a completion does not show."""
        tokenizer = _trl.tokenizer_of(self)
        if not tokenizer.chat_template:
            return  # prompts are plain text
        self._renderer = PromptRenderer(
            tokenizer, chat_template=self.chat_template, chat_template_kwargs=self.args.chat_template_kwargs
        )
        for reward in self.reward_funcs:
            if isinstance(reward, RepliesReward):
                reward.renderer = self._renderer

    def _tokenize_prompts(self, prompts):
        if self._renderer is not None:
            prompts = [prompt if isinstance(prompt, str) else self._renderer.escaped(prompt) for prompt in prompts]
        return super()._tokenize_prompts(prompts)

    def _get_tool_suffix_ids(self, tool_messages):
        if self._renderer is not None:
            tool_messages = self._renderer.escaped(tool_messages)
        return super()._get_tool_suffix_ids(tool_messages)

    def _get_train_sampler(self, dataset=None):
        sampler = super()._get_train_sampler(dataset)
        if not self.shuffle_dataset:
            return sampler
        return _trl.EpochSampler(sampler, self.args.seed, lambda: self.state.epoch or 0.0)

    # ---- advantages ----
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        per_function = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        # TRL's weighted sum of the reward functions. An infinite reward counts as missing.
        rewards = (per_function * self.reward_weights.to(per_function.device)).nansum(1)
        self._rewards = rewards.masked_fill(per_function.isnan().all(1) | ~rewards.isfinite(), torch.nan)
        return per_function

    def _own_advantages(self, output):
        if self.args.algorithm in ("grpo", "dr_grpo") or not self.model.training:
            return None
        if self.args.algorithm == "reinforce":
            advantages = self._baseline(self._rewards)
            if self._baseline.average is not None:
                self._metrics["train"]["reinforce/moving_average"].append(self._baseline.average)
        else:
            estimate = {"gpg": group_policy_gradient, "rloo": leave_one_out}[self.args.algorithm]
            advantages = estimate(self._rewards, self.num_generations)
        rows = len(output["completion_ids"])
        advantages = advantages[self.accelerator.process_index * rows :][:rows]
        return advantages, advantages.tolist()

    # ---- batches ----
    def _sample(self, inputs):
        if not self.model.training:
            return super()._sample(inputs)
        adapts = self.args.temperature_ref_std is not None
        if adapts:
            # Not earlier: the last batch is trained on at the temperature at which it was sampled.
            _trl.set_temperature(self, self._next_temperature, self._temperature_cells)
            self._metrics["train"]["temperature"].append(self.temperature)
        output, sampled = self._enough(inputs) if self.args.gpg_min_useful else self._sample_once(inputs)
        if adapts:
            bounds = (self.args.temperature_min, self.args.temperature_max)
            self._next_temperature = adapted(self.args.temperature, self.args.temperature_ref_std, sampled, bounds)
        return output

    def _sample_once(self, inputs: list[dict[str, Any]]) -> tuple[dict[str, Any], torch.Tensor]:
        """Return a batch, and the rewards of all ranks."""
        return super()._sample(inputs), self._rewards

    def _enough(self, inputs: list[dict[str, Any]]) -> tuple[dict[str, Any], torch.Tensor]:
        """Return a batch with enough useful groups for GPG, and the rewards of all samples."""
        columns, size = list(inputs[0]), self.num_generations
        output, rewards = self._sample_once(inputs)
        sampled = [rewards]
        useful = useful_groups(rewards, size)
        enough = self.args.gpg_min_useful
        while _share(useful) < enough and len(sampled) <= self.args.gpg_max_resamples:
            logged = {name: list(values) for name, values in _trl.log_columns(self).items()}
            fresh, fresh_rewards = self._sample_once(self._more_prompts(columns, len(inputs)))
            sampled.append(fresh_rewards)
            fresh_useful = useful_groups(fresh_rewards, size).tolist()
            groups = choose_groups(useful.tolist(), fresh_useful, self.accelerator.num_processes)
            output = self._merged(output, fresh, groups)
            rewards = torch.cat([rewards, fresh_rewards])[rows_of(groups, size)]
            self._merge_logs(logged, rows_of(groups, size))
            useful = useful_groups(rewards, size)
        share = _share(useful)
        if share < enough and self.accelerator.is_main_process and not self._has_warned_of_few:
            self._has_warned_of_few = True
            logger.warning(
                "Only %.0f%% of the groups have rewards that differ after prompts were drawn %d times; "
                "`gpg_min_useful` is %.0f%%. They are trained on, without further warnings: see `gpg/useful_share`. "
                "Use easier or harder prompts, or larger groups.",
                *(100 * share, len(sampled), 100 * enough),
            )
        self._metrics["train"]["gpg/useful_share"].append(share)
        self._metrics["train"]["gpg/resamples"].append(float(len(sampled) - 1))
        self._rewards = rewards
        return output, torch.cat(sampled)

    def _more_prompts(self, columns: list[str], rows: int) -> list[dict[str, Any]]:
        """Return this rank's rows of a batch of random prompts. The order of the epoch does not change."""
        chance = random.Random(derive_seed(self.args.seed, "more prompts", self._drawn))
        self._drawn += 1
        groups = rows // self.num_generations
        everywhere = groups * self.accelerator.num_processes
        population = range(len(self.train_dataset))
        enough = everywhere <= len(population)
        drawn = chance.sample(population, everywhere) if enough else chance.choices(population, k=everywhere)
        mine = drawn[self.accelerator.process_index * groups :][:groups]
        examples = [self.train_dataset[number] for number in mine]
        return [
            {column: example[column] for column in columns}
            for example in examples
            for _ in range(self.num_generations)
        ]

    def _merged(self, output: dict[str, Any], fresh: dict[str, Any], groups: list[int]) -> dict[str, Any]:
        """Return this rank's rows of the groups that were chosen on all ranks."""
        everywhere = len(groups)
        each = everywhere // self.accelerator.num_processes
        first = self.accelerator.process_index * each
        # From numbers over all ranks to numbers on this rank, which has its old rows and then its fresh ones.
        mine = [
            group - first if group < everywhere else group - everywhere - first + each
            for group in groups[first : first + each]
        ]
        merged = merge(output, fresh, rows_of(mine, self.num_generations), self._tokenizer.pad_token_id)
        written = merged["completion_mask"] * merged.get("tool_mask", 1)
        merged["num_items_in_batch"] = self.accelerator.gather(written.sum()).sum()
        return merged

    def _merge_logs(self, before: dict[str, list[Any]], rows: list[int]) -> None:
        """Keep only the rows that are trained on in TRL's table of completions."""
        for name, values in _trl.log_columns(self).items():
            if len(before.get(name, ())) == len(values) == len(rows):
                merged = pick(before[name], list(values), rows)
                values.clear()
                values.extend(merged)

    # ---- evaluation ----
    def evaluation_loop(self, *args, **kwargs):
        """Evaluate as in [`~transformers.Trainer`], at the configured temperature."""
        if not self._temperature_cells:
            return super().evaluation_loop(*args, **kwargs)
        sampled_at = self.temperature
        _trl.set_temperature(self, self.args.temperature, self._temperature_cells)
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            _trl.set_temperature(self, sampled_at, self._temperature_cells)

    # ---- checkpoints ----
    def _described(self, **others):
        return super()._described(
            train_dataset=_summary(self.train_dataset), reward_functions=self.reward_func_names, **others
        )

    def _own_state(self):
        return {
            "baseline": self._baseline.state_dict(),
            "drawn": self._drawn,
            "temperature": [self.temperature, self._next_temperature],
        }

    def _restore_own_state(self, state, folder):
        self._baseline.load_state_dict(state["baseline"])
        self._drawn = state["drawn"]
        if self._temperature_cells:
            now, self._next_temperature = state["temperature"]
            _trl.set_temperature(self, now, self._temperature_cells)


def _summary(dataset: Any) -> str | None:
    """Return the size of a dataset and a digest of a sample of its rows; `None` for a stream."""
    if not isinstance(dataset, Dataset):
        return None
    rows = len(dataset)
    sample = sorted({number * rows // _SAMPLE for number in range(_SAMPLE)} | {rows - 1}) if rows else []
    return f"{rows} rows {digest(dataset.with_format('arrow')[sample].to_pydict())}"


def _share(which: torch.Tensor) -> float:
    # In double precision, where 7 of 10 are not less than 0.7.
    return sum(which.tolist()) / len(which)


class AlgorithmTrainer(AlgorithmMixin, GRPOTrainer):
    """
    TRL's [`~trl.GRPOTrainer`] with an algorithm by name, for prompts with rewards such as [`~rewards.TaskReward`].

    Example:

    ```python
    >>> from trl_spiral import AlgorithmConfig, AlgorithmTrainer

    >>> trainer = AlgorithmTrainer(
    ...     model="Qwen/Qwen3-0.6B",
    ...     reward_funcs=reward,
    ...     args=AlgorithmConfig("out", algorithm="gpg"),
    ...     train_dataset=dataset,
    ... )
    >>> trainer.train()
    ```

    Args:
        args ([`AlgorithmConfig`]):
            Configuration, which selects the algorithm.
        model, reward_funcs, others:
            As in [`~trl.GRPOTrainer`].
    """
