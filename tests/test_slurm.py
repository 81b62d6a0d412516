"""The SLURM script, submitted to stand-ins for `sbatch`, `srun` and `scontrol` whose nodes are processes of this machine."""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]

# Reads options as sbatch does, the command line above `#SBATCH` lines, and runs a copy of the script on the first node.
SBATCH = """
import os, re, shutil, subprocess, sys, tempfile
options, line = {}, sys.argv[1:]
while line and line[0].startswith("--"):
    name, _, value = line.pop(0)[2:].partition("=")
    options[name] = value or line.pop(0)
script, *arguments = line
directives = re.findall(r"^#SBATCH --([\\w-]+)=(\\S+)", open(script).read(), re.MULTILINE)
options = {**dict(directives), **options}
nodes = int(options["nodes"])
variables = {
    "SLURM_JOB_ID": os.environ["FAKE_JOB_ID"],
    "SLURM_NNODES": str(nodes),
    "SLURM_JOB_NODELIST": f"node[1-{nodes}]",
    "SLURM_GPUS_ON_NODE": options["gpus-per-node"],
    "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
    "SLURM_NTASKS_PER_NODE": options["ntasks-per-node"],
    "SLURM_SUBMIT_DIR": os.getcwd(),
}
with tempfile.TemporaryDirectory() as spool:
    copy = shutil.copy(script, os.path.join(spool, "slurm_script"))
    sys.exit(subprocess.run(["bash", copy, *arguments], env={**os.environ, **variables}, cwd=spool).returncode)
"""

SRUN = """
import os, subprocess, sys
options, line = {}, sys.argv[1:]
while line[0].startswith("--"):
    name, _, value = line.pop(0)[2:].partition("=")
    options[name] = value
# As many on each node as it is told, or else as the job was submitted with.
each = int(options.get("ntasks-per-node", os.environ["SLURM_NTASKS_PER_NODE"]))
count = int(options.get("ntasks", each * int(os.environ["SLURM_NNODES"])))
nodes = [subprocess.Popen(line, env={**os.environ, "SLURM_NODEID": str(task // each)}) for task in range(count)]
sys.exit(max(node.wait() for node in nodes))
"""

SCONTROL = """
import os, sys
assert sys.argv[1:3] == ["show", "hostnames"] and sys.argv[3] == os.environ["SLURM_JOB_NODELIST"]
print("\\n".join(["localhost"] * int(os.environ["SLURM_NNODES"])))
"""

# In place of accelerate: what a node was asked to launch.
RECORDER = """
import json, os, sys
names = ("SLURM_NODEID", "HF_HUB_OFFLINE", "OMP_NUM_THREADS")
record = {"line": sys.argv[1:], "folder": os.getcwd(), **{name: os.environ[name] for name in names}}
open(os.path.join(os.environ["RECORDS"], f"{record['SLURM_NODEID']}-{os.getpid()}"), "w").write(json.dumps(record))
"""

STEP = """
import sys
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
torch.manual_seed(0)
model = torch.nn.Linear(1, 1, bias=False)
start = model.weight.item()
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
loss = model(torch.ones(1, 1) * (1 + 2 * rank)).sum()  # gradients of 1 and 3, of which each rank sees one
accelerator.backward(loss)
optimizer.step()
step = start - accelerator.unwrap_model(model).weight.item()
open(f"{sys.argv[1]}/{rank}", "w").write(f"{accelerator.num_processes} {step:.3f}")
"""


