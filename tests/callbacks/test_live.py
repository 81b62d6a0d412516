"""The live view: on a recorded terminal, without a terminal, and in a real run."""

import io
import logging
import re
import sys
import warnings
from types import SimpleNamespace

import pytest
from rich.console import Console
from transformers import ProgressCallback, TrainerCallback

from tests.helpers.toy_games import SumGame
from tests.helpers.training_runs import config
from trl_spiral import SelfPlayRollout, SpiralTrainer
from trl_spiral.callbacks import CollapseCallback, LiveCallback, SelfPlayProgressCallback
from trl_spiral.selfplay.batch import Batch
from trl_spiral.types import Ending, Episode


LOGS = {
    "loss": 0.125,
    "selfplay/games": 40.0,
    "selfplay/illegal_rate": 0.05,
    "selfplay/entropy": 0.75,
    "selfplay/reply_length": 12.0,
    **{f"selfplay/Three/seat{seat}/win": share for seat, share in enumerate((0.5, 0.3, 0.1))},
    **{f"selfplay/Three/seat{seat}/draw": 0.1 for seat in range(3)},
}
WROTE = "say \x1b[2J[red]no[/red]\nmore"
EPISODE = Episode(
    "Three", 0, ("policy", "random", "random"), (), (1.0, -0.5, -0.5), Ending.FINISHED, moves=((0, WROTE),)
)
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def terminal(**options):
    return Console(file=io.StringIO(), force_terminal=True, width=110, height=40, **options)


def plain(console):
    """Return the written text without control sequences for position and colour."""
    return CONTROL.sub("", console.file.getvalue().replace("\r", "\n"))


class Bare:
    """The attributes of a trainer that the view reads."""

    def __init__(self, first=True):
        self.callback_handler = SimpleNamespace(callbacks=[])
        self.rollout_func = SelfPlayRollout("TicTacToe-v0")
        self.accelerator = SimpleNamespace(num_processes=2)
        self.state = SimpleNamespace(global_step=3, max_steps=9, log_history=[], is_world_process_zero=first)


@pytest.fixture
def begin():
    begun = []

    def begin(console, trainer=None):
        trainer = trainer or Bare()
        live = LiveCallback(trainer, console)
        begun.append(live)
        live.on_train_begin(None, trainer.state, None)
        return live, trainer

    yield begin
    for live in begun:
        live.close()


class TestOnATerminal:
    def test_shows_results_by_game_and_seat_numbers_speed_and_the_last_game(self, begin):
        console = terminal()
        live, trainer = begin(console)
        trainer.rollout_func.collector.episodes = 20
        trainer.rollout_func.batch = Batch(episodes=[EPISODE])
        live.on_log(None, trainer.state, None, logs=LOGS)
        live.on_train_end(None, trainer.state, None)
        shown = plain(console).rpartition("╭")[2]

        assert re.search(r"step 3 of 9, \d+\.\d games per second", shown)
        for seat, win in enumerate(("50%", "30%", "10%")):
            assert re.search(rf"Three +{seat} +{win} +10% ", shown)
        assert "tokens per reply 12  entropy 0.75  illegal 5.0%  loss 0.125" in shown
        # Text of a model is shown without control characters.
        assert (
            "last game, policy, random, random at Three: finished, returns 1, -0.5, -0.5: 0:say �[2J[red]no[/red] more"
            in shown
        )
        assert "\x1b[2J" not in console.file.getvalue()

    def test_shows_warnings(self, begin):
        console = terminal()
        live, trainer = begin(console)
        for rate in (0.0, 0.0, 0.0, 0.9, 0.9):
            live.on_log(None, trainer.state, None, logs={**LOGS, "selfplay/illegal_rate": rate})
        live.close()

        assert "step 3: 90% of the games end by an illegal move" in plain(console).rpartition("╭")[2]

    def test_other_output_appears_above_the_view(self, begin, monkeypatch):
        console = terminal()
        for name in ("stdout", "stderr"):
            # On a terminal, both streams share the screen.
            stream = io.StringIO()
            stream.isatty = lambda: True
            monkeypatch.setattr(sys, name, stream)
        handler = logging.StreamHandler(sys.stderr)
        own = logging.getLogger("test_live")
        own.addHandler(handler)
        live, trainer = begin(console)
        try:
            sys.stdout.write("a printed line\n")
            own.warning("a logged line")
            sys.stderr.write(warnings.formatwarning("a warning", UserWarning, "file.py", 1))
            live.on_step_end(None, trainer.state, None)
            live.close()
            lines = plain(console).splitlines()
        finally:
            own.removeHandler(handler)

        assert "a printed line" in lines
        assert "a logged line" in lines
        assert "file.py:1: UserWarning: a warning" in lines
        assert handler.stream is sys.stderr
        assert isinstance(sys.stderr, io.StringIO), "it is the original stream"

    def test_logging_to_a_file_stays_in_the_file(self, begin, tmp_path):
        handler = logging.FileHandler(tmp_path / "log")
        own = logging.getLogger("test_live")
        own.addHandler(handler)
        try:
            begin(terminal())
            own.warning("a logged line")
        finally:
            own.removeHandler(handler)
            handler.close()

        assert (tmp_path / "log").read_text() == "a logged line\n"

    def test_restores_the_terminal(self, begin):
        console = terminal()
        before = sys.stdout
        live, trainer = begin(console)
        assert sys.stdout is not before
        live.close()
        live.close()

        assert sys.stdout is before
        assert console.file.getvalue().rstrip("\n").endswith("\x1b[?25h"), "the cursor is shown again"


