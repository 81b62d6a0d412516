"""Checks and files of the adapters that vLLM serves. These tests run without vLLM."""

import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.training_runs import config, lora
from trl_spiral._trl.vllm_generation import SpiralVLLMGeneration
from trl_spiral.engines.vllm import lora as vllm_lora
from trl_spiral.engines.vllm.lora import (
    adapter_of_zeros,
    check_adapter,
    check_lora_config,
    is_adapter,
    largest_rank,
    load_into_server,
    save_active_adapter,
)
from trl_spiral.training.preflight import check_vllm, colocate_kwargs


@pytest.fixture(scope="module")
def make(model_dir):
    """Make the tiny model with an adapter that changes its output."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    def make(**changes):
        base = AutoModelForCausalLM.from_pretrained(model_dir)
        return get_peft_model(base, lora(init_lora_weights=False, **changes)).eval()

    return make


class TestCheck:
    @pytest.mark.parametrize(
        "changes",
        [{}, {"use_rslora": True}, {"init_lora_weights": "gaussian"}, {"r": 512}, {"target_modules": ["q_proj"]}],
        ids=str,
    )
    def test_accepts_plain_lora(self, changes):
        check_lora_config(lora(**changes))

    @pytest.mark.parametrize(
        "changes",
        [
            {"use_dora": True},
            {"modules_to_save": ["lm_head"]},
            {"bias": "all"},
            {"rank_pattern": {"q_proj": 4}},
            {"alpha_pattern": {"q_proj": 4}},
            {"trainable_token_indices": [1, 2]},
            {"init_lora_weights": "pissa"},
            {"r": 513},
        ],
        ids=str,
    )
    def test_refuses_adapters_that_vllm_cannot_serve_correctly(self, changes):
        (name,) = changes
        with pytest.raises(
            ValueError, match=rf"adapter in training next to others \(.*{name if name != 'r' else 'rank'}"
        ):
            check_lora_config(lora(**changes))

    def test_refuses_other_methods_than_lora(self):
        from peft import LoHaConfig

        with pytest.raises(ValueError, match="it is not LoRA"):
            check_lora_config(LoHaConfig(target_modules=["q_proj"]))

    def test_reads_the_configuration_of_a_folder(self, make, tmp_path):
        make().save_pretrained(tmp_path / "plain")
        make(use_dora=True).save_pretrained(tmp_path / "dora")

        check_adapter(tmp_path / "plain")
        with pytest.raises(ValueError, match="adapter in .*dora next to others"):
            check_adapter(tmp_path / "dora")

    def test_distinguishes_adapters_from_full_models(self, make, model_dir, tmp_path):
        make().save_pretrained(tmp_path)

        assert is_adapter(tmp_path)
        assert not is_adapter(model_dir)


class TestGeneration:
    """Checks before vLLM starts with adapters."""

    @pytest.fixture
    def generation(self, make):
        dist = SimpleNamespace(is_fsdp=False)
        return SimpleNamespace(model=make(), _dist=dist, enable_sleep_mode=False)

    def test_refuses_sleep_mode_and_fsdp(self, generation):
        check = SpiralVLLMGeneration._check_adapters
        check(generation)
        generation.enable_sleep_mode = True
        with pytest.raises(ValueError, match="`vllm_enable_sleep_mode` discards the weights"):
            check(generation)
        generation._dist.is_fsdp = True
        with pytest.raises(ValueError, match="FSDP shards the adapter in training"):
            check(generation)


class TestFiles:
    def test_peft_reads_the_files_of_an_adapter_in_training(self, make, model_dir, tmp_path):
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        live = make()
        folder = save_active_adapter(live, tmp_path / "policy-0")
        again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_dir), folder).eval()
        ids = torch.arange(3, 40)[None]

        assert torch.equal(live(ids).logits, again(ids).logits)
        assert os.listdir(tmp_path) == ["policy-0"]

    @pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
    def test_refuse_trained_embeddings(self, make, tmp_path):
        with pytest.raises(ValueError, match="lora_embedding_A` next to others. Train linear layers only"):
            save_active_adapter(make(target_modules=["q_proj", "embed_tokens"]), tmp_path / "policy-0")

    def test_an_adapter_of_zeros_changes_nothing_and_is_saved_once_per_shape(self, make, model_dir, tmp_path):
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        first = save_active_adapter(make(), tmp_path / "first")
        zeros = adapter_of_zeros(first)
        base = AutoModelForCausalLM.from_pretrained(model_dir).eval()
        ids = torch.arange(3, 40)[None]
        logits = base(ids).logits

        assert torch.equal(PeftModel.from_pretrained(base, zeros).eval()(ids).logits, logits)
        assert adapter_of_zeros(first) == zeros
        assert adapter_of_zeros(save_active_adapter(make(r=4), tmp_path / "narrow")) != zeros


class TestScratchFolder:
    SCRIPT = (
        "import os, signal, sys\nfrom trl_spiral.engines.vllm.lora import scratch_folder\n"
        "(scratch_folder() / 'file').touch()\nprint(scratch_folder())\nsys.stdout.flush()\n"
        "if sys.argv[1] == 'die': os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    def test_is_deleted_by_its_process_or_the_next_one(self, tmp_path):
        (tmp_path / "trl_spiral_mine").mkdir()  # a folder of unknown origin

        def run(how):
            command = [sys.executable, "-c", self.SCRIPT, how]
            done = subprocess.run(command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True)
            return Path(done.stdout.strip())

        killed = run("die")
        assert (killed / "file").is_file()
        # Folders of a running process and of another machine.
        ours = f"trl_spiral_{socket.gethostname()}_"
        rest = killed.name.removeprefix(ours).partition("_")[2]  # may contain underscores
        living = tmp_path / f"{ours}{os.getpid()}_{rest}"
        living.mkdir()
        elsewhere = tmp_path / killed.name.replace("trl_spiral_", "trl_spiral_another-", 1)
        elsewhere.mkdir()
        run("live")

        assert {path.name for path in tmp_path.iterdir()} == {"trl_spiral_mine", living.name, elsewhere.name}


class AnsweringServer(ThreadingHTTPServer):
    """A server that answers with a status and a body by the last part of the path."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.base_url = f"http://127.0.0.1:{self.server_port}"
        self.pages = {"models": (200, b'{"data": [{"id": "trl_spiral-old"}]}')}


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, body = self.server.pages.get(self.path.rpartition("/")[2], (200, b""))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *args):
        pass


