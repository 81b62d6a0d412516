"""A live view of training in the terminal."""

from __future__ import annotations

import atexit
import logging
import sys
import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from trl_spiral.callbacks.monitoring import CollapseCallback
from trl_spiral.callbacks.progress import progress_line
from trl_spiral.callbacks.trainer_policy import episodes_started, latest_batch
from trl_spiral.selfplay.monitoring import CollapseMonitor, CollapseWarning
from trl_spiral.text.printable import one_line
from trl_spiral.types import FORFEITS, Episode


_NUMBERS = (
    ("selfplay/turns_per_game", "turns per game", "{:.1f}"),
    ("selfplay/reply_length", "tokens per reply", "{:.0f}"),
    ("selfplay/entropy", "entropy", "{:.2f}"),
    ("selfplay/illegal_rate", "illegal", "{:.1%}"),
    ("selfplay/truncated_rate", "truncated", "{:.1%}"),
    ("loss", "loss", "{:.3f}"),
    ("pool/rating/policy", "rating", "{:.0f}"),
)
_OUTCOMES = ("win", "draw", "loss", *FORFEITS)
_MOST_WARNINGS = 3  # the latest ones: a view higher than the terminal loses its last lines


class LiveCallback(TrainerCallback):
    """
    Shows training in the terminal, in place: speed, results by game and seat, signs of collapse, the last game.

    It replaces the progress bars that the trainer has when it is made. Other output (logging, `print`, warnings)
    appears above it. Only the first rank shows anything. If standard output is not a terminal, it prints one plain
    line per log entry instead, and one per warning unless a [`CollapseCallback`] does.

    Args:
        trainer ([`~transformers.Trainer`]):
            Trainer to show.
        console ([`~rich.console.Console`], *optional*):
            Console to draw on. Default: standard output.
    """

    def __init__(self, trainer: Trainer, console: Console | None = None) -> None:
        self.trainer = trainer
        self.console = console or Console()
        self.monitor = CollapseMonitor()
        self._live: Live | None = None
        self._handlers: list[tuple[logging.StreamHandler, Any]] = []
        self._numbers: dict[str, float] = {}
        self._speed: float | None = None
        self._counted = (0.0, 0)
        for callback in list(trainer.callback_handler.callbacks):
            if isinstance(callback, ProgressCallback | PrinterCallback):
                trainer.remove_callback(callback)

    # ---- events ----
    def on_train_begin(self, args, state, control, **kwargs):
        self.close()
        self.monitor, self._numbers, self._speed = CollapseMonitor(), {}, None
        for entry in state.log_history:
            self._read(entry.get("step", 0), entry)
        self._counted = time.monotonic(), episodes_started(self.trainer)
        if state.is_world_process_zero and self.console.is_terminal:
            self._open(state)

    def on_step_end(self, args, state, control, **kwargs):
        self._refresh(state)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or not logs:
            return
        new = self._read(state.global_step, logs)
        if "selfplay/games" in logs:
            self._measure_speed()
        self._refresh(state)
        if self._live is None:
            # Not before: it may have been added after this callback.
            is_watched = any(isinstance(one, CollapseCallback) for one in self.trainer.callback_handler.callbacks)
            warnings = [] if is_watched else [f"warning: {warning.sentence}" for warning in new]
            lines = [progress_line(state.global_step, logs), *warnings]
            for line in filter(None, lines):
                self.console.print(Text(one_line(line)), soft_wrap=True)

    def on_train_end(self, args, state, control, **kwargs):
        self._refresh(state)
        self.close()

    # ---- the terminal ----
    def _open(self, state) -> None:
        before = sys.stdout, sys.stderr
        self._live = Live(
            self._view(state),
            console=self.console,
            auto_refresh=False,  # steps and log entries refresh it
            redirect_stderr=sys.stderr.isatty(),  # output to a file stays in the file
        )
        self._live.start()
        # Logging handlers keep the original streams, and would write into the middle of the view.
        for known in [logging.getLogger(), *logging.root.manager.loggerDict.values()]:
            for handler in getattr(known, "handlers", []):
                if isinstance(handler, logging.StreamHandler) and handler.stream in before:
                    self._handlers.append((handler, handler.stream))
                    handler.setStream(sys.stdout if handler.stream is before[0] else sys.stderr)
        atexit.register(self.close)  # shows the cursor again if a run fails before `on_train_end`

    def close(self) -> None:
        """Leave the last view on the screen and restore the terminal. Call it if training has failed."""
        if self._live is None:
            return
        for handler, stream in self._handlers:
            handler.setStream(stream)
        self._handlers = []
        self._live.stop()
        self._live = None
        atexit.unregister(self.close)

    def _refresh(self, state) -> None:
        if self._live is not None:
            self._live.update(self._view(state), refresh=True)

    # ---- contents ----
    def _read(self, step: int, logs: dict[str, Any]) -> list[Any]:
        self._numbers |= {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        return self.monitor.observe(step, logs)

    def _warnings(self) -> list[CollapseWarning]:
        """Return the warnings so far: those of the trainer's own monitor, where it has one."""
        watching = [one for one in self.trainer.callback_handler.callbacks if isinstance(one, CollapseCallback)]
        return (watching[0] if watching else self).monitor.warnings

    def _measure_speed(self) -> None:
        """Measure games per second on all ranks since the last entry, from the games of this rank."""
        (then, before), now, games = self._counted, time.monotonic(), episodes_started(self.trainer)
        if games > before and now > then:
            self._speed = (games - before) * self.trainer.accelerator.num_processes / (now - then)
        self._counted = now, games

    def _view(self, state) -> Panel:
        title = f"step {state.global_step} of {state.max_steps}"
        if self._speed is not None:
            title += f", {self._speed:.1f} games per second"
        parts = [self._results(), self._line()]
        parts += [Text(one_line(f"step {w.step}: {w.sentence}"), "yellow") for w in self._warnings()[-_MOST_WARNINGS:]]
        if episodes := latest_batch(self.trainer).episodes:
            parts.append(_last_game(episodes[-1]))
        return Panel(Group(*parts), title=title, title_align="left")

    def _results(self) -> Table:
        table = Table("game", "seat", box=None, padding=(0, 2, 0, 0))
        for outcome in _OUTCOMES:
            table.add_column(outcome, justify="right")
        seats = sorted(name.rsplit("/", 2)[0:2] for name in self._numbers if _is_win(name))
        for game, seat in seats:
            shares = [self._numbers.get(f"{game}/{seat}/{outcome}") for outcome in _OUTCOMES]
            shown = ["" if share is None else f"{share:.0%}" for share in shares]
            table.add_row(Text(one_line(game.removeprefix("selfplay/"))), seat.removeprefix("seat"), *shown)
        return table

    def _line(self) -> Text:
        shown = [f"{label} {form.format(self._numbers[key])}" for key, label, form in _NUMBERS if key in self._numbers]
        return Text("  ".join(shown) or "waiting for the first log entry", "dim" if not shown else "")


def _is_win(name: str) -> bool:
    return name.startswith("selfplay/") and name.endswith("/win") and name.count("/seat") == 1


def _last_game(episode: Episode) -> Text:
    """Return the moves and the ending of an episode in one line."""
    moves = " ".join(f"{seat}:{move}" for seat, move in episode.moves)
    returns = ", ".join(f"{gain:g}" for gain in episode.returns)
    players = ", ".join(episode.players)
    line = f"last game, {players} at {episode.game}: {episode.ending}, returns {returns}: {moves}"
    return Text(one_line(line), "dim", no_wrap=True, overflow="ellipsis")
