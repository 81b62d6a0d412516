"""Evaluation at programming problems: replies, programs, verdicts and metrics."""

import pytest

from tests.evaluation.problems.test_math import ScriptedEngine
from tests.helpers.code_models import MBPP
from trl_spiral.evaluation.problems.code import (
    CodeAttempt,
    check_samples,
    check_sandbox,
    choose_ks,
    code_metrics,
    judge_programs,
    records,
    write_programs,
)
from trl_spiral.evaluation.problems.code_sets import mbpp_problems
from trl_spiral.evaluation.problems.files import read_rows
from trl_spiral.players import PolicyPlayer
from trl_spiral.sandbox import TrialResult
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import Reply, Sampling


PROBLEMS = dict(enumerate(mbpp_problems(read_rows(MBPP))[:2]))


class Judge:
    """A sandbox that passes the programs that contain "pass"."""

    def __init__(self):
        self.trials = []

    def judge(self, trials):
        self.trials += trials
        return [TrialResult(True) if "pass" in trial.code else TrialResult(False, "Timeout") for trial in trials]


class EngineByTicket(ScriptedEngine):
    """Answers each request with the text of its ticket."""

    def __init__(self, player, texts, **endings):
        super().__init__({}, most=99)
        self.player, self.texts, self.endings = player, texts, endings

    def step(self):
        ticket, _ = self.waiting.pop()
        ids = self.player.renderer.reply(self.texts[ticket])
        return [(ticket, Reply(ids, (), finish_reason=self.endings.get(f"t{ticket}", "stop")))]


class TestWritePrograms:
    def test_returns_several_programs_for_each_problem(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer), Sampling(temperature=1.0))
        engine = EngineByTicket(player, ["So:\n```python\na = 1\n```", "b = 2", "c", "d"], t3="length")
        attempts = write_programs(PROBLEMS, player, engine, samples=2, seed=3)

        assert [(one.number, one.task, one.sample) for one in attempts] == [
            (0, 11, 0),
            (0, 11, 1),
            (1, 12, 0),
            (1, 12, 1),
        ]
        assert [attempt.program for attempt in attempts] == ["a = 1\n", "b = 2", "c", "d"]
        assert [attempt.truncated for attempt in attempts] == [False, False, False, True]
        assert len(set(engine.seeds.values())) == 4

    def test_seeds_depend_only_on_the_problem(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer), Sampling())
        whole, part = (EngineByTicket(player, ["", ""]) for _ in range(2))
        write_programs(PROBLEMS, player, whole, seed=3)
        write_programs({1: PROBLEMS[1]}, player, part, seed=3)

        assert part.seeds == {1: whole.seeds[1]}

    def test_thinking_that_the_prompt_opened_must_be_closed(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer, "r1"), Sampling())
        engine = EngineByTicket(player, ["\n```python\na\n```", "\n```python\na\n```\n</think>\nb"])

        assert [one.program for one in write_programs(PROBLEMS, player, engine)] == ["", "\nb"]

    def test_a_lost_model_raises_an_error(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer), Sampling())

        with pytest.raises(RuntimeError, match="The model is gone: problem 12 has no reply"):
            write_programs(PROBLEMS, player, EngineByTicket(player, ["a", "b"], t1="lost"))


def attempt(number, sample, program="pass", **changes):
    recorded = dict(task=PROBLEMS[number].task, reply="", tokens=10 * number, truncated=False) | changes
    return CodeAttempt(number, sample=sample, program=program, **recorded)


class TestJudgePrograms:
    def test_runs_each_program_with_its_own_tests_and_duplicates_once(self):
        judge = Judge()
        attempts = [
            attempt(0, 0),
            attempt(0, 1, "no"),
            attempt(0, 2),
            attempt(1, 0),
            attempt(1, 1),
            attempt(1, 2, "no"),
        ]
        judged = judge_programs(PROBLEMS, attempts, judge)

        assert [one.passed for one in judged] == [True, False, True, True, True, False]
        assert [one.error for one in judged] == [None, "Timeout", None, None, None, "Timeout"]
        assert [(trial.code, trial.tests) for trial in judge.trials] == [
            ("pass", PROBLEMS[0].tests),
            ("no", PROBLEMS[0].tests),
            ("pass", PROBLEMS[1].tests),
            ("no", PROBLEMS[1].tests),
        ]


class TestCheckSandbox:
    def test_refuses_a_sandbox_that_fails_a_correct_program(self):
        class Broken:
            def judge(self, trials):
                return [TrialResult(False, "Killed") for _ in trials]

        with pytest.raises(RuntimeError, match=r"The sandbox fails a correct program \(Killed\)"):
            check_sandbox(Broken())


class TestChooseKs:
    @pytest.mark.parametrize(
        ("samples", "given", "chosen"),
        [(1, None, (1,)), (5, None, (1, 5)), (20, None, (1, 5, 10, 20)), (20, [2, 3], (2, 3))],
    )
    def test_are_the_default_or_the_given_ones(self, samples, given, chosen):
        assert choose_ks(samples, given) == chosen

    def test_must_not_exceed_the_number_of_programs(self):
        with pytest.raises(ValueError, match="pass@10 cannot be estimated from 5 programs per problem"):
            choose_ks(5, [1, 10])


class TestCheckSamples:
    @pytest.mark.parametrize(
        ("samples", "temperature", "message"),
        [
            (0, 1.0, r"`samples` \(0\) must be at least 1"),
            (5, 0.0, r"`samples` \(5\) at temperature 0 are all the same"),
        ],
    )
    def test_refuses_no_samples_and_identical_samples(self, samples, temperature, message):
        with pytest.raises(ValueError, match=message):
            check_samples(samples, temperature)


class TestCodeMetrics:
    def test_counts_each_kind(self):
        attempts = [
            attempt(0, 0, passed=True),
            attempt(0, 1, error="Timeout", truncated=True),
            attempt(1, 0, error="NameError"),
            attempt(1, 1, error="AssertionError"),
        ]
        numbers = code_metrics(attempts, [1, 2])

        recorded = {name: value for name, value in numbers.items() if not name.endswith(("low", "high"))}
        assert recorded == {
            "pass_rate": 0.25,
            "pass@1": 0.25,
            "pass@2": 0.5,
            "problems_passed": 1.0,
            "total_problems": 2.0,
            "truncated": 0.25,
            "timeouts": 1.0,
            "reply_length": 5.0,
        }
        assert numbers["pass_rate_low"] <= 0.25 <= numbers["pass_rate_high"]

    def test_uses_wilsons_interval_for_one_program_each(self):
        numbers = code_metrics([attempt(0, 0, passed=True), attempt(1, 0)], [1])

        # Wilson's interval of 1 in 2 is 0.095 to 0.905 (Newcombe 1998 gives the formula).
        assert (numbers["pass_rate_low"], numbers["pass_rate_high"]) == pytest.approx((0.095, 0.905), abs=5e-4)


class TestRecords:
    def test_contain_every_program_of_every_problem(self):
        kept = records(
            list(PROBLEMS.values()), [attempt(0, 0, passed=True), attempt(0, 1), attempt(1, 0), attempt(1, 1)]
        )

        assert [(problem["task"], problem["passed"]) for problem in kept] == [(11, 1), (12, 0)]
        assert kept[0]["question"] == PROBLEMS[0].question
        assert kept[0]["samples"][0] == {
            "sample": 0,
            "reply": "",
            "program": "pass",
            "tokens": 0,
            "truncated": False,
            "passed": True,
            "error": None,
        }
