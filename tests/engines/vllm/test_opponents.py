"""Several policies in one rollout with a real vLLM: each reply comes from the weights of its own policy."""

import itertools

import pytest

from trl_spiral.types import BASE, POLICY


pytestmark = pytest.mark.vllm

# Constant policies that are snapshots in each round of one trainer. The policy is constant policy 0, 1 and 2 in turn,
# and its earlier weights return as snapshots. In the last round, `step-3` returns after a round without it.
ROUNDS = [("step-3", "step-4"), ("step-4", "step-0", "step-5"), ("step-1", "step-0", "step-3")]
MOST = 5  # opponents in one round: three constant policies, the base model and the random adapter `mild`


@pytest.fixture(scope="module")
def model_dir(vllm_model_dir, tmp_path_factory):
    from tests.helpers.constant_policies import sharpen

    return sharpen(vllm_model_dir, tmp_path_factory.mktemp("sharp"))


def adapted(model_dir, **changes):
    from peft import get_peft_model

    from tests.helpers.constant_policies import read
    from tests.helpers.training_runs import lora

    return get_peft_model(read(model_dir), lora(**changes))


@pytest.fixture(scope="module")
def adapters(model_dir, tmp_path_factory):
    """Folders of adapters: constant policies, and one random adapter of a lower rank."""
    import torch

    from tests.helpers.constant_policies import TOKENS, teach

    torch.manual_seed(0)
    folders = {}
    for number, token in enumerate(TOKENS):
        model = adapted(model_dir)
        teach(model, token)
        folders[f"step-{number}"] = tmp_path_factory.mktemp(f"step-{number}")
        model.save_pretrained(folders[f"step-{number}"])
    folders["mild"] = tmp_path_factory.mktemp("mild")
    adapted(model_dir, r=4, init_lora_weights=False, use_rslora=True, target_modules=["q_proj"]).save_pretrained(
        folders["mild"]
    )
    return folders


@pytest.fixture(scope="module")
def folders(model_dir, tmp_path_factory):
    """Folders of constant policies as whole weights, and of a model with uniform probabilities."""
    import torch

    from tests.helpers.constant_policies import TOKENS, read, teach

    folders = {}
    for number, token in enumerate(TOKENS):
        model = read(model_dir)
        teach(model, token)
        folders[f"step-{number}"] = tmp_path_factory.mktemp(f"whole-{number}")
        model.save_pretrained(folders[f"step-{number}"])
    model = read(model_dir)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    folders["mild"] = tmp_path_factory.mktemp("mild")
    model.save_pretrained(folders["mild"])
    return folders


@pytest.fixture(scope="module")
def forward(model_dir, adapters):
    """PEFT models by name of the adapter, and the base model."""
    from peft import PeftModel

    from tests.helpers.constant_policies import read

    models = {name: PeftModel.from_pretrained(read(model_dir), folder).eval() for name, folder in adapters.items()}
    return {**models, BASE: read(model_dir)}


