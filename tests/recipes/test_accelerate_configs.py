import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType

from tests.helpers import forks


CONFIGS = Path(__file__).parents[2] / "accelerate_configs"

EXPECTED = {
    "cpu": (DistributedType.NO, "no"),
    "single_gpu": (DistributedType.NO, "bf16"),
    "multi_gpu": (DistributedType.MULTI_GPU, "bf16"),
    "deepspeed_zero2": (DistributedType.DEEPSPEED, "bf16"),
    "deepspeed_zero3": (DistributedType.DEEPSPEED, "bf16"),
    "fsdp2": (DistributedType.FSDP, "bf16"),
}


# Each process writes a file, since the output of several processes is interleaved.
SCRIPT = """
import sys
from pathlib import Path
from transformers import TrainingArguments

folder = Path(sys.argv[1])
arguments = TrainingArguments(folder, bf16=False, report_to=[], use_cpu=sys.argv[2] == "use_cpu")
seen = f"{arguments.process_index} of {arguments.world_size} on {arguments.device.type}"
Path(folder, f"{arguments.process_index}.txt").write_text(seen)
"""


def launch(folder: Path, *options: str, use_cpu: bool, run=forks.run) -> list[str]:
    """Run a script with `accelerate launch` and return rank, world size and device of each process, by rank."""
    Path(folder, "script.py").write_text(SCRIPT)
    # An empty `HF_HOME`, so that no default config of this machine is used.
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "accelerate.commands.launch", *options, str(folder / "script.py"), str(folder)]
    command.append("use_cpu" if use_cpu else "default")
    finished = run(command, env=environment)
    assert finished.returncode == 0, finished.stderr

    return [path.read_text() for path in sorted(folder.glob("*.txt"))]


class TestAccelerateConfigs:
    def test_all_configs_are_tested(self):
        assert {path.stem for path in CONFIGS.iterdir()} == set(EXPECTED)

    @pytest.mark.parametrize("name", EXPECTED)
    def test_accelerate_reads_the_settings_of_the_name(self, name):
        # Raises on an unknown key.
        config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))

        assert (config.distributed_type, config.mixed_precision) == EXPECTED[name]
        assert config.use_cpu == (name == "cpu")

    @pytest.mark.parametrize("name", EXPECTED)
    def test_every_nested_key_is_an_option_of_accelerate_launch(self, name):
        # The loader silently ignores unknown keys in `fsdp_config` and `deepspeed_config`.
        options = vars(launch_command_parser().parse_args(["script.py"]))
        config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
        nested = {key for value in config.values() if isinstance(value, dict) for key in value}

        assert nested <= options.keys()

    @pytest.mark.parametrize("name", EXPECTED)
    def test_begins_with_its_purpose_and_whether_it_was_run(self, name):
        first_line = (CONFIGS / f"{name}.yaml").read_text().splitlines()[0]

        assert first_line.startswith("# ")
        assert " Run: " in first_line

    def test_cpu_config_starts_one_process_on_the_cpu(self, tmp_path):
        seen = launch(tmp_path, "--config_file", str(CONFIGS / "cpu.yaml"), use_cpu=False)

        assert seen == ["0 of 1 on cpu"]

    def test_cpu_config_ignores_the_number_of_processes(self, tmp_path):
        seen = launch(tmp_path, "--config_file", str(CONFIGS / "cpu.yaml"), "--num_processes", "2", use_cpu=False)

        # See the comment in the config. If this fails, accelerate has changed, and so must the comment.
        assert seen == ["0 of 1 on cpu"]

    def test_two_cpu_ranks_start_with_the_documented_command(self, tmp_path):
        # Port 0 is any free one, since other tests may launch processes too.
        options = ("--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
        interpreters = partial(subprocess.run, capture_output=True, text=True, timeout=300)
        seen = launch(tmp_path, *options, use_cpu=True, run=interpreters)

        assert seen == ["0 of 2 on cpu", "1 of 2 on cpu"]
