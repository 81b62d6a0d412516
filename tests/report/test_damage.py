"""Unusual names and damaged files: a report is either a page or one sentence."""

import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest

from tests.helpers.run_folders import write_run
from trl_spiral.cli import main
from trl_spiral.evaluation.transcripts import write_transcripts
from trl_spiral.types import Ending, Episode, Trajectory


def episode(*players):
    trajectories = tuple(Trajectory(seat, ()) for seat in range(len(players)))
    return Episode("Game", 0, players, trajectories, (0.0,) * len(players), Ending.FINISHED)


class TestTranscriptFiles:
    NAMES = [
        *(
            "org/model",
            "org_model",
            "org\\model",
            "..",
            ".",
            "/",
            "/etc/passwd",
            "../../x",
            "C:\\x",
            "",
            " ",
            "-rf",
            "~",
        ),
        *(
            "x" * 300,
            "x" * 299 + "y",
            "Alice",
            "alice",
            "ALICE",
            "é",
            "e\u0301",
            "模型" * 100,
            "a\x00b",
            "a\nb",
            "\ud800",
        ),
        *("nul", "a*b?", "a:b", "policy", "https://host/v1#model"),
    ]

    def test_every_name_gets_a_file_of_its_own_in_the_folder(self, tmp_path):
        folder = tmp_path / "transcripts"
        written = {}
        for name in self.NAMES:
            # One call per name, so that the numbers of the files are equal.
            (path,) = write_transcripts([episode(name, "random")], folder)
            assert path.parent == folder
            written[name] = path.name.lower()

        assert len(set(written.values())) == len(self.NAMES)
        assert sorted(path.name.lower() for path in folder.iterdir()) == sorted(written.values())
        assert [path.name for path in tmp_path.iterdir()] == ["transcripts"]
        assert all(len(name.encode()) <= 255 and re.fullmatch(r"[\w.-]+", name, re.ASCII) for name in written.values())

    def test_usual_names_are_unchanged(self, tmp_path):
        (path,) = write_transcripts([episode("policy", "mcts-200")], tmp_path)

        assert path.name == "000_policy_vs_mcts-200.md"

    def test_many_long_names_fit(self, tmp_path):
        (path,) = write_transcripts([episode(*("org/" + "m" * 300 + str(seat) for seat in range(12)))], tmp_path)

        assert path.is_file()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run with 12 games."""
    return write_run(tmp_path_factory.mktemp("whole") / "run", games=12)


@pytest.fixture
def damaged(whole, tmp_path):
    """A copy of that folder, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def report(folder, capfd):
    """Return whether the command wrote a page. Otherwise check that it printed one sentence and nothing else."""
    page = folder / "report.html"
    page.unlink(missing_ok=True)
    status = main(["report", os.fspath(folder)])
    printed = capfd.readouterr()
    if status == 0:
        assert printed.err == ""
        assert printed.out.count("\n") == 1
        page.read_bytes().decode()
        return True
    assert status == 2
    assert printed.out == "" and not page.exists()
    assert re.fullmatch(r"trl-spiral report: .*\S[^\n]*\.\n", printed.err), printed.err
    return False


FILES = (
    "games.jsonl",
    "run.json",
    "trainer_state.json",
    "exploitability/Kuhn-v0-step-20.json",
    "opponents/index.json",
)
DAMAGE = {
    "emptied": b"",
    "zeroed": b"\0" * 1000,
    "nested": b"[" * 100_000,
    "nested and closed": b"[" * 100_000 + b"]" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "binary": bytes(range(256)) * 4,
    "a huge number": b"9" * 10_000,
    "null": b"null",
    "a list": b"[]",
    "an object": b"{}",
    "a text": b'"text"',
    "another encoding": '{"a": "é"}'.encode("utf-16"),
    "a program": b"#!/bin/sh\nexit 1\n",
}


