"""A small local Hugging Face Hub in memory, for tests that push and pull models without a network.

It implements the part of the Hub's HTTP protocol that `huggingface_hub` uses to create a model repository, upload to
it (small files inside the commit, weights through git LFS), list it and download from it. A request that matches no
`route`, including its query, gets status 404, so that a client that needs more fails.

Differences from the real Hub: it has only models, and only the branch `main` with past commits by id. New repositories
are empty, reading requires the token, and downloads are not redirected.
"""

import base64
import hashlib
import json
import os
import re
import secrets
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any, Self
from urllib.parse import unquote

import yaml


Files = dict[str, bytes]
Reply = tuple[int, bytes, dict[str, str]]  # status, body, headers

REPO = "(?P<repo>[^/?]+/[^/?]+)"
REVISION = "(?P<revision>[^/?]+)"
PATH = "(?P<path>[^?]+)"
UPLOAD = "/lfs-upload/"

LFS_SUFFIXES = {".bin", ".gguf", ".npz", ".onnx", ".pt", ".pth", ".safetensors"}
LFS_THRESHOLD = 10_000_000
FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)


def respond(value: object, status: int = 200, **headers: str) -> Reply:
    """Return a reply of bytes or JSON. In names of headers, `_` stands for `-`."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    if isinstance(value, bytes):
        return status, value, named
    return status, json.dumps(value).encode(), {"Content-Type": "application/json"} | named


class Refusal(Exception):
    """A refused request. The client reads the reason from the header `X-Error-Code`."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.reply = respond({"error": message}, status, **headers)


ROUTES: list[tuple[re.Pattern[str], Callable[..., Reply]]] = []


def route(pattern: str) -> Callable[[Callable[..., Reply]], Callable[..., Reply]]:
    """Register a method as the handler of requests whose "METHOD /path?query" matches.

    Its arguments are the body, except for GET and HEAD, and the groups of the pattern.
    """

    def register(handler: Callable[..., Reply]) -> Callable[..., Reply]:
        ROUTES.append((re.compile(pattern), handler))
        return handler

    return register


def in_lfs(path: str, size: int) -> bool:
    """Return whether a file is uploaded through LFS instead of in the commit. Empty files are not."""
    return size > 0 and (Path(path).suffix in LFS_SUFFIXES or size > LFS_THRESHOLD)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def content_id(path: str, data: bytes) -> str:
    """Return the ETag of a download, by which the client also detects unchanged files."""
    return sha256(data) if in_lfs(path, len(data)) else git_id(data)


def entry(path: str, data: bytes) -> dict[str, Any]:
    """Return a file's entry in a listing. For files in LFS, `oid` is that of the pointer in git."""
    if not in_lfs(path, len(data)):
        return {"type": "file", "path": path, "size": len(data), "oid": git_id(data)}
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256(data)}\nsize {len(data)}\n".encode()
    lfs = {"oid": sha256(data), "size": len(data), "pointerSize": len(pointer)}
    return {"type": "file", "path": path, "size": len(data), "oid": git_id(pointer), "lfs": lfs}


