"""Secrets stay out of every file: by name, by shape, and in a run whose output is searched byte by byte."""

import base64
import copy
import gzip
import json
import pickle
import re
import sys
import zipfile
from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from tests.helpers import forks
from tests.helpers.algorithm_runs import config as algorithm_config
from tests.helpers.hub_server import HubServer
from tests.helpers.training_runs import RecordingTrainer, config
from trl_spiral import SpiralConfig
from trl_spiral.callbacks import TranscriptCallback
from trl_spiral.callbacks.transcripts import describe_run
from trl_spiral.cli import main


P = "Planted0"  # in planted secrets only

COMMANDS = [
    ["--url", f"https://host/v1?api_key={P}&x=1#model"],
    ["--url", f"https://host/v1?{P}"],
    [f"--url=https://me:{P}@host/v1"],
    ["--url", f"https://me:{P}/{P}@host"],
    ["--dsn", f"me:{P}@host:5432"],
    ["--access_key", P, "--seed", "7"],
    [f"--aws-secret-access-key={P}/+x"],
    ["--header", f"X-Org: {P}"],
    ["--headers", f"A: {P}", f"B: {P}", "--seed", "7"],
    [f"--extra=Authorization: Bearer {P}"],
    ["--note", f"Authorization: Basic {P} and {P}"],
    ["--note", f"bearer {P}"],
    ["--note", f"Basic {base64.b64encode(P.encode()).decode()}", P[:0]],
    ["--kwargs", json.dumps({"a": [{"headers": {"X-Org": P, "deep": [P]}}], "b": {"token": P}})],
    ["--kwargs=" + json.dumps({"a": {"api-key": P}, "b": 1})],
    [f"--kwargs={{'password': '{P} {P}', 'x': 1}}"],
    ["--kwargs", json.dumps({"kwargs": json.dumps({"secret": P})})],
    ["--env", f"HF_TOKEN={P} WANDB_API_KEY='{P}'"],
    ["--cookie", f"a={P}; b={P}"],
    ["--shell", f"curl --header 'X-Key: {P}' --token {P} https://host"],
    ["--note", f"-----BEGIN RSA PRIVATE KEY-----\n{P}-{P}\n-----END RSA PRIVATE KEY-----"],
    *(
        ["--note", f"see {prefix}{P}x1234567890123 there"]
        for prefix in ("hf_", "sk-", "sk-ant-", "ghp_", "github_pat_", "glpat-", "xoxb-", "nvapi-", "AIza", "gsk_")
    ),
    ["--note", "AKIAPLANTED01234567"],
    ["--note", f"eyJhbGciOiJIUzI1NiJ9.{P}.{P}"],
]
HARMLESS = [
    "--seed 7 --max_tokens 5 --tokenizer org/model --games TicTacToe-v0",
    "--endpoint_api_key_env OPENAI_API_KEY",
    "--opponents self:0.5,pool:0.5 --model https://huggingface.co/org/model@main",
    "--fsdp_config hf_deepspeed_config.json --note 'basic settings' --monkey 1 --signal 2",
    """--chat_template_kwargs '{"enable_thinking": false}'""",
]


def shown(*arguments):
    return describe_run(SpiralConfig(use_cpu=True, bf16=False), ["train.py", *arguments])["command"]


class TestCommand:
    @pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments)[:40])
    def test_is_written_without_secrets(self, arguments):
        written = shown(*arguments)

        assert P.lower() not in written.lower() and base64.b64encode(P.encode()).decode() not in written
        assert "HIDDEN" in written
        assert ("--seed 7" in written) == ("7" in arguments)  # only one option of a command is hidden

    @pytest.mark.parametrize("text", HARMLESS)
    def test_without_secrets_is_written_unchanged(self, text):
        import shlex

        assert shown(*shlex.split(text)) == f"train.py {text}"


# One for each way for a secret to enter a run. `generation_kwargs` and similar options would reach the model.
PLANTED = {
    "hub_token": f"hf_{P}hub",
    "model_init_kwargs": {"token": f"{P}init"},
    "chat_template_kwargs": {"api_key": f"{P}template", "more": {"headers": {"X-Org": f"{P}engine"}}},
    "vllm_server_base_url": f"https://me:{P}url@host/v1?key={P}query",
    "run_name": f"run with Bearer {P}name",
    "label_names": ["--access_key", f"{P}list"],
    "hub_model_id": f"tester/sk-{P}id",
}


