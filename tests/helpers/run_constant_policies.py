"""
Several policies on several ranks: a script for `accelerate launch`.

    python run_constant_policies.py settings.json

Each rank sends another number of requests, to other policies. The replies are checked here, and the weight switches
written to `rank_<n>.json` next to the settings.
"""

import importlib
import json
import sys
from pathlib import Path

from peft import PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file

from tests.helpers.constant_policies import TOKENS, answers, check, crowd, read
from tests.helpers.training_runs import config, lora, plain_trainer
from trl_spiral import _trl
from trl_spiral.training.preflight import colocate_kwargs
from trl_spiral.types import POLICY


def main(path):
    settings = json.loads(path.read_text())
    folders = {name: Path(folder) for name, folder in settings["folders"].items()}
    base, adapters, options = settings["model"], settings["adapters"], settings["options"]
    if options["vllm_mode"] == "server":
        importlib.import_module("vllm_on_cpu.trainer").use_gloo()
    room = len(folders) if adapters else None
    kwargs = colocate_kwargs(base, config(path.parent, **options), adapters=room, peft_config=lora())
    with _trl.own_vllm_generation(kwargs, patience=60.0, adapters=adapters):
        model = get_peft_model(read(base), lora()) if adapters else base
        trainer, _ = plain_trainer(model, path.parent, ["Sum-v0"], **options)
    rank = trainer.accelerator.process_index
    switches = []
    for step, name in enumerate(("step-0", "step-1"), start=1):
        if adapters:
            set_peft_model_state_dict(trainer.model, load_file(folders[name] / "adapter_model.safetensors"))
        else:
            trainer.model.load_state_dict(read(folders[name]).state_dict())
        trainer.state.global_step = step
        tokens = {other: TOKENS[int(other.removeprefix("step-"))] for other in folders} | {POLICY: TOKENS[step - 1]}
        asked = [POLICY, *folders] if rank == 0 else [POLICY, min(folders)]
        requests = crowd(asked, number=128 if rank == 0 else 16)
        with _trl.open_engine(trainer, folders) as engine:
            replies = answers(engine, requests)
            switches.append(engine.metrics()["weight_switches"])
        models = {other: read(folders[other]) for other in asked[1:]} if not adapters else {}
        for other in asked[1:] if adapters else ():
            models[other] = PeftModel.from_pretrained(read(base), folders[other]).eval()
        check(requests, replies, tokens, models | {POLICY: trainer.model.eval()}, version=step)
    (path.parent / f"rank_{rank}.json").write_text(json.dumps(switches))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
