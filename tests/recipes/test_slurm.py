"""The SLURM script with fake `sbatch`, `srun` and `scontrol`, whose nodes are processes of this machine."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.callbacks.test_preemption import wait_until
from tests.training.test_two_ranks import SCRIPT, launch


ROOT = Path(__file__).parents[2]

# Parses options like sbatch, with priority for the command line, and runs a copy of the script on the first node.
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
    job = subprocess.Popen(["bash", copy, *arguments], env={**os.environ, **variables}, cwd=spool)
    open(os.path.join(os.environ["SIGNALS"], "batch"), "w").write(str(job.pid))
    sys.exit(job.wait())
"""

SRUN = """
import os, signal, subprocess, sys
options, line = {}, sys.argv[1:]
while line[0].startswith("--"):
    name, _, value = line.pop(0)[2:].partition("=")
    options[name] = value
# Tasks per node: the option of srun, or that of the job.
each = int(options.get("ntasks-per-node", os.environ["SLURM_NTASKS_PER_NODE"]))
count = int(options.get("ntasks", each * int(os.environ["SLURM_NNODES"])))
nodes = [subprocess.Popen(line, env={**os.environ, "SLURM_NODEID": str(task // each)}) for task in range(count)]
# Like srun: this signal goes to all tasks, and others end the step.
signal.signal(signal.SIGUSR1, lambda number, frame: [node.send_signal(number) for node in nodes])
open(os.path.join(os.environ["SIGNALS"], "nodes"), "w").write(" ".join(str(node.pid) for node in nodes))
sys.exit(max(node.wait() for node in nodes))
"""

SCONTROL = """
import os, sys
if sys.argv[1] == "requeue":
    open(os.path.join(os.environ["SIGNALS"], "requeued"), "a").write(sys.argv[2] + " ")
    sys.exit()
assert sys.argv[1:3] == ["show", "hostnames"] and sys.argv[3] == os.environ["SLURM_JOB_NODELIST"]
print("\\n".join(["localhost"] * int(os.environ["SLURM_NNODES"])))
"""

# Replaces accelerate: records the command of a node.
RECORDER = """
import json, os, sys
names = ("SLURM_NODEID", "HF_HUB_OFFLINE", "OMP_NUM_THREADS")
record = {"line": sys.argv[1:], "folder": os.getcwd(), **{name: os.environ[name] for name in names}}
open(os.path.join(os.environ["RECORDS"], f"{record['SLURM_NODEID']}-{os.getpid()}"), "w").write(json.dumps(record))
"""

# Replaces accelerate: exits with 1 if its trainer, which handles the signal like ours, exits with another code.
LAUNCHER = """
import os, signal, subprocess, sys, time
trainer = "import os, signal, sys, time; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75)); "
trainer += "open(os.path.join(os.environ['SIGNALS'], 'up-' + os.environ['SLURM_NODEID']), 'w'); time.sleep(60)"
sys.exit(1 if subprocess.run([sys.executable, "-c", trainer]).returncode else 0)
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
loss = model(torch.ones(1, 1) * (1 + 2 * rank)).sum()  # gradients of 1 and 3, one per rank
accelerator.backward(loss)
optimizer.step()
step = start - accelerator.unwrap_model(model).weight.item()
open(f"{sys.argv[1]}/{rank}", "w").write(f"{accelerator.num_processes} {step:.3f}")
"""