class TestElsewhere:
    def test_prints_plain_lines_without_a_terminal(self, begin):
        console = Console(file=io.StringIO())
        live, trainer = begin(console)
        for rate in (0.0, 0.0, 0.0, 0.9, 0.9):
            live.on_log(None, trainer.state, None, logs={**LOGS, "selfplay/illegal_rate": rate})
        live.on_log(None, trainer.state, None, logs={"train_runtime": 3.0})
        live.on_train_end(None, trainer.state, None)
        lines = console.file.getvalue().splitlines()

        assert lines[:3] == ["step    3  loss 0.125  illegal 0.0%  entropy 0.75"] * 3
        assert lines[3:5] == ["step    3  loss 0.125  illegal 90.0%  entropy 0.75"] * 2
        assert [line.partition(" of the games")[0] for line in lines[5:]] == ["warning: 90%"]
        assert "\x1b" not in console.file.getvalue()

    def test_does_not_repeat_warnings_of_the_collapse_callback(self, begin):
        console = Console(file=io.StringIO())
        trainer = Bare()
        trainer.callback_handler.callbacks.append(CollapseCallback(trainer))
        live, _ = begin(console, trainer)
        for rate in (0.0, 0.0, 0.0, 0.9, 0.9):
            live.on_log(None, trainer.state, None, logs={**LOGS, "selfplay/illegal_rate": rate})

        assert len(live.monitor.warnings) == 1
        assert "warning" not in console.file.getvalue()

    def test_other_ranks_print_nothing(self, begin):
        console = terminal()
        live, trainer = begin(console, Bare(first=False))
        live.on_log(None, trainer.state, None, logs=LOGS)
        live.on_train_end(None, trainer.state, None)

        assert console.file.getvalue() == ""


class Talker(TrainerCallback):
    """Print a line at each step."""

    def on_step_end(self, args, state, control, **kwargs):
        sys.stdout.write(f"step {state.global_step} is over\n")


class TestInARun:
    def test_shows_the_results_of_a_run(self, model_dir, tmp_path):
        settings = config(tmp_path, max_steps=8, disable_tqdm=False)
        trainer = SpiralTrainer(model=model_dir, args=settings, games=[SumGame()], callbacks=[Talker()])
        trainer.add_callback(SelfPlayProgressCallback)
        console = terminal()
        trainer.add_callback(LiveCallback(trainer, console))
        trainer.train()
        shown = plain(console)
        last = shown.rpartition("╭")[2]

        assert not any(isinstance(one, ProgressCallback) for one in trainer.callback_handler.callbacks)
        assert [f"step {step} is over" in shown.splitlines() for step in range(1, 9)] == [True] * 8
        assert re.search(r"step 8 of 8, \d+\.\d games per second", last)
        assert len(re.findall(r"Sum-v0 +[01] +\d+% +\d+% +\d+% +\d+%", last)) == 2
        assert re.search(r"last game, policy, policy at Sum-v0: [a-z_]+, returns ", last)

    def test_restores_the_terminal_if_training_fails(self, model_dir, tmp_path):
        class Failing(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                raise RuntimeError("out of luck")

        trainer = SpiralTrainer(model=model_dir, args=config(tmp_path), games=[SumGame()], callbacks=[Failing()])
        live = LiveCallback(trainer, terminal())
        trainer.add_callback(live)
        before = sys.stdout
        with pytest.raises(RuntimeError, match="out of luck"):
            trainer.train()
        live.close()

        assert sys.stdout is before
