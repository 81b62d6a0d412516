"""Rewards for programs that were really run. They go into `GRPOTrainer(reward_funcs=[...])` of plain TRL."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from trl_spiral.sandbox import Job, JobResult, Limits, LocalSandbox, ProgramEnding, Sandbox, Trial, TrialResult
from trl_spiral.text.completions import Completion, RepliesReward
from trl_spiral.text.printable import reported
from trl_spiral.text.programs import behind, computes_nothing, entry_points, extract_program, is_blank
from trl_spiral.text.prompts import PromptRenderer


LIMITS = Limits(cpu_seconds=2.0, wall_seconds=10.0)
"""
Of a program, where no sandbox is given. The clock is to end what sleeps: at 3 s, programs that are right come to -1 wherever
the ranks that train keep the cores busy.
"""


class ExecutionReward(RepliesReward):
    """
    Rewards a completion for holding a program that runs.

    The program is the completion's last ```python block outside thinking, else the whole text. How it ended is what the
    sandbox saw; nothing that a program prints, on stderr either, changes it. A completion without a program, empty or all
    comments, counts as a syntax error.

    It asks for no more than a program that runs, and `print(1)` is one: `triviality_penalty` makes that the lesser choice, and
    [`UnitTestReward`] asks for the right program.

    Args:
        sandbox ([`~sandbox.Sandbox`], *optional*):
            Where programs run; by default a [`~sandbox.LocalSandbox`] of its own, with [`LIMITS`].
        printed (`float`, defaults to `1.0`):
            For a program that ran to its end and printed something other than white space.
        silent (`float`, defaults to `0.5`):
            For one that ran to its end and printed nothing.
        syntax_error (`float`, defaults to `-0.5`):
            For one that Python cannot compile; wrong indentation is such an error.
        failed (`float`, defaults to `-1.0`):
            For one that raised, ran out of time, printed too much or was killed.
        triviality_penalty (`float`, defaults to `0.0`):
            Taken from the reward of a program that ran and computed nothing: it has no loop, no comprehension, no arithmetic,
            comparison or slice, and calls nothing but `print`. A low bar, and meant as one.
        renderer ([`~text.prompts.PromptRenderer`], *optional*):
            To be given with TRL's own trainer where the chat template opens the thinking; see [`~text.completions.RepliesReward`].

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
                f"`triviality_penalty` ({triviality_penalty}) must not be below 0: it is subtracted. Use `0.0` for none."
            )
        super().__init__(renderer)
        self.__name__ = "execution_reward"  # in TRL's logs
        self.sandbox = LocalSandbox(LIMITS) if sandbox is None else sandbox
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
        Args:
            completions (`Sequence[str]` or `Sequence[list[dict]]`):
                What the model wrote.
            prompts (`Sequence[str]` or `Sequence[list[dict]]`, *optional*):
                What it was asked.
            completion_ids (`Sequence[list[int]]`, *optional*):
                What it wrote, as tokens; see [`~text.completions.RepliesReward.replies`].
            log_metric, log_extra (`Callable`, *optional*):
                TRL's, for `execution/*` and for the columns `code` and `verdict` of the completions table.

        Returns:
            `list[float]`: A reward for each completion.
        """
        programs = [extract_program(reply) for reply in self.replies(completions, prompts, completion_ids)]
        outcomes = self._run(programs)
        rewards = [self._worth(outcome) for outcome in outcomes]
        verdicts = [_in_words(outcome) for outcome in outcomes]
        ran = [number for number, outcome in enumerate(outcomes) if not outcome.ending.failed]
        trivial = self._trivial([programs[number] for number in ran]) if self.triviality_penalty else []
        for number, it_is in zip(ran, trivial, strict=False):
            if it_is:
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
        """Outcomes in order. To Python an empty program is one that prints nothing; here it is none."""
        outcomes = iter(self.sandbox.run([Job(program) for program in programs if not is_blank(program)]))
        empty = JobResult(ProgramEnding.SYNTAX_ERROR, error="NoProgram")
        return [empty if is_blank(program) else next(outcomes) for program in programs]

    def _worth(self, outcome: JobResult) -> float:
        if outcome.ending is ProgramEnding.FINISHED:
            return self.printed if outcome.output.strip() else self.silent
        return self.syntax_error if outcome.ending is ProgramEnding.SYNTAX_ERROR else self.failed

    def _trivial(self, programs: Sequence[str]) -> list[bool]:
        """Judged in the sandbox, by our own code: reading nested source can take all of a process's stack."""
        judge = inspect.getsource(computes_nothing)
        outcomes = self.sandbox.run([Job(judge, calls=(f"computes_nothing({program!r})",)) for program in programs])
        return [outcome.answers[0].value is True if outcome.answers else False for outcome in outcomes]


