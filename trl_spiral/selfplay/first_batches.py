"""
Detection of runs that learn nothing, from their first batches: the cause, the remedy and a sample reply in one
sentence.

[`~selfplay.monitoring`] compares a run with its own best values, so it misses a run that fails from its first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trl_spiral.selfplay.monitoring import CollapseWarning
from trl_spiral.types import POLICY, Ending, Episode


KEY = "trl_spiral.selfplay.first_batches"
"""Name under which a trainer's state stores [`FirstBatches`]."""

BATCHES = 2
"""Batches after which a run is judged."""

REPLIES = 32
"""Fewest replies to judge a run by. If half of all replies fail, 29 of 32 do with a probability of 1e-6."""

MOST = 0.9
"""Least share of replies without a legal move for a warning."""

_LONGEST_SAMPLE = 160

_THINKING = "turn thinking off by `chat_template_kwargs={{'enable_thinking': False}}`"
_HOTTER = "raise `temperature` ({temperature:g})"
_VARY = f"start from random positions by `opening_moves`, add `opponents`, or {_HOTTER}"
_FIRST = "{share:.0%} of the first {replies} replies"
_SENTENCES = {
    "truncated": f"{_FIRST} were cut off at `max_completion_length` ({{max_completion_length}}){{others}}: raise it, "
    f"or {_THINKING}",
    "no_box": f"{_FIRST} contain no move in a `\\boxed{{{{}}}}`{{others}}: start from a model that follows "
    f"instructions or was fine-tuned on legal replies, try another `prompt_style` ({{prompt_style!r}}), or "
    f"{_THINKING}",
    "illegal": f"{_FIRST} contain an illegal move in their `\\boxed{{{{}}}}`{{others}}: fine-tune on legal moves "
    "first, constrain replies to them by `constrain_moves`, or start with an easier game",
    "equal_rewards": "All of the first {rows} rows have the same reward ({highest:g}), so no reply is better than "
    "another: {remedy}",
    "no_trained_token": "The first {rows} rows have no token to train on, since each token is masked or has an "
    "advantage of 0: {remedy}",
    "no_gradient": "The gradient norm is 0 in each of the first {steps} steps, although {trained_tokens} tokens "
    f"have an advantage: {_HOTTER} if all replies are equal, else check that the weights to train are not frozen",
}
_REMEDIES_IN_GAMES = {"equal_rewards": _VARY, "no_trained_token": f"{_VARY}, or choose another `advantage_estimator`"}
_REMEDIES_AT_PROMPTS = {
    "equal_rewards": "check that the reward can read such replies, choose easier or harder prompts, or " + _HOTTER,
    "no_trained_token": "compare more replies to each prompt by `num_generations` ({num_generations}), or " + _HOTTER,
}
_METRICS = {
    "truncated": "selfplay/truncated_rate",
    "no_box": "selfplay/illegal_rate",
    "illegal": "selfplay/illegal_rate",
    "equal_rewards": "reward_std",
    "no_trained_token": "loss",
    "no_gradient": "grad_norm",
}
"""Metric that shows each cause. Each cause implies those below it, so the first one is reported."""

FAILURES = ("truncated", "no_box", "illegal")
"""Reasons why a reply contains no legal move."""


