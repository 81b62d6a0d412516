"""What bubblewrap adds. What all sandboxes do is in `test_sandbox_conformance.py`."""

import json
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

import trl_spiral
from tests.helpers.hostile_programs import HOSTILE, LIMITS
from trl_spiral.sandbox import BubblewrapSandbox, CannotContain, Job, Limits, LocalSandbox, ProgramEnding, kernel
from trl_spiral.sandbox.bubblewrap import command
from trl_spiral.sandbox.helper import PYTHON


@pytest.fixture(autouse=True, scope="module")
def bubblewrap():
    try:
        BubblewrapSandbox(workers=1).close()
    except CannotContain as error:
        pytest.skip(str(error))


def below(pid):
    """Processes that one has started, and those that these have."""
    try:
        children = [
            int(child) for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in tasks.read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
        return []
    return children + [deeper for child in children for deeper in below(child)]


def wait_until(is_so):
    patience = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < patience
        time.sleep(0.02)


class TestBubblewrapSandbox:
    def test_says_that_it_is_not_installed(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))

        with pytest.raises(
            CannotContain, match="there is no `bwrap` in PATH. Install your system's package `bubblewrap`"
        ):
            BubblewrapSandbox()

    def test_says_why_it_cannot_start(self, monkeypatch, tmp_path):
        # What it says in a container that has no namespaces to give.
        said = "bwrap: No permissions to create new namespace"
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
        (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

        with pytest.raises(CannotContain, match=rf"cannot run Python here \({said}\)"):
            BubblewrapSandbox()

    def test_does_without_landlock_but_not_without_seccomp(self, monkeypatch):
        monkeypatch.setattr(kernel.landlock, "version", lambda: 0)
        with pytest.raises(CannotContain, match="lacks Landlock"):
            LocalSandbox()
        BubblewrapSandbox().close()

        monkeypatch.setattr(kernel.seccomp, "is_there", lambda: False)
        with pytest.raises(CannotContain, match="lacks seccomp"):
            BubblewrapSandbox()
        BubblewrapSandbox(allow_degraded=True).close()

    def test_gives_each_program_processes_of_its_own(self):
        with BubblewrapSandbox(workers=2) as sandbox:
            before = below(os.getpid())
            outcomes = sandbox.run([Job("import os", ("os.getpid()",))] * 3)
            left = below(os.getpid())

        # bubblewrap's own process is 1, the helper 2, the program 3: others are in other namespaces, or gone.
        assert [outcome.answers[0].value for outcome in outcomes] == [3, 3, 3]
        assert left == before

    def test_leaves_no_process_when_its_owner_is_killed(self):
        source = (
            "from trl_spiral.sandbox import *\n"
            "BubblewrapSandbox(Limits(cpu_seconds=60, wall_seconds=60), workers=1).run([Job('while True: pass')])"
        )
        with subprocess.Popen([sys.executable, "-c", source]) as owner:
            wait_until(lambda: len(below(owner.pid)) == 4)  # bubblewrap outside and inside, helper, program
            left = below(owner.pid)
            owner.kill()

        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))

    @pytest.mark.parametrize("name", ["third-party packages listed", "where it is installed"])
    def test_hides_the_installation(self, name):
        with BubblewrapSandbox(LIMITS, workers=1) as sandbox:
            (outcome,) = sandbox.run([HOSTILE[name].job(9)])

        assert HOSTILE[name].escaped(outcome) is None

    def test_shows_what_the_limits_name(self, tmp_path):
        book, desk = tmp_path / "book", tmp_path / "desk"
        book.mkdir()
        desk.mkdir()
        (book / "page").write_text("read me")
        copy = f"open('{desk}/copy', 'w').write(open('{book}/page').read())"
        deface = f"open('{book}/page', 'w')"
        with BubblewrapSandbox(Limits(readable=(str(book),), writable=(str(desk),)), workers=1) as sandbox:
            copied, defaced = sandbox.run([Job(copy), Job(deface)])

        assert copied.ending is ProgramEnding.FINISHED, copied.message
        assert (desk / "copy").read_text() == "read me"
        assert (defaced.ending, (book / "page").read_text()) == (ProgramEnding.RAISED, "read me")


class TestCommand:
    LOOK = """
import json, os, socket, sys
def tried(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__
print(json.dumps({
    "processes": sorted(name for name in os.listdir("/proc") if name.isdigit()),
    "devices": [name for _, name in socket.if_nameindex()],
    "network": tried(lambda: socket.create_connection(("192.0.2.1", 80), timeout=5)),
    "passwords": tried(lambda: open("/etc/passwd")),
    "write": tried(lambda: open("/file", "w")),
    "environment": sorted(os.environ.keys() - {"LC_CTYPE", "PWD"}),
    "mounts": open("/proc/self/mountinfo").read(),
    "packages": os.listdir(sys.argv[1]),
    "write to packages": tried(lambda: open(f"{sys.argv[1]}/file", "w")),
    "capabilities": [line for line in open("/proc/self/status") if line.startswith("CapEff") or line.startswith("CapBnd")],
}))
"""

    def test_is_a_wall_without_the_other_walls(self, monkeypatch):
        # Nothing but bubblewrap here: neither Landlock nor seccomp.
        packages = sysconfig.get_path("purelib", vars={"base": sys.base_prefix})
        assert os.listdir(packages) != []
        done = subprocess.run(
            [*command(Limits()), PYTHON, "-I", "-S", "-c", self.LOOK, packages], capture_output=True, text=True, env={}
        )
        seen = json.loads(done.stdout)

        assert seen["processes"] == ["1", "2"]
        assert seen["devices"] == ["lo"]
        assert seen["network"] == "OSError"  # the network is unreachable
        assert seen["passwords"] == "FileNotFoundError"
        assert seen["write"] == "OSError"  # the file system is read-only
        assert seen["environment"] == []
        assert seen["packages"] == []
        assert seen["write to packages"] == "OSError"
        assert str(Path(trl_spiral.__file__).parents[1]) not in seen["mounts"]
        assert sys.prefix == sys.base_prefix or sys.prefix not in seen["mounts"]
        assert {line.split()[1] for line in seen["capabilities"]} == {"0" * 16}
