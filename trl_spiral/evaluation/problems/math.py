r"""
Evaluation at math problems: ask a model, and grade the answers in `\boxed{}`.

[SPIRAL](https://huggingface.co/papers/2506.24119) measures in this way whether self-play transfers to math.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trl_spiral.evaluation.problems.ask import ask_all, check_answered, whole_reply
from trl_spiral.evaluation.problems.math_grading import MathVerdict, grade_answers
from trl_spiral.evaluation.problems.math_sets import MathProblem
from trl_spiral.intervals import wilson
from trl_spiral.players import PolicyPlayer
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Engine
from trl_spiral.text.replies import boxed_answer
from trl_spiral.types import Request


@dataclass(frozen=True, slots=True)
class MathAttempt:
    """
    A reply to a problem.

    Attributes:
        number (`int`):
            Index of the problem in its set.
        problem ([`~evaluation.problems.math_sets.MathProblem`]):
            The problem.
        reply (`str`):
            Text of the reply.
        answer (`str`, *optional*):
            Content of its last box; `None` if there is none.
        tokens (`int`):
            Length of the reply in tokens.
        truncated (`bool`):
            Whether the reply reached the token limit. An answer boxed before that counts.
        verdict ([`~evaluation.problems.math_grading.MathVerdict`]):
            Grade of the answer.
    """

    number: int
    problem: MathProblem
    reply: str
    answer: str | None
    tokens: int
    truncated: bool
    verdict: MathVerdict = MathVerdict.WRONG

    def record(self) -> dict[str, object]:
        """Return the entry of a results file."""
        return {
            "number": self.number,
            "question": self.problem.question,
            "gold": self.problem.answer,
            "answer": self.answer,
            "verdict": self.verdict.value,
            "truncated": self.truncated,
            "tokens": self.tokens,
            "reply": self.reply,
        }


def answer_problems(
    problems: Mapping[int, MathProblem],
    player: PolicyPlayer,
    engine: Engine,
    seed: int = 0,
    name: str = "",
    in_flight: int = 256,
) -> list[MathAttempt]:
    """
    Generate replies to problems, and grade them.

    Args:
        problems (`Mapping[int, MathProblem]`):
            Problems by number. A reply depends on the number of its problem, not on the other problems.
        player ([`~players.PolicyPlayer`]):
            Policy, sampling and prompt style.
        engine ([`~selfplay.referee.Engine`]):
            Generates the replies.
        seed (`int`, defaults to `0`):
            Seed of the replies.
        name (`str`, *optional*):
            Name of the set. It changes the seeds, so that each set has its own.
        in_flight (`int`, defaults to `256`):
            Maximum number of concurrent requests. It changes replies only by rounding.

    Returns:
        `list[MathAttempt]`: Attempts in the order of `problems`.

    Raises:
        RuntimeError: If the engine gives up on a reply.
    """
    requests = {
        number: Request(
            player.renderer.math(problem.question),
            player.sampling,
            player.policy,
            derive_seed(seed, "maths", name, number),  # the spelling is part of the seed
        )
        for number, problem in problems.items()
    }
    replies = ask_all(requests, engine, in_flight)
    attempts = []
    for number, problem in problems.items():
        reply = replies[number]
        check_answered(reply, number)
        attempts.append(
            MathAttempt(
                number,
                problem,
                player.renderer.text(reply.completion_ids),
                answer=boxed_answer(whole_reply(player.renderer, requests[number], reply)),
                tokens=len(reply.completion_ids),
                truncated=reply.finish_reason == "length",
            )
        )
    verdicts = grade_answers([(seen.problem.answer, seen.answer) for seen in attempts])
    return [replace(seen, verdict=verdict) for seen, verdict in zip(attempts, verdicts, strict=True)]


def math_metrics(attempts: Sequence[MathAttempt]) -> dict[str, float]:
    """
    Return the metrics of the attempts at a set.

    Returns:
        `dict[str, float]`: Metrics by name.

        - `accuracy`: share of correct answers, with `accuracy_low` and `accuracy_high`, the ends of its 95 % Wilson
          interval.
        - `truncated`: share of replies that reached the token limit.
        - `unboxed`: share of replies without an answer in a box.
        - `timeouts`: number of answers that exceeded the limits of grading. They count as wrong.
        - `reply_length`: mean length of the replies in tokens.
    """
    number = len(attempts)
    accuracy = wilson(sum(attempt.verdict is MathVerdict.CORRECT for attempt in attempts) / number, number)
    return {
        "accuracy": accuracy.value,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "truncated": sum(attempt.truncated for attempt in attempts) / number,
        "unboxed": sum(attempt.answer is None for attempt in attempts) / number,
        "timeouts": float(sum(attempt.verdict is MathVerdict.TIMEOUT for attempt in attempts)),
        "reply_length": sum(attempt.tokens for attempt in attempts) / number,
    }