class UnitTestReward(RepliesReward):
    """
    Rewards a program by the share of its row's tests that it passes, in [0, 1].

    The tests come from columns of the data set, named as in MBPP. The program never shares a process with them; what is
    tested are the plain values that its functions return. A row may ask that changes to arguments count, too.

    Args:
        sandbox ([`~sandbox.Sandbox`], *optional*):
            Where programs run; by default a [`~sandbox.LocalSandbox`] of its own, with [`LIMITS`].
        renderer ([`~text.prompts.PromptRenderer`], *optional*):
            As for [`ExecutionReward`].

    Raises:
        CannotContain: If no sandbox is given and this machine cannot contain programs.
    """

    def __init__(self, sandbox: Sandbox | None = None, *, renderer: PromptRenderer | None = None):
        super().__init__(renderer)
        self.__name__ = "unit_test_reward"  # in TRL's logs
        self.sandbox = LocalSandbox(LIMITS) if sandbox is None else sandbox

    def __call__(
        self,
        completions: Sequence[Completion],
        test_list: Sequence[Sequence[str]],
        test_imports: Sequence[Sequence[str] | None] | None = None,
        entry_points: Sequence[Sequence[str] | None] | None = None,
        in_place: Sequence[bool | None] | None = None,
        prompts: Sequence[Any] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[str]], None] | None = None,
        **_: Any,
    ) -> list[float]:
        """
        Args:
            completions (`Sequence[str]` or `Sequence[list[dict]]`):
                What the model wrote.
            test_list (`Sequence[Sequence[str]]`):
                Tests of each completion's row, Python source such as `"assert double(2) == 4"`.
            test_imports (`Sequence[Sequence[str]]`, *optional*):
                Lines to put before each test of the row and, as MBPP has it, behind the program.
            entry_points (`Sequence[Sequence[str]]`, *optional*):
                Functions of the program that the row's tests call; by default the names in a test that neither it nor Python
                defines. To be given where a program is to write a `sum` of its own.
            in_place (`Sequence[bool]`, *optional*):
                Whether the row's tests look at an argument after the call; see [`~sandbox.Trial`]. Otherwise a program
                cannot change the arguments that tests hold.
            prompts (`Sequence[str]` or `Sequence[list[dict]]`, *optional*):
                What it was asked.
            completion_ids (`Sequence[list[int]]`, *optional*):
                What it wrote, as tokens; see [`~text.completions.RepliesReward.replies`].
            log_metric, log_extra (`Callable`, *optional*):
                TRL's, for `unit_tests/*` and for the column `tests` of the completions table.

        Returns:
            `list[float]`: A reward for each completion.

        Raises:
            ValueError: If a row has no tests, or one that is not Python.
        """
        trials: list[Trial] = []
        rows: list[slice] = []
        for number, (reply, tests) in enumerate(
            zip(self.replies(completions, prompts, completion_ids), test_list, strict=True)
        ):
            if not tests:
                raise ValueError("`test_list` is empty in a row: there is no share of no tests. Leave such rows out.")
            imports = "\n".join((test_imports[number] if test_imports else None) or ())
            program = extract_program(reply) + behind(imports)
            named = entry_points[number] if entry_points else None
            changes = bool(in_place and in_place[number])
            rows.append(slice(len(trials), len(trials) + len(tests)))
            for test in tests:
                source = f"{imports}\n{test}" if imports else test
                found = _entry_points(source, number)
                trials.append(Trial(program, source, found if named is None else tuple(named), changes))
        verdicts = self.sandbox.judge(trials)
        rewards = [_share(verdicts[row]) for row in rows]
        if log_metric:
            log_metric("unit_tests/pass_rate", _share(verdicts))
            log_metric("unit_tests/all_passed_rate", rewards.count(1.0) / len(rewards))
        if log_extra:
            log_extra("tests", [_summary(verdicts[row]) for row in rows])
        return rewards


def _entry_points(tests: str, row: int) -> tuple[str, ...]:
    try:
        return entry_points(tests)
    except (SyntaxError, ValueError) as error:  # a null byte is a ValueError
        raise ValueError(
            f"Row {row} of the batch has a test that is not Python ({reported(error)}): {tests!r}. Correct it, "
            "or leave the row out."
        ) from error


def _in_words(outcome: JobResult) -> str:
    if outcome.ending is ProgramEnding.FINISHED:
        return "printed" if outcome.output.strip() else "printed nothing"
    return f"{outcome.ending}: {_name(outcome.error)}" if outcome.error else str(outcome.ending)


def _name(error: str | None) -> str:
    """An exception's name, if it may be one: the program can have chosen it, and a table of completions has to hold it."""
    return error if error and error.isascii() and error.isidentifier() and len(error) <= 64 else "unnamed"


def _share(verdicts: Sequence[TrialResult]) -> float:
    return sum(verdict.passed for verdict in verdicts) / len(verdicts)


def _summary(verdicts: Sequence[TrialResult]) -> str:
    """Such as `"1 of 3: AssertionError, TypeError"`."""
    errors = [_name(verdict.error) for verdict in verdicts if not verdict.passed]
    return f"{len(verdicts) - len(errors)} of {len(verdicts)}" + (f": {', '.join(errors)}" if errors else "")
