import json
import logging
import shutil
from copy import deepcopy
from dataclasses import asdict, replace

import pyarrow
import pyarrow.parquet
import pytest

from tests.helpers.puzzle_replies import make_rows, solution
from trl_spiral.cli import main
from trl_spiral.evaluation.problems.tasks import answer_task, read_scores, write_scores
from trl_spiral.players import PolicyPlayer
from trl_spiral.rewards import TaskReward
from trl_spiral.tasks import Problem, Score, Task, base, get_task, task_dataset
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import Reply, Sampling


HANOI = get_task("hanoi-small")

# Opens the thinking by default, as DeepSeek-R1's template does.
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is not false %}<think>\n{% endif %}{% endif %}"
)


class Echo:
    """An engine with a scripted reply for each prompt, the last request first."""

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
    """Return an engine that answers each problem with a text."""
    return Echo(
        {
            player.renderer.task(problem.messages): Reply(player.renderer.reply(text), (), finish_reason=ended)
            for problem, text in texts
        }
    )


class TestTaskPrompt:
    def test_is_the_prompt_of_training(self, tokenizer):
        (problem,) = HANOI.problems("validation", 1)
        asked = [dict(message) for message in problem.messages]
        # TRL's rendering of a conversational prompt.
        trained = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=True, return_dict=True)

        assert list(PromptRenderer(tokenizer).task(problem.messages)) == trained["input_ids"]

    def test_passes_options_to_the_template(self, tokenizer):
        (problem,) = HANOI.problems("validation", 1)
        asked = [dict(message) for message in problem.messages]
        for options in ({}, {"enable_thinking": False}):
            trained = tokenizer.apply_chat_template(
                asked, chat_template=THINKING, add_generation_prompt=True, return_dict=True, **options
            )
            renderer = PromptRenderer(tokenizer, chat_template=THINKING, chat_template_kwargs=options)

            assert list(renderer.task(problem.messages)) == trained["input_ids"]

    def test_keeps_every_message(self, tokenizer):
        messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Well?"})
        texts = [tokenizer.decode(PromptRenderer(tokenizer, style).task(messages)) for style in ("chat", "qwen3")]

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

    def test_asks_a_duplicate_problem_once(self, player):
        (problem,) = HANOI.problems("validation", 1)
        rows = answer_task(HANOI, [problem] * 3, player, echo(player, [(problem, "no")]))

        assert len(rows) == 1

    def test_seeds_depend_only_on_the_problem_and_the_sample(self, player):
        texts = [(problem, "no") for problem in HANOI.problems("validation", 2)]
        both, second, other = echo(player, texts), echo(player, texts), echo(player, texts)
        answer_task(HANOI, [problem for problem, _ in texts], player, both, samples=2)
        answer_task(HANOI, [texts[1][0]], player, second, samples=2)
        answer_task(HANOI, [texts[1][0]], player, other, samples=2, seed=1)

        assert dict(second.seeds) == {0: dict(both.seeds)[2], 1: dict(both.seeds)[3]}
        assert len({seed for _, seed in both.seeds + other.seeds}) == 6

    def test_thinking_that_the_prompt_opened_must_be_closed(self, tokenizer):
        player = PolicyPlayer(PromptRenderer(tokenizer, "r1"), Sampling())
        (problem,) = HANOI.problems("validation", 1)
        text = f"\\boxed{{{solution(problem)}}}"
        (thought,) = answer_task(HANOI, [problem], player, echo(player, [(problem, text)]))
        (said,) = answer_task(HANOI, [problem], player, echo(player, [(problem, f"so</think>{text}")]))

        assert (thought.response, thought.solved) == (f"<think>{text}", False)
        assert (said.response, said.solved) == (f"<think>so</think>{text}", True)

    def test_rows_contain_the_settings(self, player):
        (problem,) = HANOI.problems("validation", 1)
        engine = echo(player, [(problem, "no")])
        (row,) = answer_task(HANOI, [problem], player, engine, seed=7, settings={"split": "validation"})
        recorded = json.loads(row.settings)

        assert recorded == {
            **asdict(player.sampling),
            "stop": [],
            "prompt_style": "chat",
            "split": "validation",
            "seed": 7,
        }

    def test_a_truncated_reply_is_scored_and_marked(self, player):
        (problem,) = HANOI.problems("validation", 1)
        (row,) = answer_task(HANOI, [problem], player, echo(player, [(problem, solution(problem))], ended="length"))

        assert (row.truncated, row.score) == (True, 1.0)

    def test_a_lost_model_raises_an_error(self, player):
        (problem,) = HANOI.problems("validation", 1)

        with pytest.raises(RuntimeError, match=f"The model is gone: problem {problem.id} has no reply"):
            answer_task(HANOI, [problem], player, echo(player, [(problem, "")], ended="lost"))


