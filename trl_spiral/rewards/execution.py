"""Reward for programs that run to their end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from trl_spiral.rewards.base import REWARD_LIMITS, Completion, RepliesReward, error_name
from trl_spiral.sandbox import Job, JobResult, LocalSandbox, ProgramEnding, Sandbox
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.text.python_source import computes_nothing, is_blank
from trl_spiral.text.replies import extract_program


class ExecutionReward(RepliesReward):
    """
    Rewards a completion that contains a program which runs.

    The program is the completion's last ```python block outside thinking, else the whole text. The sandbox decides how
    it ended; the program's output, on stderr too, cannot change that. A completion without a program, empty or only
    comments, counts as a syntax error.

    `print(1)` is a program that runs. `triviality_penalty` makes it worth less, and [`UnitTestReward`] checks that a
    program is correct.

    Args:
        sandbox ([`~sandbox.Sandbox`], *optional*):
            Runs the programs. Default: a [`~sandbox.LocalSandbox`] of its own, with [`REWARD_LIMITS`].
        printed (`float`, defaults to `1.0`):
            Reward of a program that ran to its end and printed more than white space.
        silent (`float`, defaults to `0.5`):
            Reward of a program that ran to its end and printed nothing.
        syntax_error (`float`, defaults to `-0.5`):
            Reward of a program that Python cannot compile, for example because of its indentation.
        failed (`float`, defaults to `-1.0`):
            Reward of a program that raised, ran out of time, printed too much or was killed.
        triviality_penalty (`float`, defaults to `0.0`):
            Subtracted from the reward of a program that ran and computed nothing: it has no loop, comprehension,
            arithmetic, comparison or slice, and calls only `print`. This is a low bar on purpose.
        renderer ([`~text.prompts.PromptRenderer`], *optional*):
            Needed with TRL's own trainer if the chat template opens the thinking; see [`~rewards.base.RepliesReward`].

    Raises:
        ValueError: If `triviality_penalty` is negative.
        CannotContain: If no sandbox is given and this machine cannot contain programs.
    """

    def __init__(
        self,
        sandbox: Sandbox | None = None,
        *,
        printed: float = 1.0,
        silent: float = 0.5,
        syntax_error: float = -0.5,
        failed: float = -1.0,
        triviality_penalty: float = 0.0,
        renderer: PromptRenderer | None = None,
    ):
        if triviality_penalty < 0:
            raise ValueError(
                f"`triviality_penalty` ({triviality_penalty}) must not be below 0: it is subtracted. Use `0.0` for "
                "none."
            )
        super().__init__(renderer)
        self.__name__ = "execution_reward"  # in TRL's logs
        self.sandbox = LocalSandbox(REWARD_LIMITS) if sandbox is None else sandbox
        self.printed = printed
        self.silent = silent
        self.syntax_error = syntax_error
        self.failed = failed
        self.triviality_penalty = triviality_penalty

    def __call__(
        self,
        completions: Sequence[Completion],
        prompts: Sequence[Any] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[str]], None] | None = None,
        **_: Any,
    ) -> list[float]:
        """
        Return a reward for each completion.

        Args:
            completions, prompts, completion_ids:
                As in [`~rewards.base.RepliesReward.replies`].
            log_metric, log_extra (`Callable`, *optional*):
                TRL's. They log `execution/*`, and the columns `code` and `verdict` of the table of completions.
        """
        programs = [extract_program(reply) for reply in self.replies(completions, prompts, completion_ids)]
        outcomes = self._run(programs)
        rewards = [self._reward(outcome) for outcome in outcomes]
        verdicts = [_described(outcome) for outcome in outcomes]
        ran = [number for number, outcome in enumerate(outcomes) if not outcome.ending.failed]
        trivial = self._trivial([programs[number] for number in ran]) if self.triviality_penalty else []
        for number, is_trivial in zip(ran, trivial, strict=False):
            if is_trivial:
                rewards[number] -= self.triviality_penalty
                verdicts[number] += ", trivial"
        if log_metric:
            count = len(outcomes)
            endings = [outcome.ending for outcome in outcomes]
            log_metric("execution/success_rate", len(ran) / count)
            log_metric("execution/timeout_rate", endings.count(ProgramEnding.TIMEOUT) / count)
            log_metric("execution/syntax_error_rate", endings.count(ProgramEnding.SYNTAX_ERROR) / count)
            log_metric("execution/avg_batch_reward", sum(rewards) / count)
            if self.triviality_penalty:
                log_metric("execution/trivial_rate", sum(trivial) / count)
        if log_extra:
            log_extra("code", programs)
            log_extra("verdict", verdicts)
        return rewards

    def _run(self, programs: Sequence[str]) -> list[JobResult]:
        """Return the outcomes in order. Python would accept a blank program; here it counts as a missing one."""
        outcomes = iter(self.sandbox.run([Job(program) for program in programs if not is_blank(program)]))
        missing = JobResult(ProgramEnding.SYNTAX_ERROR, error="NoProgram")
        return [missing if is_blank(program) else next(outcomes) for program in programs]

    def _reward(self, outcome: JobResult) -> float:
        if outcome.ending is ProgramEnding.FINISHED:
            return self.printed if outcome.output.strip() else self.silent
        return self.syntax_error if outcome.ending is ProgramEnding.SYNTAX_ERROR else self.failed

    def _trivial(self, programs: Sequence[str]) -> list[bool]:
        """Return which programs compute nothing. Runs in the sandbox: nested source can exhaust the stack."""
        check = inspect.getsource(computes_nothing)
        outcomes = self.sandbox.run([Job(check, calls=(f"computes_nothing({program!r})",)) for program in programs])
        return [outcome.answers[0].value is True if outcome.answers else False for outcome in outcomes]


def _described(outcome: JobResult) -> str:
    if outcome.ending is ProgramEnding.FINISHED:
        return "printed" if outcome.output.strip() else "printed nothing"
    return f"{outcome.ending}: {error_name(outcome.error)}" if outcome.error else str(outcome.ending)
