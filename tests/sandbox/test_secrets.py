"""Programs see neither the environment, files and memory of the trainer nor other programs."""

import os
import secrets
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

import trl_spiral
from trl_spiral.sandbox import Job, Limits, LocalSandbox, ProgramEnding, kernel


LACKING = [layer.name for layer in kernel.features() if layer.needed and layer.found is None]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"this kernel lacks {', '.join(LACKING)}")

# Searches all memory of the process for a key: its first half followed by its second half. The program itself contains
# the halves apart. It also builds one key of its own, which the search must find.
SEARCH = """
import ctypes, os
first, second = {first!r}, {second!r}
own = "".join(["own key ", first[::-1], second[::-1]])
found = []
for line in open("/proc/self/maps"):
    span, rights, *rest = line.split()
    if rights.startswith("r") and rest[-1] not in ("[vvar]", "[vsyscall]", "[vvar_vclock]"):
        start, end = (int(part, 16) for part in span.split("-"))
        memory = ctypes.string_at(start, end - start)
        for what, half, rest in (("own", first[::-1], second[::-1]), ("planted", first, second)):
            at = memory.find(half.encode())
            while at >= 0:
                if memory[at + len(half) : at + len(half) + len(rest)] == rest.encode():
                    found.append(what)
                at = memory.find(half.encode(), at + 1)
        del memory
def reads(path):
    try:
        return open(path, "rb").read()
    except OSError:
        return b""
"""


INSTALLED = """
import sys
sys.path.insert(0, sys.argv[1])
from trl_spiral.sandbox import Job, Limits, LocalSandbox

if __name__ == "__main__":
    with LocalSandbox(Limits(10.0, 20.0, 1024, readable=("/proc",)), workers=1) as sandbox:
        (searched,) = sandbox.run([Job(sys.stdin.read(), ("found",))])
    print(*searched.answers[0].value)
"""


class TestSecrets:
    def test_paths_of_the_installation_and_its_environment_are_not_in_memory(self, tmp_path):
        first, second = secrets.token_hex(12), secrets.token_hex(12)
        folder = tmp_path / (first + second)
        shutil.copytree(Path(trl_spiral.__file__).parent / "sandbox", folder / "trl_spiral/sandbox")
        (folder / "trl_spiral/__init__.py").touch()
        venv.create(folder / "env", symlinks=True)
        done = subprocess.run(
            [folder / "env/bin/python", "-c", INSTALLED, folder],
            input=SEARCH.format(first=first, second=second),
            capture_output=True,
            text=True,
            cwd=folder,
            env={},
        )

        assert done.stderr == ""
        assert set(done.stdout.split()) == {"own"}

    def test_programs_can_read_nothing_of_the_trainer(self, monkeypatch, tmp_path):
        first, second = secrets.token_hex(12), secrets.token_hex(12)
        monkeypatch.setenv("HF_TOKEN", first + second)
        (tmp_path / "token").write_text(first + second)
        trainer = [os.getpid(), first + second]
        paths = [
            f"/proc/{trainer[0]}/environ",
            "/proc/self/environ",
            "/proc/thread-self/environ",
            str(tmp_path / "token"),
        ]
        # /proc is readable only so that the program can read the map of its own memory.
        with LocalSandbox(Limits(10.0, 20.0, 1024, readable=("/proc",)), workers=1) as sandbox:
            (searched,) = sandbox.run(
                [
                    Job(
                        SEARCH.format(first=first, second=second),
                        ("found", "list(os.environ)", f"[first.encode() in reads(path) for path in {paths}]"),
                    )
                ]
            )

        assert searched.ending is ProgramEnding.FINISHED, searched
        found, environment, read = (answer.value for answer in searched.answers)
        assert "own" in found
        assert "planted" not in found
        assert set(environment) <= {"LC_CTYPE"}  # which Python itself sets if there is no locale
        assert read == [False] * len(paths)

    def test_one_program_finds_nothing_of_another(self):
        key = secrets.token_hex(12)
        everything = "[gc.get_objects(), [vars(m) for m in list(sys.modules.values()) if hasattr(m, '__dict__')]]"
        with LocalSandbox(Limits(output_bytes=1 << 24), workers=1) as sandbox:
            first, second = sandbox.run(
                [Job(f"key = '{key}'", (f"'{key}'",)), Job("import gc, sys", (f"repr({everything})",))]
            )

        assert first.answers[0].value == key
        assert len(second.answers[0].value) > 10_000
        assert key not in second.answers[0].value
