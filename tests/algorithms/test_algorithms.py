"""Algorithms by name: gradients against the papers' formulas, on one rank and on two."""

import json
import logging

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

from tests.helpers import algorithm_runs
from tests.helpers.algorithm_runs import LONGEST, REWARDS, SIZE, Gradients, config, gradients, make, move_away, replies
from tests.helpers.forked_ranks import run_on_ranks
from tests.helpers.precision import in_double, rounding
from trl_spiral import AlgorithmConfig, AlgorithmTrainer
from trl_spiral.algorithms.estimators import Baseline, group_policy_gradient, leave_one_out, useful_groups
from trl_spiral.algorithms.resampling import choose_groups, merge


NAN = float("nan")
EPSILON = 1e-4  # TRL adds it to a standard deviation before dividing
BETA = 0.04  # of arXiv 2402.03300, 4.2

# Options by name. Each is compared with `reference`.
RUNS = {
    "grpo": dict(algorithm="grpo"),
    "grpo, each completion": dict(algorithm="grpo", loss_type="grpo"),
    "grpo, each completion and kl": dict(algorithm="grpo", loss_type="grpo", beta=BETA, use_bias_correction_kl=False),
    "dr_grpo": dict(algorithm="dr_grpo"),
    "gpg": dict(algorithm="gpg"),
    "gpg, two batches": dict(algorithm="gpg", gradient_accumulation_steps=4, steps_per_generation=2, max_steps=1),
    "reinforce": dict(algorithm="reinforce"),
    "reinforce, batch": dict(algorithm="reinforce", reinforce_baseline="batch"),
    "reinforce, ema": dict(algorithm="reinforce", reinforce_baseline="ema", reinforce_baseline_decay=0.75),
    "reinforce, sum": dict(algorithm="reinforce", loss_type="luspo"),
    "reinforce, tokens": dict(algorithm="reinforce", loss_type="dapo"),
    "rloo": dict(algorithm="rloo"),
    "rloo, sum": dict(algorithm="rloo", loss_type="luspo"),
    "dr_grpo, adapted": dict(algorithm="dr_grpo", temperature=0.9, temperature_ref_std=0.4),
    "gpg, adapted": dict(algorithm="gpg", temperature=0.9, temperature_ref_std=0.4),
    "rloo, adapted": dict(algorithm="rloo", temperature=0.9, temperature_ref_std=0.4),
}

# Useful groups among the four of each batch. The last batch is never used.
USEFUL = [[0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]]
RESAMPLED = dict(algorithm="gpg", gpg_min_useful=0.6, max_steps=1)


def rewards_of(batches):
    return [
        [reward for useful in groups for reward in ([0, 1, 1, 0.5] if useful else [0.1] * 4)] for groups in batches
    ]


def resampled_rows():
    """
    Return the merged batch: the useful group of the second batch, those of the third, and a last group of the first.
    On two ranks of two groups each, the groups have the same places.
    """
    rows = [*replies(1)[4:8], *replies(2)[0:4], *replies(2)[12:16], *replies(0)[12:16]]
    return rows, [0, 1, 1, 0.5] * 3 + [0.1] * 4


def log_probabilities(model, prompt, reply, temperature=1.0):
    logits = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(reply)[:, None])[:, 0]


def advantages(name, rewards, ema=0.0):
    """Return the advantages of a whole batch by the papers' formulas."""
    groups = torch.tensor(rewards).view(-1, SIZE)
    mean = groups.mean(1, keepdim=True)
    others = (groups.sum(1, keepdim=True) - groups) / (SIZE - 1)
    differ = torch.tensor([len(set(group.tolist())) > 1 for group in groups])
    return {
        "grpo": (groups - mean) / (groups.std(1, keepdim=True) + EPSILON),  # arXiv 2402.03300, 4.1.2
        "dr_grpo": groups - mean,  # arXiv 2503.20783, 3.1
        "gpg": (groups - mean) * len(differ) / differ.sum(),  # arXiv 2504.02546: B / (B - M)
        "reinforce": groups,  # Williams, 1992, with b = 0
        "reinforce, batch": groups - groups.mean(),  # with b, the mean of the batch
        "reinforce, ema": groups - ema,
        "rloo": groups - others,  # arXiv 2402.14740
    }[name].flatten()


