"""The local sandbox: results, cleanup, and loss of helper processes."""

import errno
import importlib.util
import os
import re
import resource
import signal
import sys
import threading
import time
from math import nan
from pathlib import Path

import pytest

from tests.helpers.hostile_programs import HOSTILE
from trl_spiral.sandbox import Job, Limits, LocalSandbox, ProgramEnding, helper, kernel


LACKING = [layer.name for layer in kernel.features() if layer.needed and layer.found is None]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"this kernel lacks {', '.join(LACKING)}")

LIMITS = Limits(cpu_seconds=0.5, wall_seconds=2.0, memory_mb=256, output_bytes=4096)


@pytest.fixture(scope="module")
def sandbox():
    with LocalSandbox(LIMITS, workers=2) as sandbox:
        yield sandbox


def children(of: int | str = "self") -> set[int]:
    tasks = Path(f"/proc/{of}/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


def runs(pid: int) -> bool:
    """Return whether a process runs. In a container, ended orphans may stay as zombies."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def resources() -> tuple[set[int], int]:
    """Return the child processes and the number of open descriptors."""
    return children(), len(os.listdir("/proc/self/fd"))


class TestLocalSandbox:
    @pytest.mark.parametrize("programs", [200, pytest.param(2000, marks=pytest.mark.slow)])
    def test_leaves_nothing_after_many_programs(self, programs, monkeypatch, tmp_path):
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        before = resources()
        with LocalSandbox(LIMITS, workers=2) as sandbox:
            results = sandbox.run([Job("print(1)", hash_seed=number % 2) for number in range(programs)])
            after = resources()
        left = resources()

        assert {result.output for result in results} == {"1\n"}
        assert len(after[0]) - len(before[0]) == 4  # a helper for each worker and seed
        assert after[1] - before[1] == 4  # and a socket to each
        assert left == before
        assert list(tmp_path.iterdir()) == []

    def test_keeps_the_order_of_the_jobs(self, sandbox):
        jobs = [Job(f"import time\ntime.sleep({0.2 * (number % 2 == 0)})\nprint({number})") for number in range(6)]

        assert [result.output for result in sandbox.run(jobs)] == [f"{number}\n" for number in range(6)]

    def test_equal_hash_seeds_give_equal_hashes(self, sandbox):
        seeds = [0, 1, 2**32 - 1]
        first, again = (
            [result.answers[0].value for result in sandbox.run([Job("", ("hash('a')",), seed) for seed in seeds])]
            for _ in range(2)
        )

        assert first == again
        assert len(set(first)) == 3

    def test_keeps_few_helpers_for_many_seeds(self):
        before = children()
        with LocalSandbox(LIMITS, workers=1) as sandbox:
            sandbox.run([Job("", hash_seed=seed) for seed in range(7)])

            assert len(children() - before) == 4

    def test_programs_share_no_stdin(self, sandbox):
        # A program could pass messages to the next one in its flags.
        code = "import fcntl, os\nn = fcntl.fcntl(0, fcntl.F_GETFL)\nfcntl.fcntl(0, fcntl.F_SETFL, n | os.O_NONBLOCK)"
        first, *more = (result.answers[0].value for result in sandbox.run([Job(code, ("n",))] * 6))

        assert more == [first] * 5

    def test_installed_packages_cannot_be_read(self, sandbox):
        code = (
            "def tried(path):\n    try:\n        open(path).close()\n"
            "    except PermissionError:\n        return False\n    return True"
        )
        bases = {Path(sys.base_prefix), Path(sys.prefix)}
        installed = [next(base.glob("lib*/python*/*-packages/**/*.py"), None) for base in bases]
        paths = [str(path) for path in [*installed, Path(pytest.__file__)] if path]
        (result,) = sandbox.run([Job(code, (f"tried({os.__file__!r})", *(f"tried({path!r})" for path in paths)))])

        assert [answer.value for answer in result.answers] == [True] + [False] * len(paths)

    def test_arguments_do_not_show_the_path_of_the_installation(self, sandbox):
        (result,) = sandbox.run([Job("import sys", ("len(sys.argv)", "sys.orig_argv"))])

        assert [answer.value for answer in result.answers] == [1, []]

    def test_unseeded_random_numbers_differ(self, sandbox):
        # All children are copies of one process, so it must not seed the generator.
        drawn = {result.answers[0].value for result in sandbox.run([Job("import random", ("random.random()",))] * 4)}

        assert len(drawn) == 4

    def test_a_job_can_be_larger_than_the_buffer_of_a_socket(self, sandbox):
        # 3 MB; a pair of Unix sockets buffers about 200 kB.
        large = "x = '" + "a" * 3_000_000 + "'"
        good, dead = sandbox.run([Job(large, ("len(x)",)), Job("import os\nos._exit(0)\n#" + large)])

        assert good.answers[0].value == 3_000_000
        assert (dead.ending, dead.error) == (ProgramEnding.KILLED, "exit")

    def test_reads_only_readable_paths(self, tmp_path):
        (tmp_path / "shown").mkdir()
        (tmp_path / "shown" / "helpful.py").write_text("answer = 42")
        (tmp_path / "hidden").write_text("")
        with LocalSandbox(Limits(readable=(str(tmp_path / "shown"),)), workers=1) as sandbox:
            shown, hidden, written = sandbox.run(
                [
                    Job("import helpful", ("helpful.answer",)),
                    Job(f"open('{tmp_path}/hidden')"),
                    Job(f"open('{tmp_path}/shown/helpful.py', 'a')"),
                ]
            )

        assert shown.answers[0].value == 42
        assert hidden.error == written.error == "PermissionError"

    def test_writes_only_to_writable_folders(self, tmp_path):
        (tmp_path / "desk").mkdir()
        os.chmod(tmp_path / "desk", 0o777)
        with LocalSandbox(Limits(memory_mb=128, writable=(f"{tmp_path}/desk",)), workers=1) as sandbox:
            inside, outside, large = sandbox.run(
                [
                    Job(f"import os\nos.mkdir('{tmp_path}/desk/a')\nopen('{tmp_path}/desk/a/b', 'w').write('c')"),
                    Job(f"open('{tmp_path}/d', 'w')"),
                    Job(f"f = open('{tmp_path}/desk/e', 'wb')\nfor _ in range(200): f.write(bytes(1 << 20))"),
                ]
            )

        assert inside.ending is ProgramEnding.FINISHED, inside
        assert (tmp_path / "desk/a/b").read_text() == "c"
        assert outside.error == "PermissionError"
        assert large.error == "OSError"
        assert (tmp_path / "desk/e").stat().st_size <= 128 << 20

    def test_starts_threads_if_allowed(self):
        code = (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(4) as pool: print(sum(pool.map(abs, range(9))))"
        )
        with LocalSandbox(Limits(threads=True), workers=1) as sandbox:
            threads, fork = sandbox.run([Job(code), Job("import os\nos.fork()")])

        assert threads.output == "36\n"
        assert fork.error == "PermissionError"

    def test_waits_for_threads_that_are_not_daemons(self):
        code = (
            "import threading, time\ndef f():\n    time.sleep(0.1)\n    print(1)\n"
            "threading.Thread(target=f, daemon={}).start()"
        )
        with LocalSandbox(Limits(threads=True), workers=1) as sandbox:
            waited, left = sandbox.run([Job(code.format(daemon)) for daemon in (False, True)])

        assert (waited.output, left.output) == ("1\n", "")

    @pytest.mark.parametrize(
        "code",
        [
            "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    print(1)\nasyncio.run(f())",
            "import bz2, ctypes, decimal, hashlib, lzma, zlib; print(len({decimal.Decimal(1)}))",
            "import datetime, json, statistics, uuid; uuid.uuid4(); datetime.datetime.now(); print(1)",
            "import sys; print(sys.stdin.read() + '1')",
            "print(int(__name__ == '__main__'))",
            "from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\nprint(A(1).a)",
            "import warnings; warnings.warn('a message of Python, not of the program'); '\\d'; print(1)",
        ],
    )
    def test_runs_ordinary_programs(self, code, sandbox):
        (result,) = sandbox.run([Job(code)])

        assert (result.output, result.error, result.message) == ("1\n", None, "")

    def test_passes_no_descriptor_on_if_many_are_open(self):
        # More than the limit of a program and, if the system allows, than `select` supports.
        most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100, 1100)
        held = [os.dup(0) for _ in range(most)]
        try:
            with LocalSandbox(LIMITS, workers=1) as sandbox:
                (result,) = sandbox.run([HOSTILE["inherited descriptors"].job(9)])
        finally:
            for each in held:
                os.close(each)

        assert HOSTILE["inherited descriptors"].escaped(result) is None

    def test_starts_a_new_helper_after_one_was_lost(self):
        with LocalSandbox(LIMITS, workers=1) as sandbox:
            sandbox.run([Job("")])
            (lost,) = children_of(sandbox)
            os.kill(lost, signal.SIGKILL)
            (result,) = sandbox.run([Job("print(1)")])
            (found,) = children_of(sandbox)

        assert result.output == "1\n"
        assert found != lost

    def test_retries_a_job_after_its_helper_was_lost(self):
        with LocalSandbox(LIMITS, workers=1) as sandbox:
            sandbox.run([Job("")])
            (lost,) = children_of(sandbox)
            orphans = []

            def lose():
                orphans.extend(children(lost))
                os.kill(lost, signal.SIGKILL)

            timer = threading.Timer(0.3, lose)
            timer.start()
            (result,) = sandbox.run([Job("import time\ntime.sleep(1)\nprint(1)")])
            timer.join()

        assert result.output == "1\n"
        # The kernel killed the program together with the lost helper.
        assert len(orphans) == 1
        assert not runs(orphans[0])

    def test_raises_if_helpers_are_lost_repeatedly(self, monkeypatch):
        monkeypatch.setattr(helper, "START", "raise SystemExit")
        before = resources()
        with LocalSandbox(LIMITS, workers=2) as sandbox, pytest.raises(RuntimeError, match="helper process"):
            sandbox.run([Job("print(1)")] * 3)

        assert resources() == before

    def test_continues_after_a_helper_could_not_be_started(self, monkeypatch):
        def refuse(*_, **__):
            raise OSError(errno.EMFILE, "Too many open files")

        before = resources()
        with LocalSandbox(LIMITS, workers=2) as sandbox:
            with monkeypatch.context() as patch:
                patch.setattr(helper.subprocess, "Popen", refuse)
                with pytest.raises(OSError, match="Too many open files"):
                    sandbox.run([Job("")])
            (result,) = sandbox.run([Job("print(1)")])

        assert result.output == "1\n"
        assert resources() == before

    def test_imports_the_whole_standard_library_without_listing_it(self):
        code = """
import importlib, sys
lacking = set()
for name in sys.stdlib_module_names - {"antigravity", "idlelib", "this"}:
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        lacking.add(error.name)
"""
        with LocalSandbox(Limits(20.0, 60.0, 1024), workers=1) as sandbox:
            (result,) = sandbox.run([Job(code, ("lacking",))])

        assert result.ending is ProgramEnding.FINISHED, result
        assert [name for name in result.answers[0].value if importlib.util.find_spec(name)] == []

    def test_error_contains_the_reason_why_containment_failed(self, monkeypatch):
        broken = "landlock.apply_rules = lambda rules: 1 / 0"
        start = helper.START.replace(
            "zygote.main()", f"from trl_spiral.sandbox import landlock; {broken}; zygote.main()"
        )
        monkeypatch.setattr(helper, "START", start)
        with LocalSandbox(LIMITS, workers=1) as sandbox:
            with pytest.raises(RuntimeError, match=r"before it was contained \(ZeroDivisionError: division by zero\)"):
                sandbox.run([Job("print('BREACH')")])

    def test_ends_its_programs_when_interrupted(self):
        before = resources()
        # Like Ctrl-C; SIGINT itself is ignored in background processes of a shell.
        handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
        with LocalSandbox(LIMITS, workers=2) as sandbox:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                sandbox.run([Job("import time\ntime.sleep(60)")] * 4)
            after = sandbox.run([Job("print(1)")])
        signal.signal(signal.SIGALRM, handler)

        assert after[0].output == "1\n"
        assert resources() == before

    def test_ends_with_its_owner(self):
        # Killed, so that it cannot clean up, while another process may hold a copy of its sockets.
        reader, writer = os.pipe()
        if (owner := os.fork()) == 0:
            try:
                sandbox = LocalSandbox(LIMITS, workers=1)
                sandbox.run([Job("")])
                os.write(writer, b"%d" % children_of(sandbox).pop())
                sandbox.run([Job("import time\ntime.sleep(60)")])
            finally:
                os.abort()
        os.close(writer)
        started = int(os.read(reader, 100))
        os.close(reader)
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)

        for _ in range(1000):
            if not runs(started):
                break
            time.sleep(0.01)
        else:
            pytest.fail("the helper process is still running")

    def test_is_usable_in_a_fork_of_its_owner(self):
        with LocalSandbox(LIMITS, workers=1) as sandbox:
            sandbox.run([Job("")])
            if (pid := os.fork()) == 0:
                code = 1
                try:
                    code = sandbox.run([Job("print(1)")])[0].output != "1\n"
                    sandbox.close()
                finally:
                    os._exit(code)
            _, status = os.waitpid(pid, 0)
            (result,) = sandbox.run([Job("print(2)")])

        assert status == 0
        assert result.output == "2\n"

    def test_a_closed_sandbox_runs_nothing(self):
        before = resources()
        sandbox = LocalSandbox(LIMITS, workers=1)
        sandbox.run([Job("")])
        sandbox.close()
        sandbox.close()

        assert resources() == before
        with pytest.raises(RuntimeError, match="closed"):
            sandbox.run([Job("")])

    def test_closes_itself_when_it_is_deleted(self):
        before = resources()
        sandbox = LocalSandbox(LIMITS, workers=1)
        sandbox.run([Job("")])
        del sandbox

        assert resources() == before

    @pytest.mark.parametrize(
        ("cores", "ranks", "workers"), [(8, None, 8), (8, "4", 2), (2, "8", 1), (8, "", 8), (8, "0", 8)]
    )
    def test_ranks_of_a_machine_share_its_cores(self, cores, ranks, workers, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        if ranks:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        with LocalSandbox(LIMITS) as sandbox:
            assert len(sandbox._workers) == sandbox.workers == workers

    def test_refuses_invalid_settings(self, tmp_path):
        with pytest.raises(ValueError, match="`workers` \\(0\\)"):
            LocalSandbox(workers=0)
        with pytest.raises(ValueError, match="does not exist"):
            LocalSandbox(Limits(readable=(str(tmp_path / "nowhere"),)))
        for name, number in (
            ("cpu_seconds", 0),
            ("cpu_seconds", 1e-10),
            ("wall_seconds", 1e30),
            ("wall_seconds", nan),
        ):
            with pytest.raises(ValueError, match=f"`{name}` \\({re.escape(str(number))}\\) must be in"):
                Limits(**{name: number})
        for name, number in (("memory_mb", 100.5), ("memory_mb", 0), ("output_bytes", 9.0), ("output_bytes", True)):
            with pytest.raises(ValueError, match=f"`{name}` \\({number}\\) must be a positive whole number"):
                Limits(**{name: number})
        with pytest.raises(ValueError, match="absolute"):
            Limits(writable=("here",))
        with pytest.raises(ValueError, match="hash_seed"):
            Job("", hash_seed=2**32)


def children_of(sandbox: LocalSandbox) -> set[int]:
    return {each.process.pid for worker in sandbox._workers for each in worker.helpers.values()}
