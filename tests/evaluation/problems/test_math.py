"""Evaluation at math problems: datasets, replies and metrics."""

import json
from pathlib import Path

import pytest

from trl_spiral.cli import main
from trl_spiral.evaluation.problems.files import read_rows
from trl_spiral.evaluation.problems.math import MathAttempt, answer_problems, math_metrics
from trl_spiral.evaluation.problems.math_grading import MathVerdict
from trl_spiral.evaluation.problems.math_sets import MATH_SETS, MathProblem, MathSet, get_math_set, math_problems
from trl_spiral.players import PolicyPlayer
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import Reply, Sampling


TINY = Path(__file__).parents[2] / "data/math"
OWN = MathSet("own", "user/nothing", "test", "q", "a")


class TestMathProblems:
    def test_keep_their_order(self):
        rows = read_rows(TINY / "gsm8k_tiny.jsonl")

        assert [problem.answer for problem in math_problems(rows, get_math_set("gsm8k"))] == [
            "42",
            "1,800",
            "-8",
            "10",
        ]
        assert [problem.answer for problem in math_problems(rows, get_math_set("gsm8k"), limit=2)] == ["42", "1,800"]

    @pytest.mark.parametrize(
        ("answer", "read"),
        [(142.0, "142.0"), (25, "25"), (" 7 ", "7"), (["$2$"], "2"), (["$1$", r"$\frac{1}{2}$"], r"1, \frac{1}{2}")],
    )
    def test_answers_have_the_format_of_a_box(self, answer, read):
        assert math_problems([{"q": "?", "a": answer}], OWN) == [MathProblem("?", read)]

    @pytest.mark.parametrize(
        ("rows", "math_set", "message"),
        [
            ([], OWN, "'own' has no problems"),
            ([{"q": "?"}], OWN, r"Row 0 of 'own' has no 'q' and 'a' \(it has 'q'\)"),
            (["text"], OWN, "it has str"),
            ([{"q": "?", "a": " "}], OWN, "The answer in row 0 of 'own' is empty"),
            ([{"question": "?", "answer": "4"}], MATH_SETS["gsm8k"], "row 0 of 'gsm8k' has no '####'"),
        ],
    )
    def test_an_unreadable_row_raises_an_error(self, rows, math_set, message):
        with pytest.raises(ValueError, match=message):
            math_problems(rows, math_set)

    def test_refuses_a_limit_of_zero(self):
        with pytest.raises(ValueError, match=r"`limit` \(0\) must be at least 1"):
            math_problems([{"q": "?", "a": "1"}], OWN, limit=0)

    def test_an_unknown_set_is_refused_with_the_known_ones(self):
        with pytest.raises(ValueError, match="no math set 'gsm9k'. Choose one of gsm8k, math500, aime2024, aime2025"):
            get_math_set("gsm9k")


class ScriptedEngine:
    """An engine that answers each prompt with a scripted reply, the latest request first."""

    def __init__(self, says, most=2):
        self.says = says
        self.most = most  # maximum number of concurrent requests
        self.waiting = []
        self.seeds = {}

    def add(self, ticket, request):
        self.waiting.append((ticket, request))
        self.seeds[ticket] = request.seed
        assert len(self.waiting) <= self.most

    def step(self):
        ticket, request = self.waiting.pop()
        return [(ticket, self.says[request.prompt_ids])]

    def abort(self, tickets):
        self.waiting = [entry for entry in self.waiting if entry[0] not in tickets]


