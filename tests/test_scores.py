import json
from dataclasses import asdict, replace

import pyarrow
import pyarrow.parquet
import pytest
from scores_for_tests import make_rows, solution

from trl_spiral.cli import main
from trl_spiral.evaluation.scores import answer_task, read_scores, task_prompt, write_scores
from trl_spiral.players import PolicyPlayer
from trl_spiral.prompts import PromptRenderer
from trl_spiral.tasks import Problem, get_task
from trl_spiral.types import Reply, Sampling


HANOI = get_task("hanoi-small")


class Echo:
    """An engine that says what is said to it of a prompt, the last question first."""

    def __init__(self, replies):
        self.replies = replies
        self.waiting = []
        self.seeds = []

    def add(self, ticket, request):
        self.waiting.append((ticket, self.replies[request.prompt_ids]))
        self.seeds.append((ticket, request.seed))

    def step(self):
        return [self.waiting.pop()]

    def abort(self, tickets):
        self.waiting = [entry for entry in self.waiting if entry[0] not in tickets]


@pytest.fixture
def player(tokenizer):
    return PolicyPlayer(PromptRenderer(tokenizer), Sampling(temperature=1.0), policy="a-model")


def echo(player, texts, ended="stop"):
    """An engine that answers each problem with a text."""
    return Echo(
        {
            task_prompt(player.renderer, problem): Reply(player.renderer.reply(text), (), finish_reason=ended)
            for problem, text in texts
        }
    )


class TestTaskPrompt:
    def test_is_word_for_word_what_training_shows(self, tokenizer):
        (problem,) = HANOI.problems("validation", 1)
        asked = [dict(message) for message in problem.messages]
        # As TRL renders a conversational prompt.
        trained = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=True, return_dict=True)

        assert list(task_prompt(PromptRenderer(tokenizer), problem)) == trained["input_ids"]

    def test_keeps_every_message(self, tokenizer):
        messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Well?"})
        texts = [
            tokenizer.decode(task_prompt(PromptRenderer(tokenizer, style), Problem("one", messages, {})))
            for style in ("chat", "qwen3")
        ]

        assert texts[0].startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWell?")
        assert "Question: Be brief.\n\nWell?\nPlease reason" in texts[1]


class TestAnswerTask:
    def test_scores_every_sample_in_order(self, player):
        first, second = HANOI.problems("validation", 2)
        engine = echo(player, [(first, solution(first)), (second, "no idea\nat all")])
        rows = answer_task(HANOI, [first, second], player, engine, samples=2, in_flight=3)

        assert [(row.problem, row.sample) for row in rows] == [
            (first.id, 0), (first.id, 1), (second.id, 0), (second.id, 1)
        ]  # fmt: skip
        assert [(row.score, row.solved) for row in rows] == [(1.0, True)] * 2 + [(0.0, False)] * 2
        assert {row.model for row in rows} == {"a-model"}
        assert rows[0].response == solution(first)
        assert rows[0].asked() == Problem(first.id, tuple(map(dict, first.messages)), dict(first.data))
        assert json.loads(rows[2].detail) == {"illegal": "no readable list of moves"}

    def test_a_problem_that_comes_twice_is_asked_once(self, player):
        (problem,) = HANOI.problems("validation", 1)
        rows = answer_task(HANOI, [problem] * 3, player, echo(player, [(problem, "no")]))

        assert len(rows) == 1

    def test_seeds_depend_on_the_problem_and_the_sample_alone(self, player):
        texts = [(problem, "no") for problem in HANOI.problems("validation", 2)]
        both, second, other = echo(player, texts), echo(player, texts), echo(player, texts)
        answer_task(HANOI, [problem for problem, _ in texts], player, both, samples=2)
        answer_task(HANOI, [texts[1][0]], player, second, samples=2)
        answer_task(HANOI, [texts[1][0]], player, other, samples=2, seed=1)

        assert dict(second.seeds) == {0: dict(both.seeds)[2], 1: dict(both.seeds)[3]}
        assert len({seed for _, seed in both.seeds + other.seeds}) == 6

    def test_what_a_prompt_began_to_think_is_no_answer_before_it_is_closed(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer, "r1"), Sampling())
        (problem,) = HANOI.problems("validation", 1)
        text = f"\\boxed{{{solution(problem)}}}"
        (thought,) = answer_task(HANOI, [problem], player, echo(player, [(problem, text)]))
        (said,) = answer_task(HANOI, [problem], player, echo(player, [(problem, f"so</think>{text}")]))

        assert (thought.response, thought.solved) == (f"<think>{text}", False)
        assert (said.response, said.solved) == (f"<think>so</think>{text}", True)

    def test_a_reply_that_was_cut_off_is_scored_and_marked(self, player):
        (problem,) = HANOI.problems("validation", 1)
        (row,) = answer_task(HANOI, [problem], player, echo(player, [(problem, solution(problem))], ended="length"))

        assert (row.truncated, row.score) == (True, 1.0)

    def test_a_model_that_is_gone_is_not_scored(self, player):
        (problem,) = HANOI.problems("validation", 1)

        with pytest.raises(RuntimeError, match=f"The model is gone: problem {problem.id} has no reply"):
            answer_task(HANOI, [problem], player, echo(player, [(problem, "")], ended="lost"))


