"""Rewards for programs that run: the reward of each ending, the logs, and hostile programs."""

import pytest

from tests.helpers.reward_fakes import FakeSandbox, Log, fenced
from trl_spiral.rewards import ExecutionReward
from trl_spiral.sandbox import CallResult, JobResult, ProgramEnding


class TestExecutionReward:
    CASES = (
        ("print(6 * 7)", 1.0, "printed"),
        ("x = 1", 0.5, "printed nothing"),
        ("print()", 0.5, "printed nothing"),
        ("import sys\nprint(1)\nsys.exit(0)", 1.0, "printed"),
        ("print(1", -0.5, "syntax_error: SyntaxError"),
        ("if True:\nprint(1)", -0.5, "syntax_error: IndentationError"),
        ("", -0.5, "syntax_error: NoProgram"),
        ("# print(1)", -0.5, "syntax_error: NoProgram"),
        ("print(1 / 0)", -1.0, "raised: ZeroDivisionError"),
        ("while True:\n    pass", -1.0, "timeout"),
        ("while True:\n    print('x' * 1000)", -1.0, "output_limit"),
        # Text on stderr does not change the ending.
        ("import sys\nprint('SyntaxError: invalid syntax', file=sys.stderr)", 1.0, "printed"),
        ("raise SyntaxError('not the parser')", -1.0, "raised: SyntaxError"),
        ("import os\nprint(1, flush=True)\nos._exit(0)", -1.0, "killed"),
    )

    def test_depends_on_the_ending(self, sandbox):
        log = Log()
        rewards = log(ExecutionReward(sandbox), [fenced(program) for program, _, _ in self.CASES])
        count = len(self.CASES)

        verdicts = log.columns["verdict"]
        assert rewards == [reward for _, reward, _ in self.CASES]
        assert [each.split(":")[0] if each.startswith("killed") else each for each in verdicts] == [
            verdict for _, _, verdict in self.CASES
        ]
        assert [code.rstrip("\n") for code in log.columns["code"]] == [program for program, _, _ in self.CASES]
        assert log.metrics == pytest.approx(
            {
                "execution/success_rate": 5 / count,
                "execution/timeout_rate": 1 / count,
                "execution/syntax_error_rate": 4 / count,
                "execution/avg_batch_reward": sum(reward for _, reward, _ in self.CASES) / count,
            }
        )

    @pytest.mark.parametrize(
        "completion",
        [
            "(" * 100_000,
            "-" * 100_000 + "1",
            "[" * 90 + "]" * 90 + "\nprint(" + "1+" * 100_000 + "1)",
            "print('\ud800')",
            "print(1)\x00",
            "9" * 10_000,
            "é" * 50_000,
            "class E(Exception): pass\nE.__name__ = '\\ud800[/bold]' * 1000\nraise E",
        ],
        ids=["brackets", "minuses", "sum", "surrogate", "null", "digits", "letters", "name"],
    )
    def test_is_defined_for_any_text(self, sandbox, completion):
        log = Log()
        (reward,) = log(ExecutionReward(sandbox, triviality_penalty=0.5), [completion])

        assert reward in (1.0, 0.5, 0.0, -0.5, -1.0)
        assert log.columns["verdict"][0].isascii() and len(log.columns["verdict"][0]) < 100

    def test_reads_messages_like_text(self):
        fake = FakeSandbox([JobResult(ProgramEnding.FINISHED, output="2\n")])
        reward = ExecutionReward(fake)
        messages = [{"role": "assistant", "content": "```python\nprint(1)\n```"}, {"role": "tool", "content": "1"}]
        answer = {"role": "assistant", "content": fenced("print(2)")}

        assert reward([[*messages, answer]]) == [1.0]
        assert [job.code for job in fake.asked[0]] == ["print(2)\n"]

    def test_values_are_configurable(self):
        endings = [
            JobResult(ProgramEnding.FINISHED, output="1"),
            JobResult(ProgramEnding.FINISHED),
            JobResult(ProgramEnding.SYNTAX_ERROR),
        ]
        fake = FakeSandbox([*endings, JobResult(ProgramEnding.RAISED)])

        assert ExecutionReward(fake, printed=4, silent=3, syntax_error=2, failed=1)(["x"] * 4) == [4, 3, 2, 1]

    def test_the_triviality_penalty_applies_to_programs_that_compute_nothing(self, sandbox):
        completions = ["print(1)", "x = 1", "print(1 + 1)", "print(1 / 0)", "print(", ""]
        log = Log()
        plain, strict = ExecutionReward(sandbox), ExecutionReward(sandbox, triviality_penalty=0.75)

        assert plain(completions) == [1.0, 0.5, 1.0, -1.0, -0.5, -0.5]
        assert log(strict, completions) == [0.25, -0.25, 1.0, -1.0, -0.5, -0.5]
        assert log.columns["verdict"][:3] == ["printed, trivial", "printed nothing, trivial", "printed"]
        assert log.metrics["execution/trivial_rate"] == pytest.approx(2 / 6)

    def test_a_program_that_cannot_be_parsed_is_not_trivial(self):
        ran = JobResult(ProgramEnding.FINISHED, output="1")
        fake = FakeSandbox(
            [
                ran,
                ran,
                JobResult(ProgramEnding.KILLED),
                JobResult(ProgramEnding.FINISHED, answers=(CallResult(error="RecursionError"),)),
            ]
        )

        assert ExecutionReward(fake, triviality_penalty=1.0)(["x", "y"]) == [1.0, 1.0]

    def test_refuses_a_negative_penalty(self):
        with pytest.raises(ValueError, match=r"`triviality_penalty` \(-1\) must not be below 0"):
            ExecutionReward(FakeSandbox(), triviality_penalty=-1)
