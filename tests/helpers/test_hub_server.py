"""The local Hub, tested with `huggingface_hub` and a trainer."""

import json
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from safetensors.torch import load

from tests.helpers import forks
from tests.helpers.hub_server import HubServer


CLIENT = r"""
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

api = HfApi()
assert api.whoami()["name"] == "tester"

repo = api.create_repo("parrot", private=True).repo_id
assert repo == "tester/parrot"
assert api.create_repo("parrot", exist_ok=True).repo_id == repo
with pytest.raises(HfHubHTTPError, match="409"):
    api.create_repo("parrot")
assert api.model_info(repo).private

folder = Path("folder")
(folder / "nested").mkdir(parents=True)
(folder / "README.md").write_text("---\nlicense: mit\n---\nA parrot.")
(folder / "empty.bin").touch()
(folder / "weights.safetensors").write_bytes(b"first weights")
(folder / "old.bin").write_bytes(b"old weights")
(folder / "nested" / "naïve name.txt").write_text("nested")
first = api.upload_folder(repo_id=repo, folder_path=folder, commit_message="first").oid
assert api.upload_folder(repo_id=repo, folder_path=folder, commit_message="no change").oid == first

changes = [CommitOperationAdd("weights.safetensors", b"second weights"), CommitOperationDelete("old.bin")]
api.create_commit(repo, commit_message="second", parent_commit=first, operations=changes)
with pytest.raises(HfHubHTTPError, match="412"):
    api.create_commit(repo, commit_message="late", parent_commit=first, operations=[CommitOperationAdd("x", b"x")])
with pytest.raises(ValueError, match="Invalid metadata"):
    api.upload_file(repo_id=repo, path_in_repo="README.md", path_or_fileobj=b"---\na: [\n---\n")
with pytest.warns(UserWarning, match="missing yaml metadata"):
    api.upload_file(repo_id=repo, path_in_repo="README.md", path_or_fileobj=b"no metadata", commit_message="third")

expected = ["README.md", "empty.bin", "nested/naïve name.txt", "weights.safetensors"]
assert sorted(api.list_repo_files(repo)) == expected
assert [entry.path for entry in api.list_repo_tree(repo, "nested")] == ["nested/naïve name.txt"]
assert sorted(entry.path for entry in api.list_repo_tree(repo)) == [*expected[:2], "nested", *expected[3:]]
assert api.file_exists(repo, "README.md") and not api.file_exists(repo, "old.bin")

assert Path(hf_hub_download(repo, "weights.safetensors")).read_bytes() == b"second weights"
assert Path(hf_hub_download(repo, "weights.safetensors", revision=first)).read_bytes() == b"first weights"
snapshot = Path(snapshot_download(repo))
files = {path.relative_to(snapshot).as_posix(): path.read_bytes() for path in snapshot.rglob("*") if path.is_file()}
assert sorted(files) == expected
assert files["nested/naïve name.txt"] == b"nested" and files["empty.bin"] == b""

with pytest.raises(EntryNotFoundError):
    hf_hub_download(repo, "no-such-file")
with pytest.raises(RevisionNotFoundError):
    hf_hub_download(repo, "README.md", revision="no-such-branch")
with pytest.raises(RepositoryNotFoundError):
    hf_hub_download("tester/no-such-repo", "README.md")
with pytest.raises(RepositoryNotFoundError):
    api.upload_file(repo_id="tester/no-such-repo", path_in_repo="x", path_or_fileobj=b"x")
with pytest.raises(HfHubHTTPError, match="401"):
    HfApi(token="hf_wrong").upload_file(repo_id=repo, path_in_repo="x", path_or_fileobj=b"x")
with pytest.raises(HfHubHTTPError, match="404"):
    api.upload_file(repo_id=repo, path_in_repo="x", path_or_fileobj=b"x", create_pr=True)
with pytest.raises(HfHubHTTPError, match="404"):
    api.create_repo("a-dataset", repo_type="dataset")
"""

TRAINER = """
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import SFTConfig, SFTTrainer

vocabulary = {word: index for index, word in enumerate(["<unk>", "<pad>", "<eos>", "polly", "wants", "a", "cracker"])}
words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>"
)
model = Qwen3ForCausalLM(Qwen3Config(
    vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, max_position_embeddings=32, tie_word_embeddings=False,
    pad_token_id=1, bos_token_id=None, eos_token_id=2,
))
trainer = SFTTrainer(
    model=model,
    processing_class=tokenizer,
    train_dataset=Dataset.from_dict({"text": ["polly wants a cracker"] * 4}),
    args=SFTConfig(
        "parrot", hub_model_id="tester/parrot", hub_private_repo=True, max_steps=1, max_length=16, use_cpu=True,
        bf16=False, gradient_checkpointing=False, report_to="none", disable_tqdm=True,
    ),
)
trainer.train()
trainer.push_to_hub(commit_message="Trained")

loaded = AutoModelForCausalLM.from_pretrained("tester/parrot", dtype="auto").state_dict()
trained = model.state_dict()
assert loaded.keys() == trained.keys()
assert all(torch.equal(loaded[name], trained[name]) for name in trained)
assert AutoTokenizer.from_pretrained("tester/parrot")("a cracker")["input_ids"] == [5, 6]
"""


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer() as hub:
        yield hub