class TestFiles:
    def test_hold_what_was_written(self, tmp_path):
        rows = [*make_rows(2), replace(make_rows(1)[0], model="ein Modell, 模型", response="")]
        write_scores(tmp_path / "new" / "scores.parquet", rows)

        assert read_scores(tmp_path / "new" / "scores.parquet") == rows
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["scores.parquet"]

    def test_have_the_columns_that_others_read(self, tmp_path):
        write_scores(tmp_path / "scores.parquet", make_rows(1))
        table = pyarrow.parquet.read_table(tmp_path / "scores.parquet")

        assert {name: str(table.schema.field(name).type) for name in ("model", "task", "response", "score", "sample")} == {
            "model": "string", "task": "string", "response": "string", "score": "double", "sample": "int64"
        }  # fmt: skip

    def test_may_have_columns_of_their_own_and_narrower_types(self, tmp_path):
        rows = make_rows(1)
        table = pyarrow.Table.from_pylist([{"note": "mine", **asdict(row)} for row in rows])
        narrow = table.set_column(
            table.schema.get_field_index("sample"), "sample", table["sample"].cast(pyarrow.int8())
        )
        pyarrow.parquet.write_table(narrow, tmp_path / "scores.parquet")

        assert read_scores(tmp_path / "scores.parquet") == rows

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (lambda row: row.pop("score"), "lacks the column score"),
            (lambda row: (row.pop("score"), row.pop("data")), "lacks the columns data, score"),
            (lambda row: row.update(score="much"), "cannot be read as scores ("),
            (lambda row: row.update(response=None), "has empty cells in its column response"),
            (lambda row: row.update(score=1.5), "has a score of 1.5, for problem"),
            (lambda row: row.update(score=float("nan")), "has a score of nan, for problem"),
            (lambda row: row.update(prompt="{}"), "has a row whose prompt is no JSON list of messages, for problem"),
            (
                lambda row: row.update(prompt='["hi"]'),
                "has a row whose prompt is no JSON list of messages, for problem",
            ),
            (lambda row: row.update(data="[" * 100_000), "has a row whose data is no JSON object, for problem"),
            (lambda row: row.update(detail="{'a': 1}"), "has a row whose detail is no JSON object, for problem"),
        ],
    )
    def test_that_are_not_what_they_should_be_get_one_sentence(self, change, sentence, tmp_path, capsys):
        row = asdict(make_rows(1)[0])
        change(row)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "scores.parquet")

        assert main(["compare", str(tmp_path / "scores.parquet")]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.startswith(f"trl-spiral compare: {tmp_path}") and said.count("\n") == 1

    @pytest.mark.parametrize("content", [b"", b"model,score\n", b"PAR1" + bytes(64) + b"PAR1"])
    def test_that_are_no_parquet_get_one_sentence(self, content, tmp_path, capsys):
        (tmp_path / "scores.parquet").write_bytes(content)

        assert main(["compare", str(tmp_path / "scores.parquet")]) == 2
        said = capsys.readouterr().err
        assert "scores.parquet cannot be read as scores (" in said and said.count("\n") == 1

    def test_that_are_not_there_are_said_to_be_missing(self, tmp_path, capsys):
        assert main(["compare", str(tmp_path / "none.parquet")]) == 2
        assert capsys.readouterr().err.startswith(f"trl-spiral compare: There is no file {tmp_path}")


class TestCommand:
    def command(self, model, out, *more):
        where = [
            "--task",
            "hanoi-small",
            "--number",
            "3",
            "--out",
            str(out),
            "--max-new-tokens",
            "8",
            "--device",
            "cpu",
        ]
        return main(["eval-task", model, *where, *more])

    def test_writes_every_reply_alike_each_time(self, model_dir, tmp_path, capsys):
        files = [tmp_path / f"{run}.parquet" for run in range(3)]
        draw = ["--temperature", "1", "--samples", "2"]
        statuses = [
            self.command(model_dir, file, *draw, *more)
            for file, more in zip(files, [[], ["--in-flight", "1"], ["--seed", "1", "--name", "other"]], strict=True)
        ]
        first, again, other = map(read_scores, files)

        assert statuses == [0, 0, 0]
        assert f"| hanoi-small | {model_dir} | 3 | 6 | 0.000 | " in capsys.readouterr().out
        assert first == again
        assert [row.problem for row in first[::2]] == [problem.id for problem in HANOI.problems("validation", 3)]
        assert {row.model for row in other} == {"other"}
        assert [row.response for row in first] != [row.response for row in other]

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (["--task", "hanoj"], "There is no task called 'hanoj'. Did you mean 'hanoi'"),
            (["--number", "0"], "`--number` (0) must be at least 1"),
            (["--samples", "2"], "`samples` (2) at temperature 0 are all the same"),
            (["--samples", "0"], "`samples` (0) must be at least 1"),
            (["--temperature", "-1"], "`--temperature` (-1.0) must not be negative"),
            (["--out", "."], "`--out` (.) is a folder. Name a file in it, such as scores.parquet."),
        ],
    )
    def test_refuses_in_a_sentence_before_a_model_is_loaded(self, options, sentence, tmp_path, capsys):
        assert self.command("no/model", tmp_path / "scores.parquet", *options) == 2
        assert sentence in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []
