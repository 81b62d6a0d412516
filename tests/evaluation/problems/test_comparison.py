"""Means, intervals, differences, and the data of their page. `tests/report/test_in_browser.py` tests the page."""

import base64
import gzip
import json
import math
import random
import re
from dataclasses import replace

import pytest

from tests.helpers.puzzle_replies import make_rows, scored
from tests.helpers.run_folders import HOSTILE
from trl_spiral.cli import main
from trl_spiral.evaluation.problems.comparison import asked_differently, compare_scores, comparison_table
from trl_spiral.evaluation.problems.tasks import write_scores
from trl_spiral.report.comparison import MOST_FRAMES, choose_replies, render_comparison, steps_of
from trl_spiral.tasks import Problem, Score, Task, get_task
from trl_spiral.tasks.hanoi import Hanoi
from trl_spiral.text.printable import block


A_ROW = make_rows(1)[0]


def row(model, problem, score, sample=0, task="sums"):
    return replace(
        A_ROW, model=model, task=task, problem=str(problem), sample=sample, score=score, solved=score == 1.0
    )


class TestCompareScores:
    def test_means_are_over_replies_and_differences_over_shared_problems(self):
        rows = [
            *(row("a", problem, score) for problem, score in enumerate((0.0, 0.5, 1.0))),
            *(row("b", 1, score, sample) for sample, score in enumerate((1.0, 0.5))),
            row("b", 2, 1.0),
            row("b", 9, 0.0),
        ]
        first, second = compare_scores(rows)

        assert (first.problems, first.replies, first.score.value, first.solved.value) == (3, 3, 0.5, 1 / 3)
        assert first.difference is None
        assert (second.problems, second.replies, second.score.value, second.solved.value) == (3, 4, 0.625, 0.5)
        # Problem 1: 0.75 against 0.5; problem 2: 1 against 1. Problems 0 and 9 count for neither.
        assert (second.shared, second.difference.value) == (2, 0.125)

    def test_a_paired_difference_has_a_narrower_interval(self):
        rng = random.Random(0)
        hard = [rng.random() * 0.8 for _ in range(100)]
        rows = [row("a", number, score) for number, score in enumerate(hard)]
        rows += [row("b", number, score + rng.random() * 0.2) for number, score in enumerate(hard)]
        _, second = compare_scores(rows)

        # Problems vary with a deviation of 0.8/√12 = 0.23, differences with 0.2/√12 = 0.06, a quarter of it.
        assert 0 < second.difference.low < 0.1 < second.difference.high
        widths = [one.high - one.low for one in (second.difference, second.score)]
        assert widths[0] == pytest.approx(widths[1] / 4, rel=0.2)

    def test_samples_of_one_problem_are_one_cluster(self):
        once = [row("a", problem, float(problem % 2)) for problem in range(20)]
        often = [replace(one, sample=sample) for one in once for sample in range(8)]
        (few,), (many,) = compare_scores(once), compare_scores(often)

        assert many.score == few.score
        assert (many.solved.low, many.solved.high) == pytest.approx((few.solved.low, few.solved.high), abs=1e-9)
        assert (few.replies, many.replies) == (20, 160)

    def test_one_problem_has_no_interval(self):
        rows = [row(model, 0, score, sample) for model, score in (("a", 0.0), ("b", 1.0)) for sample in range(64)]
        first, second = compare_scores(rows)

        # Wilson's interval of 0 of 1, as with one reply.
        assert (first.solved.low, round(first.solved.high, 3)) == (0.0, 0.793)
        assert second.difference.value == 1.0
        assert all(map(math.isnan, (first.score.low, first.score.high, second.difference.low, second.difference.high)))

    def test_failed_samples_are_one_cluster_for_each_problem(self):
        ((eleven,), (once,)) = (
            compare_scores([row("a", problem, 0.0, sample) for problem in range(11) for sample in range(samples)])
            for samples in (8, 1)
        )

        assert eleven.solved == once.solved

    def test_keeps_tasks_apart_and_in_order(self):
        rows = [row("b", 0, 1.0), row("a", 0, 0.0), row("a", 0, 0.5, task="other"), row("b", 1, 1.0, task="other")]
        standings = compare_scores(rows)

        assert [(one.task, one.model) for one in standings] == [
            ("sums", "b"), ("sums", "a"), ("other", "a"), ("other", "b")
        ]  # fmt: skip
        assert [one.difference and one.difference.value for one in standings] == [None, -1.0, None, None]
        assert standings[3].shared == 0

    def test_refuses_duplicates(self):
        with pytest.raises(ValueError, match="Sample 0 of 'a' at problem '0' is there twice. Name each file once"):
            compare_scores([row("a", 0, 1.0), row("a", 0, 0.5)])


