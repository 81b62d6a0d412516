"""Evaluation at programming problems: ask a model, run its programs, and estimate pass@k."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from trl_spiral.evaluation.problems.ask import ask_all, check_answered, whole_reply
from trl_spiral.evaluation.problems.code_sets import CodeProblem
from trl_spiral.evaluation.problems.pass_at_k import mean_pass_at_k
from trl_spiral.players import PolicyPlayer
from trl_spiral.sandbox import CannotContain, Limits, Sandbox, Trial
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Engine
from trl_spiral.text.printable import reported
from trl_spiral.text.replies import extract_program
from trl_spiral.types import Request


COMMON_KS = (1, 5, 10, 25, 50, 100)
"""Default values of k for pass@k. Those above the number of programs per problem are replaced by that number."""

EVALUATION_LIMITS = Limits(cpu_seconds=6.0, wall_seconds=30.0)
"""
Limits of a program. MBPP's own program for task 123 takes 3 s of processor time on a slow core. The wall-clock limit
only ends programs that sleep, so a busy machine does not fail correct programs.
"""


@dataclass(frozen=True, slots=True)
class CodeAttempt:
    """
    A reply to a problem.

    Attributes:
        number (`int`):
            Index of the problem in its set.
        task (`int` or `str`):
            Id of the problem.
        sample (`int`):
            Index of the reply among the replies to this problem.
        reply (`str`):
            Text of the reply.
        program (`str`):
            Program in the reply; see [`~text.replies.extract_program`].
        tokens (`int`):
            Length of the reply in tokens.
        truncated (`bool`):
            Whether the reply reached the token limit. A program written before that counts.
        passed (`bool`):
            Whether the program passed the problem's tests.
        error (`str`, *optional*):
            Reason for a failure; see [`~sandbox.TrialResult`].
    """

    number: int
    task: int | str
    sample: int
    reply: str
    program: str
    tokens: int
    truncated: bool
    passed: bool = False
    error: str | None = None


def write_programs(
    problems: Mapping[int, CodeProblem],
    player: PolicyPlayer,
    engine: Engine,
    samples: int = 1,
    seed: int = 0,
    in_flight: int = 256,
) -> list[CodeAttempt]:
    """
    Generate replies to problems. The programs are not run.

    Args:
        problems (`Mapping[int, CodeProblem]`):
            Problems by number. A reply depends on the id of its problem, not on the other problems.
        player ([`~players.PolicyPlayer`]):
            Policy, sampling and prompt style.
        engine ([`~selfplay.referee.Engine`]):
            Generates the replies.
        samples (`int`, defaults to `1`):
            Number of replies to each problem.
        seed (`int`, defaults to `0`):
            Seed of the replies.
        in_flight (`int`, defaults to `256`):
            Maximum number of concurrent requests. It changes replies only by rounding.

    Returns:
        `list[CodeAttempt]`: Attempts in the order of `problems`, all samples of a problem together.

    Raises:
        RuntimeError: If the engine gives up on a reply.
    """
    prompts = {number: player.renderer.code(problem.question) for number, problem in problems.items()}
    requests = {
        number * samples + sample: Request(
            prompts[number], player.sampling, player.policy, derive_seed(seed, "code", problem.task, sample)
        )
        for number, problem in problems.items()
        for sample in range(samples)
    }
    replies = ask_all(requests, engine, in_flight)
    attempts = []
    for ticket, request in requests.items():
        number, sample = divmod(ticket, samples)
        task, reply = problems[number].task, replies[ticket]
        check_answered(reply, task)
        attempts.append(
            CodeAttempt(
                number,
                task,
                sample,
                player.renderer.text(reply.completion_ids),
                program=extract_program(whole_reply(player.renderer, request, reply)),
                tokens=len(reply.completion_ids),
                truncated=reply.finish_reason == "length",
            )
        )
    return attempts


def judge_programs(
    problems: Mapping[int, CodeProblem], attempts: Sequence[CodeAttempt], sandbox: Sandbox
) -> list[CodeAttempt]:
    """Run the programs and return the attempts with `passed` and `error` set. Equal programs of a problem run once."""
    wanted = list(dict.fromkeys((attempt.number, attempt.program) for attempt in attempts))
    judged = sandbox.judge([problems[number].trial(program) for number, program in wanted])
    verdicts = dict(zip(wanted, judged, strict=True))
    found = [verdicts[attempt.number, attempt.program] for attempt in attempts]
    return [replace(one, passed=seen.passed, error=seen.error) for one, seen in zip(attempts, found, strict=True)]


def check_sandbox(sandbox: Sandbox) -> None:
    """
    Check that a correct program passes in a sandbox. Call it before any expensive work.

    Raises:
        CannotContain: If the sandbox cannot work, or a correct program does not pass.
    """
    (verdict,) = sandbox.judge([Trial("def one():\n    return 1", "assert one() == 1", ("one",))])
    if not verdict.passed:
        raise CannotContain(
            f"The sandbox fails a correct program ({reported(verdict.error)}). Give it more time or memory in its "
            "`Limits`."
        )


def choose_ks(samples: int, ks: Sequence[int] | None = None) -> tuple[int, ...]:
    """
    Return the values of k for pass@k: `ks`, or by default [`COMMON_KS`] below `samples`, and `samples`.

    Raises:
        ValueError: If a k is above the number of programs per problem, or below 1.
    """
    chosen = tuple(sorted({k for k in COMMON_KS if k < samples} | {samples}) if ks is None else ks)
    for k in chosen:
        if not 1 <= k <= samples:
            raise ValueError(
                f"pass@{k} cannot be estimated from {samples} programs per problem. Use a k from 1 to `samples`, or "
                "more samples."
            )
    return chosen


def check_samples(samples: int, temperature: float) -> None:
    """
    Check that there are samples, and that they can differ.

    Raises:
        ValueError: If `samples` is below 1, or above 1 at temperature 0.
    """
    if samples < 1:
        raise ValueError(f"`samples` ({samples}) must be at least 1.")
    if samples > 1 and temperature == 0.0:
        raise ValueError(
            f"`samples` ({samples}) at temperature 0 are all the same. Use a temperature above 0, such as 0.8, or one "
            "sample."
        )


def code_metrics(attempts: Sequence[CodeAttempt], ks: Sequence[int]) -> dict[str, float]:
    """
    Return the metrics of the attempts at a set.

    Args:
        attempts (`Sequence[CodeAttempt]`):
            Attempts, the same number for each problem, with those of a problem together.
        ks (`Sequence[int]`):
            Values of k for pass@k.

    Returns:
        `dict[str, float]`: Metrics by name.

        - `pass_rate`: share of programs that pass (pass@1), with `pass_rate_low` and `pass_rate_high`, the ends of its
          95 % interval; the same for each `pass@{k}`.
        - `problems_passed`, the number of problems with a program that passes, and `total_problems`.
        - `truncated`: share of replies that reached the token limit.
        - `timeouts`: number of programs that ran out of time.
        - `reply_length`: mean length of the replies in tokens.
    """
    groups = [list(group) for _, group in groupby(attempts, lambda attempt: attempt.number)]
    samples = len(groups[0])
    passed = [sum(attempt.passed for attempt in group) for group in groups]
    numbers: dict[str, float] = {}
    for name, k in [("pass_rate", 1), *((f"pass@{k}", k) for k in ks)]:
        estimate = mean_pass_at_k(passed, samples, k)
        numbers |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return numbers | {
        "problems_passed": float(sum(count > 0 for count in passed)),
        "total_problems": float(len(groups)),
        "truncated": sum(attempt.truncated for attempt in attempts) / len(attempts),
        "timeouts": float(sum(attempt.error == "Timeout" for attempt in attempts)),
        "reply_length": sum(attempt.tokens for attempt in attempts) / len(attempts),
    }


def records(problems: Sequence[CodeProblem], attempts: Iterable[CodeAttempt]) -> list[dict[str, Any]]:
    """Return the content of a results file: for each problem its question, number of passes, and all samples."""
    kept = []
    for number, group in groupby(attempts, lambda attempt: attempt.number):
        samples = [
            {name: value for name, value in asdict(one).items() if name not in ("number", "task")} for one in group
        ]
        kept.append(
            {
                "task": problems[number].task,
                "question": problems[number].question,
                "passed": sum(sample["passed"] for sample in samples),
                "samples": samples,
            }
        )
    return kept