class TestDamage:
    @pytest.mark.parametrize("name", FILES)
    @pytest.mark.parametrize("kind", DAMAGE)
    def test_of_a_whole_file_gives_one_sentence(self, name, kind, damaged, capfd):
        (damaged / name).write_bytes(DAMAGE[kind] + (b"\n" if name.endswith("l") else b""))
        is_page = report(damaged, capfd)

        # All fields of a description are optional.
        assert is_page == ((name, kind) == ("run.json", "an object"))

    @pytest.mark.parametrize("name", FILES)
    def test_a_folder_in_place_of_a_file_gives_one_sentence(self, name, damaged, capfd):
        (damaged / name).unlink()
        (damaged / name).mkdir()

        status = main(["report", str(damaged)])
        assert status == 2 and capfd.readouterr().err.count("\n") == 1

    @pytest.mark.parametrize("line", DAMAGE.values(), ids=DAMAGE)
    def test_a_damaged_line_is_named_by_its_number(self, line, damaged, capfd):
        games = (damaged / "games.jsonl").read_bytes().split(b"\n")
        games[3] = line.replace(b"\n", b"").replace(b"\r", b"")
        (damaged / "games.jsonl").write_bytes(b"\n".join(games))

        assert main(["report", str(damaged)]) == 2
        assert "Line 4 of " in capfd.readouterr().err

    @pytest.mark.parametrize("name", [b"\xff\xfe run", "é 模型".encode(), b"a\nb\x1b[2J", b"<script>", b"x" * 255])
    def test_a_folder_with_any_name_has_a_page(self, name, whole, tmp_path, capfd):
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        try:
            shutil.copytree(whole, folder)
        except OSError as error:
            pytest.skip(f"this file system does not allow the name: {error}")

        assert report(folder, capfd)

    def test_a_player_with_any_name_is_shown(self, damaged, capfd):
        lines = (damaged / "games.jsonl").read_text().splitlines()
        names = [*TestTranscriptFiles.NAMES, "__proto__", "<img src=x>"]
        games = [{**json.loads(line), "players": [name, name[::-1]]} for line, name in zip(lines, names, strict=False)]
        (damaged / "games.jsonl").write_text("".join(json.dumps(game) + "\n" for game in games))

        assert report(damaged, capfd)


ODD = [
    *(None, True, False, 0, -1, 1, 2**53, 2**63, -(2**64), 10**400, 0.5, -1e308, 1e-320, float("nan"), float("inf")),
    *("", "x", "\x1b[2J\n", "\ud800", "__proto__", "9" * 5000, "<script>", [], {}, [[]], [None], [1, 2, 3], {"a": 1}),
]


def places(value, path=()):
    """Yield the paths of all values in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def changed(value, rng):
    """Return the value with one part replaced, removed or duplicated."""
    value = json.loads(json.dumps(value))
    path = rng.choice([path for path in places(value) if path])
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    way = rng.randrange(5)
    if way == 0:
        del parent[path[-1]]
    elif way == 1 and isinstance(parent, list):
        parent.append(parent[path[-1]])
    elif way == 2 and isinstance(parent, dict):
        parent[rng.choice(["", "step", "__proto__", "\ud800", "selfplay/games", "format"])] = rng.choice(ODD)
    else:
        parent[path[-1]] = rng.choice(ODD)
    return value


def mutate(folder, rng):
    """Damage one file of a run, in its bytes or in its values."""
    path = folder / rng.choice(FILES)
    data = path.read_bytes()
    if rng.random() < 0.3:
        at, length = rng.randrange(len(data)), rng.randrange(1, 40)
        middle = rng.choice([b"", rng.randbytes(length), data[at : at + length] * 2, b"[" * 5000, b"-1e999", b"\n"])
        path.write_bytes(data[:at] + middle + data[at + rng.choice([0, length]) :])
        return path.name
    lines = data.decode().splitlines() if path.suffix == ".jsonl" else [data.decode()]
    place = rng.randrange(len(lines))
    value = json.loads(lines[place])
    for _ in range(rng.choice([1, 1, 1, 3])):
        value = changed(value, rng)
    lines[place] = json.dumps(value)
    path.write_text("\n".join(lines) + "\n")
    return path.name


SEEDS = int(os.environ.get("TRL_SPIRAL_FUZZ", "300"))


class TestFuzz:
    def test_every_mutated_run_gives_a_page_or_a_sentence(self, whole, tmp_path, capfd):
        pages = {True: 0, False: 0}
        for seed in range(SEEDS):
            folder = Path(shutil.copytree(whole, tmp_path / str(seed)))
            mutate(folder, random.Random(seed))
            pages[report(folder, capfd)] += 1
            shutil.rmtree(folder)

        # Some runs are refused, and some are not.
        assert min(pages.values()) > SEEDS // 10
