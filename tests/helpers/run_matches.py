"""
Play matches of an untrained policy on any number of ranks; a script for `accelerate launch`.

    python run_matches.py model folder

Each rank writes the results that it has as `rank_<n>.json`.
"""

import json
import sys
from pathlib import Path

from tests.helpers.precision import in_double
from tests.helpers.training_runs import plain_trainer
from trl_spiral.callbacks import MatchCallback


def matches(model, folder):
    """Return a trainer and its callback after the first evaluation, in float64, where batches change no token."""
    trainer, _ = plain_trainer(model, folder, ["TicTacToe-v0"])
    in_double(trainer.model)
    callback = MatchCallback(
        trainer, ["TicTacToe-v0", "Nim-v0"], rivals=["random", "minimax"], pairs=5, temperature=0.0
    )
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    return trainer, callback


def main(model, folder):
    trainer, callback = matches(model, folder)
    results = {"curve": callback.curve, "played": [[e.game, *e.players, e.counter] for e in callback.episodes]}
    (Path(folder) / f"rank_{trainer.accelerator.process_index}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