class Faulty(Task):
    """A task with the faults of a first draft."""

    name = "faulty"

    def __init__(self, data=None, detail=None, fails_at=None):
        self.data, self.detail, self.fails_at = data or {}, detail or {}, fails_at

    def problems(self, split, number, seed=0):
        return [Problem("one", ({"role": "user", "content": "?"},), self.data)] * (self.data != {"of": "none"})

    def score(self, problem, response):
        if response == self.fails_at:
            raise IndexError("no answer")
        return Score(0.0, False, self.detail)


class Empty(Faulty):
    def problems(self, split, number, seed=0):
        return {}[split]


class TestCheckTask:
    FAULTS = [
        (Faulty(data={"of": "none"}), "'faulty' has no problems"),
        (Faulty(data={"rod": (0, 1)}), "Problem 'one' of the task 'faulty' does not survive JSON"),
        (Faulty(data={1: "a"}), "Problem 'one' of the task 'faulty' does not survive JSON"),
        (Faulty(data={"a": {1, 2}}), r"survive JSON \(TypeError: Object of type set"),
        (
            Faulty(detail={"a": {1, 2}}),
            r"cannot score a reply to problem 'one' \(TypeError: Object of type set.*detail",
        ),
        (Faulty(fails_at=""), r"cannot score a reply to problem 'one' \(IndexError: no answer\): ''"),
    ]

    @pytest.mark.parametrize(("task", "sentence"), FAULTS)
    def test_finds_a_fault_before_any_request(self, task, sentence, player):
        engine = Echo({})
        with pytest.raises(ValueError, match=sentence):
            answer_task(task, task.problems("validation", 1), player, engine)

        assert engine.seeds == []

    def test_an_error_of_scoring_quotes_the_reply(self, player):
        task = Faulty(fails_at="hm")
        (problem,) = task.problems("validation", 1)

        with pytest.raises(ValueError, match=r"\(IndexError: no answer\): 'hm'\. A task must score any text"):
            answer_task(task, [problem], player, echo(player, [(problem, "hm")]))


