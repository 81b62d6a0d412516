"""
Small training runs for several tests, and a script for runs that are killed or have several ranks.

    python training_runs.py runs.json

runs those listed in `runs.json` one after the other, and writes the results next to it as `<name>_<rank>.json`, and
the batches as `<name>_<rank>.pkl`.
"""

import hashlib
import importlib
import json
import os
import pickle
import random
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from tests.helpers.toy_games import SumGame
from trl_spiral import SelfPlayRollout, SpiralConfig, SpiralTrainer, _trl
from trl_spiral._trl import vllm_generation
from trl_spiral.games import get_game
from trl_spiral.selfplay.advantages import ReturnsOnly


TIMING = ("_runtime", "_per_second", "step_time")


def config(output_dir, **changes) -> SpiralConfig:
    """Return a configuration with 16 rows per batch, each used twice: four optimizer steps per cycle."""
    settings = dict(
        output_dir=str(output_dir),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=32,
        steps_per_generation=2,
        num_iterations=2,
        max_steps=8,
        max_completion_length=8,  # a legal reply has five tokens
        learning_rate=1e-3,  # large, so that a few steps move a tiny model
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,  # costs time and saves no memory here
        disable_tqdm=True,
    )
    return SpiralConfig(**{**settings, **changes})


def lora(**changes):
    """Return a LoRA configuration for all linear layers. A large scale makes a few steps change log-probabilities."""
    from peft import LoraConfig

    return LoraConfig(
        **{"r": 8, "lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **changes}
    )


def games(names):
    """Return games by name, including the toy game."""
    return [SumGame() if name == "Sum-v0" else get_game(name) for name in names]


class RecordingTrainer(SpiralTrainer):
    """
    Stores the episodes and rows of every batch.

    Without `keep_surplus`, surplus rows are dropped, so all rows come from the current weights.
    """

    def __init__(self, *args, keep_surplus=True, **kwargs):
        super().__init__(*args, **kwargs)
        self.rollout.collector.keep_surplus = keep_surplus
        self.transcripts = []
        self.batches = []

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.transcripts.append([transcript(episode) for episode in self.rollout.batch.episodes])
            batch = self.rollout.batch
            self.batches.append((batch.rows, batch.episodes, batch.metrics))
        return output


def transcript(episode):
    """Return all decisions and results of an episode, as plain values."""
    said = [[list(turn.completion_ids) for turn in seat.turns] for seat in episode.trajectories]
    return [
        episode.counter,
        episode.seed,
        episode.game,
        [list(move) for move in episode.moves],
        list(episode.returns),
        str(episode.ending),
        episode.discarded_tokens,
        said,
    ]


def digest(model):
    """Return a checksum of all weights."""
    values = [value.detach().numpy().tobytes() for _, value in sorted(model.state_dict().items())]
    return hashlib.blake2b(b"".join(values)).hexdigest()


def history(trainer):
    """Return the log of a run, without timings."""
    return [
        {name: value for name, value in entry.items() if not name.endswith(TIMING)}
        for entry in trainer.state.log_history
    ]


class KillAt(TrainerCallback):
    """Kills the process after an optimizer step, before anything is saved."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class SignalAt(TrainerCallback):
    """Sends a signal to this process at an event of a step."""

    def __init__(self, event, step, *numbers):
        self.calls = []
        setattr(self, event, lambda args, state, control, **kwargs: self._send(state.global_step == step, numbers))

    def _send(self, now, numbers):
        for number in numbers if now else ():
            os.kill(os.getpid(), number)

    def on_save(self, args, state, control, **kwargs):
        self.calls.append(state.global_step)


class RandomKiller(TrainerCallback):
    """
    Kills the process at a random time in the next few steps, or while it writes a checkpoint or a snapshot.

    The file `note` contains the name of the write in progress.
    """

    def __init__(self, seed, note, rank, world_size):
        self._rng = random.Random(seed)
        self._note = note
        self._victim = rank == self._rng.randrange(world_size)
        self._while_writing = self._rng.random() < 0.6
        self._writes_before = self._rng.randrange(4)
        self._steps_before = self._rng.randrange(6)

    def on_step_begin(self, args, state, control, **kwargs):
        if self._victim and not self._while_writing and self._steps_before == 0:
            self._kill_in(self._rng.uniform(0.0, 0.2))
        self._steps_before -= 1

    def watch(self, write, seconds):
        """Return a version of `write` that may kill the process while it runs."""

        def watched(*args, **kwargs):
            self._note.write_text(write.__name__)
            if self._victim and self._while_writing:
                if self._writes_before == 0:
                    self._kill_in(self._rng.uniform(0.0, seconds))
                self._writes_before = max(0, self._writes_before - 1)
            result = write(*args, **kwargs)
            self._note.write_text("")
            return result

        return watched

    @staticmethod
    def _kill_in(seconds):
        def kill():
            time.sleep(seconds)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()


class KillAtTheEnd(TrainerCallback):
    """Kills the process after the last checkpoint, before the end of training."""

    def on_save(self, args, state, control, **kwargs):
        if state.global_step >= state.max_steps:
            os.kill(os.getpid(), signal.SIGKILL)


def flip(path, bit=0):
    """Flip one bit in the middle of a file, or in its byte `bit // 8` if a bit is given."""
    content = bytearray(path.read_bytes())
    bit = bit or 4 * len(content)
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


class StepLog(TrainerCallback):
    """Appends a line with the time and the step to a file at each step's begin and end."""

    def __init__(self, path):
        self.path = path

    def _write(self, event, state):
        with self.path.open("a") as file:
            file.write(f"{event} {state.global_step} {time.time()}\n")

    def on_step_begin(self, args, state, control, **kwargs):
        self._write("begin", state)

    def on_step_end(self, args, state, control, **kwargs):
        self._write("end", state)


class HangAt(TrainerCallback):
    """Starts a step that never ends."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            time.sleep(3600)


class StopAt(TrainerCallback):
    """Ends a run early, as a user would."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


class TroubledEngine:
    """An engine that fails on one rank, in the middle of a game."""

    def __init__(self, engine, trouble, note):
        self._engine = engine
        self._trouble = trouble
        self._note = note
        self._steps = 0

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def add(self, ticket, request):
        if self._trouble == "change a seed":
            request = replace(request, seed=request.seed + 1)
        self._engine.add(ticket, request)

    def step(self):
        self._steps += 1
        if self._steps == 3:
            self._note.write_text(str(time.time()))
        if self._steps == 3 and self._trouble == "raise":
            raise RuntimeError("The engine is out of memory.")
        if self._steps == 3 and self._trouble == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return self._engine.step()


def make_trouble(trouble, rank, ranks_per_engine, note):
    """Make the engine of a rank fail, and let ranks share engines. Write the time of the failure to `note`."""
    opened = _trl.open_engine

    @contextmanager
    def open_engine(trainer, snapshots=None):
        with opened(trainer, snapshots) as engine:
            yield TroubledEngine(engine, trouble, note) if trainer.accelerator.process_index == rank else engine

    _trl.open_engine = open_engine
    _trl.ranks_per_engine = lambda trainer: ranks_per_engine


def play(run, folder):
    """Run one run, and write its results."""
    if "trouble" in run:
        make_trouble(*run["trouble"], note=folder / "trouble")
    if run["config"].get("vllm_mode") == "server":
        use_gloo = importlib.import_module("vllm_on_cpu.trainer").use_gloo
        use_gloo()
    if "patience" in run:
        vllm_generation.PATIENCE = run["patience"]
    if run.get("plain"):
        return play_plainly(run, folder)
    callbacks = [KillAt(run["kill_at"])] if run.get("kill_at") else []
    if "steps" in run:
        callbacks.append(StepLog(folder / f"{run['steps']}_{os.environ.get('RANK', 0)}"))
    if "signal_at" in run and run["signal_at"][0] == int(os.environ.get("RANK", 0)):
        callbacks.append(SignalAt("on_step_begin", *run["signal_at"][1:]))
    if "hang_at" in run:
        callbacks.append(HangAt(run["hang_at"]))
    trainer = RecordingTrainer(
        model=run["model"],
        args=config(**run["config"]),
        games=games(run["games"]),
        callbacks=callbacks,
        peft_config=lora(**run["lora"]) if "lora" in run else None,
    )
    rank = trainer.accelerator.process_index
    if "killer" in run:
        killer = RandomKiller(run["killer"], folder / f"note_{rank}", rank, trainer.accelerator.num_processes)
        trainer.add_callback(killer)
        trainer.pool.add = killer.watch(trainer.pool.add, 0.03)
        trainer._save_checkpoint = killer.watch(trainer._save_checkpoint, 0.1)
    trainer.train(resume_from_checkpoint=run.get("resume"))
    result = {
        "history": history(trainer),
        "transcripts": trainer.transcripts,
        "estimator": trainer.rollout.estimator.state_dict(),
        "pool": trainer.pool.state_dict() if trainer.pool else None,
        "weights": digest(trainer.model),
    }
    (folder / f"{run['name']}_{rank}.json").write_text(json.dumps(result))
    (folder / f"{run['name']}_{rank}.pkl").write_bytes(pickle.dumps(trainer.batches))


def plain_trainer(model, output_dir, names, **changes):
    """Return a `GRPOTrainer` with sixteen rows per batch from a `SelfPlayRollout`, and that rollout."""
    rollout = SelfPlayRollout(games(names), estimator=ReturnsOnly())
    settings = dict(
        output_dir=str(output_dir),
        per_device_train_batch_size=16,
        num_generations=16,
        scale_rewards="none",
        loss_type="dr_grpo",
        max_completion_length=8,
        learning_rate=1e-3,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        rollout_func=rollout,
        reward_funcs=rollout.reward_func,
        train_dataset=rollout.dataset(64),
        args=GRPOConfig(**{**settings, **changes}),
    )
    return trainer, rollout


def play_plainly(run, folder):
    """Run one run with a plain `GRPOTrainer`, and write its results."""
    trainer, _ = plain_trainer(run["model"], names=run["games"], **run["config"])
    trainer.train()
    (folder / f"{run['name']}_0.json").write_text(json.dumps({"history": history(trainer)}))
    (folder / f"{run['name']}_0.pkl").write_bytes(pickle.dumps([]))


def main(path):
    for run in json.loads(Path(path).read_text()):
        play(run, Path(path).parent)


if __name__ == "__main__":
    main(sys.argv[1])
