"""
Grade a model at math during training; a script for `accelerate launch`, and for one process.

    python run_math.py model output_dir
"""

import json
import sys
from pathlib import Path

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from tests.helpers.precision import in_double
from trl_spiral.callbacks import MathCallback


def main(model, folder):
    rows = [{"prompt": f"Count to {number}.", "completion": "\\boxed{[4]}"} for number in range(8)]
    args = SFTConfig(
        output_dir=folder,
        max_steps=1,
        per_device_train_batch_size=2,
        learning_rate=0.0,  # two ranks see other examples than one, and must not learn from them
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = SFTTrainer(model, args, train_dataset=Dataset.from_list(rows))
    in_double(trainer.model)  # the batches of two ranks differ from those of one, which must change no token
    file = Path(__file__).parents[1] / "data/math" / "gsm8k_tiny.jsonl"
    callback = MathCallback(trainer, "gsm8k", limit=3, temperature=1.0, path=file, max_new_tokens=12)
    trainer.add_callback(callback)
    trainer.train()
    Path(folder, f"rank_{args.process_index}.json").write_text(json.dumps(callback.curve))


if __name__ == "__main__":
    main(*sys.argv[1:])