@dataclass(slots=True)
class Tally:
    """
    Counts over batches: of one rank's batch, or of all batches of all ranks so far.

    Attributes:
        batches, steps (`int`):
            Generation batches and optimizer steps.
        still_steps (`int`):
            Steps with a gradient of 0.
        replies, truncated, no_box, illegal (`int`):
            Replies of the policy, and those of them that were cut off, contain no move in a box, or an illegal one.
        rows (`int`):
            Rows to train on.
        lowest, highest (`float`, *optional*):
            Their lowest and highest reward.
        trained_tokens (`int`):
            Tokens that are not masked and have an advantage other than 0.
        samples (`dict[str, str]`):
            A reply for each of `FAILURES`, and one of any kind under `"any"`.
    """

    batches: int = 0
    steps: int = 0
    still_steps: int = 0
    replies: int = 0
    truncated: int = 0
    no_box: int = 0
    illegal: int = 0
    rows: int = 0
    lowest: float | None = None
    highest: float | None = None
    trained_tokens: int = 0
    samples: dict[str, str] = field(default_factory=dict)

    def add(self, ranks: Sequence[Tally]) -> None:
        """Add the counts of all ranks for one step, which share the batch and the gradient."""
        self.batches += ranks[0].batches
        self.steps += 1
        self.still_steps += all(rank.still_steps for rank in ranks)
        for name in ("replies", *FAILURES, "rows", "trained_tokens"):
            setattr(self, name, getattr(self, name) + sum(getattr(rank, name) for rank in ranks))
        known = [self, *ranks]
        self.lowest = min((one.lowest for one in known if one.lowest is not None), default=None)
        self.highest = max((one.highest for one in known if one.highest is not None), default=None)
        for rank in ranks:
            self.samples = {**rank.samples, **self.samples}

    def take_rewards(self, rewards: Iterable[float]) -> None:
        """Store the lowest and the highest reward of the rows."""
        known = list(rewards)
        self.lowest, self.highest = min(known, default=None), max(known, default=None)

    @property
    def cause(self) -> str | None:
        """The first reason why nothing can be learned; `None` if something can."""
        failed = {name: getattr(self, name) for name in FAILURES}
        if self.replies and sum(failed.values()) >= MOST * self.replies:
            return max(failed, key=lambda name: failed[name])
        if self.lowest is not None and self.highest is not None:
            # Equal rewards may differ in the last digit once they are weighted and summed.
            if self.highest - self.lowest <= 1e-6 * max(abs(self.highest), abs(self.lowest)):
                return "equal_rewards"
        if self.rows and not self.trained_tokens:
            return "no_trained_token"
        return "no_gradient" if self.steps and self.still_steps == self.steps else None

    def sentence(self, cause: str, settings: Mapping[str, Any], plays: bool) -> str:
        """
        Return the warning.

        Args:
            cause (`str`):
                Value of `cause`.
            settings (`Mapping[str, Any]`):
                `max_completion_length`, `temperature`, `num_generations` and `prompt_style` of the run.
            plays (`bool`):
                Whether rows come from games.
        """
        share = getattr(self, cause) / self.replies if cause in FAILURES else 0.0
        others = sum(getattr(self, name) for name in FAILURES if name != cause) / max(self.replies, 1)
        said = f", and {others:.0%} contain no legal move for another reason" if others >= 0.005 else ""
        remedies = _REMEDIES_IN_GAMES if plays else _REMEDIES_AT_PROMPTS
        text = _SENTENCES[cause].replace("{remedy}", remedies.get(cause, ""))
        text = text.format(**asdict(self), **settings, share=share, others=said)
        sample = self.samples.get(cause, self.samples.get("any", ""))
        return f"{text}; one reply: {quoted(sample)}."


@dataclass(slots=True)
class FirstBatches:
    """
    Judgement of a run by its first batches, made once.

    Attributes:
        tally ([`Tally`]):
            Counts of all ranks so far.
        cycle (`int`):
            Number of the latest generation batch.
        judged (`bool`):
            Whether the run has been judged.
        warnings (`list[CollapseWarning]`):
            The outcome: at most one warning.
    """

    tally: Tally = field(default_factory=Tally)
    cycle: int = -1
    judged: bool = False
    warnings: list[CollapseWarning] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        """Return whether there are enough batches and replies."""
        return self.tally.batches >= BATCHES and max(self.tally.replies, self.tally.rows) >= REPLIES

    def judge(self, step: int, settings: Mapping[str, Any], plays: bool) -> list[CollapseWarning]:
        """Judge the run, and return its warning, if any. Arguments are those of `Tally.sentence`."""
        self.judged = True
        if self.tally.batches and (cause := self.tally.cause) is not None:
            sentence = self.tally.sentence(cause, settings, plays)
            self.warnings = [CollapseWarning(step, _METRICS[cause], sentence)]
        return self.warnings

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, for a trainer's state."""
        return asdict(self)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> FirstBatches:
        """
        Return what `state_dict` stored.

        Raises:
            ValueError: If it is damaged.
        """
        try:
            warnings = [CollapseWarning(**warning) for warning in state["warnings"]]
            return cls(Tally(**state["tally"]), state["cycle"], state["judged"], warnings)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"The trainer's state is damaged at {KEY!r}. Delete that entry to go on without it."
            ) from error


def count_replies(episodes: Iterable[Episode], tally: Tally) -> None:
    """Add the policy's replies in the episodes of one batch to a tally."""
    for episode in episodes:
        for trajectory in episode.trajectories:
            at_fault = episode.ending is Ending.ILLEGAL_MOVE and episode.offender == trajectory.seat
            for number, turn in enumerate(trajectory.turns, 1):
                if turn.policy != POLICY or turn.lost:
                    continue
                tally.replies += 1
                kind = "any"
                if turn.truncated:
                    kind = "truncated"
                elif at_fault and number == len(trajectory.turns):
                    kind = "illegal" if turn.action is not None and "\\boxed{" in turn.text else "no_box"
                if kind != "any":
                    setattr(tally, kind, getattr(tally, kind) + 1)
                tally.samples.setdefault(kind, turn.text)
                tally.samples.setdefault("any", turn.text)


def quoted(text: str) -> str:
    """Return the start and the end of a reply in quotes, with all control characters escaped."""
    half = _LONGEST_SAMPLE // 2
    return repr(text if len(text) <= _LONGEST_SAMPLE else f"{text[:half]} […] {text[-half:]}")