def free_job_id():
    """Return a job id from which the script derives a free port."""
    for number in range(10_000):
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", 20_000 + number)):
                return number


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Put fake SLURM commands on the path and return a function that submits."""
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
    monkeypatch.setenv("SIGNALS", str(tmp_path / "signals"))
    (tmp_path / "signals").mkdir()
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def submit(*line):
        return subprocess.run(["sbatch", *line], cwd=ROOT, capture_output=True, text=True, timeout=300)

    submit.command = command
    return submit


@pytest.fixture
def recorded(cluster, tmp_path, monkeypatch):
    """Return a function that submits and returns the command of each node, without running it."""
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
    def test_is_valid_bash(self):
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

    def test_starts_one_launcher_per_node_for_any_number_of_tasks(self, recorded):
        nodes = recorded("--nodes=2", "--ntasks-per-node=4", "recipes/spiral.slurm", "recipes/spiral_ttt.py")

        assert [node["SLURM_NODEID"] for node in nodes] == ["0", "1"]

    def test_runs_offline_in_the_submission_folder_with_divided_cores(self, recorded):
        (node,) = recorded("--gpus-per-node", "4", "recipes/spiral.slurm", "recipes/spiral_ttt.py")

        assert (node["folder"], node["HF_HUB_OFFLINE"], node["OMP_NUM_THREADS"]) == (str(ROOT), "1", "16")

    def test_keeps_existing_settings(self, recorded, monkeypatch):
        for name, value in (("HF_HUB_OFFLINE", "0"), ("OMP_NUM_THREADS", "3"), ("ACCELERATE_CONFIG", "mine.yaml")):
            monkeypatch.setenv(name, value)
        (node,) = recorded("recipes/spiral.slurm", "recipes/spiral_ttt.py")

        assert (node["HF_HUB_OFFLINE"], node["OMP_NUM_THREADS"]) == ("0", "3")
        assert "mine.yaml" in node["line"]

    def test_requires_a_recipe(self, cluster):
        done = cluster("recipes/spiral.slurm")

        assert (done.returncode, done.stderr) == (
            2,
            "Say which recipe to run: sbatch recipes/spiral.slurm recipes/NAME.py [OPTIONS]\n",
        )

    def test_fails_if_a_node_fails(self, cluster):
        cluster.command("accelerate", "import os, sys\nsys.exit(3 * int(os.environ['SLURM_NODEID']))")

        assert cluster("--nodes=2", "recipes/spiral.slurm", "recipes/spiral_ttt.py").returncode == 3

    @pytest.mark.slow
    def test_two_nodes_take_a_step_together(self, cluster, tmp_path, monkeypatch):
        results = tmp_path / "results"
        results.mkdir()
        (tmp_path / "step.py").write_text(STEP)
        launcher = "from accelerate.commands.accelerate_cli import main\nmain()"
        cluster.command("accelerate", launcher)
        # The script derives a port from the job id, which must be free.
        monkeypatch.setenv("FAKE_JOB_ID", str(free_job_id()))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        done = cluster(
            *("--nodes=2", "--gpus-per-node=1", "recipes/spiral.slurm", str(tmp_path / "step.py"), str(results))
        )

        assert done.returncode == 0, done.stderr[-3000:]
        assert {path.name: path.read_text() for path in results.iterdir()} == {"0": "2 2.000", "1": "2 2.000"}


TRAIN = """
from pathlib import Path
from tests.helpers import training_runs
from trl import TrlParser
from trl_spiral import SpiralConfig