class TestAnswerProblems:
    TEXTS = (r"It is \boxed{4}", r"\boxed{5}", "6", r"\boxed{7} and so on", r"\boxed{9^{9^{9^9}}}")
    PROBLEMS = {number: MathProblem(f"What is 3+{number}?", str(3 + number)) for number in (1, 2, 3, 4, 5)}

    def says(self, player, **changes):
        replies = {}
        for number, text in zip(self.PROBLEMS, self.TEXTS, strict=True):
            prompt = player.renderer.math(self.PROBLEMS[number].question)
            ended = "length" if number == 4 else "stop"
            ids = player.renderer.reply(text)
            replies[prompt] = Reply(ids, (0.0,) * len(ids), finish_reason=changes.get(str(number), ended))
        return replies

    def test_returns_graded_attempts_in_order(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer), Sampling())
        engine = ScriptedEngine(self.says(player))
        attempts = answer_problems(self.PROBLEMS, player, engine, seed=3, name="sums", in_flight=2)

        assert [attempt.number for attempt in attempts] == [1, 2, 3, 4, 5]
        assert [attempt.reply for attempt in attempts] == list(self.TEXTS)
        assert [attempt.answer for attempt in attempts] == ["4", "5", None, "7", "9^{9^{9^9}}"]
        assert [attempt.truncated for attempt in attempts] == [False, False, False, True, False]
        assert [attempt.verdict for attempt in attempts] == [*["correct"] * 2, "wrong", "correct", "timeout"]
        assert len(set(engine.seeds.values())) == 5

    def test_seeds_depend_only_on_the_problem(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer), Sampling())
        whole, part, other = (ScriptedEngine(self.says(player), most=5) for _ in range(3))
        few = {number: self.PROBLEMS[number] for number in (1, 2, 3)}
        answer_problems(few, player, whole, seed=3, name="sums")
        answer_problems({2: self.PROBLEMS[2]}, player, part, seed=3, name="sums")
        answer_problems({2: self.PROBLEMS[2]}, player, other, seed=3, name="products")

        assert part.seeds == {2: whole.seeds[2]}
        assert other.seeds != part.seeds

    def test_thinking_that_the_prompt_opened_must_be_closed(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer, "r1"), Sampling())
        problems = {1: MathProblem("1?", "1"), 2: MathProblem("2?", "2")}
        texts = {1: r"so \boxed{1}", 2: r"so \boxed{1}</think> \boxed{2}"}
        says = {
            player.renderer.math(problems[number].question): Reply(player.renderer.reply(text), ())
            for number, text in texts.items()
        }

        assert [attempt.answer for attempt in answer_problems(problems, player, ScriptedEngine(says))] == [None, "2"]

    def test_a_lost_model_raises_an_error(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer), Sampling())
        engine = ScriptedEngine(self.says(player, **{"2": "lost"}), most=5)

        with pytest.raises(RuntimeError, match="The model is gone: problem 2 has no reply"):
            answer_problems(self.PROBLEMS, player, engine)

    def test_a_failed_engine_is_left_empty(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer), Sampling())
        engine = ScriptedEngine({}, most=5)

        with pytest.raises(KeyError):
            answer_problems(self.PROBLEMS, player, engine)
        assert engine.waiting == []


class TestMathMetrics:
    def test_counts_each_kind(self):
        verdicts = ["correct"] * 8 + ["wrong", "timeout"]
        attempts = [
            MathAttempt(
                number,
                MathProblem("?", "1"),
                "",
                None if number == 8 else "1",
                10 * number,
                number < 3,
                MathVerdict(verdict),
            )
            for number, verdict in enumerate(verdicts)
        ]
        numbers = math_metrics(attempts)

        # Wilson's interval of 8 in 10 is 0.490 to 0.943 (Newcombe 1998 gives the formula).
        assert numbers == {
            "accuracy": 0.8,
            "accuracy_low": pytest.approx(0.490, abs=5e-4),
            "accuracy_high": pytest.approx(0.943, abs=5e-4),
            "truncated": 0.3,
            "unboxed": 0.1,
            "timeouts": 1.0,
            "reply_length": 45.0,
        }


class TestCommand:
    def command(self, model_dir, out, *more):
        where = ["--set", "gsm8k", "--path", str(TINY / "gsm8k_tiny.jsonl"), "--json", str(out)]
        return main(["eval-math", model_dir, *where, "--max-new-tokens", "12", "--device", "cpu", *more])

    def test_prints_a_table_and_writes_every_reply_reproducibly(self, model_dir, tmp_path, capsys):
        statuses = [
            self.command(model_dir, tmp_path / f"{run}.json", "--limit", "3", "--temperature", "1", *more)
            for run, more in enumerate([[], ["--in-flight", "1"], ["--seed", "1"]])
        ]
        first, again, other = (json.loads((tmp_path / f"{run}.json").read_text()) for run in range(3))

        assert statuses == [0, 0, 0]
        assert "| gsm8k | 3 | " in capsys.readouterr().out
        assert [reply["gold"] for reply in first["sets"]["gsm8k"]["replies"]] == ["42", "1,800", "-8"]
        assert first == again
        assert first["sets"]["gsm8k"]["replies"] != other["sets"]["gsm8k"]["replies"]

    @pytest.mark.parametrize(
        ("option", "sentence"),
        [
            (["--temperature", "-1"], "`--temperature` (-1.0) must not be negative"),
            (["--device", "nowhere"], "`--device` (nowhere) cannot be used: "),
        ],
    )
    def test_refuses_options_out_of_bounds(self, option, sentence, tmp_path, capsys):
        assert self.command("no/model", tmp_path / "out.json", *option) == 2
        assert sentence in capsys.readouterr().err

    def test_reports_an_unavailable_set_in_one_sentence(self, model_dir, capsys, monkeypatch):
        def offline(*args, **kwargs):
            raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub (OfflineModeIsEnabled)\nwith more")

        monkeypatch.setattr("datasets.load_dataset", offline)
        status = main(["eval-math", model_dir, "--set", "gsm8k"])

        assert status == 2
        assert capsys.readouterr().err == (
            "trl-spiral eval-math: The math set 'gsm8k' cannot be loaded from the Hub (Couldn't reach 'openai/gsm8k' "
            "on the Hub (OfflineModeIsEnabled)). Give a file of it as `path`.\n"
        )
