"""Reward for programs that pass the tests of their row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trl_spiral.rewards.base import REWARD_LIMITS, Completion, RepliesReward, error_name
from trl_spiral.sandbox import LocalSandbox, Sandbox, Trial, TrialResult
from trl_spiral.text.printable import reported
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.text.python_source import appended_imports, entry_points
from trl_spiral.text.replies import extract_program


class UnitTestReward(RepliesReward):
    """
    Rewards a program by the share of its row's tests that it passes, in [0, 1].

    The tests come from columns of the dataset, named as in MBPP. The program and the tests run in different processes:
    the tests see only the plain values that its functions return and, if the row asks for it, changes to arguments.

    Args:
        sandbox ([`~sandbox.Sandbox`], *optional*):
            Runs the programs. Default: a [`~sandbox.LocalSandbox`] of its own, with [`REWARD_LIMITS`].
        renderer ([`~text.prompts.PromptRenderer`], *optional*):
            Needed with TRL's own trainer if the chat template opens the thinking; see [`~rewards.base.RepliesReward`].

    Raises:
        CannotContain: If no sandbox is given and this machine cannot contain programs.
    """

    def __init__(self, sandbox: Sandbox | None = None, *, renderer: PromptRenderer | None = None):
        super().__init__(renderer)
        self.__name__ = "unit_test_reward"  # in TRL's logs
        self.sandbox = LocalSandbox(REWARD_LIMITS) if sandbox is None else sandbox

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
        Return a reward for each completion.

        Args:
            completions, prompts, completion_ids:
                As in [`~rewards.base.RepliesReward.replies`].
            test_list (`Sequence[Sequence[str]]`):
                Tests of each row, Python source such as `"assert double(2) == 4"`.
            test_imports (`Sequence[Sequence[str]]`, *optional*):
                Lines to put before each test of the row and, following MBPP, after the program.
            entry_points (`Sequence[Sequence[str]]`, *optional*):
                Functions of the program that the row's tests call. Default: the names in a test that neither it nor
                Python defines. Needed if a program is to write, for example, its own `sum`.
            in_place (`Sequence[bool]`, *optional*):
                Whether the row's tests check an argument after the call; see [`~sandbox.Trial`]. By default, a program
                cannot change the arguments that tests hold.
            log_metric, log_extra (`Callable`, *optional*):
                TRL's. They log `unit_tests/*`, and the column `tests` of the table of completions.

        Raises:
            ValueError: If a row has no tests, or one that is not Python.
        """
        trials: list[Trial] = []
        rows: list[slice] = []
        for number, (reply, tests) in enumerate(
            zip(self.replies(completions, prompts, completion_ids), test_list, strict=True)
        ):
            if not tests:
                raise ValueError("`test_list` is empty in a row: no share of its tests exists. Leave such rows out.")
            imports = "\n".join((test_imports[number] if test_imports else None) or ())
            program = extract_program(reply) + appended_imports(imports)
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


def _share(verdicts: Sequence[TrialResult]) -> float:
    return sum(verdict.passed for verdict in verdicts) / len(verdicts)


def _summary(verdicts: Sequence[TrialResult]) -> str:
    """Return a summary such as `"1 of 3: AssertionError, TypeError"`."""
    errors = [error_name(verdict.error) for verdict in verdicts if not verdict.passed]
    return f"{len(verdicts) - len(errors)} of {len(verdicts)}" + (f": {', '.join(errors)}" if errors else "")