class TestThinking:
    """Thinking that a prompt opened has the same effect in training and in evaluation."""

    def texts(self, problem):
        box = f"\\boxed{{{solution(problem)}}}"
        return [f"I could try {box} and", f"hm</think>{box}", box, f"</think>{box}"]

    def evaluated(self, tokenizer, problem, options):
        player = PolicyPlayer(
            PromptRenderer(tokenizer, chat_template=THINKING, chat_template_kwargs=options), Sampling()
        )
        return [
            answer_task(HANOI, [problem], player, echo(player, [(problem, text)]))[0].score
            for text in self.texts(problem)
        ]

    @pytest.mark.parametrize(
        ("options", "scores"), [({}, [0.0, 1.0, 0.0, 1.0]), ({"enable_thinking": False}, [1.0, 1.0, 1.0, 1.0])]
    )
    def test_counts_the_same_in_training_and_in_evaluation(self, options, scores, tokenizer, model_dir, tmp_path):
        from datasets import Dataset

        from trl_spiral import AlgorithmConfig, AlgorithmTrainer

        (problem,) = HANOI.problems("validation", 1)
        thinker = deepcopy(tokenizer)
        thinker.chat_template = THINKING
        seen = []

        class Kept(TaskReward):
            def __call__(self, *args, **kwargs):
                seen.extend(super().__call__(*args, **kwargs))
                return seen[-4:]

        def rollout(prompts, trainer):
            ids = [tokenizer.encode(text, add_special_tokens=False) for text in self.texts(problem)]
            return {"prompt_ids": [[1]] * 4, "completion_ids": ids, "logprobs": None}

        AlgorithmTrainer(
            model=model_dir,
            processing_class=thinker,
            reward_funcs=Kept("hanoi-small"),
            args=AlgorithmConfig(
                str(tmp_path),
                algorithm="grpo",
                max_steps=1,
                per_device_train_batch_size=4,
                num_generations=4,
                chat_template_kwargs=options,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to="none",
                save_strategy="no",
            ),
            train_dataset=Dataset.from_list(task_dataset(HANOI, "validation", 1)),
            rollout_func=rollout,
        ).train()

        assert seen == scores == self.evaluated(tokenizer, problem, options)

    def test_needs_a_renderer_with_trls_own_trainer(self, tokenizer):
        (row,) = task_dataset("hanoi-small", "validation", 1)
        texts = self.texts(HANOI.problems("validation", 1)[0])
        reward = TaskReward("hanoi-small", PromptRenderer(tokenizer, chat_template=THINKING))

        assert reward(completions=texts, problem=[row["problem"]] * 4) == [0.0, 1.0, 0.0, 1.0]

    def test_is_detected_in_prompts_of_plain_text(self):
        (row,) = task_dataset("hanoi-small", "validation", 1)
        texts = self.texts(HANOI.problems("validation", 1)[0])
        reward = TaskReward("hanoi-small")

        for prompt, scores in (("Think: <think>\n", [0.0, 1.0, 0.0, 1.0]), ("Say:", [1.0, 1.0, 1.0, 1.0])):
            assert reward(completions=texts, prompts=[prompt] * 4, problem=[row["problem"]] * 4) == scores

    def test_that_trl_has_separated_is_ignored(self, tokenizer):
        (row,) = task_dataset("hanoi-small", "validation", 1)
        text = self.texts(HANOI.problems("validation", 1)[0])[2]
        reward = TaskReward("hanoi-small", PromptRenderer(tokenizer, chat_template=THINKING))
        said = {"role": "assistant", "content": text, "reasoning_content": "hm"}

        assert reward(completions=[[said]], problem=[row["problem"]]) == [1.0]

    def test_that_is_empty_is_distinguished_from_unfinished_by_the_tokens(self, tokenizer):
        (row,) = task_dataset("hanoi-small", "validation", 1)
        *_, box, closed = self.texts(HANOI.problems("validation", 1)[0])
        reward = TaskReward("hanoi-small", PromptRenderer(tokenizer, chat_template=THINKING))
        # Some of TRL's parsers return the same message for both.
        parsed = [[{"role": "assistant", "content": box}]] * 2
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in (box, closed)]

        assert reward(completions=parsed, completion_ids=ids, problem=[row["problem"]] * 2) == [0.0, 1.0]

    def test_depends_on_each_prompt(self, tokenizer):
        (row,) = task_dataset("hanoi-small", "validation", 1)
        text = self.texts(HANOI.problems("validation", 1)[0])[2]
        template = THINKING.replace("enable_thinking is not false", "'/no_think' not in messages[0]['content']")
        reward = TaskReward("hanoi-small", PromptRenderer(tokenizer, chat_template=template))
        prompts = [[{"role": "user", "content": said}] for said in ("Move.", "Move. /no_think")]

        assert reward(completions=[text] * 2, prompts=prompts, problem=[row["problem"]] * 2) == [0.0, 1.0]

    def test_without_a_renderer_causes_one_warning(self, caplog):
        (row,) = task_dataset("hanoi-small", "validation", 1)
        reward = TaskReward("hanoi-small")
        with caplog.at_level(logging.WARNING):
            reward(completions=["<think>hm</think>a", "b"], problem=[row["problem"]] * 2)
            recorded = len(caplog.messages)
            reward(completions=["hm</think>a", "hm</think>b"], problem=[row["problem"]] * 2)

        assert recorded == 0
        assert len(caplog.messages) == 1 and "Pass `renderer=PromptRenderer(tokenizer)`" in caplog.messages[0]