class TestComparisonTable:
    def test_has_a_row_for_each_standing(self):
        rows = [row("a", 0, 1.0), row("b|c\x1b[2J", 0, 0.25), row("d", 1, 0.0)]
        lines = comparison_table(compare_scores(rows)).split("\n")

        assert {line.count("|") for line in lines[:4]} | {lines[4].count("|")} == {12, 13}  # one bar is in a name
        assert lines[2].startswith("| sums | a | 1 | 1 | 1.000 | – | 100.0% | 20.7% to 100.0% | ")
        assert "| `b\\|c�[2J` | 1 | 1 | 0.250 | – |" in lines[3]
        assert lines[3].endswith("| -0.750 | – | 1 |")
        assert lines[4].endswith("| | | 0 |")

    def test_has_intervals_for_two_or_more_problems(self):
        rows = [row(model, problem, score) for model, score in (("a", 0.0), ("b", 1.0)) for problem in (0, 1)]
        lines = comparison_table(compare_scores(rows)).split("\n")

        assert "| 1.000 | 1.000 to 1.000 | 100.0% | 34.2% to 100.0% | +1.000 | +1.000 to +1.000 | 2 |" in lines[3]


class TestAskedDifferently:
    def asked(self, model, task="sums", **settings):
        return replace(row(model, 0, 1.0, task=task), settings=json.dumps(settings))

    def test_names_every_different_setting(self):
        rows = [
            self.asked("base", temperature=0.0, max_new_tokens=8, prompt_style="chat", seed=0),
            self.asked("trained", temperature=0.8, max_new_tokens=8, prompt_style="qwen3", seed=1),
            self.asked("trained", task="other", temperature=0.8),
        ]

        assert asked_differently(rows) == [
            "At sums, temperature is 0.0 for base, 0.8 for trained: the models were asked differently.",
            "At sums, prompt_style is chat for base, qwen3 for trained: the models were asked differently.",
        ]
        assert asked_differently(rows[1:]) == []

    def test_names_missing_settings_and_models_with_two_settings(self):
        rows = [self.asked("a", split="train"), self.asked("a", split="validation"), self.asked("b\x1b")]

        assert asked_differently(rows) == [
            "At sums, split is train and validation for a, not recorded for `b�`: the models were asked differently."
        ]


class Broken(Task):
    name = "broken"

    def problems(self, split, number, seed=0):
        return [Problem("one", ({"role": "user", "content": "?"},), {})]

    def score(self, problem, response):
        return Score(0.0, False)

    def steps(self, problem, response):
        return [problem.data["start"]]


class Shown(Broken):
    def steps(self, problem, response):
        return ["the question", "an answer"]

    def solution(self, problem):
        return "the right one"


class TestSteps:
    def test_are_those_of_the_task(self):
        for one in make_rows(2):
            problem = next(
                problem for problem in get_task(one.task).problems("validation", 2) if problem.id == one.problem
            )
            assert steps_of(one) == get_task(one.task).steps(problem, one.response)

    def test_are_missing_without_the_task(self):
        assert steps_of(row("a", 0, 1.0, task="gone")) == []

    def test_are_limited_in_number(self):
        task = Hanoi((3,))
        shuttle = str([[1, 0, 1], [1, 1, 0]] * 400 + [[1, 0, 2]])
        frames = steps_of(scored(task.problem((0, 0, 0), (2, 2, 2)), "hanoi", "a", shuttle))

        # 801 moves are 802 frames.
        assert len(frames) == MOST_FRAMES
        assert frames[-2] == "503 steps are omitted here."
        assert frames[-1].startswith("Disk 1 from peg 0 to peg 2")

    def test_of_a_row_of_another_task_raise_an_error(self, monkeypatch):
        monkeypatch.setattr("trl_spiral.report.comparison.task_names", lambda: ["broken"])
        monkeypatch.setattr("trl_spiral.report.comparison.get_task", lambda name: Broken())

        with pytest.raises(ValueError, match=r"'broken' cannot display problem '0' \(KeyError: 'start'\)\. Check"):
            steps_of(row("a", 0, 0.0, task="broken"))

    def test_have_a_separate_solution(self, monkeypatch):
        monkeypatch.setattr("trl_spiral.report.comparison.task_names", lambda: ["shown"])
        monkeypatch.setattr("trl_spiral.report.comparison.get_task", lambda name: Shown())
        rows = [row("a", 0, 0.0, task="shown")]
        page = render_comparison(compare_scores(rows), rows, plain=True)
        (packed,) = re.findall(r'<script type="text/plain" class="records">([^<]*)</script>', page)
        record = json.loads(packed)

        assert (record["frames"], record["solution"]) == (["the question", "an answer"], "the right one")