@pytest.fixture(scope="module", params=["colocate", "server"])
def trainer(request, model_dir, tmp_path_factory):
    """A plain trainer that serves its adapter together with others."""
    from trl.generation import vllm_generation
    from vllm_on_cpu.trainer import GlooVLLMClient

    from tests.helpers.training_runs import config, plain_trainer
    from tests.helpers.vllm_in_process import trainer_with_vllm
    from tests.helpers.vllm_server import vllm_server
    from trl_spiral import _trl
    from trl_spiral.training.preflight import colocate_kwargs

    settings = dict(use_vllm=True, vllm_mode=request.param, vllm_max_model_length=1024)
    folder = tmp_path_factory.mktemp("trainer")
    model = adapted(model_dir)

    def make():
        kwargs = colocate_kwargs(model, config(folder, games_in_flight=16, **settings), adapters=MOST)
        with _trl.own_vllm_generation(kwargs, patience=120.0, adapters=True):
            return plain_trainer(model, folder, ["Sum-v0"], **settings)[0]

    if request.param == "colocate":
        with trainer_with_vllm(make) as trainer:
            yield trainer
        return
    with (
        vllm_server(model_dir, enable_lora=True, max_loras=MOST + 2, max_lora_rank=8, max_num_seqs=16) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(vllm_generation, "VLLMClient", GlooVLLMClient)
        settings["vllm_server_base_url"] = server.base_url
        with trainer_with_vllm(make) as trainer:
            trainer.server = server
            yield trainer


_steps = itertools.count(1)


def become(trainer, folder):
    """Load an adapter's folder into the policy, and count it as one more step of the trainer."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    set_peft_model_state_dict(trainer.model, load_file(folder / "adapter_model.safetensors"))
    trainer.state.global_step = next(_steps)


class TestAdapters:
    """The policy and its opponents in the same batches."""

    def test_each_policy_replies_with_its_own_weights_over_three_syncs(self, trainer, adapters, forward):
        from tests.helpers.constant_policies import TOKENS, answers, check, crowd
        from trl_spiral import _trl

        for number, names in enumerate(ROUNDS):
            become(trainer, adapters[f"step-{number}"])
            snapshots = {name: adapters[name] for name in (*names, "mild")} | {BASE: None}
            requests = crowd([POLICY, *snapshots], sampled=("mild", BASE))
            with _trl.open_engine(trainer, snapshots) as engine:
                replies = answers(engine, requests)
                metrics = engine.metrics()

            assert len(snapshots) == MOST or number == 0
            tokens = {name: TOKENS[int(name.removeprefix("step-"))] for name in names} | {POLICY: TOKENS[number]}
            models = {name: forward[name] for name in snapshots} | {POLICY: trainer.model.eval()}
            check(requests, replies, tokens, models, version=trainer.state.global_step)
            assert metrics["weight_switches"] == 0

    def test_only_the_newest_adapter_of_the_policy_stays_on_disk(self, trainer, adapters):
        from trl_spiral import _trl

        served = []
        for name in ("step-0", "step-1"):
            become(trainer, adapters[name])
            with _trl.open_engine(trainer, {"step-3": adapters["step-3"]}):
                served.append(trainer.vllm_generation.policy_adapter)

        assert [folder.is_dir() for folder in served] == [False, True]

    def test_are_not_merged_into_the_trainers_weights(self, trainer, model_dir):
        import torch

        from tests.helpers.constant_policies import read

        # On top of merged weights, a snapshot's adapter would be the sum of policy and snapshot.
        base = dict(read(model_dir).named_parameters())
        for name, parameter in trainer.vllm_generation._iter_named_params():
            assert torch.equal(parameter, base.pop(name))
        assert base == {}

    def test_snapshots_of_full_models_are_refused(self, trainer, model_dir):
        from trl_spiral import _trl

        with pytest.raises(ValueError, match="'elder' in .* holds whole weights, and this run trains an adapter"):
            with _trl.open_engine(trainer, {"elder": model_dir}):
                pass

    @pytest.mark.parametrize("trainer", ["server"], indirect=True)
    def test_are_loaded_again_into_a_restarted_server(self, trainer, adapters, forward):
        from tests.helpers.constant_policies import TOKENS, answers, check, crowd
        from trl_spiral import _trl
        from trl_spiral.selfplay.referee import WeightsLost

        become(trainer, adapters["step-1"])
        requests = crowd([POLICY, "step-3", BASE], sampled=(BASE,))
        with _trl.open_engine(trainer, {"step-3": adapters["step-3"], BASE: None}) as engine:
            answers(engine, requests[:8])
            trainer.server.restart()
            with pytest.raises(WeightsLost):
                answers(engine, requests)
            engine.abort(range(len(requests)))
            _trl.restore_weights(trainer, engine)
            replies = answers(engine, requests)

        models = {POLICY: trainer.model.eval(), "step-3": forward["step-3"], BASE: forward[BASE]}
        tokens = {POLICY: TOKENS[1], "step-3": TOKENS[3]}
        check(requests, replies, tokens, models, version=trainer.state.global_step)


class TestWholeWeights:
    """Full models: one colocated engine swaps the weights of the policy and its opponents."""

    @pytest.fixture(scope="class")
    @classmethod
    def trainer(cls, model_dir, tmp_path_factory):
        from tests.helpers.training_runs import config, plain_trainer
        from tests.helpers.vllm_in_process import trainer_with_vllm
        from trl_spiral import _trl
        from trl_spiral.training.preflight import colocate_kwargs

        folder = tmp_path_factory.mktemp("whole")
        settings = dict(use_vllm=True, vllm_mode="colocate", vllm_max_model_length=1024)

        def make():
            with _trl.own_vllm_generation(colocate_kwargs(model_dir, config(folder, **settings)), patience=1.0):
                return plain_trainer(model_dir, folder, ["Sum-v0"], **settings)[0]

        with trainer_with_vllm(make) as trainer:
            yield trainer

    @staticmethod
    def become(trainer, folder):
        from tests.helpers.constant_policies import read

        trainer.model.load_state_dict(read(folder).state_dict())
        trainer.state.global_step = next(_steps)

    def test_each_policy_replies_with_its_own_weights_over_three_syncs(self, trainer, folders):
        from tests.helpers.constant_policies import TOKENS, answers, check, crowd, read
        from trl_spiral import _trl
        from trl_spiral.engines.vllm.colocated import VLLMEngine

        for number, names in enumerate(ROUNDS):
            self.become(trainer, folders[f"step-{number}"])
            snapshots = {name: folders[name] for name in (*names, "mild")}
            requests = crowd([POLICY, *snapshots], sampled=("mild",))
            with _trl.open_engine(trainer, snapshots) as engine:
                replies = answers(engine, requests)
                metrics = engine.metrics()
            afterwards = answers(VLLMEngine(trainer.vllm_generation.llm, trainer.state.global_step), requests[:1])

            tokens = {name: TOKENS[int(name.removeprefix("step-"))] for name in names} | {POLICY: TOKENS[number]}
            models = {name: read(folder) for name, folder in snapshots.items()} | {POLICY: trainer.model.eval()}
            check(requests, replies, tokens, models, version=trainer.state.global_step)
            # The policy was loaded at the start, so each snapshot needs at least one switch. Afterwards, the policy is
            # loaded again, which is not counted.
            assert len(snapshots) <= metrics["weight_switches"] < len(requests)
            assert set(afterwards[0].completion_ids) == {TOKENS[number]}
            assert requests[0].policy == POLICY

    def test_are_switched_without_other_ranks(self, trainer, folders, monkeypatch):
        """Ranks with different data switch weights at different times, so a switch must not wait for other ranks."""
        import torch

        from tests.helpers.constant_policies import answers, crowd
        from trl_spiral import _trl

        def hang(*args, **kwargs):
            raise AssertionError("a switch of weights waits for other ranks")

        with _trl.open_engine(trainer, {"step-3": folders["step-3"]}) as engine:
            for name in ("barrier", "all_reduce", "all_gather", "all_gather_object", "broadcast_object_list"):
                monkeypatch.setattr(torch.distributed, name, hang)
            monkeypatch.setattr(type(trainer.accelerator), "wait_for_everyone", hang)
            monkeypatch.setattr("trl_spiral.distributed.gather_object", hang)
            answers(engine, crowd([POLICY, "step-3"], number=70))

            assert engine.metrics()["weight_switches"] > 0

    def test_of_the_policy_are_restored_after_an_interrupted_rollout(self, trainer, folders):
        from tests.helpers.constant_policies import TOKENS, answers, crowd
        from trl_spiral import _trl

        self.become(trainer, folders["step-1"])
        with pytest.raises(KeyboardInterrupt), _trl.open_engine(trainer, {"step-3": folders["step-3"]}) as engine:
            answers(engine, crowd(["step-3"], number=4))
            raise KeyboardInterrupt
        with _trl.open_engine(trainer) as engine:
            replies = answers(engine, crowd([POLICY], number=8))

        assert {token for reply in replies for token in reply.completion_ids} == {TOKENS[1]}

    def test_with_missing_tensors_are_refused(self, trainer, folders, tmp_path):
        from safetensors.torch import load_file, save_file

        from tests.helpers.constant_policies import answers, crowd
        from trl_spiral import _trl

        tensors = load_file(folders["step-3"] / "model.safetensors")
        del tensors["model.layers.1.mlp.down_proj.weight"]
        save_file(tensors, tmp_path / "model.safetensors")
        with (
            pytest.raises(ValueError, match="do not fit the model .*model.layers.1.mlp.down_proj.weight` is missing"),
            _trl.open_engine(trainer, {"broken": tmp_path}) as engine,
        ):
            answers(engine, crowd(["broken"], number=1))

    def test_snapshots_that_are_adapters_are_refused(self, trainer, adapters):
        from trl_spiral import _trl

        for folder in (adapters["step-0"], None):
            with pytest.raises(
                ValueError, match="is an adapter, or the base model without one, and this trainer sends"
            ):
                with _trl.open_engine(trainer, {"elder": folder}):
                    pass


class TestServer:
    def test_without_lora_is_refused_and_the_error_names_the_flags(
        self, server, vllm_model_dir, tmp_path, monkeypatch
    ):
        from trl.generation import vllm_generation
        from vllm_on_cpu.trainer import GlooVLLMClient

        from tests.helpers.training_runs import plain_trainer
        from tests.helpers.vllm_in_process import trainer_with_vllm
        from trl_spiral import _trl

        clients = []

        def client(*args, **kwargs):
            clients.append(GlooVLLMClient(*args, **kwargs))
            return clients[-1]

        monkeypatch.setattr(vllm_generation, "VLLMClient", client)

        def make():
            settings = dict(use_vllm=True, vllm_mode="server", vllm_server_base_url=server.base_url)
            with _trl.own_vllm_generation({}, patience=1.0, adapters=True):
                return plain_trainer(adapted(vllm_model_dir), tmp_path, ["Sum-v0"], **settings)

        with (
            pytest.raises(RuntimeError, match="LoRA is not enabled.*--enable-lora --max-lora-rank 8 --max-loras"),
            trainer_with_vllm(make),
        ):
            raise AssertionError("the trainer was not refused")
        clients[0].close_communicator()
        clients[0].session.close()


class TestTwoRanks:
    """Ranks with different games, and so with different requests."""

    @pytest.fixture
    def launch(self, model_dir, tmp_path):
        import json
        from pathlib import Path

        from tests.training.test_two_ranks import launch

        def run(folders, adapters, **options):
            settings = dict(
                model=model_dir,
                folders={name: str(folder) for name, folder in folders.items() if name.startswith("step")},
                adapters=adapters,
                options=dict(use_vllm=True, vllm_max_model_length=1024, **options),
            )
            (tmp_path / "settings.json").write_text(json.dumps(settings))
            done = launch(Path(__file__).parents[2] / "helpers/run_constant_policies.py", tmp_path / "settings.json")
            assert done.returncode == 0, done.stderr
            return [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in (0, 1)]

        return run

    def test_switch_full_models_independently(self, launch, folders):
        often, seldom = launch(folders, adapters=False, vllm_mode="colocate")

        assert min(often) > max(seldom) >= 1

    def test_share_the_adapters_that_rank_zero_loads_into_the_server(self, launch, model_dir, adapters):
        from tests.helpers.vllm_server import vllm_server

        flags = dict(enable_lora=True, max_loras=len(adapters) + 1, max_lora_rank=8)
        with vllm_server(model_dir, **flags) as server:
            switches = launch(adapters, True, vllm_mode="server", vllm_server_base_url=server.base_url)

        assert switches == [[0, 0], [0, 0]]