def loss(kind, logps, weights):
    """Return the policy loss from each completion's log-probabilities and advantage."""
    sums = [advantage * logp.sum() for advantage, logp in zip(weights, logps, strict=True)]
    divisors = {
        "tokens": sum(map(len, logps)),  # arXiv 2503.14476, which pools the tokens of the batch
        "constant": len(logps) * LONGEST,  # arXiv 2503.20783, listing 1
        "sum": len(logps),  # of whole replies, as in Williams and RLOO
    }
    if kind.startswith("each completion"):  # arXiv 2402.03300
        return -sum(term / len(logp) for term, logp in zip(sums, logps, strict=True)) / len(logps)
    return -sum(sums) / divisors[kind]


def divergence(logps, others):
    """Return the KL term of arXiv 2402.03300, (4), as a mean over each completion."""
    apart = [other - logp for logp, other in zip(logps, others, strict=True)]
    return sum((each.exp() - each - 1).mean() for each in apart) / len(apart)


DEFAULT_LOSS = {"grpo": "tokens", "gpg": "tokens"}


def reference(model_dir, name, step):
    model = in_double(AutoModelForCausalLM.from_pretrained(model_dir))
    algorithm, _, variant = name.partition(", ")
    estimator = name if variant in ("batch", "ema") else algorithm
    losses = ("each completion", "each completion and kl", "sum", "tokens")
    kind = variant if variant in losses else DEFAULT_LOSS.get(algorithm, "constant")
    # The moving average starts at the first batch's mean and is used before its update. The second batch uses the
    # same.
    ema = sum(REWARDS[0]) / len(REWARDS[0])
    temperature = 1.0
    if variant == "adapted":
        temperature = 0.9 if step == 0 else 0.9 * 0.4 / torch.tensor(REWARDS[0]).std(unbiased=False).item()
    logps = [log_probabilities(model, prompt, reply, temperature) for prompt, reply in replies(step)]
    total = loss(kind, logps, advantages(estimator, REWARDS[step], ema))
    if kind == "each completion and kl":
        other = in_double(AutoModelForCausalLM.from_pretrained(model_dir))
        move_away(other)
        others = [log_probabilities(other, prompt, reply).detach() for prompt, reply in replies(step)]
        total = total + BETA * divergence(logps, others)
    total.backward()
    return {parameter: value.grad for parameter, value in model.named_parameters()}


def check(found, expected):
    """Compare gradients. The trainer has rewards and advantages in float32: a sum over the batch and a few steps."""
    assert found.keys() == expected.keys()
    largest = max(value.abs().max().item() for value in expected.values())
    for parameter, value in expected.items():
        torch.testing.assert_close(found[parameter], value, atol=rounding(2 * len(REWARDS[0]), largest), rtol=0)


def check_resampled(model_dir, found):
    model = in_double(AutoModelForCausalLM.from_pretrained(model_dir))
    rows, rewards = resampled_rows()
    logps = [log_probabilities(model, prompt, reply) for prompt, reply in rows]
    loss("tokens", logps, advantages("gpg", rewards)).backward()
    check(found, {parameter: value.grad for parameter, value in model.named_parameters()})


def check_gradients(model_dir, name, steps):
    references = [reference(model_dir, name, batch) for batch in range(2)]
    if name.endswith("two batches"):  # of one step, which is the mean of theirs
        first, second = references
        references = [{parameter: (value + second[parameter]) / 2 for parameter, value in first.items()}]

    for found, expected in zip(steps, references, strict=True):
        check(found, expected)


class TestGradients:
    @pytest.mark.parametrize("name", RUNS)
    def test_match_the_formula_of_the_paper(self, name, model_dir, tmp_path):
        check_gradients(model_dir, name, gradients(model_dir, tmp_path, **RUNS[name]))


