"""
Training runs on fixed batches of replies. Tests compare their gradients with plain torch.

As a script, for several ranks, it runs the runs in `runs.json` in order and writes their gradients next to that file:

    python algorithm_runs.py runs.json
"""

import json
import random
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import TrainerCallback

from tests.helpers.precision import in_double
from trl_spiral import AlgorithmConfig, AlgorithmTrainer


SIZE = 4
LONGEST = 6
# Two batches of four groups. Two groups of the first batch, one on each of two ranks, and one of the second have equal
# rewards, some of them a value that no float represents exactly.
REWARDS = (
    [*(1.0, 0.0, 0.0, 0.5), *(0.0,) * 4, *(0.25, 1.0, 1.0, 1.0), *(0.1,) * 4],
    [*(1.0, 1.0, 0.5, 1.0), *(0.0, 0.0, 1.0, 0.0), *(0.7,) * 4, *(0.9, 0.4, 0.0, 0.0)],
)
ROWS = len(REWARDS[0])


def replies(batch):
    """Return token ids of sixteen prompts in groups of four, each with a reply of another length."""
    chance = random.Random(batch)
    prompts = [[chance.randrange(3, 200) for _ in range(chance.randrange(2, 5))] for _ in range(ROWS // SIZE)]
    return [
        (prompts[row // SIZE], [chance.randrange(3, 200) for _ in range(chance.randrange(1, LONGEST + 1))])
        for row in range(ROWS)
    ]


class Replies:
    """A `rollout_func` that returns this rank's share of the replies and rewards of fixed batches, in order."""

    def __init__(self, rewards=REWARDS):
        self.rewards = rewards
        self.batches = 0

    def __call__(self, prompts, trainer):
        batch, self.batches = self.batches, self.batches + 1
        first = trainer.accelerator.process_index * len(prompts)
        rows = range(first, first + len(prompts))
        said = replies(batch)
        return {
            "prompt_ids": [said[row][0] for row in rows],
            "completion_ids": [said[row][1] for row in rows],
            "logprobs": None,
            "points": [self.rewards[batch][row] for row in rows],
        }


def points(points, **kwargs):
    """Return the rewards of the replies."""
    return points


class Gradients(TrainerCallback):
    """Stores the gradients of each optimizer step, by parameter."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.steps.append({name.removeprefix("module."): p.grad.clone() for name, p in model.named_parameters()})


def config(output_dir, world_size=1, **changes):
    """Return a configuration with one step for each batch of sixteen rows, and a learning rate of 0."""
    settings = dict(
        output_dir=str(output_dir),
        per_device_train_batch_size=8 // world_size,
        gradient_accumulation_steps=2,
        num_generations=SIZE,
        max_steps=2,
        max_completion_length=LONGEST,
        learning_rate=0.0,
        max_grad_norm=0.0,  # not clipped
        shuffle_dataset=False,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    if changes.get("algorithm") == "gpg":
        settings["gpg_min_useful"] = 0.0  # some of each batch is useless on purpose
    return AlgorithmConfig(**{**settings, **changes})


def make(model, output_dir, world_size=1, rewards=REWARDS, callbacks=None, **changes):
    """Return a trainer on the fixed batches, in float64: gradients show only the rounding of advantages."""
    trainer = AlgorithmTrainer(
        model=model,
        reward_funcs=points,
        args=config(output_dir, world_size, **changes),
        train_dataset=Dataset.from_dict({"prompt": [f"{number}" for number in range(8)]}),
        rollout_func=Replies(rewards),
        callbacks=callbacks,
    )
    for network in filter(None, (trainer.model, trainer.ref_model)):
        in_double(network)
    return trainer


def gradients(model, output_dir, world_size=1, **changes):
    """Return the gradients of each step of a run."""
    seen = Gradients()
    trainer = make(model, output_dir, world_size, callbacks=[seen], **changes)
    if trainer.ref_model is not None:
        move_away(trainer.ref_model)
    trainer.train()
    return seen.steps


def move_away(reference):
    """Change a copy of the policy. The KL term to an equal model has no gradient."""
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.25)


def main(path):
    for run in json.loads(Path(path).read_text()):
        name = run.pop("name")
        steps = gradients(output_dir=Path(path).parent / "out", **run)
        if torch.distributed.get_rank() == 0:
            torch.save(steps, Path(path).with_name(f"{name}.pt"))


if __name__ == "__main__":
    main(sys.argv[1])
