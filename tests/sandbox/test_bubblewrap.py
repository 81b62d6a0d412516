"""The namespaces of bubblewrap. `test_conformance.py` tests the behavior that all sandboxes share."""

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
    """Return the descendants of a process."""
    try:
        children = [
            int(child) for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in tasks.read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return []
    return children + [deeper for child in children for deeper in below(child)]


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestBubblewrapSandbox:
    def test_missing_bubblewrap_is_named(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))

        with pytest.raises(
            CannotContain, match="there is no `bwrap` in PATH. Install your system's package `bubblewrap`"
        ):
            BubblewrapSandbox()

    def test_error_contains_the_reason_of_bubblewrap(self, monkeypatch, tmp_path):
        # Its message in a container that allows no namespaces.
        message = "bwrap: No permissions to create new namespace"
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
        (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

        with pytest.raises(CannotContain, match=rf"cannot run Python here \({message}\)"):
            BubblewrapSandbox()

    def test_runs_without_landlock_but_not_without_seccomp(self, monkeypatch):
        monkeypatch.setattr(kernel.landlock, "version", lambda: 0)
        with pytest.raises(CannotContain, match="lacks Landlock"):
            LocalSandbox()
        BubblewrapSandbox().close()

        monkeypatch.setattr(kernel.seccomp, "is_there", lambda: False)
        with pytest.raises(CannotContain, match="lacks seccomp"):
            BubblewrapSandbox()
        BubblewrapSandbox(allow_degraded=True).close()

    def test_each_program_has_its_own_process_namespace(self):
        with BubblewrapSandbox(workers=2) as sandbox:
            before = below(os.getpid())
            results = sandbox.run([Job("import os", ("os.getpid()",))] * 3)
            left = below(os.getpid())

        # 1 is bubblewrap, 2 the helper, 3 the program. Others are in other namespaces or have ended.
        assert [result.answers[0].value for result in results] == [3, 3, 3]
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

    @pytest.mark.parametrize("name", ["third-party packages listed", "path of the installation"])
    def test_hides_the_installation(self, name):
        with BubblewrapSandbox(LIMITS, workers=1) as sandbox:
            (result,) = sandbox.run([HOSTILE[name].job(9)])

        assert HOSTILE[name].escaped(result) is None

    def test_paths_of_the_limits_are_visible(self, tmp_path):
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
    "capabilities": [line for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd"))],
}))
"""

    def test_contains_programs_without_landlock_and_seccomp(self, monkeypatch):
        # Only bubblewrap here, neither Landlock nor seccomp.
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
