"""
Runs that learn nothing, noticed in their first batches: the cause, the remedy and a sample reply in one sentence.

[`~selfplay.monitoring`] compares a run with its own best values, so it misses a run that fails from its first step. Torch-free.
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
"""Fewest replies a run is judged by: where half of all replies fail, 29 of 32 do so once in a million times."""

MOST = 0.9
"""Share of replies without a legal move from which on there is a warning."""

_LONGEST_SAMPLE = 160

_THINKING = "turn thinking off by `chat_template_kwargs={{'enable_thinking': False}}`"
_HOTTER = "raise `temperature` ({temperature:g})"
_VARY = f"start from random positions by `opening_moves`, meet others by `opponents`, or {_HOTTER}"
_FIRST = "{share:.0%} of the first {replies} replies"
_SENTENCES = {
    "truncated": f"{_FIRST} were cut off at `max_completion_length` ({{max_completion_length}}){{others}}: raise it, "
    f"or {_THINKING}",
    "no_box": f"{_FIRST} hold no move in a `\\boxed{{{{}}}}`{{others}}: start from a model that follows instructions "
    f"or was fine-tuned on legal replies, try another `prompt_style` ({{prompt_style!r}}), or {_THINKING}",
    "illegal": f"{_FIRST} hold an illegal move in their `\\boxed{{{{}}}}`{{others}}: fine-tune on legal moves first, "
    "constrain replies to them by `constrain_moves`, or start with an easier game",
    "equal_rewards": "All of the first {rows} rows have the same reward ({highest:g}), so no reply is better than "
    "another: {remedy}",
    "no_trained_token": "None of the first {rows} rows has a token to train on, since each token is masked or has an "
    "advantage of 0: {remedy}",
    "no_gradient": "The gradient norm is 0 in each of the first {steps} steps, although {trained_tokens} tokens "
    f"have an advantage: {_HOTTER} if all replies are alike, else check that the weights to train are not frozen",
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
"""Metric in which each cause shows, the most basic cause first: the ones below it follow from it."""

FAILURES = ("truncated", "no_box", "illegal")
"""Ways in which a reply holds no legal move."""


@dataclass(slots=True)
class Tally:
    """
    Counts over batches: of one rank's batch, or of all batches of all ranks so far.

    Attributes:
        batches, steps (`int`):
            Generation batches and optimizer steps.
        still_steps (`int`):
            Steps whose gradient is 0.
        replies, truncated, no_box, illegal (`int`):
            Replies of the policy, and those that were cut off, hold no move in a box, or hold an illegal one.
        rows (`int`):
            Rows to train on.
        lowest, highest (`float`, *optional*):
            Their rewards.
        trained_tokens (`int`):
            Tokens that are not masked and whose advantage is not 0.
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
        """Add one step of all ranks, which share its batch and its gradient."""
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
        """Take over the rewards of the rows."""
        known = list(rewards)
        self.lowest, self.highest = min(known, default=None), max(known, default=None)

    @property
    def cause(self) -> str | None:
        """Why nothing can be learned, the most basic cause of all; `None` if something can."""
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
                As `cause` names it.
            settings (`Mapping[str, Any]`):
                `max_completion_length`, `temperature`, `num_generations` and `prompt_style` of the run.
            plays (`bool`):
                Whether rows come from games.
        """
        share = getattr(self, cause) / self.replies if cause in FAILURES else 0.0
        others = sum(getattr(self, name) for name in FAILURES if name != cause) / max(self.replies, 1)
        said = f", and {others:.0%} hold no legal move otherwise" if others >= 0.005 else ""
        remedies = _REMEDIES_IN_GAMES if plays else _REMEDIES_AT_PROMPTS
        text = _SENTENCES[cause].replace("{remedy}", remedies.get(cause, ""))
        text = text.format(**asdict(self), **settings, share=share, others=said)
        sample = self.samples.get(cause, self.samples.get("any", ""))
        return f"{text}; one reply: {quoted(sample)}."


@dataclass(slots=True)
class FirstBatches:
    """
    Judges a run once, by its first batches.

    Attributes:
        tally ([`Tally`]):
            All ranks' counts so far.
        cycle (`int`):
            Number of the latest generation batch.
        judged (`bool`):
            Whether the run has been judged.
        warnings (`list[CollapseWarning]`):
            The outcome: one warning at most.
    """

    tally: Tally = field(default_factory=Tally)
    cycle: int = -1
    judged: bool = False
    warnings: list[CollapseWarning] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        """Whether enough has been seen."""
        return self.tally.batches >= BATCHES and max(self.tally.replies, self.tally.rows) >= REPLIES

    def judge(self, step: int, settings: Mapping[str, Any], plays: bool) -> list[CollapseWarning]:
        """Judge the run, and return the warning, if there is one. Arguments are those of `Tally.sentence`."""
        self.judged = True
        if self.tally.batches and (cause := self.tally.cause) is not None:
            sentence = self.tally.sentence(cause, settings, plays)
            self.warnings = [CollapseWarning(step, _METRICS[cause], sentence)]
        return self.warnings

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a trainer's state."""
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
    """Return the beginning and the end of a reply in quotes, with everything that a terminal could act on escaped."""
    half = _LONGEST_SAMPLE // 2
    return repr(text if len(text) <= _LONGEST_SAMPLE else f"{text[:half]} […] {text[-half:]}")