class TestChooseReplies:
    def test_groups_replies_by_problem(self):
        rows = [row(model, problem, 1.0) for model in "ab" for problem in range(3)]

        assert [(one.problem, one.model) for one in choose_replies(rows, 6)] == [
            ("0", "a"), ("0", "b"), ("1", "a"), ("1", "b"), ("2", "a"), ("2", "b")
        ]  # fmt: skip

    def test_samples_whole_problems_evenly(self):
        rows = [row(model, problem, 1.0) for model in "ab" for problem in range(100)]
        chosen = choose_replies(rows, 8)

        assert [one.problem for one in chosen] == ["0", "0", "25", "25", "50", "50", "75", "75"]
        assert [one.model for one in choose_replies(rows, 1)] == ["a", "b"]


class TestRender:
    def test_contains_every_reply(self):
        rows = make_rows(2)
        page = render_comparison(compare_scores(rows), rows)
        (packed,) = re.findall(r'<script type="text/plain" class="records">([^<]*)</script>', page)
        records = [json.loads(line) for line in gzip.decompress(base64.b64decode(packed)).decode().split("\n")]

        assert [record["response"] for record in records] == [block(one.response) for one in choose_replies(rows, 99)]
        # The puzzle and its four groups.
        assert [len(record["frames"]) for record in records[:2]] == [5, 5]
        assert dict(records[0]["detail"])["Overlaps"] == "4, 4, 4, 4"

    @pytest.mark.parametrize("plain", [False, True])
    def test_escapes_the_text_of_models(self, plain):
        rows = [replace(one, model=HOSTILE, task=HOSTILE, problem=HOSTILE) for one in make_rows(1)[2:3]]
        page = render_comparison(compare_scores(rows), rows, plain=plain)

        assert "<script>window.pwned" not in page
        assert "<img" not in page
        assert page.count("<script") == page.count("</script>") == 3

    def test_is_deterministic(self):
        rows = make_rows(2)

        assert render_comparison(compare_scores(rows), rows) == render_comparison(compare_scores(rows), rows)


class TestCommand:
    def test_prints_the_table_and_writes_the_page(self, tmp_path, capsys):
        rows = make_rows(2)
        files = []
        for model in ("hasty", "careful"):
            files.append(str(tmp_path / f"{model}.parquet"))
            write_scores(files[-1], [one for one in rows if one.model == model])

        assert main(["compare", *files, "--html", str(tmp_path / "new" / "page.html")]) == 0
        said = capsys.readouterr().out
        assert "asked differently" not in said
        assert said.index("| connections | hasty | 2 ") < said.index("| connections | careful | 2 ")
        assert (tmp_path / "new" / "page.html").read_text().startswith("<!doctype html>")
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]

    def test_reports_different_settings(self, tmp_path, capsys):
        for model, temperature in (("base", 0.0), ("trained", 0.8)):
            one = replace(row(model, 0, 1.0, task="gone"), settings=json.dumps({"temperature": temperature}))
            write_scores(tmp_path / f"{model}.parquet", [one])
        files = [str(tmp_path / f"{model}.parquet") for model in ("base", "trained")]
        sentence = "At gone, temperature is 0.0 for base, 0.8 for trained: the models were asked differently."

        assert main(["compare", *files, "--html", str(tmp_path / "page.html")]) == 0
        assert sentence in capsys.readouterr().out
        assert sentence in (tmp_path / "page.html").read_text()

    def test_shows_an_unregistered_task_without_steps(self, tmp_path, capsys):
        write_scores(tmp_path / "gone.parquet", [row("a", 0, 1.0, task="gone")])

        assert main(["compare", str(tmp_path / "gone.parquet"), "--html", str(tmp_path / "page.html")]) == 0
        assert "The page shows no steps of 'gone', which is not registered." in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [([], "contain no replies"), (["--replies", "0"], "`--replies` (0) must be at least 1")],
    )
    def test_needs_at_least_one_row(self, options, sentence, tmp_path, capsys):
        write_scores(tmp_path / "empty.parquet", [])

        assert main(["compare", str(tmp_path / "empty.parquet"), *options]) == 2
        assert sentence in capsys.readouterr().err