class HubServer:
    """A local Hub. Use it as a context manager, and run the client in a process with its `environment`.

    `commits` stores the repository, message and paths of each commit. `requests` stores method, target and status.
    """

    def __init__(self, user: str = "tester") -> None:
        self.user = user
        self.url = ""
        self.token = f"hf_{secrets.token_hex(16)}"
        self.private: set[str] = set()
        self.commits: list[tuple[str, str, list[str]]] = []
        self.requests: list[tuple[str, str, int]] = []
        self._history: dict[str, dict[str, Files]] = {}  # repository -> commit id -> files, oldest commit first
        self._lfs: Files = {}  # sha256 -> content
        self._tickets: dict[str, str] = {}  # secret part of an upload URL -> sha256 of the expected content
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Connection, self))
        self.url = f"http://127.0.0.1:{self._httpd.server_port}"
        threading.Thread(target=self._httpd.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()

    @property
    def repos(self) -> dict[str, Files]:
        """Files at the head of each repository."""
        return {repo: self._at(repo)[1] for repo in self._history}

    def environment(self, tmp_path: Path) -> dict[str, str]:
        """Return the environment of a client process, which `huggingface_hub` reads at import.

        Xet is disabled, since the client uploads through it if `hf_xet` is installed, without a request to the server.
        Telemetry is disabled, since it requests a list of coding agents without the token.
        """
        ours = ("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) and not k.lower().endswith("_proxy")}
        return kept | {
            "HF_ENDPOINT": self.url,
            "HF_TOKEN": self.token,
            "HF_HOME": str(tmp_path / "huggingface"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def answer(self, method: str, target: str, authorization: str | None, body: bytes) -> Reply:
        """Answer one request and log it. A lock serializes requests, so handlers need no locks."""
        with self._lock:
            try:
                reply = self._dispatch(method, target, authorization, body)
            except Refusal as refusal:
                reply = refusal.reply
            except (KeyError, TypeError, ValueError) as error:
                reply = respond({"error": f"malformed request: {error!r}"}, 400)
            self.requests.append((method, target, reply[0]))
            return reply

    def _dispatch(self, method: str, target: str, authorization: str | None, body: bytes) -> Reply:
        # The client sends no token to an upload URL. Like a presigned URL, the URL itself is the permission.
        if authorization != f"Bearer {self.token}" and not target.startswith(UPLOAD):
            raise Refusal(401, "Invalid credentials in Authorization header")
        for pattern, handler in ROUTES:
            if match := pattern.fullmatch(f"{method} {target}"):
                parts = {name: unquote(part or "") for name, part in match.groupdict().items()}
                return handler(self, **parts) if method in ("GET", "HEAD") else handler(self, body, **parts)
        raise Refusal(404, f"unknown request: {method} {target}")

    def _at(self, repo: str, revision: str = "main") -> tuple[str, Files]:
        """Return the commit id and the files of a revision."""
        if repo not in self._history:
            raise Refusal(404, f"no repository {repo}", X_Error_Code="RepoNotFound")
        history = self._history[repo]
        commit = list(history)[-1] if revision == "main" else revision
        if commit not in history:
            raise Refusal(404, f"no revision {revision} in {repo}", X_Error_Code="RevisionNotFound")
        return commit, history[commit]

    def _record(self, repo: str, files: Files) -> str:
        """Make `files` the head of a repository, under a new commit id."""
        history = self._history.setdefault(repo, {})
        commit = hashlib.sha1(f"{repo} {len(history)}".encode()).hexdigest()
        history[commit] = files
        return commit

    @route("GET /api/whoami-v2")
    def _whoami(self) -> Reply:
        token = {"displayName": "test", "role": "write"}
        return respond({"type": "user", "name": self.user, "orgs": [], "auth": {"accessToken": token}})

    @route("POST /api/repos/create")
    def _create(self, body: bytes) -> Reply:
        wanted = json.loads(body)
        if wanted.get("type", "model") != "model":
            raise Refusal(404, "only models are supported")
        repo = f"{wanted['organization'] or self.user}/{wanted['name']}"
        if repo in self._history:
            return respond({"error": f"{repo} already exists", "url": f"{self.url}/{repo}"}, 409)
        self._record(repo, {})
        if wanted.get("visibility") == "private":
            self.private.add(repo)
        return respond({"name": repo, "url": f"{self.url}/{repo}"})

    @route(f"GET /api/models/{REPO}(?:/revision/{REVISION})?")
    def _model_info(self, repo: str, revision: str) -> Reply:
        commit, files = self._at(repo, revision or "main")
        siblings = [{"rfilename": path} for path in files]
        return respond({"id": repo, "sha": commit, "private": repo in self.private, "tags": [], "siblings": siblings})

    @route(f"GET /api/models/{REPO}/tree/{REVISION}(?:/{PATH})?[?]recursive=(?P<recursive>true|false)&expand=false")
    def _tree(self, repo: str, revision: str, path: str, recursive: str) -> Reply:
        folder = f"{path}/" if path else ""
        _, files = self._at(repo, revision)
        folders = {str(parent) for name in files for parent in PurePosixPath(name).parents} - {"."}
        entries = [entry(name, data) for name, data in files.items()]
        entries += [{"type": "directory", "path": name, "oid": git_id(name.encode())} for name in sorted(folders)]
        inside = [item for item in entries if item["path"].startswith(folder)]
        if folder and not inside:
            raise Refusal(404, f"no folder {path}", X_Error_Code="EntryNotFound")
        direct = [item for item in inside if "/" not in item["path"].removeprefix(folder)]
        return respond(inside if recursive == "true" else direct)

    @route(f"(?:GET|HEAD) /{REPO}/resolve/{REVISION}/{PATH}")
    def _resolve(self, repo: str, revision: str, path: str) -> Reply:
        commit, files = self._at(repo, revision)
        if path not in files:
            raise Refusal(404, f"no file {path}", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        return respond(files[path], X_Repo_Commit=commit, ETag=f'"{content_id(path, files[path])}"')

    @route("POST /api/validate-yaml")
    def _validate_yaml(self, body: bytes) -> Reply:
        front_matter = FRONT_MATTER.match(json.loads(body)["content"])
        try:
            metadata = yaml.safe_load(front_matter[1]) if front_matter else {}
            if not isinstance(metadata, dict):
                raise yaml.YAMLError("metadata must be a mapping")
        except yaml.YAMLError as error:
            return respond({"errors": [{"message": str(error)}], "warnings": []}, 400)
        missing = [] if metadata else [{"message": "empty or missing yaml metadata in repo card"}]
        return respond({"errors": [], "warnings": missing})

    @route(f"POST /api/models/{REPO}/preupload/main")
    def _preupload(self, body: bytes, repo: str) -> Reply:
        wanted, (_, files) = json.loads(body), self._at(repo)
        if "gitIgnore" in wanted:
            raise Refusal(404, ".gitignore is not supported")
        answers = []
        for path, size in ((file["path"], file["size"]) for file in wanted["files"]):
            present = {"oid": content_id(path, files[path])} if path in files else {}
            mode = "lfs" if in_lfs(path, size) else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False} | present)
        return respond({"files": answers})

    @route(f"POST /{REPO}[.]git/info/lfs/objects/batch")
    def _lfs_batch(self, body: bytes, repo: str) -> Reply:
        self._at(repo)
        wanted, answers = json.loads(body), []
        if wanted["operation"] != "upload" or "basic" not in wanted["transfers"]:
            raise Refusal(404, "only basic uploads are supported")
        for oid, size in ((item["oid"], item["size"]) for item in wanted["objects"]):
            answers.append({"oid": oid, "size": size})
            if oid not in self._lfs:
                ticket = secrets.token_hex(16)
                self._tickets[ticket] = oid
                verify = {"href": f"{self.url}/{repo}.git/info/lfs/objects/verify"}
                answers[-1]["actions"] = {"upload": {"href": f"{self.url}{UPLOAD}{ticket}"}, "verify": verify}
        return respond({"transfer": "basic", "objects": answers})

    @route(f"PUT {UPLOAD}(?P<ticket>[0-9a-f]+)")
    def _lfs_upload(self, body: bytes, ticket: str) -> Reply:
        if self._tickets.get(ticket) != sha256(body):
            raise Refusal(403, "this upload URL does not belong to this content")
        self._lfs[sha256(body)] = body
        return respond({})

    @route(f"POST /{REPO}[.]git/info/lfs/objects/verify")
    def _lfs_verify(self, body: bytes, repo: str) -> Reply:
        self._at(repo)
        wanted = json.loads(body)
        if len(self._lfs.get(wanted["oid"], b"")) != wanted["size"]:
            raise Refusal(404, f"no such object: {wanted}")
        return respond({})

    @route(f"POST /api/models/{REPO}/commit/main")
    def _commit(self, body: bytes, repo: str) -> Reply:
        head, files = self._at(repo)
        (_, header), *operations = ((line["key"], line["value"]) for line in map(json.loads, body.splitlines()))
        if not head.startswith(header.get("parentCommit", head)):
            raise Refusal(412, "the parent commit is not the head of main")
        files = dict(files)
        for kind, value in operations:
            path = value["path"]
            if kind == "file":
                files[path] = base64.b64decode(value["content"], validate=True)
            elif kind == "lfsFile":
                files[path] = self._lfs[value["oid"]]
            elif kind == "deletedFile":
                del files[path]
            else:
                raise ValueError(f"unknown commit operation {kind}")
        commit = self._record(repo, files)
        self.commits.append((repo, header["summary"], [value["path"] for _, value in operations]))
        return respond({"success": True, "commitOid": commit, "commitUrl": f"{self.url}/{repo}/commit/{commit}"})


class Connection(BaseHTTPRequestHandler):
    """Passes the requests of one connection to a `HubServer`, and returns its replies."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, hub: HubServer, *args: Any) -> None:
        self.hub = hub
        super().__init__(*args)

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, content, headers = self.hub.answer(self.command, self.path, self.headers.get("Authorization"), body)
        self.send_response(status)
        for name, text in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_DELETE = do_GET = do_HEAD = do_OPTIONS = do_PATCH = do_POST = do_PUT = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: `HubServer.requests` is the log."""