class TestLoadIntoServer:
    @pytest.fixture
    def server(self):
        with AnsweringServer() as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            yield server
            server.shutdown()
            thread.join()

    @pytest.fixture
    def folders(self, make, tmp_path):
        return {"policy": save_active_adapter(make(), tmp_path / "policy-0")}

    def test_names_each_adapter(self, server, folders):
        (name,) = load_into_server(server.base_url, folders).values()

        assert name.startswith("trl_spiral-policy-")

    @pytest.mark.parametrize(
        ("page", "answer", "complaint"),
        [
            ("models", (503, b"starting"), r"does not list its adapters \(HTTP 503: starting\)"),
            ("models", (200, b"<html>"), r"gave no answer that can be read \(JSONDecodeError"),
            ("models", (200, b"{}"), r"gave no answer that can be read \(KeyError: 'data'\)"),
            ("unload_lora_adapter", (500, b"no"), r"does not drop the adapter trl_spiral-old \(HTTP 500: no\)"),
            ("load_lora_adapter", (404, b"no"), r"does not take the adapter in .*Start it with `VLLM_ALLOW_RUNTIME"),
        ],
        ids=["status", "no JSON", "no list", "unload", "load"],
    )
    def test_errors_name_the_failed_request(self, page, answer, complaint, server, folders):
        server.pages[page] = answer

        with pytest.raises(RuntimeError, match=complaint):
            load_into_server(server.base_url, folders)

    def test_requests_have_a_timeout(self, folders, monkeypatch):
        monkeypatch.setattr(vllm_lora, "TIMEOUT", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(RuntimeError, match="TimeoutError"):
            load_into_server(f"http://127.0.0.1:{silent.getsockname()[1]}", folders)


class TestRanks:
    """Two ranks that share a server. Rank 0 loads adapters into it."""

    @pytest.fixture
    def serve(self, tmp_path, monkeypatch):
        """Call `serve` as rank 0, or as rank 1 with the items that rank 0 gathered before."""
        sent = []

        def serve(rank):
            steps = iter(list(sent))

            def gather(self, items):
                if rank == 0:
                    sent.append(items)
                    return items
                return [*next(steps), *items]

            monkeypatch.setattr("trl_spiral.distributed.AllRanks.gather", gather)
            monkeypatch.setattr(
                "trl_spiral.distributed.PartialState", lambda: SimpleNamespace(is_main_process=rank == 0)
            )
            generation = SimpleNamespace(
                policy_adapter=tmp_path, _find_boot_id=lambda: "1", server_base_url="http://nowhere"
            )
            return SpiralVLLMGeneration.serve(generation, {})

        return serve

    def test_raise_the_error_of_rank_zero(self, serve, monkeypatch):
        def refuse(base_url, folders):
            raise RuntimeError("The server has no room.")

        monkeypatch.setattr("trl_spiral._trl.vllm_generation.load_into_server", refuse)
        with pytest.raises(RuntimeError, match=r"^The server has no room\.$"):
            serve(rank=0)
        with pytest.raises(RuntimeError, match="Rank 0 has failed, .*: RuntimeError: The server has no room"):
            serve(rank=1)

    def test_return_the_result_of_rank_zero(self, serve, monkeypatch):
        loaded = []

        def load(base_url, folders):
            loaded.append(base_url)
            return {"policy": "name"}

        monkeypatch.setattr("trl_spiral._trl.vllm_generation.load_into_server", load)

        assert serve(rank=0) == serve(rank=1) == {"policy": "name"}
        assert loaded == ["http://nowhere"]


class TestBeforeTraining:
    """Checks before a trainer loads a model."""

    def test_a_colocated_engine_has_slots_for_all_adapters(self, tmp_path):
        args = config(tmp_path, use_vllm=True, vllm_mode="colocate")
        kwargs = colocate_kwargs("nobody/nothing", args, adapters=8, peft_config=lora(r=20))

        # Eight opponents, the policy and the adapter of zeros.
        assert (kwargs["enable_lora"], kwargs["max_loras"], kwargs["max_lora_rank"]) == (True, 10, 32)
        assert "enable_lora" not in colocate_kwargs("nobody/nothing", args, peft_config=lora())

    @pytest.mark.parametrize(("rank", "largest"), [(1, 1), (2, 8), (8, 8), (9, 16), (512, 512)])
    def test_ranks_are_rounded_up_to_those_of_vllm(self, rank, largest):
        assert largest_rank(rank) == largest

    @pytest.fixture
    def check(self, tmp_path, monkeypatch):
        """`check_vllm` as if vLLM were installed."""
        monkeypatch.setattr("importlib.util.find_spec", lambda name: True)

        def check(mode, **kwargs):
            check_vllm(config(tmp_path, use_vllm=True, vllm_mode=mode), "nobody/nothing", **kwargs)

        return check

    def test_full_model_snapshots_with_a_server_are_refused(self, check):
        check("server")
        check("server", peft_config=lora(), has_snapshots=True)
        check("colocate", has_snapshots=True)
        with pytest.raises(ValueError, match="A vLLM server holds one set of whole weights"):
            check("server", has_snapshots=True)

    def test_an_adapter_that_cannot_be_served_is_refused(self, check):
        check("colocate", peft_config=lora(use_dora=True))
        with pytest.raises(ValueError, match="vLLM cannot serve the adapter in training next to others"):
            check("colocate", peft_config=lora(use_dora=True), has_snapshots=True)

    def test_the_rank_is_read_from_a_model_with_an_adapter(self, check, make, tmp_path):
        args = config(tmp_path, use_vllm=True, vllm_mode="colocate")

        assert colocate_kwargs(make(r=64), args, adapters=0)["max_lora_rank"] == 64