class TestFiles:
    def test_round_trip(self, tmp_path):
        rows = [*make_rows(2), replace(make_rows(1)[0], model="ein Modell, 模型", response="")]
        write_scores(tmp_path / "new" / "scores.parquet", rows)

        assert read_scores(tmp_path / "new" / "scores.parquet") == rows
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["scores.parquet"]

    def test_have_the_documented_columns(self, tmp_path):
        write_scores(tmp_path / "scores.parquet", make_rows(1))
        table = pyarrow.parquet.read_table(tmp_path / "scores.parquet")

        types = {"model": "string", "task": "string", "response": "string", "score": "double", "sample": "int64"}
        assert {name: str(table.schema.field(name).type) for name in types} == types

    def test_may_have_more_columns_and_narrower_types(self, tmp_path):
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
            (
                lambda row: row.update(prompt="{}"),
                "has a row whose prompt is not a JSON list of messages, for problem",
            ),
            (
                lambda row: row.update(prompt='["hi"]'),
                "has a row whose prompt is not a JSON list of messages, for problem",
            ),
            (lambda row: row.update(data="[" * 100_000), "has a row whose data is not a JSON object, for problem"),
            (lambda row: row.update(detail="{'a': 1}"), "has a row whose detail is not a JSON object, for problem"),
        ],
    )
    def test_with_wrong_content_raise_an_error(self, change, sentence, tmp_path, capsys):
        row = asdict(make_rows(1)[0])
        change(row)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "scores.parquet")

        assert main(["compare", str(tmp_path / "scores.parquet")]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.startswith(f"trl-spiral compare: {tmp_path}") and said.count("\n") == 1

    @pytest.mark.parametrize("content", [b"", b"model,score\n", b"PAR1" + bytes(64) + b"PAR1"])
    def test_that_are_not_parquet_raise_an_error(self, content, tmp_path, capsys):
        (tmp_path / "scores.parquet").write_bytes(content)

        assert main(["compare", str(tmp_path / "scores.parquet")]) == 2
        said = capsys.readouterr().err
        assert "scores.parquet cannot be read as scores (" in said and said.count("\n") == 1

    def test_that_are_missing_raise_an_error(self, tmp_path, capsys):
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

    def test_writes_every_reply_reproducibly(self, model_dir, tmp_path, capsys):
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
        assert {json.loads(row.settings)["split"] for row in first} == {"validation"}
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
    def test_refuses_bad_options_before_a_model_is_loaded(self, options, sentence, tmp_path, capsys):
        assert self.command("no/model", tmp_path / "scores.parquet", *options) == 2
        assert sentence in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("make", "sentence"),
        [
            (lambda: Faulty(data={"of": "none"}), "The task 'faulty' has no problems. Check its split and number."),
            (
                lambda: Faulty(detail={"a": {1, 2}}),
                "The task 'faulty' cannot score a reply to problem 'one' (TypeError: ",
            ),
            (lambda: Empty(), "The task 'faulty' cannot make problems (KeyError: 'validation')."),
        ],
    )
    def test_refuses_a_faulty_task_before_a_model_is_loaded(self, make, sentence, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr(base, "_REGISTRY", {"faulty": make})
        monkeypatch.setattr(base, "_TASKS", {})

        assert self.command("no/model", tmp_path / "scores.parquet", "--task", "faulty") == 2
        said = capsys.readouterr().err
        assert sentence in said and said.count("\n") == 1
        assert list(tmp_path.iterdir()) == []

    def test_passes_options_to_the_chat_template(self, model_dir, tokenizer, tmp_path, capsys):
        folder = shutil.copytree(model_dir, tmp_path / "thinker")
        thinker = deepcopy(tokenizer)
        thinker.chat_template = THINKING
        thinker.save_pretrained(folder)
        option = ["--chat-template-kwargs", '{"enable_thinking": false}']
        assert self.command(str(folder), tmp_path / "open.parquet") == 0
        assert self.command(str(folder), tmp_path / "shut.parquet", *option) == 0
        thought, said = (read_scores(tmp_path / f"{name}.parquet") for name in ("open", "shut"))

        assert {row.response[:7] for row in thought} == {"<think>"}
        assert not any(row.response.startswith("<think>") for row in said)
        assert json.loads(said[0].settings)["chat_template_kwargs"] == {"enable_thinking": False}

    @pytest.mark.parametrize(
        ("more", "sentence"),
        [
            (['{"tokenize": false}'], "`--chat-template-kwargs` must not set 'tokenize'"),
            (
                ['{"a": 1}', "--prompt-style", "qwen3"],
                "`--chat-template-kwargs` has no effect with `--prompt-style qwen3`",
            ),
        ],
    )
    def test_refuses_invalid_options_of_the_chat_template(self, more, sentence, tmp_path, capsys):
        assert self.command("no/model", tmp_path / "scores.parquet", "--chat-template-kwargs", *more) == 2
        assert sentence in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("text", "sentence"), [("{", "'{' is not JSON (Exp"), ("[1]", "'[1]' is not a JSON object")]
    )
    def test_refuses_options_that_are_not_an_object(self, text, sentence, tmp_path, capsys):
        with pytest.raises(SystemExit):
            self.command("no/model", tmp_path / "scores.parquet", "--chat-template-kwargs", text)

        assert sentence in capsys.readouterr().err