def contents(path):
    """Return all bytes of a file: raw, unzipped, unpacked, and the columns of a table."""
    data = path.read_bytes()
    yield data
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from map(archive.read, archive.namelist())
    for packed in re.findall(rb">(H4sI[A-Za-z0-9+/=]+)<", data):
        yield gzip.decompress(base64.b64decode(packed))
    if path.suffix == ".parquet":
        yield json.dumps(pyarrow.parquet.read_table(path).to_pydict(), default=str).encode()


def found_in(folder):
    """Return the names of files with a planted secret, in any case and in base64."""
    searched = [path for path in Path(folder).rglob("*") if path.is_file()]
    needles = [P.lower().encode(), base64.b64encode(P.encode()).rstrip(b"=")[:10].lower()]
    hits = {path.name for path in searched for data in contents(path) if any(one in data.lower() for one in needles)}
    return hits, {path.name for path in searched}


class TestTraining:
    def test_writes_no_secret_to_any_file_or_log(self, model_dir, tmp_path, monkeypatch, capfd, caplog):
        folder = tmp_path / "run"
        monkeypatch.setattr("sys.argv", ["train.py", *(part for arguments in COMMANDS[:20] for part in arguments)])
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(folder / "logs"))
        monkeypatch.setenv("OPENAI_API_KEY", f"{P}environment")
        changes = dict(report_to=["tensorboard"], save_strategy="steps", save_steps=1, max_steps=2)
        args = config(folder, log_completions=True, **changes, **PLANTED)
        trainer = RecordingTrainer(model_dir, args)
        trainer.add_callback(TranscriptCallback(trainer, games=3, every=1))
        trainer.train()
        trainer.save_model(str(folder))
        trainer.save_state()
        trainer.create_model_card()
        assert main(["report", str(folder)]) == 0
        hits, searched = found_in(folder)

        assert hits == set()
        assert {
            "run.json",
            "training_args.bin",
            "trainer_state.json",
            "games.jsonl",
            "README.md",
            "report.html",
        } < searched
        assert any(name.startswith("events.out.tfevents") for name in searched)
        assert P.lower() not in "".join([*capfd.readouterr(), caplog.text]).lower()
        # The run itself uses all of them.
        assert trainer.args.hub_token == copy.deepcopy(trainer.args).hub_token == PLANTED["hub_token"]
        assert pickle.loads(pickle.dumps(trainer.args)).model_init_kwargs == PLANTED["model_init_kwargs"]
        saved = torch.load(folder / "training_args.bin", weights_only=False)
        assert (type(saved), saved.hub_token, saved.learning_rate) == (SpiralConfig, None, args.learning_rate)

    def test_algorithm_trainers_send_no_secret_to_trackers(self, tmp_path):
        args = algorithm_config(tmp_path, hub_token=f"hf_{P}", model_init_kwargs={"token": P}, run_name=f"sk-{P}x")

        assert P not in args.to_json_string()
        assert P not in json.dumps(args.to_sanitized_dict())

    def test_a_report_hides_secrets_of_an_older_version(self, tmp_path):
        (tmp_path / "trainer_state.json").write_text('{"global_step": 1, "max_steps": 1, "log_history": []}')
        written = {
            "command": f"train.py --access_key {P}",
            "settings": {"base_url": f"https://host?{P}", "headers": {"a": P}},
        }
        (tmp_path / "run.json").write_text(json.dumps(written))

        assert main(["report", str(tmp_path)]) == 0
        page = (tmp_path / "report.html").read_text()
        assert P not in page
        assert page.count("HIDDEN") == 3


PUSHING = """
import sys
from tests.helpers.training_runs import config
from trl_spiral import SpiralTrainer

args = config(
    "parrot", hub_token={token!r}, push_to_hub=True, hub_model_id="tester/parrot", hub_strategy="all_checkpoints",
    hub_always_push=True, save_strategy="steps", save_steps=1, max_steps=2,
)
trainer = SpiralTrainer({model!r}, args)
trainer.train()
trainer.push_to_hub()
"""


class TestPushing:
    def test_uses_a_token_that_is_in_no_pushed_file(self, model_dir, tmp_path):
        with HubServer() as hub:
            environment = hub.environment(tmp_path)
            del environment["HF_TOKEN"]  # only the configuration has it
            script = PUSHING.format(token=hub.token, model=model_dir)
            done = forks.run([sys.executable, "-c", script], env=environment, cwd=tmp_path)
            pushed = hub.repos["tester/parrot"] if done.returncode == 0 else {}

        assert done.returncode == 0, done.stderr
        assert {"training_args.bin", "checkpoint-1/training_args.bin", "model.safetensors"} <= pushed.keys()
        assert [name for name, data in pushed.items() if hub.token.encode() in data] == []
        assert [
            path for path in tmp_path.rglob("*") if path.is_file() and hub.token.encode() in path.read_bytes()
        ] == []