def free_job_id():
    """A job's number of which the script makes a port that nobody uses."""
    for number in range(10_000):
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", 20_000 + number)):
                return number


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The commands of SLURM on the path, and a way to submit."""
    if shutil.which("bash") is None:
        pytest.skip("the script is written for bash")
    commands = tmp_path / "bin"
    commands.mkdir()

    def command(name, source):
        path = commands / name
        path.write_text(f"#!{sys.executable}\n{source}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    for name, source in (("sbatch", SBATCH), ("srun", SRUN), ("scontrol", SCONTROL)):
        command(name, source)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_JOB_ID", "1234567")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def submit(*line):
        return subprocess.run(["sbatch", *line], cwd=ROOT, capture_output=True, text=True, timeout=300)

    submit.command = command
    return submit


@pytest.fixture
def recorded(cluster, tmp_path, monkeypatch):
    """What each node launches, in place of launching it."""
    records = tmp_path / "records"
    records.mkdir()
    monkeypatch.setenv("RECORDS", str(records))
    cluster.command("accelerate", RECORDER)

    def submit(*line):
        done = cluster(*line)
        assert done.returncode == 0, done.stderr
        return [json.loads(path.read_text()) for path in sorted(records.iterdir())]

    return submit


class TestSlurmScript:
    def test_is_a_script_that_bash_can_read(self):
        subprocess.run(["bash", "-n", str(ROOT / "recipes/spiral.slurm")], check=True)

    def test_launches_one_rank_per_gpu_on_each_node(self, recorded):
        nodes = recorded("--nodes=3", "recipes/spiral.slurm", "recipes/spiral_ttt.py", "--run_name", "two words")
        options = dict(zip(nodes[0]["line"][1:15:2], nodes[0]["line"][2:15:2], strict=True))

        assert [node["line"][:3] for node in nodes] == [["launch", "--machine_rank", str(rank)] for rank in range(3)]
        assert options == {
            "--machine_rank": "0",
            "--config_file": "accelerate_configs/multi_gpu.yaml",
            "--num_machines": "3",
            "--num_processes": "24",
            "--main_process_ip": "localhost",
            "--main_process_port": "24567",
            "--mixed_precision": "no",
        }
        assert nodes[0]["line"][15:] == ["recipes/spiral_ttt.py", "--run_name", "two words"]
        assert all(node["line"][3:] == nodes[0]["line"][3:] for node in nodes)

    def test_starts_one_launcher_on_each_node_however_many_tasks_were_asked_for(self, recorded):
        nodes = recorded("--nodes=2", "--ntasks-per-node=4", "recipes/spiral.slurm", "recipes/spiral_ttt.py")

        assert [node["SLURM_NODEID"] for node in nodes] == ["0", "1"]

    def test_runs_where_it_was_submitted_offline_with_the_cores_shared_out(self, recorded):
        (node,) = recorded("--gpus-per-node", "4", "recipes/spiral.slurm", "recipes/spiral_ttt.py")

        assert (node["folder"], node["HF_HUB_OFFLINE"], node["OMP_NUM_THREADS"]) == (str(ROOT), "1", "16")

    def test_leaves_what_was_set_already(self, recorded, monkeypatch):
        for name, value in (("HF_HUB_OFFLINE", "0"), ("OMP_NUM_THREADS", "3"), ("ACCELERATE_CONFIG", "mine.yaml")):
            monkeypatch.setenv(name, value)
        (node,) = recorded("recipes/spiral.slurm", "recipes/spiral_ttt.py")

        assert (node["HF_HUB_OFFLINE"], node["OMP_NUM_THREADS"]) == ("0", "3")
        assert "mine.yaml" in node["line"]

    def test_asks_for_a_recipe(self, cluster):
        done = cluster("recipes/spiral.slurm")

        assert (done.returncode, done.stderr) == (
            2,
            "Say which recipe to run: sbatch recipes/spiral.slurm recipes/NAME.py [OPTIONS]\n",
        )

    def test_fails_where_a_node_fails(self, cluster):
        cluster.command("accelerate", "import os, sys\nsys.exit(3 * int(os.environ['SLURM_NODEID']))")

        assert cluster("--nodes=2", "recipes/spiral.slurm", "recipes/spiral_ttt.py").returncode == 3

    def test_two_nodes_meet_and_take_a_step_together(self, cluster, tmp_path, monkeypatch):
        results = tmp_path / "results"
        results.mkdir()
        (tmp_path / "step.py").write_text(STEP)
        launcher = "from accelerate.commands.accelerate_cli import main\nmain()"
        cluster.command("accelerate", launcher)
        # The script makes a port of the job's number: a number whose port is free here.
        monkeypatch.setenv("FAKE_JOB_ID", str(free_job_id()))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        done = cluster(
            *("--nodes=2", "--gpus-per-node=1", "recipes/spiral.slurm", str(tmp_path / "step.py"), str(results))
        )

        assert done.returncode == 0, done.stderr[-3000:]
        assert {path.name: path.read_text() for path in results.iterdir()} == {"0": "2 2.000", "1": "2 2.000"}
