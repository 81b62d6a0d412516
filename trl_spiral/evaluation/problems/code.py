"""
A model at programming problems: how they are put to it, which program it answers with, and how often one passes its tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from trl_spiral.evaluation.problems.ask import ask_all, check_answered, thought_before
from trl_spiral.evaluation.problems.code_sets import CodeProblem
from trl_spiral.evaluation.problems.pass_at_k import mean_pass_at_k
from trl_spiral.players import PolicyPlayer
from trl_spiral.sandbox import CannotContain, Limits, Sandbox, Trial
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Engine
from trl_spiral.text.printable import reported
from trl_spiral.text.programs import extract_program
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import Request


CODE_INSTRUCTION = "Please reason step by step, and put your final program within a ```python block."
"""What is asked of the model after every problem; every style asks the same."""

COMMON_KS = (1, 5, 10, 25, 50, 100)
"""Values of k for which pass@k is told, as far as there are so many programs a problem, and their number itself."""

LIMITS = Limits(cpu_seconds=6.0, wall_seconds=30.0)
"""
Of a program on trial. MBPP's own program for task 123 takes 3 s of processor time on a slow core; the clock only ends what
sleeps, so that a busy machine makes no right program wrong.
"""

_ASKED = f"{{question}}\n\n{CODE_INSTRUCTION}"
_DIALOGUE = (
    "A conversation between User and Assistant. The User asks for a program, and the Assistant writes it. The Assistant "
    "first thinks about the reasoning process in the mind and then provides the User with the program. {extra}User: You "
    "must put your program within a ```python block.\n{question}\nAssistant:"
)

CODE_PROMPTS: Mapping[str, str] = {
    "chat": _ASKED,
    "qwen3": f"<|im_start|>user\n{_ASKED}<|im_end|>\n<|im_start|>assistant\n",
    "octothinker": _DIALOGUE.replace("{extra}", ""),
    "r1": _DIALOGUE.replace("{extra}", "The reasoning process stands within <think> </think> tags. ") + " <think>\n",
    "llama-instruct": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
    + _ASKED
    + "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
}
"""
`{question}` as each of [`~text.prompts.PROMPT_STYLES`] asks for a move, less the talk of games, and with a block of code in the
place of the box. `"chat"` is a message in the tokenizer's own chat template.
"""


@dataclass(frozen=True, slots=True)
class CodeAttempt:
    """
    A reply to a problem.

    Attributes:
        number (`int`):
            Of the problem in its set, from 0.
        task (`int` or `str`):
            Its id.
        sample (`int`):
            Of this problem's replies, from 0.
        reply (`str`):
            What was written.
        program (`str`):
            The program in it; see [`~text.programs.extract_program`].
        tokens (`int`):
            Length of the reply.
        truncated (`bool`):
            Whether it hit the token limit. A program that was written before counts.
        passed (`bool`):
            Whether the program passed the problem's tests.
        error (`str`, *optional*):
            Why not, as [`~sandbox.TrialResult`] has it.
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


def code_prompt(renderer: PromptRenderer, question: str) -> tuple[int, ...]:
    """Token ids of a problem, in the style in which the renderer puts games."""
    frame = CODE_PROMPTS[renderer.style]
    if renderer.style == "chat":
        return renderer.message(frame.replace("{question}", question))
    return renderer.framed(frame, "{question}", question)