def run(script: str, server: HubServer, tmp_path: Path) -> None:
    """Run a script with the server as its Hub, in the folder `tmp_path`. A failure shows its stderr."""
    command, environment = [sys.executable, "-c", script], server.environment(tmp_path)
    done = forks.run(command, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def ask(server: HubServer, method: str, path: str, token: str | None, body: bytes = b"") -> tuple[int, object]:
    """Send one request without `huggingface_hub`, and return its status and JSON."""
    connection = HTTPConnection(server.url.removeprefix("http://"))
    connection.request(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})
    response = connection.getresponse()
    status, value = response.status, json.load(response)
    connection.close()
    return status, value


def test_the_client_creates_uploads_lists_and_downloads(server: HubServer, tmp_path: Path) -> None:
    run(CLIENT, server, tmp_path)
    assert server.private == {"tester/parrot"}
    assert [(repo, message, sorted(paths)) for repo, message, paths in server.commits] == [
        (
            "tester/parrot",
            "first",
            ["README.md", "empty.bin", "nested/naïve name.txt", "old.bin", "weights.safetensors"],
        ),
        ("tester/parrot", "second", ["old.bin", "weights.safetensors"]),
        ("tester/parrot", "third", ["README.md"]),
    ]
    assert server.repos["tester/parrot"]["weights.safetensors"] == b"second weights"
    uploads = [path for method, path, _ in server.requests if method == "PUT"]
    assert len(uploads) == 3, "each weights file is uploaded once"


def test_a_trainer_pushes_a_model_that_loads_again(server: HubServer, tmp_path: Path) -> None:
    run(TRAINER, server, tmp_path)
    assert server.private == {"tester/parrot"}
    assert [(repo, message) for repo, message, _ in server.commits] == [("tester/parrot", "Trained")]
    files = server.repos["tester/parrot"]
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    card = files["README.md"].decode()
    assert card.startswith("---\n")
    assert "sft" in card
    assert sum(weights.numel() for weights in load(files["model.safetensors"]).values()) < 10_000
    failed = [(path, status) for _, path, status in server.requests if status >= 400]
    optional = ("/tester/parrot/resolve/", "/api/models/tester/parrot/tree/main/additional_chat_templates?")
    assert all(status == 404 and path.startswith(optional) for path, status in failed), failed


def test_refusals_are_json_and_logged(server: HubServer) -> None:
    assert ask(server, "GET", "/api/whoami-v2", None)[0] == 401
    assert ask(server, "GET", "/api/whoami-v2", "hf_wrong")[0] == 401
    assert ask(server, "GET", "/api/no-such-thing", server.token) == (
        404,
        {"error": "unknown request: GET /api/no-such-thing"},
    )
    assert ask(server, "GET", "/api/whoami-v2?unknown=1", server.token)[0] == 404
    assert ask(server, "DELETE", "/api/repos/delete", server.token, b"{}")[0] == 404
    assert ask(server, "POST", "/api/repos/create", server.token, b"not JSON")[0] == 400
    assert ask(server, "PUT", "/lfs-upload/0123", None, b"uninvited")[0] == 403
    assert server.requests == [
        ("GET", "/api/whoami-v2", 401),
        ("GET", "/api/whoami-v2", 401),
        ("GET", "/api/no-such-thing", 404),
        ("GET", "/api/whoami-v2?unknown=1", 404),
        ("DELETE", "/api/repos/delete", 404),
        ("POST", "/api/repos/create", 400),
        ("PUT", "/lfs-upload/0123", 403),
    ]


def test_a_commit_requires_uploaded_objects(server: HubServer) -> None:
    repo = b'{"name": "parrot", "organization": null}'
    assert ask(server, "POST", "/api/repos/create", server.token, repo)[0] == 200
    lines = [
        {"key": "header", "value": {"summary": "weights that were never sent", "description": ""}},
        {"key": "lfsFile", "value": {"path": "model.safetensors", "algo": "sha256", "oid": "0" * 64, "size": 1}},
    ]
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert ask(server, "POST", "/api/models/tester/parrot/commit/main", server.token, body)[0] == 400
    assert server.repos == {"tester/parrot": {}}
    assert server.commits == []
