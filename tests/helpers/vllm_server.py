"""
A real vLLM server in a separate process, for tests marked `vllm`. It can be killed and restarted on its port.

    with vllm_server(model_dir) as server:
        requests.post(f"{server.base_url}/v1/completions", json=…)

It loads the plugin in `tests/vllm_cpu`. Trainers send it weights after a call of `vllm_on_cpu.trainer.use_gloo`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


# Flags that TRL requires for GRPO (https://huggingface.co/docs/trl/v1.16.0/en/vllm_integration), with gloo in place of
# NCCL. float32, because the tests compare log-probabilities to 1e-5. vLLM's default is bfloat16.
FLAGS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    # Chunked prefill fails on a CPU if requests have seeds.
    "enable_chunked_prefill": False,
    "max_num_batched_tokens": 4096,
    "enable_scale_out": True,
    "logprobs_mode": "processed_logprobs",
    "max_logprobs": -1,
    "max_model_len": 2048,
    "weight_transfer_config": {"backend": "gloo"},
}
# In addition to the variables in `conftest.py`. The first enables the endpoints for weights, the second those for
# adapters.
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_LOGGING_LEVEL": "INFO",
}
PATIENCE = 240  # seconds until a server answers; a start takes about 20 on two idle cores


class VLLMServer:
    """
    A server process and its child processes.

    Attributes:
        base_url (`str`):
            `http://127.0.0.1:<port>`, the same after a restart.
        log (`Path`):
            Output of all starts.
    """

    def __init__(self, model_dir: str, log: Path, flags: dict[str, Any]) -> None:
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", model_dir, "--host", "127.0.0.1", "--port", str(self.port)),
            *command_line({**FLAGS, **flags}),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        assert self._process is None, "the server is already running"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,  # to kill its engine and workers together with it
            )
        deadline = time.monotonic() + PATIENCE
        while not self.is_healthy():
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"vLLM ended with {self._process.returncode} before it answered.\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise RuntimeError(f"vLLM did not answer within {PATIENCE} s.\n{self.log_tail()}")
            time.sleep(0.25)

    def stop(self) -> None:
        """Interrupt the server, as by Ctrl-C, and then kill the processes that are left."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                pass
            self.kill()

    def kill(self) -> None:
        """Kill all processes of the server at once, as a crash would."""
        if self._process is None:
            return
        try:
            # Repeat, since a process may be starting another. Limited, since dead orphans stay in the group in
            # containers that do not reap them. They hold neither port nor memory.
            for _ in range(100):
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                time.sleep(0.05)
        except ProcessLookupError:  # the group is empty
            pass
        self._process = None

    def restart(self) -> None:
        """Restart the server on the same port, with the weights of its folder. Other weights must be sent again."""
        self.kill()
        self.start()

    def is_healthy(self) -> bool:
        """Return whether the server answers."""
        try:
            with urllib.request.urlopen(f"{self.base_url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def log_tail(self, lines: int = 60) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def vllm_server(model_dir: str, **flags: Any) -> Iterator[VLLMServer]:
    """
    Run a server in a `with` block. If the block raises, the error gets a note with the end of the server's log.

    Args:
        model_dir (`str`):
            Folder with weights and tokenizer.
        **flags:
            Options of `vllm serve` that extend or replace `FLAGS`: `max_num_seqs=4` is `--max-num-seqs 4`, `True` is
            the bare option, `False` its `--no-` form, and a dictionary becomes JSON.
    """
    with TemporaryDirectory(prefix="vllm-server-") as folder:
        server = VLLMServer(model_dir, Path(folder) / "log", flags)
        try:
            server.start()
            yield server
        except Exception as error:
            error.add_note(f"The server's log ends with:\n{server.log_tail()}")
            raise
        finally:
            server.stop()


def command_line(flags: dict[str, Any]) -> list[str]:
    """Return options as arguments of `vllm serve`."""
    words = []
    for name, value in flags.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def free_port() -> int:
    """Return an unused port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
