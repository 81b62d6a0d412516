"""
Tiny models that learn until they are good enough, in float64: the same weights on every machine.

After a fixed number of steps, the quality of a model depends on the processor: in float32, Adam turns rounding
differences into differences of whole steps, so weights diverge. In float64 they agree to twelve digits, and the rest
is rounded off.
"""

import torch
from torch.nn.functional import cross_entropy

from tests.helpers.precision import in_double


GRID = 2.0**-12
"""Weights are multiples of this, which removes the rounding of training."""


def train_until(reached, loss, parameters, learning_rate, most=2000, every=10):
    """
    Take steps of Adam until a criterion is met.

    Args:
        reached (`Callable[[], bool]`):
            The criterion. Called without gradients before the first step and after every `every` steps.
        loss (`Callable[[], torch.Tensor]`):
            Returns the loss of the next batch.
        parameters (`Iterable[torch.nn.Parameter]`):
            The parameters to train.
        learning_rate (`float`):
            The learning rate.
        most (`int`, defaults to `2000`):
            Maximum number of steps.
        every (`int`, defaults to `10`):
            Steps between checks.

    Raises:
        AssertionError: If the criterion is not met after `most` steps.
    """
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    for step in range(most + 1):
        if step % every == 0:
            with torch.no_grad():
                if reached():
                    return
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    raise AssertionError(f"The model has not learned enough in {most} steps.")


def loss_of_replies(model, pairs, pad):
    """Return the mean loss of the reply tokens of (prompt, reply) pairs of token ids."""
    width, longest = max(len(p) + len(r) for p, r in pairs), max(len(r) for _, r in pairs)
    ids = torch.tensor([[pad] * (width - len(p) - len(r)) + [*p, *r] for p, r in pairs])
    mask = (torch.arange(width) >= torch.tensor([[width - len(p) - len(r)] for p, r in pairs])).long()
    labels = torch.tensor([[-100] * (longest - len(r)) + [*r] for _, r in pairs])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    # Logits of the replies only: those of the prompts would take most of the time.
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, logits_to_keep=longest + 1).logits
    return cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten())


def learn_replies(model, pairs, pad, rng, enough, batch=32, learning_rate=0.02):
    """
    Train a model in float64 on (prompt, reply) pairs until their mean loss is at most `enough`.

    Returns the model in float32, with weights that are the same on every machine.
    """
    in_double(model)
    sample = rng.sample(pairs, min(len(pairs), 128))
    train_until(
        lambda: loss_of_replies(model, sample, pad).item() <= enough,
        lambda: loss_of_replies(model, rng.sample(pairs, batch), pad),
        model.parameters(),
        learning_rate,
    )
    return on_grid(model)


@torch.no_grad()
def on_grid(model):
    """Return a float32 copy of a model that computes in float64, with weights rounded to `GRID`."""
    copy = type(model)(model.config).eval()
    copy.load_state_dict({name: (tensor / GRID).round() * GRID for name, tensor in model.state_dict().items()})
    return copy
