"""Programming problems: how a model is asked, which program its reply holds, and what its attempts come to."""

import pytest

from tests.evaluation.problems.test_math import Parrot
from tests.helpers.code_models import MBPP
from trl_spiral.evaluation.problems.code import (
    CODE_INSTRUCTION,
    CODE_PROMPTS,
    CodeAttempt,
    check_samples,
    check_sandbox,
    choose_ks,
    code_prompt,
    judge_programs,
    records,
    summarize,
    write_programs,
)
from trl_spiral.evaluation.problems.code_sets import mbpp_problems
from trl_spiral.evaluation.problems.files import read_rows
from trl_spiral.players import PolicyPlayer
from trl_spiral.sandbox import TrialResult
from trl_spiral.text.prompts import PROMPT_STYLES, PromptRenderer
from trl_spiral.types import Reply, Sampling


PROBLEMS = dict(enumerate(mbpp_problems(read_rows(MBPP))[:2]))


class Judge:
    """A sandbox in which programs pass that say so, and others fail for a reason of their own."""

    def __init__(self):
        self.trials = []

    def judge(self, trials):
        self.trials += trials
        return [TrialResult(True) if "pass" in trial.code else TrialResult(False, "Timeout") for trial in trials]


class TestCodePrompt:
    def test_asks_for_a_block_through_the_chat_template_and_for_no_box(self, tokenizer):
        asked = tokenizer.decode(code_prompt(PromptRenderer(tokenizer), PROBLEMS[0].question))

        assert asked == (
            f"<|im_start|>user\n{PROBLEMS[0].question}\n\n{CODE_INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n"
        )
        assert "boxed" not in asked and "```python" in asked

    @pytest.mark.parametrize("style", PROMPT_STYLES)
    def test_has_every_style_without_the_talk_of_games(self, style, tokenizer):
        question = "Write {x}."
        asked = tokenizer.decode(code_prompt(PromptRenderer(tokenizer, style), question))
        frame = PROMPT_STYLES[style]

        assert asked == CODE_PROMPTS[style].replace("{question}", question)
        assert question in asked and "```python" in asked and "game" not in asked and "boxed" not in asked
        assert (asked[:10], asked[-10:]) == (frame[:10], frame[-10:])


class Scripted(Parrot):
    """Answers each request with the text that stands at its ticket."""

    def __init__(self, player, texts, **endings):
        super().__init__({}, most=99)
        self.player, self.texts, self.endings = player, texts, endings

    def step(self):
        ticket, _ = self.waiting.pop()
        ids = self.player.renderer.reply(self.texts[ticket])
        return [(ticket, Reply(ids, (), finish_reason=self.endings.get(f"t{ticket}", "stop")))]


class TestWritePrograms:
    def test_takes_several_programs_for_each_problem(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer), Sampling(temperature=1.0))
        engine = Scripted(player, ["So:\n```python\na = 1\n```", "b = 2", "c", "d"], t3="length")
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

    def test_seeds_depend_on_the_problem_alone(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer), Sampling())
        whole, part = (Scripted(player, ["", ""]) for _ in range(2))
        write_programs(PROBLEMS, player, whole, seed=3)
        write_programs({1: PROBLEMS[1]}, player, part, seed=3)

        assert part.seeds == {1: whole.seeds[1]}

    def test_what_a_prompt_began_to_think_must_be_closed(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer, "r1"), Sampling())
        engine = Scripted(player, ["\n```python\na\n```", "\n```python\na\n```\n</think>\nb"])

        assert [one.program for one in write_programs(PROBLEMS, player, engine)] == ["", "\nb"]

    def test_a_model_that_is_gone_is_not_graded(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer), Sampling())

        with pytest.raises(RuntimeError, match="The model is gone: problem 12 has no reply"):
            write_programs(PROBLEMS, player, Scripted(player, ["a", "b"], t1="lost"))


def attempt(number, sample, program="pass", **changes):
    told = dict(task=PROBLEMS[number].task, reply="", tokens=10 * number, truncated=False) | changes
    return CodeAttempt(number, sample=sample, program=program, **told)


class TestJudgePrograms:
    def test_puts_each_to_its_own_tests_and_equal_ones_once(self):
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
    def test_refuses_one_that_fails_what_is_right(self):
        class Broken:
            def judge(self, trials):
                return [TrialResult(False, "Killed") for _ in trials]

        with pytest.raises(RuntimeError, match=r"The sandbox fails a program that is right \(Killed\)"):
            check_sandbox(Broken())


class TestChooseKs:
    @pytest.mark.parametrize(
        ("samples", "given", "chosen"),
        [(1, None, (1,)), (5, None, (1, 5)), (20, None, (1, 5, 10, 20)), (20, [2, 3], (2, 3))],
    )
    def test_are_usual_ones_or_those_given(self, samples, given, chosen):
        assert choose_ks(samples, given) == chosen

    def test_need_as_many_programs(self):
        with pytest.raises(ValueError, match="pass@10 cannot be told from 5 programs a problem"):
            choose_ks(5, [1, 10])


class TestCheckSamples:
    @pytest.mark.parametrize(
        ("samples", "temperature", "message"),
        [
            (0, 1.0, r"`samples` \(0\) must be at least 1"),
            (5, 0.0, r"`samples` \(5\) at temperature 0 are all the same"),
        ],
    )
    def test_refuses_none_and_the_same_again(self, samples, temperature, message):
        with pytest.raises(ValueError, match=message):
            check_samples(samples, temperature)


class TestSummarize:
    def test_counts_each_kind(self):
        attempts = [
            attempt(0, 0, passed=True),
            attempt(0, 1, error="Timeout", truncated=True),
            attempt(1, 0, error="NameError"),
            attempt(1, 1, error="AssertionError"),
        ]
        numbers = summarize(attempts, [1, 2])

        told = {name: value for name, value in numbers.items() if not name.endswith(("low", "high"))}
        assert told == {
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

    def test_one_program_each_has_wilsons_interval(self):
        numbers = summarize([attempt(0, 0, passed=True), attempt(1, 0)], [1])

        # Wilson's interval of 1 in 2 is 0.095 to 0.905 (Newcombe 1998 gives the formula).
        assert (numbers["pass_rate_low"], numbers["pass_rate_high"]) == pytest.approx((0.095, 0.905), abs=5e-4)


class TestRecords:
    def test_keep_every_program_of_every_problem(self):
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