def write_programs(
    problems: Mapping[int, CodeProblem],
    player: PolicyPlayer,
    engine: Engine,
    samples: int = 1,
    seed: int = 0,
    in_flight: int = 256,
) -> list[CodeAttempt]:
    """
    Has a model answer problems. Its programs are not run.

    Args:
        problems (`Mapping[int, CodeProblem]`):
            By number. A reply depends on its problem's id and not on which others are asked.
        player ([`~players.PolicyPlayer`]):
            Whose weights answer, how replies are drawn, and in which style it is asked.
        engine ([`~selfplay.referee.Engine`]):
            Answers.
        samples (`int`, defaults to `1`):
            Replies to each problem.
        seed (`int`, defaults to `0`):
            Seed of the replies.
        in_flight (`int`, defaults to `256`):
            Most replies under way at once. They depend on it by rounding alone.

    Returns:
        `list[CodeAttempt]`: In the order of `problems`, all samples of one after the other.

    Raises:
        RuntimeError: If the engine gives up on a reply.
    """
    prompts = {number: code_prompt(player.renderer, problem.question) for number, problem in problems.items()}
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
        text = player.renderer.text(reply.completion_ids)
        attempts.append(
            CodeAttempt(
                number,
                task,
                sample,
                text,
                program=extract_program(thought_before(player.renderer, request) + text),
                tokens=len(reply.completion_ids),
                truncated=reply.finish_reason == "length",
            )
        )
    return attempts


def judge_programs(
    problems: Mapping[int, CodeProblem], attempts: Sequence[CodeAttempt], sandbox: Sandbox
) -> list[CodeAttempt]:
    """The attempts, each with whether its program passes. Equal programs for one problem are run once."""
    wanted = list(dict.fromkeys((attempt.number, attempt.program) for attempt in attempts))
    judged = sandbox.judge([problems[number].trial(program) for number, program in wanted])
    verdicts = dict(zip(wanted, judged, strict=True))
    found = [verdicts[attempt.number, attempt.program] for attempt in attempts]
    return [replace(one, passed=seen.passed, error=seen.error) for one, seen in zip(attempts, found, strict=True)]


def check_sandbox(sandbox: Sandbox) -> None:
    """
    To be called before anything expensive.

    Raises:
        CannotContain: If the sandbox cannot work, or a program that is right does not pass in it.
    """
    (verdict,) = sandbox.judge([Trial("def one():\n    return 1", "assert one() == 1", ("one",))])
    if not verdict.passed:
        raise CannotContain(
            f"The sandbox fails a program that is right ({reported(verdict.error)}). Give it more time or memory in "
            "its `Limits`."
        )


def choose_ks(samples: int, ks: Sequence[int] | None = None) -> tuple[int, ...]:
    """
    Values of k for which pass@k is told: those given, or by default [`COMMON_KS`] below `samples`, and `samples`.

    Raises:
        ValueError: If one is above the number of programs a problem, or below 1.
    """
    chosen = tuple(sorted({k for k in COMMON_KS if k < samples} | {samples}) if ks is None else ks)
    for k in chosen:
        if not 1 <= k <= samples:
            raise ValueError(
                f"pass@{k} cannot be told from {samples} programs a problem. Use a k from 1 to `samples`, or more samples."
            )
    return chosen


def check_samples(samples: int, temperature: float) -> None:
    """
    Raises:
        ValueError: If nothing would be written, or the same several times.
    """
    if samples < 1:
        raise ValueError(f"`samples` ({samples}) must be at least 1: nothing would be written.")
    if samples > 1 and temperature == 0.0:
        raise ValueError(
            f"`samples` ({samples}) at temperature 0 are all the same. Use a temperature above 0, such as 0.8, or one sample."
        )


def summarize(attempts: Sequence[CodeAttempt], ks: Sequence[int]) -> dict[str, float]:
    """
    What the attempts at a set come to.

    Args:
        attempts (`Sequence[CodeAttempt]`):
            As many for each problem, together.
        ks (`Sequence[int]`):
            For which pass@k is told.

    Returns:
        `dict[str, float]`: `pass_rate`, the share of programs that pass (pass@1), and `pass_rate_low` and `pass_rate_high`, the
        ends of its 95 % interval; the same of `pass@{k}`; `problems_passed`, of which a program passed, and `total_problems`;
        `truncated`: the share of replies that hit the token limit; `timeouts`: programs that were given up for their time;
        `reply_length` in tokens, on average.
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
    """What a file keeps: for each problem, what was asked, how many programs passed, and every one of them."""
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
