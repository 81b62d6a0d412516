"""Hostile programs are contained and leave nothing behind."""

import ctypes
import glob
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.helpers.hostile_programs import HOSTILE, LIMITS, MARK, run_all
from trl_spiral.sandbox import LocalSandbox, helper
from trl_spiral.sandbox.kernel import features


LACKING = [layer.name for layer in features() if layer.needed and layer.found is None]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"this kernel lacks {', '.join(LACKING)}")

PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h: orphans below this process become its children

AS_ANOTHER_USER = """
import json, os, sys
sys.path[:0] = sys.argv[1:3]
from hostile_programs import LIMITS, run_all
from trl_spiral.sandbox import LocalSandbox

with LocalSandbox(LIMITS, workers=2) as sandbox:
    print(json.dumps([os.getuid(), run_all(sandbox, int(sys.argv[3]))]))
"""


def children() -> set[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


@pytest.fixture(scope="module")
def escaped():
    """Run all programs in one batch, then collect what they left behind."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = children()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        with LocalSandbox(LIMITS, workers=2) as sandbox:
            found = run_all(sandbox, server.getsockname()[1])
        try:
            server.accept()
        except BlockingIOError:
            found["a connection"] = None
        else:
            found["a connection"] = "it reached the test"
    orphans = children() - before
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    found["an orphan"] = f"{orphans}" if orphans else None
    files = [path for folder in ("/tmp", "/dev/shm", "/var/tmp", "", ".") for path in glob.glob(f"{folder}/{MARK}*")]
    found["a file"] = f"{files}" if files else None
    return found


ALLOWING = "from trl_spiral.sandbox import seccomp, zygote; seccomp._ALLOWED['one'] = {}; zygote.main()"


class TestHostilePrograms:
    @pytest.mark.parametrize("name", [*HOSTILE, "a connection", "an orphan", "a file"])
    def test_are_contained(self, name, escaped):
        assert escaped[name] is None

    @pytest.mark.parametrize(
        ("numbers", "name"),
        [
            # Calls that no kernel setting forbids, unlike `bpf`.
            ((444, 444), "unusual system calls"),  # landlock_create_ruleset
            ((437, 437), "unusual system calls"),  # openat2
            ((424, 424), "signals queued to the parent"),  # pidfd_send_signal
        ],
    )
    def test_an_allowed_system_call_would_be_found(self, numbers, name, monkeypatch):
        monkeypatch.setattr(helper, "START", ALLOWING.format(numbers))
        with LocalSandbox(LIMITS, workers=1) as sandbox:
            (result,) = sandbox.run([HOSTILE[name].job(9)])

        assert result.output.count("BREACH") == 1

    def test_are_contained_for_an_unprivileged_user(self):
        python = "/usr/bin/python3"
        if os.geteuid() != 0:
            pytest.skip("only root can become another user")
        if (
            not os.path.exists(python)
            or subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode
        ):
            pytest.skip(f"{python} is missing or too old, and other users may not read this one")
        with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            # Only the root of the package and the sandbox: no other module or third-party package is needed.
            os.chmod(folder, 0o755)
            package = Path(sys.modules["trl_spiral"].__file__).parent
            shutil.copytree(package / "sandbox", f"{folder}/trl_spiral/sandbox")
            shutil.copy(package / "__init__.py", f"{folder}/trl_spiral")
            shutil.copy(Path(__file__).parents[1] / "helpers/hostile_programs.py", folder)
            arguments = [folder, folder, str(server.getsockname()[1])]
            done = subprocess.run(
                [python, "-I", "-B", "-c", AS_ANOTHER_USER, *arguments],
                capture_output=True,
                text=True,
                user=65534,
                group=65534,
            )
            with pytest.raises(BlockingIOError):
                server.accept()

        assert done.stderr == ""
        assert json.loads(done.stdout) == [65534, dict.fromkeys(HOSTILE)]
        assert glob.glob(f"/tmp/{MARK}*") == []
