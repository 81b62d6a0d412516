"""
Python commands in forks of the test's process, in place of `subprocess.run` and `subprocess.Popen`.

A new interpreter needs several seconds to import torch, transformers and TRL; a fork has them. A fork has the string
hash seed of its parent, and modules do not read the environment again (except huggingface_hub). Tests that depend on
this, and one test of each kind of start, run a real interpreter.
"""

import atexit
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def run(
    command: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float = 300.0,
) -> subprocess.CompletedProcess[str]:
    """
    Run `python SCRIPT …`, `python -m MODULE …` or `python -c CODE …` in a fork, and capture its output.

    Raises:
        subprocess.TimeoutExpired: If the command is still running after `timeout` seconds. Then it is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = Process(command, env=env, cwd=cwd, stdout=stdout, stderr=stderr)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, code, out.read_text(), err.read_text())


class Process:
    """A command in a fork: as much of `subprocess.Popen` as tests and launchers use."""

    def __init__(
        self,
        args: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdout=None,
        stderr=None,
        start_new_session: bool = False,
    ) -> None:
        self.args = [str(word) for word in args]
        self.returncode: int | None = None
        words = self.args[1:]
        while words[0] in ("-u", "-I", "-E"):
            del words[0]

        def main() -> None:
            if start_new_session:
                os.setsid()
            if cwd is not None:
                os.chdir(cwd)
            _close_as_exec()
            _be_a_new_interpreter(os.environ if env is None else env)
            _run_command(words)

        self.pid = fork(main, stdout, stderr)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (timeout or 86_400.0)
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(main: Callable[[], object], stdout=None, stderr=None) -> int:
    """
    Call `main` in a fork, whose exit code is that of a script. Return its process id.

    `stdout` and `stderr` are files, descriptors, or `None` for this process's own.
    """
    if pid := os.fork():
        return pid
    code = 1
    try:
        gc.freeze()  # what is garbage already must not close descriptors that are used for something else by then
        for file, number in ((stdout, 1), (stderr, 2)):
            if file in (subprocess.STDOUT, subprocess.DEVNULL):
                file = 1 if file == subprocess.STDOUT else os.open(os.devnull, os.O_WRONLY)
            if file is not None:
                os.dup2(file if isinstance(file, int) else file.fileno(), number)
        # pytest has replaced these by captures of its own.
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not isinstance(error.code, int | None):
            sys.stderr.write(f"{error.code}\n")
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def forget_states() -> None:
    """Reset what libraries keep of the trainers that ran in the test's process."""
    import torch
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.set_num_threads(1)  # a fork has none of the parent's OpenMP threads, and would wait for them


def _close_as_exec() -> None:
    """Close what `exec` would close, for example the sockets of a launcher."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and fcntl.fcntl(int(name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                os.close(int(name))
        except OSError:
            continue  # the descriptor that listed the folder


def _be_a_new_interpreter(env: Mapping[str, str]) -> None:
    """Replace what pytest and earlier tests changed in this process by what an interpreter starts with."""
    faulthandler.disable()
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    # No log is captured, and no warning is an error.
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ())[:]:
            if type(handler) is logging.StreamHandler:
                handler.stream = sys.stderr
            else:
                logger.removeHandler(handler)
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    warnings.showwarning = _show_warning
    chosen = dict(env)
    os.environ.clear()
    os.environ.update(chosen)
    if "huggingface_hub" in sys.modules:  # it reads the environment when it is imported
        from huggingface_hub import close_session, constants, hf_api

        importlib.reload(constants)
        hf_api.api.endpoint = constants.ENDPOINT
        close_session()
    if "transformers.utils.hub" in sys.modules:  # it keeps a client of the Hub with the endpoint of its first use
        sys.modules["transformers.utils.hub"]._hf_api = None
    forget_states()


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))


def _run_command(words: list[str]) -> None:
    """Run `SCRIPT …`, `-m MODULE …` or `-c CODE …`, and what is due at the end of an interpreter."""
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            if words[1] == "accelerate.commands.launch":
                _launch()
            else:
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv, sys.modules["__main__"] = ["-c", *words[2:]], types.ModuleType("__main__")
            exec(compile(words[1], "<string>", "exec"), vars(sys.modules["__main__"]))
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            runpy.run_path(words[0], run_name="__main__")
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()


def _launch() -> None:
    """Run `accelerate launch`, whose trainers are forks too. They recognize a launcher by its command line."""
    from accelerate.commands import launch
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    subprocess_handler.Popen = Process
    launch.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": Process})
    start, end = map(
        int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47]
    )  # `arg_start`, `arg_end`
    line = b"python\0-m\0accelerate.commands.launch\0"
    assert len(line) <= end - start, "this process's command line has no room for a launcher's"
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)
    launch.main()