(args,) = TrlParser((SpiralConfig,)).parse_args_and_config()
folder = Path(args.output_dir).parent
config = dict(output_dir=args.output_dir, max_steps=12, save_strategy="no")
run = dict(name="result", model={model!r}, games=["Sum-v0"], config=config, steps="steps")
training_runs.play(dict(run, resume=args.resume_from_checkpoint), folder)
"""


class TestPreemption:
    """A job that receives a stop signal is requeued, and resumes automatically."""

    @pytest.fixture
    def submit(self, cluster, tmp_path):
        """Submit a job, send signals to its parts once they run, and return its exit code and requeued jobs."""
        signals = tmp_path / "signals"

        def submit(send, up, *line):
            job = subprocess.Popen(["sbatch", *line], cwd=ROOT, stderr=subprocess.PIPE, text=True)
            if send:
                wait_until(lambda: all(path.exists() for path in up))
                for part, number in send:
                    for pid in (signals / part).read_text().split():
                        os.kill(int(pid), number)
            errors = job.communicate(timeout=300)[1]
            requeued = signals / "requeued"
            return job.returncode, requeued.read_text().split() if requeued.exists() else [], errors

        return submit

    @pytest.mark.parametrize(
        ("send", "code", "requeued"),
        [
            ([("batch", signal.SIGUSR1)], 75, ["1234567"]),  # before the time limit
            ([("nodes", signal.SIGTERM)], 75, ["1234567"]),  # preempted, with some time
            ([("batch", signal.SIGTERM), ("nodes", signal.SIGTERM)], 75, []),  # scancel
        ],
        ids=["time limit", "preempted", "cancelled"],
    )
    @pytest.mark.parametrize("nodes", [1, 2])
    def test_a_job_that_is_stopped_is_requeued_unless_it_is_cancelled(
        self, nodes, send, code, requeued, submit, cluster, tmp_path
    ):
        cluster.command("accelerate", LAUNCHER)
        up = [tmp_path / "signals" / f"up-{node}" for node in range(nodes)]
        result = submit(send, up, f"--nodes={nodes}", "recipes/spiral.slurm", "recipes/spiral_ttt.py")

        assert result == (code, requeued, "")

    def test_a_job_that_fails_or_ends_is_not_requeued(self, submit, cluster):
        for code in (3, 0):
            cluster.command("accelerate", f"import sys\nsys.exit({code})")

            assert submit((), (), "recipes/spiral.slurm", "recipes/spiral_ttt.py")[:2] == (code, [])

    def test_a_requeued_job_resumes(self, recorded, monkeypatch):
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        (node,) = recorded("recipes/spiral.slurm", "recipes/spiral_ttt.py", "--run_name", "two words")

        assert node["line"][15:] == [
            *("recipes/spiral_ttt.py", "--run_name", "two words", "--resume_from_checkpoint", "auto")
        ]

    @pytest.mark.slow
    def test_a_requeued_run_equals_an_uninterrupted_one(self, submit, cluster, model_dir, tmp_path, monkeypatch):
        cluster.command("accelerate", "from accelerate.commands.accelerate_cli import main\nmain()")
        script = tmp_path / "train.py"
        script.write_text(TRAIN.format(model=model_dir))
        monkeypatch.setenv("FAKE_JOB_ID", str(free_job_id()))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))

        def run(folder, send):
            (tmp_path / folder).mkdir(exist_ok=True)
            line = ("--gpus-per-node=2", "recipes/spiral.slurm", str(script), "--use_cpu", "--bf16", "False")
            up = [tmp_path / folder / f"steps_{rank}" for rank in range(2)]
            code, requeued, errors = submit(send, up, *line, "--output_dir", f"{tmp_path}/{folder}/out")
            return code, requeued and requeued[-1] == os.environ["FAKE_JOB_ID"], errors

        (tmp_path / "whole").mkdir()
        settings = dict(output_dir=f"{tmp_path}/whole/out", max_steps=12, save_strategy="no")
        plain = [dict(name="result", model=model_dir, games=["Sum-v0"], config=settings)]
        (tmp_path / "whole" / "runs.json").write_text(json.dumps(plain))
        whole = launch(SCRIPT, tmp_path / "whole" / "runs.json")
        stopped = run("stopped", [("batch", signal.SIGUSR1)])
        saved = [path.name for path in (tmp_path / "stopped" / "out").glob("checkpoint-*")]
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        resumed = run("stopped", ())

        assert whole.returncode == 0, whole.stderr[-3000:]
        assert stopped[:2] == (75, True), stopped[2][-3000:]
        assert len(saved) == 1 and saved != ["checkpoint-12"]
        assert resumed[0] == 0, resumed[2][-3000:]
        results = [json.loads((tmp_path / each / "result_0.json").read_text()) for each in ("whole", "stopped")]
        assert results[0]["history"] == results[1]["history"]
        assert results[0]["weights"] == results[1]["weights"]