@pytest.fixture(scope="module")
def on_two_ranks(model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two_ranks")
    resampled = {"resampled": {**RESAMPLED, "rewards": rewards_of(USEFUL)}}
    runs = [dict(name=name, model=model_dir, world_size=2, **run) for name, run in {**RUNS, **resampled}.items()]
    (folder / "runs.json").write_text(json.dumps(runs))
    done = run_on_ranks(algorithm_runs.main, folder / "runs.json")

    assert done.returncode == 0, done.stderr
    return folder


class TestTwoRanks:
    @pytest.mark.parametrize("name", RUNS)
    def test_have_the_gradients_of_one_rank(self, name, model_dir, on_two_ranks):
        # Each rank has two of the four groups: B and M, the means and the deviations are of the whole batch.
        check_gradients(model_dir, name, torch.load(on_two_ranks / f"{name}.pt"))

    def test_resample_in_sync(self, model_dir, on_two_ranks):
        (found,) = torch.load(on_two_ranks / "resampled.pt")

        check_resampled(model_dir, found)


class TestEstimators:
    REWARDS = torch.tensor([1.0, 0.0, 0.5, NAN, 0.3, 0.3, NAN, 0.3, NAN, NAN, NAN, 1.0])

    def test_a_group_is_useful_if_its_rewards_differ(self):
        assert useful_groups(self.REWARDS, 4).tolist() == [True, False, False]

    def test_rounding_makes_no_group_useful(self):
        # Rewards of 0.7, as sums of two functions.
        parts = torch.tensor(
            [[0.0, 0.7], [0.1, 0.6], [0.3, 0.4], [0.2, 0.5], [0.0, 0.7], [0.1, 0.6], [0.3, 0.4], [0.2, 0.6]]
        )
        rewards = parts.sum(1)

        assert len(set(rewards[:4].tolist())) > 1
        assert useful_groups(rewards, 4).tolist() == [False, True]
        assert group_policy_gradient(rewards, 4)[:4].tolist() == [0.0] * 4

    def test_gpg_divides_by_the_share_of_useful_groups(self):
        expected = [1.5, -1.5, 0.0] + [0.0] * 9

        assert group_policy_gradient(self.REWARDS, 4).tolist() == pytest.approx(expected)

    def test_gpg_is_zero_without_useful_groups(self):
        assert group_policy_gradient(torch.full((8,), 0.1), 4).tolist() == [0.0] * 8

    def test_rloo_uses_the_other_scored_rewards(self):
        found = leave_one_out(self.REWARDS, 4)

        assert found[:4].tolist() == pytest.approx([0.75, -0.75, 0.0, 0.0])
        assert found[4:].tolist() == pytest.approx([0.0] * 8, abs=1e-6)

    def test_the_ema_baseline_is_used_before_its_update(self):
        baseline = Baseline("ema", decay=0.5)

        assert baseline(torch.tensor([1.0, 3.0, NAN])).tolist() == [-1.0, 1.0, 0.0]
        assert baseline(torch.tensor([6.0, 6.0])).tolist() == [4.0, 4.0]
        assert baseline.average == 4.0
        assert baseline(torch.tensor([NAN])).tolist() == [0.0]
        assert baseline.average == 4.0

    def test_a_baseline_restores_its_state(self):
        baseline, other = Baseline("ema", decay=0.5), Baseline("ema", decay=0.5)
        baseline(torch.tensor([2.0]))
        other.load_state_dict(baseline.state_dict())

        assert other(torch.tensor([5.0])).tolist() == [3.0]


class TestResampling:
    def test_useful_groups_replace_useless_ones_on_their_rank(self):
        kept = [True, False, False, False, False, False]
        fresh = [True, False, False, True, True, True]

        # Two ranks of three groups; fresh groups are numbered from 6 on.
        assert choose_groups(kept, fresh, ranks=2) == [0, 6, 2, 9, 10, 11]
        assert choose_groups(kept, [False] * 6, ranks=2) == [0, 1, 2, 3, 4, 5]

    def test_rows_keep_their_padding_side(self):
        first = {
            "prompt_ids": torch.tensor([[1], [2]]),
            "prompt_mask": torch.tensor([[1], [1]]),
            "completion_ids": torch.tensor([[3, 4, 5], [6, 7, 8]]),
            "advantages": torch.tensor([0.1, 0.2]),
            "num_items_in_batch": torch.tensor(6),
        }
        second = {
            "prompt_ids": torch.tensor([[11, 12], [9, 13]]),
            "prompt_mask": torch.tensor([[1, 1], [0, 1]]),
            "completion_ids": torch.tensor([[14], [15]]),
            "advantages": torch.tensor([0.3, 0.4]),
            "num_items_in_batch": torch.tensor(2),
        }
        merged = merge(first, second, [0, 3], pad=9)

        assert merged["prompt_ids"].tolist() == [[9, 1], [9, 13]]
        assert merged["prompt_mask"].tolist() == [[0, 1], [0, 1]]
        assert merged["completion_ids"].tolist() == [[3, 4, 5], [15, 9, 9]]
        assert merged["advantages"].tolist() == pytest.approx([0.1, 0.4])

    def test_refuses_a_batch_with_images(self):
        batch = {"completion_ids": torch.tensor([[1], [2]]), "num_images": [1, 1]}

        with pytest.raises(ValueError, match="A batch with 'num_images' cannot be resampled"):
            merge(batch, batch, [0, 1], pad=0)

    def test_trains_on_useful_groups_of_several_batches(self, model_dir, tmp_path):
        seen = Gradients()
        trainer = make(
            model_dir,
            tmp_path,
            rewards=rewards_of(USEFUL),
            callbacks=[seen],
            log_completions=True,
            num_completions_to_print=1,
            **RESAMPLED,
        )
        trainer.train()

        rows, rewards = resampled_rows()
        check_resampled(model_dir, seen.steps[0])
        entry = trainer.state.log_history[0]
        assert entry["gpg/useful_share"] == 0.75
        assert entry["gpg/resamples"] == 2
        assert trainer.rollout_func.batches == 3
        assert list(trainer._logs["rewards"]["points"]) == pytest.approx(rewards)
        assert list(trainer._logs["advantages"]) == pytest.approx(advantages("gpg", rewards).tolist())
        said = [trainer.processing_class.decode(reply, skip_special_tokens=True) for _, reply in rows]
        assert list(trainer._logs["completion"]) == said

    def test_stops_at_the_maximum_and_warns_once(self, model_dir, tmp_path, caplog):
        with caplog.at_level(logging.WARNING, "trl_spiral"):
            trainer = make(
                model_dir,
                tmp_path,
                rewards=rewards_of([[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]] * 2),
                algorithm="gpg",
                gpg_min_useful=0.6,
                gpg_max_resamples=2,
            )
            trainer.train()

        assert [entry["gpg/useful_share"] for entry in trainer.state.log_history[:2]] == [0.25, 0.25]
        assert trainer.rollout_func.batches == 6
        assert [record.message.split(";")[0] for record in caplog.records] == [
            "Only 25% of the groups have rewards that differ after prompts were drawn 3 times"
        ]

    def test_draws_the_same_prompts_on_all_ranks(self, model_dir, tmp_path):
        trainer = make(model_dir, tmp_path, algorithm="gpg", gpg_min_useful=0.6)
        first = trainer._more_prompts(["prompt"], 16)
        second = trainer._more_prompts(["prompt"], 16)

        assert [row["prompt"] for row in first] == [first[row // 4 * 4]["prompt"] for row in range(16)]
        assert len({row["prompt"] for row in first}) == 4
        assert first != second

    def test_refuses_a_stream_before_the_model_is_loaded(self, tmp_path):
        stream = Dataset.from_dict({"prompt": ["a"]}).to_iterable_dataset()

        with pytest.raises(ValueError, match="which a stream does not allow"):
            AlgorithmTrainer(
                "no such model", lambda **kwargs: [], config(tmp_path, algorithm="gpg", gpg_min_useful=0.5), stream
            )


class TestInfiniteRewards:
    @pytest.mark.parametrize("infinite", [float("inf"), -float("inf")])
    def test_count_as_missing(self, infinite, model_dir, tmp_path):
        def run(odd):
            first, second = REWARDS
            trainer = make(
                model_dir,
                tmp_path,
                rewards=[[odd, *first[1:]], second],
                algorithm="reinforce",
                reinforce_baseline="ema",
                temperature_ref_std=0.4,
                callbacks=[seen := Gradients()],
            )
            trainer.train()
            return seen.steps, trainer._own_state()

        steps, state = run(infinite)
        expected_steps, expected_state = run(None)  # TRL treats it as not scored

        assert state == expected_state
        for found, expected in zip(steps, expected_steps, strict=True):
            torch.testing.assert_close(found, expected)


class TestConfig:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            (
                dict(algorithm="ppo"),
                "`algorithm` ('ppo') must be one of 'grpo', 'dr_grpo', 'gpg', 'reinforce', 'rloo'.",
            ),
            (dict(algorithm=["gpg"]), "`algorithm` (['gpg']) must be one of 'grpo'"),
            (
                dict(algorithm="reinforce", num_generations=1),
                "`num_generations` (1) must be at least 2 with any algorithm",
            ),
            (
                dict(algorithm="gpg", loss_type="grpo"),
                "`loss_type` ('grpo') contradicts `algorithm='gpg'`, which requires 'dapo'.",
            ),
            (
                dict(algorithm="rloo", scale_rewards="group"),
                "`scale_rewards` ('group') contradicts `algorithm='rloo'`, which requires 'none'.",
            ),
            (
                dict(algorithm="dr_grpo", scale_rewards=True),
                "`scale_rewards` ('group') contradicts `algorithm='dr_grpo'`",
            ),
            (
                dict(algorithm="gpg", beta=0.1),
                "`beta` (0.1) contradicts `algorithm='gpg'`, whose loss has no KL term.",
            ),
            (
                dict(algorithm="reinforce", num_iterations=2),
                "each generation batch must be used up in one optimizer step",
            ),
            (dict(algorithm="gpg", gradient_accumulation_steps=1, steps_per_generation=2), "has no ratio of policies"),
            (dict(importance_sampling_level="sequence"), "is GSPO's, and contradicts `algorithm='grpo'`"),
            (dict(multi_objective_aggregation="normalize_then_sum"), "is GDPO's, and contradicts `algorithm='grpo'`"),
            (dict(reinforce_baseline="ema"), "`reinforce_baseline` ('ema') has no effect with `algorithm='grpo'`"),
            (
                dict(algorithm="rloo", gpg_min_useful=0.5),
                "`gpg_min_useful` (0.5) has no effect with `algorithm='rloo'`",
            ),
            (dict(algorithm="reinforce", reinforce_baseline="mean"), "must be one of 'none', 'batch', 'ema'."),
            (
                dict(algorithm="reinforce", reinforce_baseline_decay=0.5),
                "has no effect without `reinforce_baseline='ema'`",
            ),
            (
                dict(algorithm="reinforce", reinforce_baseline="ema", reinforce_baseline_decay=1.0),
                "`reinforce_baseline_decay` (1.0) must be in [0, 1)",
            ),
            (dict(algorithm="gpg", gpg_min_useful=1.5), "`gpg_min_useful` (1.5) must be in [0, 1]."),
            (
                dict(algorithm="gpg", gpg_min_useful=0.6, gpg_max_resamples=0),
                "`gpg_max_resamples` (0) must be at least 1.",
            ),
            (
                dict(algorithm="gpg", gpg_min_useful=0.0, gpg_max_resamples=2),
                "`gpg_max_resamples` (2) has no effect with `gpg_min_useful=0`",
            ),
            (
                dict(algorithm="gpg", off_policy_mask_threshold=0.5),
                "`off_policy_mask_threshold` (0.5) contradicts `algorithm='gpg'`, whose loss includes every "
                "token, unclipped. Leave it at None",
            ),
            (
                dict(algorithm="reinforce", top_entropy_quantile=0.2),
                "`top_entropy_quantile` (0.2) contradicts `algorithm='reinforce'`",
            ),
            (dict(algorithm="rloo", delta=0.5), "`delta` (0.5) contradicts `algorithm='rloo'`"),
            (
                dict(algorithm="gpg", epsilon=0.05),
                "`epsilon` (0.05) contradicts `algorithm='gpg'`, whose loss includes every token, "
                "unclipped. Leave it at 0.2",
            ),
            (
                dict(algorithm="reinforce", epsilon_high=0.28),
                "`epsilon_high` (0.28) contradicts `algorithm='reinforce'`",
            ),
            (
                dict(
                    algorithm="gpg", gpg_min_useful=0.6, per_device_train_batch_size=6, num_generations=8, world_size=2
                ),
                "whose 12 rows per generation batch",
            ),
        ],
    )
    def test_refuses_contradictory_options(self, changes, sentence, tmp_path, monkeypatch):
        if changes.pop("world_size", 1) == 2:
            monkeypatch.setattr(AlgorithmConfig, "world_size", 2)
        with pytest.raises(ValueError) as refused:
            config(tmp_path, **changes)

        assert sentence in str(refused.value)

    def test_names_select_options_of_trl(self, tmp_path):
        resolved = {
            name: (args.loss_type, args.scale_rewards)
            for name in ("grpo", "dr_grpo", "gpg", "reinforce", "rloo")
            for args in [config(tmp_path, algorithm=name)]
        }

        assert resolved == {
            "grpo": ("dapo", "group"),
            "dr_grpo": ("dr_grpo", "none"),
            "gpg": ("dapo", "none"),
            "reinforce": ("dr_grpo", "none"),
            "rloo": ("dr_grpo", "none"),
        }

    def test_options_of_one_algorithm_have_defaults_only_there(self, tmp_path):
        args = AlgorithmConfig(str(tmp_path), algorithm="gpg", use_cpu=True, bf16=False, report_to="none")

        assert (args.gpg_min_useful, args.gpg_max_resamples, args.reinforce_baseline) == (0.6, 4, None)

    def test_gpg_without_resampling_has_no_maximum(self, tmp_path):
        assert config(tmp_path, algorithm="gpg", gpg_min_useful=0.0).gpg_max_resamples is None

    def test_the_trainer_requires_one(self):
        with pytest.raises(ValueError, match=r"`args` \(NoneType\) must be an `AlgorithmConfig`"):
            AlgorithmTrainer("no such model", lambda **kwargs: [])


class TestModelCard:
    def test_credits_the_algorithm(self, model_dir, tmp_path):
        make(model_dir, tmp_path, algorithm="gpg").create_model_card()

        assert "trained with GPG, a method introduced in [GPG: A Simple" in (tmp_path / "README.md").read_text()
        assert "huggingface.co/papers/2504.02546" in (tmp_path / "README.md").read_text()
